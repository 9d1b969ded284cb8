"""A live notebook: sliders move beside running cells. JupyterLab sends their moves to a subshell, where there is one.

POD_MOVES=200 moves the sliders that often in a chapter, POD_CHAPTERS="03 04" chooses chapters.
"""

import os
import time

import nbformat
import pytest

from tests.live import DEAF, NOTEBOOKS, Live

MOVES = int(os.environ.get("POD_MOVES", 20))
CHAPTERS = os.environ.get("POD_CHAPTERS", "03").split()
BETWEEN = 0.15  # seconds between two moves, as quick as a hand


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


def test_a_kernel_takes_no_port_that_a_system_hands_out(live):
    """Else somebody may have it in the second until the kernel does, and a chapter is red."""
    ports = [getattr(live.manager, f"{name}_port") for name in ("shell", "iopub", "stdin", "control", "hb")]
    assert len({*ports}) == 5 and all(10_000 <= port < 32_768 for port in ports)


SLIDER = """
from pod.lab.show import explore
_ = explore(lambda ax, n: ax.plot([0, n]), show=[{"n": 1}], n=(1, 9))
"""


def test_a_new_slider_is_heard_while_cells_run(live, tmp_path):
    """Where its first moves waited for all cells, they came after later ones, and undid them."""
    if not live.subshell:
        pytest.skip("this ipykernel has no subshells: every move waits for the cells")
    over = tmp_path / "over"
    live.run([SLIDER, f"import os, time\nwhile not os.path.exists({str(over)!r}): time.sleep(0.1)"])
    while not live.boxes():
        assert live.listen(DEAF)
    Hand(live).move()
    while live.unheard:
        assert live.listen(DEAF), "the move waits for the cells"
    assert live.running
    over.touch()
    live.settle()
