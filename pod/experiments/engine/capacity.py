"""The most that Sarathi serves: 512 requests that are all there at once, on the paper's two A100s and on one H200.

The ratio of the two rates turns a load of the paper's tables into the same share of capacity on an H200.
"""

from pod.data import read
from pod.experiments.pod import pod_t4, pod_t5
from pod.simulate.scenarios import SARATHI, a100_blocks, capacity, online, online_setup

COMPUTED = "engine-capacity"
KEYS = ("workload", "chunk", "server", "blocks")
READS = ("operators", "engine-runs")
SERVERS = ("paper", "h200")
OWN = 0  # blocks: the GPU's own pool of pages


def cases() -> list[dict]:
    pools = {"paper": (OWN,), "h200": (OWN, a100_blocks())}
    return [{"workload": t.WORKLOAD, "chunk": t.CHUNK, "server": server, "blocks": blocks}
            for t in (pod_t4, pod_t5) for server in SERVERS for blocks in pools[server]]  # fmt: skip


def measure(case: dict) -> dict[str, float]:
    if case["server"] == "paper":
        setup = online(case["workload"], 1.0, case["chunk"])[SARATHI].setup
    else:
        setup = online_setup(case["chunk"], case["blocks"] or None)
    return {"requests_per_minute": capacity(setup, case["workload"]).metrics()["requests_per_minute"]}


def faster(workload: str, chunk: int, blocks: int = OWN) -> float:
    """How many times as many requests the H200 serves as the paper's two A100s."""
    rates = read("engine-capacity").set_index(list(KEYS)).requests_per_minute
    return float(rates[workload, chunk, "h200", blocks] / rates[workload, chunk, "paper", OWN])
