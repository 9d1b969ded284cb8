"""POD-Attention, explained and rebuilt. Importing pod builds nothing and loads neither torch nor numpy."""

from importlib import import_module

_HOME = {
    "HybridBatch": "pod.batch",
    "GPUS": "pod.hardware",
    "gpu": "pod.hardware",
    "mode": "pod.kernels",
    "plan": "pod.attention",
    "workspace": "pod.attention",
    "build": "pod.attention",
    "hybrid_attention": "pod.attention",
    "badge": "pod.lab.doctor",
}

__all__ = list(_HOME)


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module 'pod' has no attribute {name!r}; it offers {', '.join(_HOME)}")
    globals()[name] = found = getattr(import_module(_HOME[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
