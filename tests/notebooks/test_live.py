"""A live notebook: sliders move beside running cells. JupyterLab sends their moves to a subshell, where there is one.

POD_MOVES=200 moves the sliders that often in a chapter, POD_CHAPTERS="03 04" chooses chapters.
"""

import os
import queue
import time
from pathlib import Path

import nbformat
import pytest
from jupyter_client import KernelManager

from pod.files import ROOT
from pod.lab.show.explore import PAUSE

NOTEBOOKS = ROOT / "notebooks"
MOVES = int(os.environ.get("POD_MOVES", 20))
CHAPTERS = os.environ.get("POD_CHAPTERS", "03").split()
BETWEEN = 0.15  # seconds between two moves, as quick as a hand
DEAF = 300.0  # seconds without a message while something waits: the kernel hears nothing any more


class Live:
    """A kernel, what its front end knows of the widgets, and everything that went wrong."""

    def __init__(self, log: Path):
        self.log = log.open("w+")
        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel(cwd=str(NOTEBOOKS), stdout=self.log, stderr=self.log)
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.allow_stdin = True  # somebody can answer: explore() brings sliders
        self.client.wait_for_ready(timeout=120)
        self.widgets: dict[str, dict] = {}
        self.running: set[str] = set()
        self.unheard: set[str] = set()
        self.wrong: list[str] = []
        self.subshell = self._subshell()

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        self.log.close()

    def _subshell(self) -> dict:
        info = self.client.kernel_info(reply=True, timeout=60)["content"]
        if "kernel subshells" not in info.get("supported_features", ()):
            return {}
        self.client.control_channel.send(self.client.session.msg("create_subshell_request"))
        return {"subshell_id": self.client.control_channel.get_msg(timeout=60)["content"]["subshell_id"]}

    def run(self, cells: list[str]) -> None:
        self.running |= {self.client.execute(cell) for cell in cells}

    def move(self, slider: str, state: dict) -> None:
        message = self.client.session.msg("comm_msg", {"comm_id": slider, "data": {"method": "update", "state": state}})
        message["header"] |= self.subshell
        self.client.shell_channel.send(message)
        self.unheard.add(message["header"]["msg_id"])
        self.widgets[slider] |= state

    def listen(self, seconds: float) -> bool:
        """Whether a message came before these seconds were over."""
        try:
            message = self.client.get_iopub_msg(timeout=seconds)
        except queue.Empty:
            return False
        self._keep(message["msg_type"], message["content"], message["parent_header"].get("msg_id"))
        return True

    def _keep(self, kind: str, content: dict, asked: str | None) -> None:
        if kind == "comm_open":
            self.widgets[content["comm_id"]] = content["data"]["state"]
        elif kind == "comm_msg" and content["data"]["method"] == "update":
            self.widgets[content["comm_id"]] |= content["data"]["state"]
        elif kind == "status" and content["execution_state"] == "idle":
            self.running.discard(asked)
            self.unheard.discard(asked)
        elif kind == "error":
            self.wrong.append("\n".join(content["traceback"]))
        elif kind == "stream" and "Error" in content["text"]:
            self.wrong.append(content["text"])

    def settle(self) -> None:
        """Until all cells have run, all moves are heard, and what they ask for is drawn."""
        self._wait()
        time.sleep(3 * PAUSE)
        self.run([""])  # comes after the pictures
        self._wait()

    def _wait(self) -> None:
        while self.running or self.unheard:
            assert self.listen(DEAF), f"the kernel is deaf to {len(self.running)} cells, {len(self.unheard)} moves"

    def boxes(self) -> list[list[str]]:
        """The sliders of each picture that has some, with the picture at the end."""
        boxes = [w["children"] for w in self.widgets.values() if w["_model_name"] == "VBoxModel"]
        return [[child.removeprefix("IPY_MODEL_") for child in box] for box in boxes if len(box) > 1]

    def pictures(self) -> list:
        return [self.widgets[box[-1]]["outputs"] for box in self.boxes()]


def places(slider: dict) -> list[dict]:
    """Where it can stand, from its lower end."""
    if slider["_model_name"] == "SelectionSliderModel":
        return [{"index": i} for i in range(len(slider["_options_labels"]))]
    count = round((slider["max"] - slider["min"]) / slider["step"]) + 1
    return [{"value": slider["min"] + i * slider["step"]} for i in range(count)]


class Hand:
    """Moves one slider after the other by one place, and from the upper end to the lower one."""

    def __init__(self, live: Live):
        self.live, self.turn = live, 0

    def move(self) -> bool:
        """Whether there was a slider to move."""
        sliders = [slider for box in self.live.boxes() for slider in box[:-1]]
        if sliders:
            self.turn += 1
            self.move_one(sliders[self.turn % len(sliders)])
        return bool(sliders)

    def move_one(self, slider: str, by: int = 1) -> None:
        widget = self.live.widgets[slider]
        at = [place.items() <= widget.items() for place in places(widget)].index(True)
        self.live.move(slider, places(widget)[(at + by) % len(places(widget))])

    def move_first(self, by: int) -> None:
        """The first slider of each picture."""
        for box in self.live.boxes():
            self.move_one(box[0], by)


@pytest.fixture
def live(tmp_path):
    live = Live(tmp_path / "kernel.log")
    yield live
    live.close()


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_sliders_may_move_beside_run_all(live, chapter):
    """No error, nobody deaf, and in the end each picture is the one of where its sliders stand."""
    (path,) = NOTEBOOKS.glob(f"{chapter}_*.ipynb")
    cells = [cell.source for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]
    hand, heard, moved, due = Hand(live), time.monotonic(), 0, 0.0
    while moved < MOVES:
        if not live.running:
            live.run(cells)
        now = time.monotonic()
        heard = now if live.listen(0.01) else heard
        assert now < heard + DEAF, f"the kernel is deaf after {moved} moves"
        if now > due and hand.move():
            moved, due = moved + 1, now + BETWEEN
    live.settle()
    drawn = live.pictures()
    assert not live.wrong
    hand.move_first(1)
    live.settle()
    assert all(moved != here for moved, here in zip(live.pictures(), drawn, strict=True))
    hand.move_first(-1)
    live.settle()
    assert live.pictures() == drawn and not live.wrong
    live.log.seek(0)
    assert "Traceback" not in live.log.read() and live.manager.is_alive()
