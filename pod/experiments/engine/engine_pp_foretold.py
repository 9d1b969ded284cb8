"""What the simulator says of the very batches that engine-pp measures: who is in each, and its times."""

import json

from pod.experiments.engine import engine_pp
from pod.serving.events import Iteration
from pod.simulate.run import simulate

COMPUTED = "engine-pp-foretold"
KEYS = ("system", "iteration")


def cases() -> list[dict]:
    return [{"system": system} for system in engine_pp.SYSTEMS]


def measure(case: dict) -> list[dict]:
    load, system = engine_pp.LOAD, case["system"]
    events = simulate(load.setup(system), load.requests(system)).iterations
    return [{"iteration": i, **_batch(event), **engine_pp.row(event, digits=6)} for i, event in enumerate(events)]


def _batch(event: Iteration) -> dict:
    """As pod/serving/events.py has it, its lists as JSON."""
    lists = {name: json.dumps(getattr(event, name), separators=(",", ":")) for name in ("prefills", "decodes")}
    return {"lane": event.lane, **lists, "decode_context": event.decode_context}
