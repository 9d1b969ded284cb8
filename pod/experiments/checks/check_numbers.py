"""Do the sources agree with themselves? Stated numbers, computed again from other numbers of the same source."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from math import inf

import pandas as pd
from matplotlib import pyplot as plt

from pod.lab import paper, registry
from pod.lab.figure import Figure
from pod.lab.show import style

FIGURE = Figure(
    title="Do the papers and posts agree with themselves?",
    says="Most of what the sources print agrees with itself, and some does not",
    chapter="00",
    method="Each stated number computed again from other printed numbers of the same source; bars span their rounding.",
)
AGREES, ROUNDING, DIFFERS = "agrees", "within rounding", "differs"
LEGEND = {DIFFERS: "differ", ROUNDING: "agree within the rounding of what is printed"}
MEASURED = ("%", "x", "s", "ms", "of serial", "requests/s", "requests/min")  # printed rounded; counts are exact


@dataclass(frozen=True)
class Check:
    """`formula` of the numbers `of` must give the stated number: equal ("="), or at least (">") or at most ("<") it.

    of: ids separated by spaces, without the source, which is that of the stated number.
    """

    stated: str
    text: str
    formula: Callable[..., float]
    of: str
    relation: str = "="

    @property
    def inputs(self) -> list[str]:
        source = self.stated.split(".")[0]
        return [f"{source}.{name}" for name in self.of.split()]

    def outcome(self) -> dict:
        stated, inputs = paper.numbers()[self.stated], [paper.numbers()[i] for i in self.inputs]
        value = self.formula(*(n.value for n in inputs))
        corners = [self.formula(*c) for c in product(*(_rounded(n) for n in inputs))]
        low, high = min(corners), max(corners)
        return {"id": self.stated, "source": registry.SOURCES[self.stated.split(".")[0]], "where": stated.where,
                "statement": self.text, "relation": self.relation, "stated": stated.value, "recomputed": value,
                "low": low, "high": high, "unit": stated.unit, "from": ", ".join(self.inputs),
                "verdict": self._verdict(stated, value, low, high)}  # fmt: skip

    def _verdict(self, stated: paper.Number, value: float, low: float, high: float) -> str:
        half = _half_digit(stated)
        least, most = {"=": (-half, half), ">": (0, inf), "<": (-inf, 0)}[self.relation]
        least, most = stated.value + least - 1e-9, stated.value + most + 1e-9
        if least <= value <= most:
            return AGREES
        return ROUNDING if low <= most and least <= high else DIFFERS


def _half_digit(number: paper.Number) -> float:
    """Half of the last printed digit; counts are exact."""
    if number.unit not in MEASURED:
        return 0.0
    return 0.5 * 10.0 ** -len(number.printed.partition(".")[2])


def _rounded(number: paper.Number) -> set[float]:
    return {number.value - _half_digit(number), number.value + _half_digit(number)}


def _ratio(a, b):
    return a / b


def _times(a, b):
    return a * b


def _less(small, large):
    return 100 * (1 - small / large)


def _more(large, small):
    return 100 * (large / small - 1)


def _same(a):
    return a


def _of_all(system: str, metric: str) -> str:
    return " ".join(f"{load}.{system}.{metric}" for load in ("t4.1.1", "t4.1.2", "t5.0.85", "t5.0.95"))


def _pod() -> list[Check]:
    return [
        Check("pod.abstract.speedup_max", "largest speed-up, artifact's README", _same, "artifact.speedup_max"),
        Check("pod.abstract.speedup_mean", "mean speed-up, artifact's README", _same, "artifact.speedup_mean"),
        Check("pod.f01.decode_compute_util", "compute use of decode, 128 rows", _same, "f10.compute_util_128", "<"),
        Check("pod.f06.ctas_even", "CTAs of 54 decodes", _times, "f06.decodes_even f06.ctas_per_decode"),
        Check("pod.f06.ctas_odd", "CTAs of 55 decodes", _times, "f06.decodes_odd f06.ctas_per_decode"),
        Check("pod.f06.ctas_left", "CTAs beyond two a SM", lambda n, sms: n - 2 * sms, "f06.ctas_odd f06.sms"),
        Check("pod.f07.intra_over_cta", "intra-thread over CTAs by index", lambda a, b: _more(100 + a, 100 + b),
              "f07.intra_over_serial f07.cta_over_serial"),
        Check("pod.s5.arxiv_decode_more", "decode tokens, arXiv over internal", _more,
              "s5.arxiv_decode s5.internal_decode"),
        Check("pod.f15.example_prefill", "prefill tokens at P:D 10", lambda n, r: n * r / (r + 1),
              "f15.request_tokens f15.example_pd"),
        *(Check(f"pod.t7.{c}.{s}_ratio", f"Table 7, chunk {c}, {s} split", _ratio, f"t7.{c}.{s} t7.{c}.serial")
          for c in (28, 29, 30, 31) for s in ("vanilla", "limited")),
        Check("pod.t7.gain_ratio", "limited split 'nearly doubles' the time saved",
              lambda serial, vanilla, limited: (serial - limited) / (serial - vanilla),
              "t7.31.serial t7.31.vanilla t7.31.limited"),
    ]  # fmt: skip


def _pod_serving() -> list[Check]:
    return [
        Check("pod.s53.vllm_stalled", "vLLM: requests with a stall, least", min, _of_all("vllm", "stalls_500ms"), ">"),
        Check("pod.s532.vllm_stalled_500", "vLLM: stalls over 500 ms, least", min,
              _of_all("vllm", "stalls_500ms"), ">"),
        Check("pod.s532.sarathi_stalled", "Sarathi: requests with a stall, most", max,
              _of_all("sarathi", "stalls_200ms"), "<"),
        Check("pod.s532.tbt_p99_sarathi_max", "Sarathi: P99 TBT, largest", max, _of_all("sarathi", "tbt_p99"), "<"),
        Check("pod.s532.tbt_p99_sarathi_gain", "P99 TBT, vLLM over Sarathi, best", _ratio,
              "t4.1.2.vllm.tbt_p99 t4.1.2.sarathi.tbt_p99", ">"),
        Check("pod.s532.tbt_p99_pod_gain_low", "P99 TBT, POD under Sarathi, least", _less,
              "t4.1.2.pod.tbt_p99 t4.1.2.sarathi.tbt_p99"),
        Check("pod.s532.tbt_p99_pod_gain_high", "P99 TBT, POD under Sarathi, most", _less,
              "t5.0.85.pod.tbt_p99 t5.0.85.sarathi.tbt_p99"),
        Check("pod.s531.ttft_p99_gain_max", "P99 TTFT, Sarathi over POD, best", _ratio,
              "t5.0.95.sarathi.ttft_p99 t5.0.95.pod.ttft_p99"),
        Check("pod.s533.sarathi_latency_internal", "P99 latency, Sarathi under vLLM, internal", _less,
              "t4.1.2.sarathi.latency_p99 t4.1.2.vllm.latency_p99"),
        Check("pod.s533.sarathi_latency_arxiv", "P99 latency, Sarathi over vLLM, arXiv", _more,
              "t5.0.85.sarathi.latency_p99 t5.0.85.vllm.latency_p99"),
        Check("pod.s533.pod_latency_internal", "P99 latency, POD under vLLM, internal", _less,
              "t4.1.2.pod.latency_p99 t4.1.2.vllm.latency_p99"),
        Check("pod.s533.pod_latency_arxiv", "P99 latency, POD under vLLM, arXiv", _less,
              "t5.0.95.pod.latency_p99 t5.0.95.vllm.latency_p99"),
    ]  # fmt: skip


def _lean() -> list[Check]:
    toy = "f01.heads f01.tiles_per_head f01.sms"
    return [
        Check("lean.s4c.grid", "CTAs of the grid", _times, "s5.a100_sms s4c.ctas_per_sm"),
        Check("lean.f02.prefill_share", "prefill's share, left by decode's largest", lambda d: 100 - d,
              "f02.decode_share_high"),
        Check("lean.f08.fd_max", "48 heads, batch 6, 64k: Figure 8a and 8b", _same, "f08.heads_fd_max"),
        Check("lean.s6.a100_fd_max", "largest gain over FlashDecoding, Figure 11", _same, "f11.gain_128k", "<"),
        Check("lean.f09.sms", "SMs of eight A100", _times, "s5.gpus s5.a100_sms"),
        Check("lean.f09.units", "CTAs of 256 heads, batch 4", _times, "f09.heads f09.batch"),
        Check("lean.f09.idle", "SMs idle in the last wave", lambda units, sms: -units % sms, "f09.units f09.sms"),
        Check("lean.a2.last_cta_head0", "last CTA of head 0, Algorithm 2",
              lambda heads, tiles, sms: (tiles - 1) // (heads * tiles / sms), toy),
        Check("lean.a2.last_cta_head1", "last CTA of head 1, Algorithm 2",
              lambda heads, tiles, sms: (2 * tiles - 1) // (heads * tiles / sms), toy),
    ]  # fmt: skip


def _posts() -> list[Check]:
    return [
        Check("sarathi.f04.chunks", "chunks of 256 in 1K", _ratio, "f04.prompt f04.chunk"),
        Check("sarathi.t1.prompt", "tokens of the mixed batch", lambda p, d: p + d,
              "t1.mixed_prefill t1.mixed_decodes"),
        Check("sarathi.f07.batch_2k", "batch at 2K that fits where 18 x 1K fit", lambda b: b // 2, "f07.batch_1k"),
        Check("sarathi.f07.batch_3k", "batch at 3K that fits where 18 x 1K fit", lambda b: b // 3, "f07.batch_1k"),
        Check("sarathi.f09.gpus", "GPUs of TP8 x PP8", _times, "f09.tp f09.pp"),
        Check("sarathi.f09.batch_gain", "batch, pipeline over replica", _ratio, "f09.batch_pp f09.batch_tp"),
        Check("sarathi.f09.over_tp", "SARATHI over TP-only", _ratio, "f09.over_pp f09.tp_over_pp"),
        Check("plus34.t1.base_per_minute", "requests a minute", lambda r: 60 * r, "t1.base_requests"),
        Check("plus34.t1.smem_gain", "query in shared memory", _ratio, "t1.smem_requests t1.base_requests"),
        Check("plus34.t1.multinomial_gain", "and one multinomial", _ratio, "t1.multinomial_requests t1.base_requests"),
        Check("plus34.t1.copies_gain", "and one copy", _ratio, "t1.copies_requests t1.base_requests"),
        Check("plus34.f01.query_reads", "threads that read a byte of the query", _ratio, "f01.threads f01.group"),
    ]  # fmt: skip


def table():
    """One row a check; those that differ first."""
    checks = (*_pod(), *_pod_serving(), *_lean(), *_posts())
    rows = pd.DataFrame([check.outcome() for check in checks])
    order = rows.verdict.map({DIFFERS: 0, ROUNDING: 1, AGREES: 2})
    return rows.iloc[order.argsort(kind="stable")].reset_index(drop=True)


def draw(df):
    """Recomputed over stated, on a logarithmic axis: 1 is agreement. Plain agreement is only counted."""
    colours = {DIFFERS: "#d1483f", ROUNDING: "#c8700c", AGREES: "#4c78a8"}
    counts, df = df.verdict.value_counts(), df[df.verdict != AGREES]
    figure, ax = plt.subplots(figsize=(8.5, 0.27 * len(df) + 1.2), dpi=110)
    ax.axvline(1, color=colours[AGREES], linewidth=1.5)
    ax.text(1, -1, f"{counts[AGREES]} more agree", color=colours[AGREES], ha="center", fontsize=9)
    for y, row in enumerate(df.itertuples()):
        colour = colours[row.verdict]
        ax.plot([row.low / row.stated, row.high / row.stated], [y, y], color=colour, alpha=0.4, linewidth=5)
        ax.plot(row.recomputed / row.stated, y, "o", color=colour, markersize=6)
        ax.text(1.02, y, _beside(row), transform=ax.get_yaxis_transform(), va="center", fontsize=8, color=colour)
    for verdict in (DIFFERS, ROUNDING):
        ax.plot([], [], "o", color=colours[verdict], label=f"{counts[verdict]} {LEGEND[verdict]}")
    ax.set(xscale="log", xlim=(0.4, 20), ylim=(len(df) - 0.4, -0.6))
    ax.set_xlabel("computed again from other numbers / stated")
    ax.set_yticks(range(len(df)), df.source + ": " + df.statement, fontsize=8)
    style.ticks(ax, (0.5, 1, 2, 5, 10))
    ax.tick_params(length=0)
    ax.grid(axis="x", color="#e9edf0")
    ax.set_axisbelow(True)
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.legend(loc="lower right", frameon=False, fontsize=9)
    return figure


def _beside(row) -> str:
    sign = {"=": "", ">": "at least ", "<": "at most "}[row.relation]
    return f"{sign}{row.stated:.6g} stated, {row.recomputed:.4g} found"
