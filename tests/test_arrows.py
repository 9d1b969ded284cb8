"""A module imports only from rooms below its own, inside functions too. README.md has the table of ranks."""

import ast
import re
from pathlib import Path

import pod
from pod.files import ROOT

PACKAGE = ROOT / "pod"


def ranks() -> dict[str, int]:
    """Room -> rank, as README.md tells them: rows `| rank | rooms | job |`."""
    rows = re.findall(r"^\| (\d) \| ([^|]+) \|", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    return {room: int(rank) for rank, rooms in rows for room in re.findall(r"`pod/([\w/.]+)`", rooms)}


def room_of(path: Path) -> str:
    """The room of a file: itself, or the folder that is named."""
    name = path.relative_to(PACKAGE).as_posix()
    return next((room for room in RANKS if name == room or (room.endswith("/") and name.startswith(room))), "")


def imported(path: Path) -> set[Path]:
    """The files of this package that a file imports, wherever in it."""
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f"{'.' * node.level}{node.module}.{alias.name}" for alias in node.names]
    assert not [name for name in names if name.startswith(".")], f"{path}: imports have the whole name here"
    return {_file(name) for name in names if name.split(".")[0] == "pod"}


def _file(name: str) -> Path:
    """pod.batch.HybridBatch is pod/batch.py; pod.plan is pod/__init__.py, the front door."""
    place = ROOT.joinpath(*name.split("."))
    while not (place.with_suffix(".py").is_file() or (place / "__init__.py").is_file()):
        place = place.parent
    return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")


RANKS = ranks()
NEEDS = {path: imported(path) for path in sorted(PACKAGE.rglob("*.py"))}


def arrow(path: Path, other: Path) -> str:
    return f"{path.relative_to(PACKAGE).as_posix()} -> {other.relative_to(PACKAGE).as_posix()}"


def test_every_file_has_a_room_and_no_room_is_empty():
    rooms = {path.relative_to(ROOT).as_posix(): room_of(path) for path in NEEDS}
    assert [path for path, room in rooms.items() if not room] == []
    assert set(RANKS) == set(rooms.values())


def test_arrows_go_down():
    between = [(path, other) for path in NEEDS for other in NEEDS[path] if room_of(path) != room_of(other)]
    upward = [pair for pair in between if RANKS[room_of(pair[0])] <= RANKS[room_of(pair[1])]]
    assert [arrow(*pair) for pair in upward] == []


def test_the_front_door_reaches_into_the_laboratory_for_the_badge_alone():
    """What it offers is imported when it is asked for, so that no import statement tells."""
    rank = {name: RANKS[room_of(_file(module))] for name, module in pod._HOME.items()}
    assert [name for name, r in rank.items() if r > RANKS["__init__.py"]] == ["badge"]


def test_no_circle_within_a_room():
    """Each file can be read after those that it needs."""
    left = {(path, other) for path, others in NEEDS.items() for other in others - {path} if other.name != "__init__.py"}
    while ends := {path for path, _ in left} ^ {other for _, other in left}:
        left = {pair for pair in left if not ends.intersection(pair)}
    assert sorted(arrow(*pair) for pair in left) == []


ELSEWHERE = {"attention.py": "kernels", "__init__.py": "test_house.py", "__main__.py": "test_house.py"}
BESIDE = {"emulator", "golden", "gpu", "notebooks", "wrong"}  # a machine, data, a card, the chapters, kernels to reject


def test_tests_mirror_the_rooms():
    tests = ROOT / "tests"
    homes = {room: ELSEWHERE.get(room, f"test_{room}" if room.endswith(".py") else room.rstrip("/")) for room in RANKS}
    assert [room for room, home in homes.items() if not (tests / home).exists()] == []
    folders = {path.name for path in tests.iterdir() if path.is_dir() and not path.name.startswith((".", "__"))}
    assert folders <= BESIDE | set(homes.values())
