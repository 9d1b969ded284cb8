"""A live notebook as its kernel sees it: cells run, widgets come, and somebody moves them."""

import queue
import time
from pathlib import Path

import psutil
from jupyter_client import KernelManager

from pod.files import ROOT
from pod.lab.show.explore import PAUSE

NOTEBOOKS = ROOT / "notebooks"
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
        self.said: dict[str, str] = {}  # by the request that asked for it
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

    def say(self, cell: str) -> str:
        """Run one cell, and return all that it shows."""
        asked = self.client.execute(cell)
        self.running.add(asked)
        self._wait()
        return self.said.get(asked, "")

    def interrupt(self, cell: str, after: float) -> str:
        """Run a cell and press stop after these seconds; all that it shows."""
        asked = self.client.execute(cell)
        self.running.add(asked)
        time.sleep(after)
        self.manager.interrupt_kernel()
        self._wait()
        return self.said.get(asked, "")

    def spent(self) -> float:
        """Seconds of processors, the kernel's and its programs': who else is at work on this machine does not count."""
        times = psutil.Process(self.manager.provisioner.pid).cpu_times()
        return times.user + times.system + times.children_user + times.children_system

    def move(self, slider: str, state: dict) -> None:
        self._tell(slider, {"method": "update", "state": state})
        self.widgets[slider] |= state

    def click(self, button: str) -> None:
        """Press the latest button of this name."""
        names = [name for name, widget in self.widgets.items() if widget.get("description") == button]
        self._tell(names[-1], {"method": "custom", "content": {"event": "click"}})
        self._wait()

    def _tell(self, widget: str, data: dict) -> None:
        message = self.client.session.msg("comm_msg", {"comm_id": widget, "data": data})
        message["header"] |= self.subshell
        self.client.shell_channel.send(message)
        self.unheard.add(message["header"]["msg_id"])

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
        elif kind in ("execute_result", "display_data"):
            self._hear(asked, content["data"].get("text/markdown", content["data"]["text/plain"]))
        elif kind == "error":
            self._hear(asked, "\n".join(content["traceback"]))
            self.wrong.append("\n".join(content["traceback"]))
        elif kind == "stream" and "Error" in content["text"]:
            self.wrong.append(content["text"])

    def _hear(self, asked: str | None, text: str) -> None:
        self.said[asked] = f"{self.said.get(asked, '')}{text}\n"

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
        named = [[child.removeprefix("IPY_MODEL_") for child in box] for box in boxes if len(box) > 1]
        return [box for box in named if "Slider" in self.widgets[box[0]]["_model_name"]]  # others are questions

    def pictures(self) -> list:
        return [self.widgets[box[-1]]["outputs"] for box in self.boxes()]
