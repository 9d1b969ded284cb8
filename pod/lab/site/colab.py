"""The chapters for Google Colab: the same cells without their outputs, and one before them that installs all of it."""

import hashlib
import json

from pod.lab.chapters import Chapter

# torch and its CUDA are Colab's own; of the rest it lacks these.
FIRST = """# Installs this chapter's code, in a minute. With a GPU (Runtime, Change runtime type) its kernels run there.
import subprocess, sys
from pathlib import Path

HOME = Path("/content/{folder}")
if "google.colab" in sys.modules and not HOME.exists():
    pip = [sys.executable, "-m", "pip", "install", "-q"]
    for command in (["git", "clone", "-q", "--depth", "1", "{address}", str(HOME)],
                    [*pip, "--no-deps", "-e", str(HOME)], [*pip, "ninja", "joblib", "ipywidgets", "tqdm"]):
        subprocess.run(command, check=True)
if HOME.exists():
    sys.path.insert(0, str(HOME))
    %cd -q {{HOME}}/notebooks
"""


def path(chapter: Chapter) -> str:
    return f"chapters/colab/{chapter.name}.ipynb"


def chapter(chapter: Chapter, repository: str) -> str:
    """The chapter as a file that Colab opens."""
    notebook = json.loads(chapter.path.read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell |= {"outputs": [], "execution_count": None}
    source = FIRST.format(folder=repository.split("/")[-1], address=f"https://github.com/{repository}")
    first = {"cell_type": "code", "id": _id(source), "metadata": {}, "outputs": [], "execution_count": None}
    notebook["cells"].insert(1, first | {"source": source.splitlines(keepends=True)})
    notebook["metadata"]["accelerator"] = "GPU"
    return json.dumps(notebook, ensure_ascii=False, indent=1)


def _id(source: str) -> str:
    return hashlib.sha256(source.encode()).hexdigest()[:8]
