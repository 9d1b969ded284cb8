"""What the simulator says of the very requests that engine-served serves, before anybody measured them."""

from pod.experiments.engine import engine_served
from pod.experiments.engine.engine_served import ROOM, RUNS, TURN, TWO, chunk_of, work
from pod.simulate.run import Run
from pod.simulate.scenarios import POD, SARATHI, SYSTEMS, VLLM, online_setup

FIGURE = engine_served.FIGURE
COMPUTED = "engine-foretold"
KEYS, READS = ("run",), ("operators", "engine-runs", "engine-capacity")
IN_TURN = SYSTEMS[SARATHI] | {"kernels": "hopper"}
KNOWN = {VLLM: SYSTEMS[VLLM], TURN: IN_TURN, POD: SYSTEMS[POD], TWO: SYSTEMS[SARATHI]}  # no operators of the one call


def cases() -> list[dict]:
    return [{"run": run} for run, (_, system, _) in RUNS.items() if system in KNOWN]


def measure(case: dict) -> dict[str, float]:
    load, system, chunk = RUNS[case["run"]]
    setup = online_setup(chunk_of(load, chunk), ROOM, **KNOWN[system])
    return Run(setup, work(load), "artifact").metrics()
