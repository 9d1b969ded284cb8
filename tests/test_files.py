"""The cache: where it lies when the checkout cannot be written, and files that accidents have left."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pod import files

ROOT = files.ROOT


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout and a home, without POD_CACHE."""
    for name in ("POD_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(files, "ROOT", tmp_path / "checkout")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    files._say.cache_clear()
    return tmp_path


def close(folder: Path) -> None:
    """Nobody can write here, root neither: a file lies where the folder should be."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.write_text("")


def test_the_cache_lies_in_the_checkout(checkout, capsys):
    assert files.folder("kernels") == checkout / "checkout" / ".cache" / "kernels"
    assert files.folder("kernels").is_dir() and capsys.readouterr().err == ""


def test_a_variable_moves_it(checkout, monkeypatch):
    monkeypatch.setenv("POD_CACHE", str(checkout / "elsewhere"))
    assert files.folder("kernels") == checkout / "elsewhere" / "kernels"
    assert list(files.places()) == [checkout / "elsewhere"], "all of it: nothing is found in another place either"
    close(checkout / "file")
    monkeypatch.setenv("POD_CACHE", str(checkout / "file"))
    with pytest.raises(NotADirectoryError):
        files.folder("kernels")


@pytest.mark.parametrize("variable, place", [("HOME", "home/.cache/pod"), ("XDG_CACHE_HOME", "home/pod")])
def test_a_checkout_that_cannot_be_written_has_it_at_home_and_says_so_once(
    checkout, monkeypatch, capsys, variable, place
):
    monkeypatch.setenv(variable, str(checkout / "home"))
    close(checkout / "checkout" / ".cache")
    for _ in range(2):
        assert files.folder("kernels") == checkout / place / "kernels"
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and str(checkout / place) in said and "POD_CACHE" in said


@pytest.mark.parametrize("home", ["", "missing"])
def test_without_a_home_it_is_a_passing_folder_of_this_process_alone(checkout, home):
    close(checkout / "checkout" / ".cache")
    close(checkout / "missing")
    code = "import sys; from pathlib import Path; from pod import files; files.ROOT = Path(sys.argv[1]); "
    code += "print(files.folder('kernels'), files.folder('kernels').stat().st_mode & 0o77, files._passing().name)"
    env = {k: v for k, v in os.environ.items() if k != "HOME"} | ({"HOME": str(checkout / home)} if home else {})
    done = subprocess.run([sys.executable, "-c", code, str(checkout / "checkout")], capture_output=True, text=True,
                          check=True, env=env | {"PYTHONPATH": str(ROOT)})  # fmt: skip
    folder, _, passing = done.stdout.split()
    assert folder.startswith(passing) and not Path(passing).exists() and done.stderr.count("\n") == 1


def test_a_read_only_cache_is_read(checkout):
    made = checkout / "made"
    made.write_text("library")
    ours = files.folder("kernels") / "x.so"
    assert files.kept("kernels/x.so") is None
    files.keep(made, ours)
    (checkout / "home").mkdir()
    assert files.kept("kernels/x.so") == ours and not made.exists()


@pytest.mark.parametrize("damage", [b"", b"lib", b"\0" * 7], ids=["empty", "torn", "zeros"])
def test_a_damaged_file_is_not_whole(tmp_path, damage):
    (tmp_path / "made").write_text("library")
    path = tmp_path / "x.so"
    files.keep(tmp_path / "made", path)
    assert files.whole(path)
    path.write_bytes(damage)
    assert not files.whole(path)
    path.unlink()
    assert not files.whole(path)


def test_a_file_is_replaced_as_a_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "chapter.ipynb"
    files.replace(path, "old\n")

    def full(self, content):
        self.touch()
        raise OSError(28, "No space left on device", str(self))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        files.replace(path, "new\n")
    assert path.read_text() == "old\n" and list(tmp_path.iterdir()) == [path]


def test_what_a_reader_may_have_written_is_never_written_in_place():
    """Chapters, tables and their sidecars: torn, they would be lost."""
    lab = files.PACKAGE / "lab"
    written = ("notebooks.py", "measure/compute.py", "measure/provenance.py", "gallery.py", "trace.py", "readme.py",
               "bands.py", "repeats.py")  # fmt: skip
    in_place = r"\.write_text\(|\.to_csv\((path|out)|(savefig|imsave)\(path|open\(\"w"
    for name in written:
        assert not re.search(in_place, (lab / name).read_text(encoding="utf-8")), name
