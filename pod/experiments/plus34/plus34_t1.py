"""The ladder: requests per second after each change, then and now; and every combination of the changes.

Measured: 100 consecutive iterations of the ladder's run, executed, for the first and the last variant of the post.
"""

import time
from functools import lru_cache, partial
from itertools import combinations

import pandas as pd

from pod.data import card, read
from pod.experiments.plus34 import plus34_04, shared, vllm_ladder
from pod.hardware import H200
from pod.lab import paper
from pod.lab.figure import Figure
from pod.lab.show import style
from pod.serving import vllm2023
from pod.serving.shapes import shape
from pod.serving.step import predicting
from pod.serving.vllm2023 import LADDER

FIGURE = Figure(
    title="The ladder of four throughputs",
    chapter="16",
    method="1,000 chats on LLaMA-13B (random weights): left the rungs, run whole; right every combination, a sample of "
    "its iterations executed, the others estimated. The post: ShareGPT, A100-80GB.",
    data=("vllm-run", "vllm-ladder", "vllm-stretch", "vllm-plan"),
    composed=True,
)
RECORDING = "vllm-stretch"
KEYS, WHOLE = ("kernel", "sampler", "iteration"), ("kernel", "sampler")
UNITS, TIMER, L2, REPEATS = vllm_ladder.UNITS, "host clock from one submitted batch to the next", "warm", 1
FIRST, COUNT = 700, 100
VARIANTS = (vllm2023.LADDER["clean"], vllm2023.LADDER["one copy"])


def cases() -> list[dict]:
    return [{"kernel": kernel, "sampler": sampler, "iteration": i}
            for kernel, sampler in VARIANTS for i in range(FIRST, FIRST + COUNT)]  # fmt: skip


def measure(case: dict) -> dict:
    return {"ms": _run(case["kernel"], case["sampler"])[int(case["iteration"])]}


@lru_cache
def _run(kernel: str, sampler: str) -> dict[int, float]:
    stretch = Stretch(vllm_ladder.lab(), (kernel, sampler))
    vllm_ladder.plan(stretch)
    ends = stretch.times
    return {FIRST + i: round(1e3 * (b - a), 4) for i, (a, b) in enumerate(zip(ends, ends[1:], strict=False))}


class Stretch:
    """An executor that really runs the iterations of the stretch, and none of the others."""

    def __init__(self, place: vllm_ladder.Lab, variant: tuple[str, str]):
        self.lab, self.pool, self.engine, self.count, self.times = place, place.pool, place.engines[variant], 0, []
        place.write_texts(vllm2023.chats())

    def submit(self, batch, event) -> float:
        if FIRST <= self.count <= FIRST + COUNT:
            self.times.append(time.perf_counter())
        if FIRST <= self.count < FIRST + COUNT:
            self.engine.submit(batch, event)
        else:
            for request in predicting(batch):
                self.lab.texts[request.id].append(0)
        self.count += 1
        return event.scheduled + 1.0


# ---------------------------------------------------------------- what it shows

STATED = ("base", "smem", "multinomial", "copies")  # of data/paper/plus34.csv, in the ladder's order
KERNEL = {"registers": "query in registers", "shared": "query in shared memory", "hopper": "Hopper decode"}


def table():
    """One row a combination of kernel and sampler: `s`, the seconds of the run as its sample estimates them. Where the
    ladder has it as a `rung`, the seconds of the whole run (`run_s`), its requests/s, and those of the post."""
    df = shared.totals().rename_axis(["kernel", "sampler"]).reset_index()
    rungs = {variant: rung for rung, variant in LADDER.items()}
    stated = {rung: paper.value(f"plus34.t1.{name}_requests") for rung, name in zip(LADDER, STATED, strict=True)}
    df["rung"] = [rungs.get(variant, "") for variant in zip(df.kernel, df["sampler"], strict=True)]
    run = read("vllm-run").set_index("rung")
    df["run_s"], df["requests_s"] = df.rung.map(run.seconds), df.rung.map(run.requests_s)
    df["post_requests_s"] = df.rung.map(stated)
    first = df[df.rung == "clean"].iloc[0]
    df["gain"], df["post_gain"] = df.requests_s / first.requests_s, df.post_requests_s / first.post_requests_s
    return df.sort_values("s", ascending=False, kind="stable", ignore_index=True)


TOGETHER = {"loop": (0, 0), "loop, packed": (0, 1), "batched": (1, 0), "packed": (1, 1)}  # draw, read
CHANGES = ("share the query", "draw together", "read together")


