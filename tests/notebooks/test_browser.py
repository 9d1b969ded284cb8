"""Chapters in a real JupyterLab in a real Chromium: every cell runs without an error, buttons and sliders move, and an
exercise is solved by typing. CHROMIUM=path names the browser.

It is driven over Chromium's own debugging protocol, so nothing is needed but what JupyterLab brings.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from urllib.request import urlopen

import nbformat
import psutil
import pytest

from pod import kernels
from pod.files import ROOT
from pod.lab import notebooks
from pod.learn import judge
from tests.solutions import named, solutions

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
CHROMIUM = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
pytestmark = [
    pytest.mark.any_processor,
    pytest.mark.skipif(not CHROMIUM, reason=f"no browser here: looked for {', '.join(NAMES)} and $CHROMIUM"),
    pytest.mark.skipif(kernels.mode().name == "recorded", reason=kernels.mode().reason),
]
LIVE = "explore(", "%%cuda"  # sliders, or CUDA to type
CHAPTERS = [path for path in notebooks.find([]) if any(word in path.read_text(encoding="utf-8") for word in LIVE)]
TOKEN, PATIENCE = "reader", 300.0
QUICK = 1.5  # seconds from a move until the page shows what it changes
MOVES = 5  # of each slider; the median counts
SETTINGS = {
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "notebook-extension/tracker": {"windowingMode": "none"},  # every cell is on the page
}


BEGIN = """from pathlib import Path
from pod.learn import progress
progress.path = lambda: Path({!r})  # not the reader's

def load_here(seconds=0.2):
    from time import perf_counter, thread_time
    begin, own = perf_counter(), thread_time()
    while thread_time() - own < seconds: pass
    return (perf_counter() - begin) / (thread_time() - own)
