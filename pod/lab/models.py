"""Which open models' attention runs here, and why not: asked of the library itself, none of it is written down.

data/models.csv says what each model's config.json asks for. A rule that batches know nothing of is refused here, by
name; as soon as HybridBatch has a field for it, batches, plans and kernels are asked.
"""

from dataclasses import fields, replace

import pandas as pd

import pod
from pod.batch import HybridBatch
from pod.data import DATA
from pod.hardware import H200
from pod.kernels import sm90
from pod.schedule import decide

FILE = DATA / "models.csv"
RULES = ("window", "softcap", "sinks", "chunk")  # of the scores; chunk: tokens see their own so many tokens alone
LOCAL = ("window", "chunk")  # rules that some layers have and others not
RUNS, WAYS = "runs", ("Hopper", "other GPUs")
PAGE = 16


def load() -> pd.DataFrame:
    """Heads as a whole model has them; `layers`: how many have the window or chunk, the others see all tokens."""
    df = pd.read_csv(FILE, dtype={rule: "Int64" for rule in ("window", "softcap", "chunk")})
    return df.assign(sinks=df.sinks.eq("yes"), layers=df.layers.fillna(""))


def table() -> pd.DataFrame:
    """One row a model: heads, head dimension, what it asks for, and whether it runs; where not, why."""
    rows = []
    for model in load().to_dict("records"):
        heads = f"{model['q_heads']}/{model['kv_heads']}"
        words = {"model": model["model"], "heads": heads, "head_dim": model["head_dim"], "asks for": asks(model)}
        rows.append(words | {way: verdict(model, way) for way in WAYS})
    return pd.DataFrame(rows)


def asks(model: dict) -> str:
    return ", ".join(_words(name, value, model["layers"]) for name, value in asked(model).items())


def _words(rule: str, value, layers: str) -> str:
    words = rule if value is True else f"{rule} {value:,}"
    return f"{words} in {layers} layers" if rule in LOCAL and layers != "all" else words


def asked(model: dict) -> dict:
    """The rules that some layer has."""
    rules = {name: model[name] for name in RULES}
    return {name: value for name, value in rules.items() if not pd.isna(value) and value is not False}


def verdict(model: dict, way: str) -> str:
    try:
        run = {"Hopper": _on_hopper, "other GPUs": _elsewhere}[way]
        for rules in kinds(model):
            run(_batch(model, rules))
    except ValueError as refusal:
        return str(refusal)
    return RUNS


def kinds(model: dict) -> list[dict]:
    """The rules of each kind of layer."""
    rules = asked(model)
    everywhere = {name: value for name, value in rules.items() if name not in LOCAL}
    return [rules] if rules == everywhere or model["layers"] == "all" else [everywhere, rules]


def _batch(model: dict, rules: dict) -> HybridBatch:
    """A chunk and a decode, as a layer of the model sees them; a ValueError where no batch can be like that."""
    heads = (model["q_heads"], model["kv_heads"], model["head_dim"])
    batch = HybridBatch([300, 1], [9000, 9000], *heads, page_size=PAGE)
    known = {field.name for field in fields(HybridBatch)}
    for name, value in rules.items():
        if name not in known:
            raise ValueError(f"{name}: got {value}, allowed is {'False' if value is True else 'None'}")
    rules = {name: value if value is True else int(value) for name, value in rules.items()}
    return replace(batch, **rules)


def _on_hopper(batch: HybridBatch) -> None:
    """All but the launch."""
    kind = sm90.kind_of(decide.hopper(batch, H200.sms))
    if kind not in sm90.HOPPER.kinds:
        raise ValueError(f"kind: got {kind}, allowed are those of the Hopper kernel")


def _elsewhere(batch: HybridBatch) -> None:
    pod.plan(batch, device="cpu", method="pod")
