"""Where a recording comes from. Every file in data/recorded/<gpu>/ has a sidecar, x.csv -> x.meta.json, written on the
GPU machine by `write` and checked by `check`: which GPU and software, how it was timed, what the GPU's clocks and power
did meanwhile, and which kernels ran on which work lists, so that a later change of exactly those shows up."""

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from statistics import median

from pod import data, files
from pod.data import sidecar_of
from pod.files import ROOT, sha256
from pod.kernels import build
from pod.lab.measure import sources, worklists

L2_STATES = ("cold", "warm")
TELEMETRY = {
    "sm_clock_mhz": (100, 3000),
    "memory_clock_mhz": (300, 10000),
    "power_w": (10, 1500),
    "temperature_c": (5, 110),
}
PATTERNS = {
    "driver": r"\d{3}\.\d+(\.\d+)?",
    "cuda": r"\d+\.\d+",
    "torch": r"\d+\.\d+\.\d+\S*",
    "commit": r"[0-9a-f]{40}",
    "sha256": r"[0-9a-f]{64}",
}
FIELDS = {
    "gpu": str, "gpus": int, "driver": str, "cuda": str, "torch": str, "commit": str, "dirty": bool, "kernels": dict,
    "telemetry": dict, "timer": str, "l2": str, "repeats": int, "started": str, "seconds": (int, float),
    "command": str, "keys": list, "sha256": str,
}  # fmt: skip
LATER = {"uuids": list, "power_limit_w": (int, float), "packages": dict, "tree": str}
SINCE = "2026-11-23"  # of LATER; before, a sidecar has all of it or none
PEERS = ("flash_attn_interface", "flashinfer", "transformers", "vllm")  # modules of other people's kernels and engines


# ---------------------------------------------------------------- on the GPU machine


def collect() -> dict:
    """The machine and the tree that measure. `commit` is what git or the environment says, `tree` what is there."""
    import torch

    names, driver = _query_gpus()
    commit, dirty = _commit()
    return {"gpu": names[0], "gpus": len(names), "uuids": _uuids(), "power_limit_w": _power_limit(), "driver": driver,
            "cuda": torch.version.cuda or "none", "torch": torch.__version__, "packages": _packages(),
            "commit": commit, "dirty": dirty, "tree": sources.tree()}  # fmt: skip


def _packages() -> dict[str, str]:
    """The compiler's release, and what was loaded of other people's, with its versions."""
    owners = metadata.packages_distributions()
    compiler = {"nvcc": "{}.{}".format(*release)} if (release := build.cuda()) else {}
    return compiler | {name: _version(next(iter(owners.get(name, ())), "")) for name in loaded()}


_by_workers: set[str] = set()


def loaded() -> list[str]:
    """Of PEERS, what this process has loaded, or one that it started."""
    return [name for name in PEERS if name in sys.modules or name in _by_workers]


def hear(names: Iterable[str]) -> None:
    """What a process that this one started has loaded."""
    _by_workers.update(names)


def _version(package: str) -> str:
    return f"{package} {metadata.version(package)}" if package else "unknown"


def _nvml():
    """The NVML module, initialised; None without nvidia-ml-py or a driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return pynvml
    except Exception:  # a missing package and each missing library raise their own kind
        return None


def _uuids() -> list[str]:
    """The GPUs that CUDA shows to this process, in its order. NVML and nvidia-smi show all of the host, in another."""
    import torch

    return [f"GPU-{torch.cuda.get_device_properties(i).uuid}" for i in range(torch.cuda.device_count())]


def nvml_device(nvml, device: int | None = None):
    """NVML's handle of a CUDA device, the current one if none is named."""
    import torch

    return nvml.nvmlDeviceGetHandleByUUID(_uuids()[torch.cuda.current_device() if device is None else device])


def _smi(*fields: str) -> list[list[str]]:
    """One row a GPU from nvidia-smi, in CUDA's order."""
    command = ["nvidia-smi", f"--query-gpu={','.join(['uuid', *fields])}", "--format=csv,noheader,nounits"]
    try:
        out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        out = ""
    rows = {cells[0]: cells[1:] for line in out.strip().splitlines() for cells in [line.split(", ")]}
    shown = [rows[uuid] for uuid in _uuids() if uuid in rows]
    if not shown:
        raise ValueError("no NVIDIA GPU found: provenance is collected where the measuring happens")
    return shown