"""


def until(true, seconds: float = PATIENCE):
    """The first value that is true."""
    end = time.monotonic() + seconds
    while not (value := true()):
        assert time.monotonic() < end, f"nothing after {seconds:g} s"
        time.sleep(0.05)
    return value


@dataclass(frozen=True)
class Move:
    """A key or a click until the page has changed: seconds by the page's own clock, and meanwhile seconds of processors
    of server, kernel and browser. load: how many times as long as on an idle machine a loop takes in the kernel."""

    elapsed: float
    worked: float
    load: float

    @property
    def alone(self) -> float:
        """Seconds that it would take on an idle machine, at least. Load stretches work and leaves waiting as it is, so
        two bounds are certain: as if it all were work, and as if no two processors had worked at a time."""
        return max(self.elapsed / self.load, self.elapsed - (self.load - 1) * self.worked)

    def __str__(self) -> str:
        return f"{self.elapsed:.2f} s at a load of {self.load:.2f}, alone {self.alone:.2f} s"


def median(moves: Iterable[Move]) -> Move:
    ordered = sorted(moves, key=lambda move: move.alone)
    return ordered[len(ordered) // 2]


class Page:
    """One page of a browser, by its debugging protocol."""

    def __init__(self, address: str) -> None:
        websocket = pytest.importorskip("websocket", reason="JupyterLab brings websocket-client, and it is not here")
        self.socket, self.numbers = websocket.create_connection(address, timeout=PATIENCE), count(1)
        self.heard: list[dict] = []  # events of the domains that somebody enabled

    def command(self, method: str, **parameters) -> dict:
        number = next(self.numbers)
        self.socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while (answer := json.loads(self.socket.recv())).get("id") != number:
            self.heard.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def value(self, script: str):
        """What a script gives, awaited."""
        known = {"awaitPromise": True, "returnByValue": True}
        result = self.command("Runtime.evaluate", expression=script, **known)
        assert "exceptionDetails" not in result, result["exceptionDetails"]["exception"].get("description", result)
        return result["result"].get("value")

    def click(self, element: str) -> None:
        """With the mouse, in the middle of an element, scrolled to."""
        x, y = self.value(f"""(() => {{ const e = {element}; e.scrollIntoView({{block: 'center'}});
            const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; }})()""")
        for kind in ("mousePressed", "mouseReleased"):
            self.command("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key: str, code: int) -> None:
        for kind in ("rawKeyDown", "keyUp"):
            self.command("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)


class Lab:
    """JupyterLab over a copy of the chapters, and a browser that looks at it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.running, self.log = folder, [], (folder / "log").open("w")
        shutil.copytree(notebooks.FOLDER, folder / "notebooks")
        for name in ("pod", "csrc", "data"):
            (folder / name).symlink_to(ROOT / name)
        begin = folder / "ipython" / "profile_default" / "startup" / "begin.py"
        begin.parent.mkdir(parents=True)
        begin.write_text(BEGIN.format(str(folder / "answers.json")), encoding="utf-8")
        self.server, self.page = self._lab(), self._browser()

    def close(self) -> None:
        for process in reversed(self.running):
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()
        self.log.close()

    def spent(self) -> float:
        """Seconds of processors: of the server, the kernels and the browser."""
        first = [psutil.Process(process.pid) for process in self.running]
        every = {process for one in first for process in (one, *one.children(recursive=True))}
        return sum(sum(process.cpu_times()[:2]) for process in every)

    def _start(self, *command: str, **more: str) -> None:
        there = {**os.environ, "PYTHONPATH": str(ROOT), "POD_QUIET": "1", **more}
        self.running.append(subprocess.Popen(command, stdout=self.log, stderr=self.log, env=there, cwd=self.folder))

    def _lab(self) -> str:
        for name, values in SETTINGS.items():
            place = self.folder / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(json.dumps(values), encoding="utf-8")
        options = {"ServerApp.port": 0, "ServerApp.root_dir": self.folder, "IdentityProvider.token": TOKEN,
                   "ServerApp.allow_root": True, "LabApp.expose_app_in_browser": True}  # fmt: skip
        places = {"JUPYTERLAB_SETTINGS_DIR": "settings", "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
                  "JUPYTER_CONFIG_DIR": "config", "JUPYTER_RUNTIME_DIR": "runtime",
                  "IPYTHONDIR": "ipython"}  # fmt: skip
        said = [f"--{name}={value}" for name, value in options.items()]
        own = {name: str(self.folder / place) for name, place in places.items()}
        self._start(sys.executable, "-m", "jupyterlab", "--no-browser", *said, **own)
        address = f"http://127.0.0.1:{until(self._port)}/lab"
        until(lambda: _answers(f"{address}?token={TOKEN}"))
        return address

    def _port(self) -> int | None:
        """Where the server says that it listens: any other way, somebody else may have taken the place by then."""
        for told in self.folder.glob("runtime/jpserver-*.json"):
            with suppress(ValueError):  # half written
                return json.loads(told.read_text())["port"]
        return None

    def _browser(self) -> Page:
        home = self.folder / "browser"
        self._start(CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                    "--no-first-run", "--remote-debugging-port=0", "--remote-allow-origins=*",
                    "--window-size=1400,1000", f"--user-data-dir={home}", "about:blank")  # fmt: skip
        known = home / "DevToolsActivePort"
        until(lambda: known.exists() and known.read_text().count("\n"))
        with urlopen(f"http://127.0.0.1:{known.read_text().splitlines()[0]}/json") as listed:
            page = Page(next(x for x in json.load(listed) if x["type"] == "page")["webSocketDebuggerUrl"])
        page.command("Emulation.setFocusEmulationEnabled", enabled=True)  # as if somebody looked at it
        return page


def _answers(address: str) -> bool:
    with suppress(OSError), urlopen(address) as answer:
        return answer.status == 200
    return False


