"""What builds the wheel: flit_core, of a copy that has csrc inside the package, where pod/files.py looks for it."""

import os
import shutil
import tempfile
from pathlib import Path

from flit_core import buildapi
from flit_core.buildapi import build_editable, build_sdist, get_requires_for_build_editable  # noqa: F401

PARTS = ("pyproject.toml", "README.md", "LICENSE")


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    place, folder = Path(wheel_directory).resolve(), os.getcwd()
    with tempfile.TemporaryDirectory() as copy:
        for name in PARTS:
            shutil.copy(name, copy)
        shutil.copytree("pod", Path(copy, "pod"), ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copytree("csrc", Path(copy, "pod", "csrc"))
        os.chdir(copy)  # whose pyproject.toml flit_core reads
        try:
            return buildapi.build_wheel(str(place), config_settings)
        finally:
            os.chdir(folder)
