"""What the batches of the ladder's run are, all of them: the recordings hold those that were executed."""

from pod.experiments.plus34.vllm_ladder import plan
from pod.serving import vllm2023

COMPUTED = "vllm-plan"
KEYS = ("chats", "iteration")


def cases() -> list[dict]:
    return [{"chats": len(vllm2023.chats())}]


def measure(case: dict) -> list[dict]:
    return [{"iteration": i, "prompts": len(event.prefills), "decodes": len(event.decodes), "tokens": event.tokens}
            for i, event in enumerate(plan().iterations)]  # fmt: skip