class Chapter:
    """An open chapter; `panel` is JupyterLab's own object for it."""

    def __init__(self, lab: Lab, path: Path) -> None:
        self.page, self.path = lab.page, path
        self.page.command("Page.navigate", url=f"{lab.server}/tree/notebooks/{path.name}?token={TOKEN}&reset")
        shown = f"[...window.jupyterapp.shell.widgets('main')].find(w => w.context?.path.endsWith('{path.name}'))"
        until(lambda: self.page.value(f"!!(window.jupyterapp && {shown}?.context.isReady)"))
        self.panel = f"({shown})"
        self.page.value(f"window.jupyterapp.shell.activateById({self.panel}.id)")
        until(self.idle)

    def close(self) -> None:
        self.page.value(f"{self.panel}.context.save()")  # or the browser asks whether to leave
        self.page.value(f"{self.panel}.sessionContext.shutdown()")

    def at(self, source: str) -> int:
        """The place of the cell that ends with this text."""
        return next(i for i, cell in enumerate(notebooks.read(self.path).cells) if cell.source.endswith(source))

    def node(self, cell: int) -> str:
        return f"{self.panel}.content.widgets[{cell}].node"

    def run_all(self) -> None:
        self.page.command("Runtime.evaluate", expression="window.jupyterapp.commands.execute('notebook:run-all-cells')")
        until(lambda: self.idle() and self.page.value(
            f"{self.panel}.content.widgets.filter(c => c.model.type === 'code').every(c => c.model.executionCount)"
        ))  # fmt: skip
        self.page.value("window.jupyterapp.commands.execute('notebook:expand-all-headings')")  # appendices are folded

    def idle(self) -> bool:
        return self.page.value(f"{self.panel}.sessionContext.kernelDisplayStatus === 'idle'")

    def wrong(self) -> list[str]:
        """Every error among the outputs, and every warning."""
        outputs = self.page.value(f"""{self.panel}.content.widgets.filter(c => c.model.type === 'code')
            .flatMap(c => c.model.outputs.toJSON())
            .filter(o => o.output_type === 'error' || o.name === 'stderr').map(o => JSON.stringify(o))""")
        widgets = "[...document.querySelectorAll('.jupyter-widgets')].map(e => e.innerText)"
        return outputs + self.page.value(f"{widgets}.filter(text => /Error/.test(text))")

    def write(self, cell: int, source: str) -> None:
        self.page.value(f"{self.panel}.content.widgets[{cell}].model.sharedModel.setSource({json.dumps(source)})")

    def load(self) -> float:
        asked = "{code: '', silent: true, user_expressions: {load: 'load_here()'}}"
        kernel = f"{self.panel}.sessionContext.session.kernel"
        said = self.page.value(f"{kernel}.requestExecute({asked}).done.then(r => r.content.user_expressions.load)")
        return max(1.0, float(said["data"]["text/plain"]))

    def run(self, cell: int) -> str:
        """What a cell shows when it was run with Shift-Enter's command."""
        self.page.value(f"""(async () => {{ const c = {self.panel}.content; c.deselectAll(); c.activeCellIndex = {cell};
            await window.jupyterapp.commands.execute('notebook:run-cell'); }})()""")
        return self.page.value(f"{self.node(cell)}.querySelector('.jp-OutputArea')?.innerText ?? ''")


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    lab = Lab(tmp_path_factory.mktemp("lab"))
    yield lab
    lab.close()


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_lives_in_a_browser(lab, path):
    chapter = Chapter(lab, path)
    try:
        chapter.run_all()
        assert chapter.wrong() == []
        moved = {**press_buttons(lab, chapter), **move_sliders(lab, chapter)}
        assert chapter.wrong() == []
        solve(chapter)
        print("\n".join(f"{path.stem}, {name}: {move}" for name, move in moved.items()))
        assert too_late(moved) == []
    finally:
        chapter.close()


def too_late(moved: dict[str, Move]) -> list[str]:
    return [f"{name}: {move}" for name, move in moved.items() if move.alone >= QUICK]


def press_buttons(lab: Lab, chapter: Chapter) -> dict[str, Move]:
    """The first option of each question, until the page says so."""
    nodes = [chapter.node(chapter.at(f'learn.ask("{asked}")')) for asked in named("ask", chapter.path)]
    moves = [
        moved(lab, chapter, "mousedown", f"{node}.innerText.includes('You say')",
              lambda n=node: chapter.page.click(f"{n}.querySelector('button.jupyter-button')"))
        for node in nodes
    ]  # fmt: skip
    return {"buttons": median(moves)} if moves else {}


HANDLES = "[...document.querySelectorAll('.widget-slider')]"


def move_sliders(lab: Lab, chapter: Chapter, moves: int = MOVES) -> dict[str, Move]:
    """Each a few times, by an arrow key, until its picture is another."""
    count = chapter.page.value(f"{HANDLES}.length")
    return {f"slider {i}": median(slide(lab, chapter, i, turn) for turn in range(moves)) for i in range(count)}


def slide(lab: Lab, chapter: Chapter, slider: int, turn: int) -> Move:
    page = chapter.page
    picture = f"{HANDLES}[{slider}].closest('.widget-vbox').querySelector('img')?.src ?? ''"
    before = until(lambda: page.value(picture))
    handle = f"{HANDLES}[{slider}].querySelector('.noUi-handle')"
    page.value(f"(() => {{ const e = {handle}; e.scrollIntoView({{block: 'center'}}); e.focus(); }})()")
    begins, value, ends = (page.value(f"{handle}.getAttribute('aria-value{x}')") for x in ("min", "now", "max"))
    back = value == ends or turn % 2 and value != begins  # one of two values may begin at its end
    key = ("ArrowLeft", 37) if back else ("ArrowRight", 39)
    another = f"!['', {json.dumps(before)}].includes({picture})"
    return moved(lab, chapter, "keydown", another, lambda: page.press(*key))


