"""What the simulator says of the very requests that engine-served and engine-chunks serve, before anybody measured."""

from pod.experiments.engine import engine_chunks, engine_served
from pod.experiments.engine.engine_served import ROOM, TURN, work
from pod.simulate.run import Run
from pod.simulate.scenarios import POD, SARATHI, SYSTEMS, VLLM, online_setup

FIGURE = engine_served.FIGURE
COMPUTED = "engine-foretold"
KEYS, READS = ("run",), ("operators", "engine-runs", "engine-capacity")
IN_TURN = SYSTEMS[SARATHI] | {"kernels": "hopper"}
KNOWN = {VLLM: SYSTEMS[VLLM], TURN: IN_TURN, POD: SYSTEMS[POD]}  # no operators of FlashAttention-3's one call
RUNS = engine_served.RUNS | engine_chunks.RUNS


def cases() -> list[dict]:
    return [{"run": name} for name, run in RUNS.items() if run.system in KNOWN]


def measure(case: dict) -> dict[str, float]:
    run = RUNS[case["run"]]
    setup = online_setup(run.tokens, ROOM, **KNOWN[run.system])
    return Run(setup, work(run.load), "artifact").metrics()
