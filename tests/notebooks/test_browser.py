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
from contextlib import suppress
from itertools import count
from pathlib import Path
from urllib.request import urlopen

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
    pytest.mark.skipif(not CHROMIUM, reason=f"no browser here: looked for {', '.join(NAMES)} and $CHROMIUM"),
    pytest.mark.skipif(kernels.mode().name == "recorded", reason=kernels.mode().reason),
]
LIVE = "explore(", "%%cuda"  # sliders, or CUDA to type
CHAPTERS = [path for path in notebooks.find([]) if any(word in path.read_text(encoding="utf-8") for word in LIVE)]
TOKEN, PATIENCE = "reader", 300.0
QUICK = 1.5  # seconds of a processor from a move to its picture: who else is at work on this machine does not count
MOVES = 3  # of each slider; the quickest counts
SETTINGS = {
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "notebook-extension/tracker": {"windowingMode": "none"},  # every cell is on the page
}


BEGIN = """from pathlib import Path
from pod.learn import progress
progress.path = lambda: Path({!r})  # not the reader's
"""


def until(true, seconds: float = PATIENCE):
    """The first value that is true."""
    end = time.monotonic() + seconds
    while not (value := true()):
        assert time.monotonic() < end, f"nothing after {seconds:g} s"
        time.sleep(0.05)
    return value


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
        late = [*press_buttons(lab, chapter), *move_sliders(lab, chapter)]
        assert chapter.wrong() == []
        solve(chapter)
        print(f"{path.stem}: {len(late)} widgets moved, the slowest in {max(late):.2f} s of a processor")
        assert max(late) < QUICK
    finally:
        chapter.close()


def press_buttons(lab: Lab, chapter: Chapter) -> list[float]:
    """The first option of each question; what it took until the page says so."""
    late = []
    for asked in named("ask", chapter.path):
        node = chapter.node(chapter.at(f'learn.ask("{asked}")'))
        begin = lab.spent()
        chapter.page.click(f"{node}.querySelector('button.jupyter-button')")
        until(lambda n=node: "You say" in chapter.page.value(f"{n}.innerText"))
        late.append(lab.spent() - begin)
    return late


HANDLES = "[...document.querySelectorAll('.widget-slider')]"


def move_sliders(lab: Lab, chapter: Chapter) -> list[float]:
    """The quickest of a few moves of each, by an arrow key, until its picture is another."""
    count = chapter.page.value(f"{HANDLES}.length")
    return [min(move(lab, chapter, i, turn) for turn in range(MOVES)) for i in range(count)]


def move(lab: Lab, chapter: Chapter, slider: int, turn: int) -> float:
    picture = f"{HANDLES}[{slider}].closest('.widget-vbox').querySelector('img')?.src ?? ''"
    before = until(lambda: chapter.page.value(picture))
    handle = f"{HANDLES}[{slider}].querySelector('.noUi-handle')"
    chapter.page.value(f"(() => {{ const e = {handle}; e.scrollIntoView({{block: 'center'}}); e.focus(); }})()")
    value, ends = (chapter.page.value(f"{handle}.getAttribute('aria-value{x}')") for x in ("now", "max"))
    left = turn % 2 or value == ends
    begin = lab.spent()
    chapter.page.press(*(("ArrowLeft", 37) if left else ("ArrowRight", 39)))
    until(lambda: chapter.page.value(picture) not in ("", before))
    return lab.spent() - begin


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
