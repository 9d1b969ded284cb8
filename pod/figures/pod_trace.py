"""Tickets on a real GPU: on how many SMs prefill and decode meet, over time, by who chooses and how."""

from __future__ import annotations

from pod.data import read
from pod.figures import Figure

FIGURE = Figure(
    id="pod-trace",
    source="This repository",
    title="On how many SMs prefill and decode meet, and when",
    chapter="06",
    method="One traced launch each, cold L2. 3K prompt beside 40 x 4K, 16/4 heads, bf16; every CTA stamps its ends.",
    state="recorded",
    data=("pod-trace",),
)
LABELS = {
    "serial": "serial",
    "cta": "CTA-parallel",
    "even2": "SM-aware, 50:50",
    "prop2": "SM-aware, proportional",
    "even4": "SM-aware, 50:50",
    "prop4": "SM-aware, proportional",
}
PANELS = {"2 CTAs on an SM": ("serial", "cta", "even2", "prop2"), "4 CTAs on an SM": ("even4", "prop4")}


def named(rows):
    """Rows of the recording as a trace: operations by name, and the end of every CTA."""
    from pod.schedule.binding import OPS

    return rows.assign(op=[OPS[i] for i in rows.op], start=rows.start_us, end=rows.start_us + rows.us)


def traces() -> dict:
    """The trace of each run."""
    rows = named(read("pod-trace"))
    return {run: mine.reset_index(drop=True) for run, mine in rows.groupby("run", sort=False)}


def table():
    """One row a run and moment at which the number of SMs that hold both changes."""
    import pandas as pd

    from pod.trace import both_over_time

    rows = [
        (run, time, sms)
        for run, trace in traces().items()
        for time, sms in zip(*both_over_time(trace), strict=True)
    ]  # fmt: skip
    df = pd.DataFrame(rows, columns=["run", "us", "sms"])
    return df[(df.sms != df.groupby("run").sms.shift()) | ~df.duplicated("run", keep="last")].reset_index(drop=True)


def summary():
    """One row a run: its time, SMs that ever held both, how many did on average, and the CTAs that had to ask twice."""
    import pandas as pd

    from pod.trace import both_share, held_both

    rows = {}
    for run, trace in traces().items():
        sms = trace.sm.nunique()
        rows[run] = [LABELS[run], 4 if run in PANELS["4 CTAs on an SM"] else 2, trace.end.max(), held_both(trace),
                     sms * both_share(trace), int((trace.draws == 2).sum())]  # fmt: skip
    columns = ["method", "CTAs on an SM", "µs", "SMs that held both", "on average", "asked twice"]
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns).set_index("method")


def met_everywhere() -> float:
    """Percent of the SMs that held both at some time, under the proportional policy."""
    from pod.trace import held_both

    trace = traces()["prop2"]
    return 100 * held_both(trace) / trace.sm.nunique()


def over_index() -> float:
    """SMs that hold both, on average over time: the proportional policy over the choice by block index."""
    from pod.trace import both_share

    made = traces()
    return both_share(made["prop2"]) / both_share(made["cta"])


def draw(df):
    from pod.show import style

    colours = {"serial": style.FRAME, "cta": style.WORKERS[4], "even2": style.INK, "prop2": style.WORKERS[2]}
    colours |= {"even4": style.INK, "prop4": style.WORKERS[2]}
    axes = style.axes(10.5, 3.4, columns=2, sharex=True, sharey=True)
    for ax, (title, runs) in zip(axes, PANELS.items(), strict=True):
        for run in runs:
            mine = df[df.run == run]
            ax.step(mine.us, mine.sms, where="post", color=colours[run], linewidth=1.6,
                    label=f"{LABELS[run]}: {mine.us.max():.0f} µs")  # fmt: skip
        ax.set_title(title, fontsize=10)
        ax.set(xlabel="time, µs", xlim=(0, None), ylim=(0, 210), yticks=(0, 33, 66, 99, 132))
        style.legend(ax, loc="upper right")
    axes[0].set_ylabel("SMs that hold both")
    return axes[0].figure