SEEN = """window.seen = new Promise((done, late) => {{
    let begin;
    addEventListener('{event}', e => begin = e.timeStamp, {{capture: true, once: true}});
    const watch = new MutationObserver(() => {{
        if (begin === undefined || !({changed})) return;
        watch.disconnect();
        requestAnimationFrame(() => setTimeout(() => done((performance.now() - begin) / 1000)));  // it is painted
    }});
    watch.observe(document.body, {{subtree: true, childList: true, attributes: true, characterData: true}});
    setTimeout(() => late(new Error('nothing after {patience:g} s')), 1000 * {patience});
}}); 0"""


def moved(lab: Lab, chapter: Chapter, event: str, changed: str, act: Callable[[], None]) -> Move:
    """What the page's clock says from an event until `changed`, between two looks at the load."""
    before = chapter.load()
    chapter.page.value(SEEN.format(event=event, changed=changed, patience=PATIENCE))
    worked = lab.spent()
    act()
    elapsed = chapter.page.value("window.seen")
    worked = lab.spent() - worked
    return Move(elapsed, worked, (before + chapter.load()) / 2)


def solve(chapter: Chapter) -> None:
    """The stub, a wrong answer, the right one."""
    for name in named("check", chapter.path):
        exercise = judge.exercises()[name]
        stub, check = chapter.at(exercise.stub), chapter.at(f'learn.check("{name}", {name})')
        (_, language, right), (_, _, wrong), *_ = solutions()[name]
        magic = "%%cuda\n" if language == "cuda" else ""
        for answer, says in ((exercise.stub, "not yet"), (wrong, "hint"), (right, "right, in")):
            chapter.write(stub, magic + answer)
            chapter.run(stub)
            assert re.search(says, chapter.run(check)), name


# ---------------------------------------------------------------- the bar itself

SLOW = """import time
from pod.lab.show import explore

def picture(ax, n):
    begin = time.thread_time()
    {}
    ax.plot([0, n])

_ = explore(picture, show=[{{"n": 1}}], n=(1, 9))
"""
CROWD = 2 * (os.cpu_count() or 1)
BUSY = "import os; parent = os.getppid()\nwhile os.getppid() == parent: pass"  # no longer than whoever began it
TWO_SECONDS = {"waits": "time.sleep(2)", "works": "while time.thread_time() < begin + 2: pass"}


@contextmanager
def crowd(many: int):
    """So many others who want a processor all the time."""
    others = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(many)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def slid(lab: Lab, name: str, line: str) -> dict[str, Move]:
    """The slider of a notebook whose picture takes this line."""
    path = lab.folder / "notebooks" / f"{name}.ipynb"
    python = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    cell = nbformat.v4.new_code_cell(SLOW.format(line))
    nbformat.write(nbformat.v4.new_notebook(cells=[cell], metadata=python), path)
    chapter = Chapter(lab, path)
    try:
        chapter.run_all()
        found = move_sliders(lab, chapter, moves=3)
        print("\n".join(f"{name}: {move}" for move in found.values()))
        return found
    finally:
        chapter.close()


@pytest.mark.parametrize("how, others", [("waits", 0), ("waits", CROWD), ("works", CROWD)])
def test_a_slider_that_is_two_seconds_slow_fails_on_any_machine(lab, how, others):
    with crowd(others):
        assert len(too_late(slid(lab, f"{how}_beside_{others}", TWO_SECONDS[how]))) == 1


def test_a_quick_slider_passes_on_a_crowded_machine(lab):
    with crowd(CROWD):
        (move,) = slid(lab, "quick", "pass").values()
    assert move.load >= 1 and too_late({"quick": move}) == []


def test_load_stretches_work_and_no_waiting():
    assert Move(elapsed=2.0, worked=0.5, load=1.0).alone == 2.0
    assert Move(elapsed=6.0, worked=2.0, load=3.0).alone == 2.0, "all work"
    assert Move(elapsed=3.0, worked=0.5, load=3.0).alone == 2.0, "two seconds of sleep, half a one of work"
    assert Move(elapsed=1.2, worked=0.3, load=4.0).alone < QUICK
    assert str(median([Move(3, 1, 1), Move(1, 1, 1), Move(2, 1, 1)])) == "2.00 s at a load of 1.00, alone 2.00 s"


# ---------------------------------------------------------------- sliders beside running cells