def effects() -> pd.Series:
    """Seconds of the run, by the estimates: what each change does in the mean of its four pairs, and by how much two or
    three together move that from the mean (a factorial design)."""
    runs = table().query("kernel != 'hopper'")
    made = [(kernel == "shared", *TOGETHER[sampler]) for kernel, sampler in runs[["kernel", "sampler"]].values]
    signs = pd.DataFrame(made, index=runs.index, columns=CHANGES).astype(int) * 2 - 1
    some = [names for n in (1, 2, 3) for names in combinations(CHANGES, n)]
    each = {" x ".join(names): (runs.s * signs[list(names)].prod(axis=1)).sum() / 4 for names in some}
    return pd.Series(each, name="seconds")


def with_loads_in_turn() -> pd.DataFrame:
    """Throughput over clean, a row a rung: estimated with a kernel whose loads wait for each other, estimated as the
    kernel was built, and run whole.

    Of a run, attention takes the bytes of its cache over the rate of each kernel on 256 equal chats.
    """
    cache_bytes = sum(i.decode_context for i in vllm_ladder.plan().iterations) * shape("llama-13b").kv_bytes_per_token
    rates = plus34_04.table().query("batch == '256 x 512'").set_index("kernel").dram / 100 * H200.dram_bytes_per_s
    attention, df = cache_bytes / rates, table()
    whole = df[df.rung != ""].set_index("rung").gain
    built = df[df.kernel != "hopper"].set_index(["kernel", "sampler"]).s
    slow = pd.Series({(k, s): built[k, s] + attention[f"{k}_in_turn"] - attention[k] for k, s in built.index})
    ways = {"loads in turn, estimated": slow, "as built, estimated": built}
    gains = {way: [s[LADDER["clean"]] / s[variant] for variant in LADDER.values()] for way, s in ways.items()}
    return pd.DataFrame(gains, index=list(LADDER)).assign(**{"as built, run whole": whole})


