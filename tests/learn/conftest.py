import pytest

from pod.learn import progress


@pytest.fixture(autouse=True)
def answers(tmp_path, monkeypatch):
    """The file of the progress, not the reader's."""
    monkeypatch.setattr(progress, "path", lambda: tmp_path / "answers.json")
    return tmp_path / "answers.json"
