"""What is left between two forward passes: one small copy after the other, or one for all."""

from pod.experiments.plus34 import shared
from pod.lab.figure import Figure
from pod.lab.show import style

FIGURE = Figure(
    title="The small copies that remain",
    chapter="16",
    method="torch.profiler, the first 0.8 ms after the model's last kernel; a line is a copy from the GPU to the host.",
    data=("vllm-timeline", "vllm-ladder", "vllm-plan"),
)
SHOWN = ("query in shared memory", "one multinomial", "one copy")


def table():
    """One row a rung and bin of 2 µs: GPU at work, host waiting, and the copies that begin in it."""
    return shared.profile(*SHOWN, view="zoom")


def draw(df):
    whole = shared.summary(shared.profile(*SHOWN))
    axes = style.axes(9.5, 0.7 + 1.35 * len(SHOWN), rows=len(SHOWN), sharex=True)
    for ax, rung in zip(axes, SHOWN, strict=True):
        part = df[df.rung == rung]
        kernels, copies = (int(whole[column][rung]) for column in ("sampler_kernels", "copies"))
        shared.strip(ax, part, f"{rung}: {kernels:,} kernels and copies after the model, {copies} of them to the host")
        begun = part[part.copies_begun > 0]
        middle = (begun.start_us + begun.width_us / 2) / 1e3
        ax.vlines(middle, 0, 1.05, color=style.INK, linewidth=1, label="copy to host")
    axes[-1].set_xlabel("time after the model's last kernel, ms")
    marks, words = axes[-1].get_legend_handles_labels()
    shown = {name: mark for name, mark in zip(words, marks, strict=True) if name != "model"}  # which is over
    axes[-1].legend(shown.values(), shown, loc="upper right", ncols=3, frameon=False, fontsize=9)
    return axes[0].figure