def draw(df):
    left, right = style.axes(9.5, 3.9, columns=2, gridspec_kw={"width_ratios": (1, 1.25)})
    rungs = df[df.rung != ""].set_index("rung").loc[list(LADDER)]
    for i, (_, row) in enumerate(rungs.iterrows()):
        for j, (gain, rate, tone) in enumerate(((row.post_gain, row.post_requests_s, style.FRAME),
                                                (row.gain, row.requests_s, style.WORKERS[0]))):  # fmt: skip
            left.barh(i + 0.2 * (2 * j - 1), gain, 0.36, color=tone, label=("the post, A100", f"here, {card()}")[j])
            left.text(gain + 0.03, i + 0.2 * (2 * j - 1), f"{gain:.2f}x  ({rate:.2f}/s)", va="center", fontsize=8.5)
    names = [("+ " if i else "") + rung for i, rung in enumerate(LADDER)]
    left.set_yticks(range(len(rungs)), names, fontsize=9)
    left.set(xlim=(0, 1.55 * max(rungs.gain.max(), rungs.post_gain.max())), ylim=(len(rungs) - 0.5, -0.5))
    left.set(xlabel="throughput over clean, run whole")
    style.legend(left, loc="lower left", bbox_to_anchor=(-0.2, 1.0), ncols=2)
    df = _by_change(df)
    places = [i + 0.5 * (i // 2) for i in range(len(df))]  # pairs that differ in the kernel stand together
    for y, row in zip(places, df.itertuples(), strict=True):
        right.barh(y, row.model_s, 0.8, color=shared.MODEL, label="until the model is done")
        right.barh(y, row.sampler_s, 0.8, left=row.model_s, color=shared.SAMPLER, label="sampler")
        right.text(row.s + 0.01 * df.s.max(), y, f"{row.s:.0f} s", va="center", fontsize=8.5)
    right.set_yticks(places, [f"{KERNEL[k]}; {s}" for k, s in zip(df.kernel, df["sampler"], strict=True)],
                     fontsize=8.5)  # fmt: skip
    right.set(xlim=(0, 1.12 * df.s.max()), ylim=(places[-1] + 0.6, -0.6), xlabel="seconds for 1,000 chats, estimated")
    style.legend(right, loc="lower left", bbox_to_anchor=(-0.75, 1.0), ncols=2)
    return left.figure


def draw_interaction(df):
    """Seconds of the run over how tokens are drawn, a line for how they are read. Dotted: the lower line, if reading
    together saved as much there as where tokens are drawn one by one. Solid is the query in registers, pale in shared
    memory."""
    ax, seconds = style.axes(7.5, 3.2), df.set_index(["kernel", "sampler"]).s
    ways = {"read one by one": (("loop", "batched"), style.WORKERS[1]),
            "read together": (("loop, packed", "packed"), style.WORKERS[0])}  # fmt: skip
    for kernel, alpha in (("shared", 0.35), ("registers", 1.0)):
        for words, (samplers, tone) in ways.items():
            y = [seconds[kernel, each] for each in samplers]
            ax.plot((0, 1), y, "o-", color=tone, alpha=alpha, linewidth=2, label=words if alpha == 1 else None)
            if alpha == 1:
                ax.text(1.16, y[1], words, color=tone, va="center", fontsize=9.5)
    first, second, third, last = (seconds["registers", each] for each in TOGETHER)
    ax.plot((0, 1), (second, third - first + second), ":", color=style.INK, linewidth=1.2)
    ax.text(1.16, third - first + second, "parallel to the upper line", va="center", fontsize=9)
    for x, high, low in ((0, first, second), (1, third, last)):
        side = -1 if x == 0 else 1
        ax.annotate(
            "",
            (x + 0.05 * side, low),
            (x + 0.05 * side, high),
            arrowprops={"arrowstyle": "<->", "shrinkA": 0, "shrinkB": 0},
        )
        ax.text(x + 0.08 * side, (high + low) / 2, f"{high - low:.0f} s", ha="right" if x == 0 else "left", va="center",
                fontsize=9.5)  # fmt: skip
    ax.set(xticks=(0, 1), xticklabels=("drawn one by one", "drawn together"), xlim=(-0.35, 1.75), ylim=(50, 100),
           ylabel="seconds for 1,000 chats,\nestimated")  # fmt: skip
    return ax.figure


def _by_change(df):
    """The samplers by drawing and reading, in each the kernels side by side; the kernel of today last."""
    kernels, samplers = list(KERNEL), list(TOGETHER)
    place = df.kernel.map(kernels.index) + 10 * df["sampler"].map(samplers.index) + 100 * (df.kernel == "hopper")
    return df.loc[place.sort_values(kind="stable").index]


# ---------------------------------------------------------------- what claims ask for


def _seconds(kernel: str, sampler: str, column: str = "s") -> float:
    return float(table().set_index(["kernel", "sampler"])[column][kernel, sampler])


def _gain(rung: str) -> float:
    """Of a whole run over the first."""
    return float(table().set_index("rung").gain[rung])


def chats() -> int:
    return int(read("vllm-run").requests.iloc[0])


total_gain = partial(_gain, "one copy")


def executed() -> int:
    """Iterations that each variant executed."""
    return shared.ladder().iteration.nunique()


def iterations() -> int:
    """Of the whole run."""
    return len(shared.iterations())


query_gain = partial(_gain, "query in shared memory")
multinomial_gain = partial(_gain, "one multinomial")


def sampler_share() -> float:
    """Of the clean run, %."""
    return 100 * _seconds("registers", "loop", "sampler_s") / _seconds("registers", "loop")


def python_over_kernel() -> float:
    """The sampler's changes alone, over the kernel's alone."""
    clean = _seconds("registers", "loop")
    return clean / _seconds("registers", "packed") / (clean / _seconds("shared", "loop"))


def savings_add() -> float:
    clean = _seconds("registers", "loop")
    alone = clean - _seconds("shared", "loop") + clean - _seconds("registers", "packed")
    return alone / (clean - _seconds("shared", "packed"))


def today() -> float:
    return _seconds("shared", "packed") / _seconds("hopper", "packed")


def stretch():
    """The iterations that were executed in a row: milliseconds each, executed and as the sample estimates them."""
    ladder, out = read("vllm-ladder"), read("vllm-stretch")
    for (kernel, sampler), part in out.groupby(["kernel", "sampler"]):
        sample = ladder[(ladder.kernel == kernel) & (ladder["sampler"] == sampler)].set_index("iteration")
        estimated = shared.whole_run(sample[["ms", "loop_ms"]]).sum(axis=1)
        out.loc[part.index, "estimated_ms"] = estimated[part.iteration].to_numpy()
    return out


def run_over_estimated() -> float:
    """Seconds of a whole run over those that its sample estimates, of the rung where the two differ more."""
    df = table().dropna(subset="run_s")
    return float(max(df.run_s / df.s, key=lambda ratio: abs(ratio - 1)))


def executed_over_estimated() -> float:
    """Of the variant for which the two differ more."""
    sums = stretch().groupby(["kernel", "sampler"])[["ms", "estimated_ms"]].sum()
    return float(max(sums.ms / sums.estimated_ms, key=lambda ratio: abs(ratio - 1)))