def _query_gpus() -> tuple[list[str], str]:
    if nvml := _nvml():
        handles = [nvml_device(nvml, i) for i in range(len(_uuids()))]
        if handles:
            names = [_text(nvml.nvmlDeviceGetName(h)) for h in handles]
            return names, _text(nvml.nvmlSystemGetDriverVersion())
    rows = _smi("name", "driver_version")
    return [name for name, _ in rows], rows[0][1]


def _power_limit() -> float:
    """Watts at which the first GPU is held."""
    if (nvml := _nvml()) and _uuids():
        return nvml.nvmlDeviceGetEnforcedPowerLimit(nvml_device(nvml, 0)) / 1000
    return float(_smi("power.limit")[0][0])


def _text(value: str | bytes) -> str:
    """Older bindings of NVML answer in bytes."""
    return value.decode() if isinstance(value, bytes) else value


def _commit() -> tuple[str, bool]:
    """The commit and whether tracked files differ from it. In a copy, whose .git may tell of another tree or be
    missing, the environment says both."""
    if commit := os.environ.get("POD_COMMIT"):
        return commit, os.environ.get("POD_DIRTY", "0") != "0"
    try:
        return _git("rev-parse", "HEAD"), bool(_git("status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.CalledProcessError):
        words = "no git here: set POD_COMMIT to the full commit hash, and POD_DIRTY=1 if files differ from it"
        raise ValueError(words) from None


def _git(*args: str) -> str:
    command = ["git", "-C", str(ROOT), *args]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def tree_of(commit: str) -> str:
    """What `sources.tree` is in a checkout of this commit."""
    try:
        lines = _git("ls-tree", "-r", commit, "--", *sources.FOLDERS).splitlines()
    except (OSError, subprocess.CalledProcessError):
        raise ValueError(f"commit: got {commit[:8]}, allowed is one that this clone has") from None
    return sources.tree_sum({path: head.split()[2] for head, path in (line.split("\t") for line in lines)})


class Watch:
    """Samples of clocks, power and temperature, taken by a thread while a measurement runs."""

    def __init__(self) -> None:
        self.started = datetime.now(timezone.utc)
        self.samples: list[tuple[float, ...]] = []
        self.seconds = 0.0

    def summary(self) -> dict:
        columns = zip(TELEMETRY, zip(*self.samples, strict=True), strict=True)
        return {"samples": len(self.samples)} | {
            name: {"min": min(values), "median": median(values), "max": max(values)} for name, values in columns
        }


@contextmanager
def watch(interval: float = 0.2, device: int = 0):
    """`with watch() as run: measure()`, then hand `run` to `write`. It samples at the start and the end at least."""
    run, done = Watch(), threading.Event()
    sample = _sampler(device)

    def loop() -> None:
        while not done.wait(interval):
            run.samples.append(sample())

    thread = threading.Thread(target=loop, daemon=True)
    begin = time.perf_counter()
    run.samples.append(sample())
    thread.start()
    try:
        yield run
    finally:
        done.set()
        thread.join()
        run.samples.append(sample())
        run.seconds = time.perf_counter() - begin


def _sampler(device: int):
    """A function that reads (SM clock, memory clock, power, temperature) of a CUDA device once."""
    if nvml := _nvml():
        handle = nvml_device(nvml, device)
        return lambda: (
            nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
            nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
            nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        )
    fields = ("clocks.sm", "clocks.mem", "power.draw", "temperature.gpu")
    return lambda: tuple(float(cell) for cell in _smi(*fields)[device])


def write(
    path: str | Path, run: Watch, *, keys: Sequence[str], timer: str, l2: str, repeats: int,
    kernels: Iterable[str] = (), command: str | None = None, before: dict | None = None, part: str = "",
) -> Path:  # fmt: skip
    """Write the sidecar of the file at `path`, measured under `run`, and check it.

    keys: the columns that name a row; the others are measured. timer: how time was taken, in words. l2: "cold" or
    "warm". kernels: what ran, as pod/lab/measure/sources.py names it. before: the sidecar of what an earlier session
    measured of it. part: which part of a whole it is.
    """
    path = Path(path)
    meta = collect() | {
        "kernels": sources.sums(kernels), "telemetry": run.summary(), "timer": timer, "l2": l2, "repeats": repeats,
        "started": run.started.isoformat(timespec="seconds"), "seconds": round(run.seconds, 3),
        "command": command or " ".join(["python", *sys.argv]), "keys": list(keys), "sha256": sha256(path),
    } | ({"part": part} if part else {})  # fmt: skip
    if lists := worklists.sum_of(path.stem, folder_of(meta["gpu"])):
        meta["lists"] = lists
    sidecar = sidecar_of(path)
    files.replace(sidecar, json.dumps(joined(before, meta) if before else meta, indent=1) + "\n")
    check(path)
    return sidecar


def begun(path: Path, kernels: Iterable[str]) -> dict | None:
    """The sidecar of a recording that is to go on, if it has one. What goes on elsewhere is no recording."""
    if not sidecar_of(path).is_file():
        return None
    before = json.loads(sidecar_of(path).read_text(encoding="utf-8"))
    now = collect() | {"kernels": sources.sums(kernels)}
    now["lists"] = worklists.sum_of(path.stem, folder_of(now["gpu"]))
    same = ("gpu", "gpus", "uuids", "driver", "cuda", "torch", "kernels", "lists")
    if other := [name for name in same if name in before and before[name] != now[name]]:
        raise ValueError(f"{path.name}: begun with another {', '.join(other)}; --again measures all of it here")
    return before


def joined(before: dict, after: dict) -> dict:
    """One sidecar for two sessions: the later one's, over both. Medians are means of theirs, weighted by samples."""
    parts = [before["telemetry"], after["telemetry"]]
    weights = [part["samples"] for part in parts]
    telemetry: dict = {"samples": sum(weights)}
    for name in TELEMETRY:
        low, middle, high = ([part[name][k] for part in parts] for k in ("min", "median", "max"))
        median = round(sum(m * w for m, w in zip(middle, weights, strict=True)) / sum(weights), 3)
        telemetry[name] = {"min": min(low), "median": median, "max": max(high)}
    seconds = round(before["seconds"] + after["seconds"], 3)
    return after | {"started": before["started"], "seconds": seconds, "telemetry": telemetry}


# ---------------------------------------------------------------- staleness


LISTS = "work lists"  # as `stale` names them beside the kernels


def stale(folder: Path | None = None) -> dict[Path, list[str]]:
    """Recordings of other kernels than the present ones, or of other work lists, each with what has changed."""
    return {path: changed for path in recordings(folder) if (changed := stale_one(path))}


def stale_one(path: Path) -> list[str]:
    meta = json.loads(sidecar_of(path).read_text(encoding="utf-8"))
    changed = [name for name, total in meta["kernels"].items()
               if name not in sources.UNITS or sources.sum_of(name) != total]  # fmt: skip
    return changed + [LISTS] * ("lists" in meta and meta["lists"] != _lists(path, meta))


def _lists(path: Path, meta: dict) -> str:
    return worklists.sum_of(path.stem, folder_of(meta["gpu"]))


def hold(path: Path, evidence: str) -> None:
    """Say that a recording holds for the present kernels as well, and why: its sidecar keeps every such saying."""
    meta = json.loads(sidecar_of(path).read_text(encoding="utf-8"))
    commit, _ = _commit()
    said = {name: meta[name] for name in ("kernels", "lists") if name in meta} | {"until": commit, "evidence": evidence}
    meta |= {"kernels": sources.sums(meta["kernels"]), "held": [*meta.get("held", []), said]}
    meta |= {"lists": lists} if (lists := _lists(path, meta)) else {}
    files.replace(sidecar_of(path), json.dumps(meta, indent=1) + "\n")
    check(path)


# ---------------------------------------------------------------- checking


def folder_of(gpu: str) -> str:
    """The name of the folder for recordings of this GPU: "h200" for "NVIDIA H200"."""
    numbered = re.findall(r"[a-z]*\d+[a-z]*", gpu.lower())
    return numbered[0] if numbered else gpu.lower().split()[-1]


def recordings(folder: Path | None = None) -> list[Path]:
    """Every recorded file, sidecars left out."""
    files = (p for p in (folder or data.RECORDED).rglob("*") if p.is_file() and not p.name.startswith("."))
    return sorted(p for p in files if not p.name.endswith((".meta.json", ".md")))


def load(path: str | Path) -> dict:
    """The checked sidecar of a recording."""
    check(path)
    return json.loads(sidecar_of(path).read_text(encoding="utf-8"))


def day(name: str) -> str:
    """On which day the recording that figures show began, as 2026-11-23."""
    sidecar = sidecar_of(data.path_of(name))
    return json.loads(sidecar.read_text(encoding="utf-8"))["started"][:10]


def check(path: str | Path) -> None:
    """Refuse a recording without a complete, consistent sidecar: one ValueError names everything that is wrong."""
    path = Path(path)
    try:
        meta = json.loads(sidecar_of(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path.name}: no sidecar {sidecar_of(path).name}; measure it, do not write it") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{sidecar_of(path).name}: not JSON ({error})") from None
    problems = _missing(meta) or [*_malformed(meta), *_implausible(meta), *_other_file(path, meta)]
    if problems:
        raise ValueError(f"{sidecar_of(path).name}: {'; '.join(problems)}")


def _missing(meta) -> list[str]:
    if not isinstance(meta, dict):
        return ["not an object"]
    late = str(meta.get("started")) >= SINCE or not LATER.keys().isdisjoint(meta)
    fields = FIELDS | (LATER if late else {})
    wrong = [name for name, kind in fields.items() if not isinstance(meta.get(name), kind) or meta[name] == ""]
    return [f"missing or of the wrong type: {', '.join(wrong)}"] if wrong else []


def _malformed(meta: dict) -> list[str]:
    problems = [f"{name} {meta[name]!r}" for name, form in PATTERNS.items() if not re.fullmatch(form, meta[name])]
    sums = (meta["kernels"] | ({LISTS: meta["lists"]} if "lists" in meta else {})).items()
    problems += [f"kernels {name}: {total!r}" for name, total in sums if not re.fullmatch(r"[0-9a-f]{16}", str(total))]
    if len(set(meta["commit"])) < 6:
        problems.append(f"commit {meta['commit']!r} is no hash")
    if not all(re.fullmatch(r"GPU-[0-9a-f-]{8,}", uuid) for uuid in meta.get("uuids", ())):
        problems.append(f"uuids {meta['uuids']}")
    if not re.fullmatch(PATTERNS["sha256"], meta.get("tree", "0" * 64)):
        problems.append(f"tree {meta['tree']!r}")
    if meta["l2"] not in L2_STATES:
        problems.append(f"l2 {meta['l2']!r}, allowed: {', '.join(L2_STATES)}")
    return problems


def _implausible(meta: dict) -> list[str]:
    problems = [f"{name} {meta[name]}" for name in ("gpus", "repeats", "seconds") if not meta[name] > 0]
    try:
        started = datetime.fromisoformat(meta["started"])
        if started.tzinfo is None or started > datetime.now(timezone.utc):
            problems.append(f"started {meta['started']!r} has no time zone or lies ahead")
    except ValueError:
        problems.append(f"started {meta['started']!r} is no ISO date")
    telemetry = meta["telemetry"]
    if not telemetry.get("samples", 0) >= 2:
        problems.append("telemetry needs at least two samples")
    for name, (low, high) in TELEMETRY.items():
        spread = [telemetry.get(name, {}).get(k, -1) for k in ("min", "median", "max")]
        if not (low <= spread[0] <= spread[1] <= spread[2] <= high):
            problems.append(f"telemetry {name} {spread}, plausible is {low} to {high}")
    return problems


def _other_file(path: Path, meta: dict) -> list[str]:
    """What the sidecar says that the file and its folder deny."""
    problems = []
    if meta["sha256"] != sha256(path):
        problems.append(f"{path.name} was changed after it was measured (sha256 differs)")
    folder = path.parent.name
    if not {data.RECORDED, data.REPEATS}.isdisjoint(path.resolve().parents) and folder not in meta["gpu"].lower():
        problems.append(f"a recording of {meta['gpu']!r} does not belong into {folder}/")
    if path.suffix == ".csv":
        rows = files.rows(path)
        if not rows or not meta["keys"] or not set(meta["keys"]) <= rows[0].keys():
            problems.append(f"{path.name} has no rows or lacks a key column of {meta['keys']}")
        else:
            problems += _spread(rows)
    return problems


def _spread(rows: list[dict[str, str]]) -> list[str]:
    """Every measured x with its x_p10 and x_p90 must lie between them."""
    names = [n for n in rows[0] if f"{n}_p10" in rows[0] and f"{n}_p90" in rows[0]]
    for name in names:
        for i, row in enumerate(rows):
            cells = [row[f"{name}_p10"], row[name], row[f"{name}_p90"]]
            if all(cells) and not float(cells[0]) <= float(cells[1]) <= float(cells[2]):
                return [f"row {i + 1}: {name} {cells[1]} is not within its p10 {cells[0]} and p90 {cells[2]}"]
    return []