STRESSED = os.environ.get("POD_CHAPTERS", "11a").split()
RUNS = int(os.environ.get("POD_RUNS", 2))  # POD_RUNS=200 is what a suite has no time for
BETWEEN = 0.05  # seconds between two moves: drawn in the thread that hears them, they broke run 5; at 0.4 none of 6
TORN = "Error (displaying|creating) widget|Loading widget|widget is not available|model not found"


FORGETS = "Output cache limit"  # IPython says so once a kernel has shown a thousand results, in run 100 or so


class Hand:
    """Moves the sliders that are on the page, one after the other, by the keyboard."""

    def __init__(self, page: Page):
        self.page, self.turn, self.moves = page, 0, 0

    def move(self) -> None:
        self.turn += 1
        on_it = self.page.value(f"""(() => {{ const all = [...document.querySelectorAll('.noUi-handle')];
            if (!all.length) return false;
            const e = all[{self.turn} % all.length]; e.focus(); return document.activeElement === e; }})()""")
        if on_it:  # "Run all" may take it away before the key comes, as from anybody
            self.page.press(*(("ArrowLeft", 37) if self.turn // 7 % 2 else ("ArrowRight", 39)))
            self.moves += 1


def complaints(page: Page) -> list[str]:
    """What the browser's console has got since it was asked last: exceptions that nobody caught, and errors."""
    heard, page.heard = page.heard, []
    thrown = [e["params"]["exceptionDetails"] for e in heard if e.get("method") == "Runtime.exceptionThrown"]
    called = [e["params"] for e in heard if e.get("method") == "Runtime.consoleAPICalled"]
    errors = [c["args"] for c in called if c["type"] in ("error", "assert")]
    return [json.dumps(x)[:600] for x in (*thrown, *errors)]


def run_all_with(hand: Hand, chapter: Chapter) -> None:
    """Press "Run all", and move sliders until the last cell is done."""
    code = f"{chapter.panel}.content.widgets.filter(c => c.model.type === 'code')"
    counted = f"{code}.map(c => c.model.executionCount ?? 0)"
    before, end = max(chapter.page.value(counted)), time.monotonic() + PATIENCE
    chapter.page.command("Runtime.evaluate", expression="window.jupyterapp.commands.execute('notebook:run-all-cells')")
    while not (min(chapter.page.value(counted)) > before and chapter.idle()):
        assert time.monotonic() < end, f"not done after {PATIENCE:g} s"
        hand.move()
        time.sleep(BETWEEN)


def whole(page: Page) -> list[str]:
    """Sliders without a picture, and words that a front end has for a widget that it cannot show."""
    boxes = "[...document.querySelectorAll('.widget-vbox')].filter(b => b.querySelector('.widget-slider'))"
    torn = page.value(f"{boxes}.filter(b => !b.querySelector('img')).map(b => b.innerText)")
    shown = page.value("[...document.querySelectorAll('.jp-OutputArea-output')].map(e => e.innerText)")
    return torn + [text for text in shown if re.search(TORN, text)]


@pytest.mark.timeout(600 + 120 * RUNS)
@pytest.mark.parametrize("label", STRESSED)
def test_sliders_may_move_while_all_cells_run(lab, label):
    """No error on the page or in its console, nothing torn, the same kernel, and as many sliders as before."""
    (path,) = (path for path in CHAPTERS if path.name.startswith(f"{label}_"))
    chapter = Chapter(lab, path)
    try:
        chapter.run_all()
        kernel = f"{chapter.panel}.sessionContext.session.kernel.id"
        began, sliders = chapter.page.value(kernel), chapter.page.value(f"{HANDLES}.length")
        chapter.page.command("Runtime.enable")
        complaints(chapter.page)
        chapter.page.value(f"""window.restarts = 0; {chapter.panel}.sessionContext.statusChanged.connect(
            (_, is) => window.restarts += /restarting|dead|unknown/.test(is)); 0""")
        hand = Hand(chapter.page)
        for run in range(RUNS):
            run_all_with(hand, chapter)
            wrong = [said for said in chapter.wrong() if FORGETS not in said]
            found = [*wrong, *whole(chapter.page), *complaints(chapter.page)]
            assert found == [], f"run {run + 1}, {hand.moves} moves"
            assert chapter.page.value(f"[{kernel}, {HANDLES}.length, window.restarts]") == [began, sliders, 0]
            if run % 10 == 9:
                print(f"{path.stem}: {run + 1} runs, {hand.moves} moves", flush=True)
        assert hand.moves > RUNS
        print(f"{path.stem}: {RUNS} runs of all cells, {hand.moves} moves beside them")
    finally:
        chapter.close()
