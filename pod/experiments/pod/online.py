"""POD §5.3 simulated: two workloads, two loads each, three systems. Tables 4 to 6 and the claims about them read it."""

from pod.experiments.pod import pod_t4, pod_t5, pod_t6
from pod.experiments.pod.pod_12 import overlap_hidden, overlap_paper
from pod.experiments.pod.shared import KEYS, of
from pod.simulate.cost import Efficiency
from pod.simulate.scenarios import POD, SARATHI, SYSTEMS, VLLM, online, slower

FIGURE = pod_t5.FIGURE  # as simulated as the tables are
COMPUTED = "online"
READS = ("methods-sweep",)
CASES = [(t.WORKLOAD, float(load), t.CHUNK) for t in (pod_t4, pod_t5) for load in t.LOADS]
LISTED = [(pod_t5.LISTED, float(load), pod_t5.CHUNK) for load in pod_t5.LOADS]
FACTORS = (1.0, 1.03, 1.06, 1.09, 1.12, 1.15, 1.18, 1.21)  # on every iteration of a system
PACES = {"faster": 0.95, "slower": 1.05}  # iterations shorter and longer by what no model of a server is sure of
OVERLAPS = {"hidden": overlap_hidden, "paper": overlap_paper}  # what POD hides: as our own kernel, as the paper's
INTERNAL, ARXIV = pod_t4.WORKLOAD, pod_t5.WORKLOAD


def cases() -> list[dict]:
    hidden = {VLLM: 0.0, SARATHI: 0.0, POD: overlap_hidden()}
    around = (1.0, *PACES.values())
    rows = [(*load, system, hidden[system], slow) for load in CASES for system in SYSTEMS for slow in around]
    rows += [(*load, system, hidden[system], slow) for load in LISTED for system in SYSTEMS for slow in FACTORS]
    rows += [(*load, POD, overlap_paper(), 1.0) for load in CASES]
    rows += [(pod_t6.WORKLOAD, pod_t6.QPS, pod_t6.CHUNKS[0], VLLM, 0.0, 1.0)]
    rows += [(pod_t6.WORKLOAD, pod_t6.QPS, chunk, POD, overlap_hidden(), slow)
             for chunk in pod_t6.CHUNKS for slow in around]  # fmt: skip
    return [dict(zip(KEYS, row, strict=True)) for row in dict.fromkeys(rows)]


def measure(case: dict) -> dict[str, float]:
    run = online(case["workload"], case["qps"], case["chunk"])[case["system"]]
    run = slower(run, case["slowdown"]).but(efficiency=Efficiency(overlap=case["overlap"] or overlap_hidden()))
    return run.metrics()


def _all(metric: str, overlap: str = "hidden", pace: str = "") -> dict[tuple[str, float], dict[str, float]]:
    """One metric by case and system."""
    hides, slow = OVERLAPS[overlap](), PACES.get(pace, 1.0)
    return {(w, qps): {system: of(w, qps, chunk, system, hides, slow)[metric] for system in (VLLM, SARATHI, POD)}
            for w, qps, chunk in CASES}  # fmt: skip


def _less(metric: str, system: str, than: str, overlap: str) -> list[float]:
    """Reduction in percent, one a case."""
    return [100 * (1 - case[system] / case[than]) for case in _all(metric, overlap).values()]


def ttft_p50(overlap: str = "hidden") -> float:
    """Median TTFT of Sarathi+POD, arXiv at 0.95, seconds."""
    return _all("ttft_p50", overlap)[ARXIV, 0.95][POD]


def ttft_p99_gain(overlap: str = "hidden", pace: str = "") -> float:
    """Largest P99 TTFT of Sarathi over Sarathi+POD."""
    return max(case[SARATHI] / case[POD] for case in _all("ttft_p99", overlap, pace).values())


def tail_tbt(overlap: str = "hidden") -> float:
    """Mean reduction of P99 TBT by POD, percent."""
    return sum(less := _less("tbt_p99", POD, SARATHI, overlap)) / len(less)


def latency_under_sarathi(overlap: str = "hidden") -> float:
    """Smallest reduction of P99 latency by POD, percent."""
    return min(_less("latency_p99", POD, SARATHI, overlap))


def vllm_ttft() -> float:
    """P99 TTFT of vLLM over the lower of the other two, in the worst of the four cases."""
    return max(case[VLLM] / min(case[SARATHI], case[POD]) for case in _all("ttft_p99").values())


def latency_under_vllm_internal(overlap: str = "hidden") -> float:
    """P99 latency of vLLM over Sarathi+POD at 1.2, less one, percent."""
    case = _all("latency_p99", overlap)[INTERNAL, 1.2]
    return 100 * (case[VLLM] / case[POD] - 1)


def latency_under_vllm_arxiv(overlap: str = "hidden", pace: str = "") -> float:
    """Reduction of P99 latency against vLLM at 0.95, percent."""
    case = _all("latency_p99", overlap, pace)[ARXIV, 0.95]
    return 100 * (1 - case[POD] / case[VLLM])


def latency(system: str, qps: str) -> float:
    """P99 latency on arXiv, seconds."""
    return _all("latency_p99")[ARXIV, float(qps)][system]


def sarathi_latency_arxiv() -> float:
    """Rise of P99 latency of Sarathi over vLLM at 0.85, percent."""
    case = _all("latency_p99")[ARXIV, 0.85]
    return 100 * (case[SARATHI] / case[VLLM] - 1)


def sarathi_latency_internal() -> float:
    """Reduction of P99 latency of Sarathi against vLLM at 1.2, percent."""
    case = _all("latency_p99")[INTERNAL, 1.2]
    return 100 * (1 - case[SARATHI] / case[VLLM])


def vllm_stalls(pace: str = "") -> float:
    """Smallest share of requests with a gap over 500 ms under vLLM, percent."""
    return min(case[VLLM] for case in _all("stalls_500ms", pace=pace).values())


def vllm_worst_gap() -> float:
    """Largest TBT under vLLM, seconds."""
    return max(case[VLLM] for case in _all("tbt_max").values())


def tail_tbt_gain() -> float:
    """Largest P99 TBT of vLLM over Sarathi."""
    return max(case[VLLM] / case[SARATHI] for case in _all("tbt_p99").values())


def sarathi_stalls() -> float:
    """Largest share of requests with a gap over 500 ms under Sarathi, percent."""
    return max(case[SARATHI] for case in _all("stalls_500ms").values())


def pod_stalls() -> float:
    """Share of the eight cases (workload, load, limit) in which POD has no more stalls than Sarathi."""
    cases = [case for limit in ("stalls_200ms", "stalls_500ms") for case in _all(limit).values()]
    return sum(case[POD] <= case[SARATHI] for case in cases) / len(cases)
