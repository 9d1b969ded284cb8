"""The generated parts of README.md: the walk, what the gain is made of, what it is inside transformers, the claims and
the pictures. What stands between `<!-- NAME: ... -->` and `<!-- end of NAME -->` is ours to write; a test fails when it
is out of date."""

import io
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from pod import files
from pod.files import ROOT
from pod.lab import chapters, claims, registry
from pod.lab.measure import provenance
from pod.serving.shapes import SHAPES
from pod.simulate import windows

README = ROOT / "README.md"
Rows = Iterator[tuple[str, float, float, str]]  # over what, better halves, fusing, the recording
PICTURES = {"stutter": "stutter", "peers": "hopper-peers"}  # block: figure


def contents() -> str:
    return chapters.markdown("notebooks/") + "\n"


def path_of(figure: str) -> Path:
    return ROOT / "notebooks" / "pictures" / f"{figure}.png"


def picture(name: str) -> str:
    figure = registry.find(name)
    image = f"![{figure.title}]({path_of(name).relative_to(ROOT).as_posix()})"
    return f"{image}\n\n*{figure.title} ({figure.state_text}).* {figure.method.rstrip('.')}.\n"


def stutter() -> str:
    """The picture; its silences with rates that were measured, and those of a real engine."""
    model, real = registry.page("stutter"), registry.page("engine-stutter")
    shown, public = model.gaps(model.table()), model.at_public_rates()
    whole, ours = real.silence("vLLM, fa3"), real.silence("Sarathi, hopper")
    rows = {
        "the picture": [1000 * shown[way] for way in model.SAID],
        "the same model, with rates that others measured on A100s": [1000 * public[way] for way in model.SAID],
        f"our engine on an H200, one run each: {_recording('engine-stutter')}": [whole, ours * real.overlap(), ours],
    }
    head = "| a chat's longest silence, ms | prompt first | in chunks | both at once |\n|---|--:|--:|--:|\n"
    body = "".join(f"| {name} | {' | '.join(f'{ms:.0f}' for ms in told)} |\n" for name, told in rows.items())
    return f"{picture('stutter')}\n{head}{body}"


def gain() -> str:
    """What our kernel gains over FlashAttention-3, in two: better halves, and fusing them; and where that stands."""
    head = "| FlashAttention-3 over ours | in all | better halves | fusing them | recording |\n|---|--:|--:|--:|---|\n"
    rows = [*_gain_of_eleven(), *_gain_of_many(), *_gain_of_iterations()]
    cells = [(name, *(f"{x:.2f}x" for x in (a * b, a, b)), _recording(which)) for name, a, b, which in rows]
    return head + "".join(f"| {' | '.join(row)} |\n" for row in cells)


def _recording(name: str) -> str:
    return f"[{name}](data/recorded/h200/{name}.csv), {provenance.day(name)}"


def _gain_of_eleven() -> Rows:
    peers, graphs = registry.page("hopper-peers"), registry.page("hopper-graphs")
    yield (
        f"its two calls, time of {peers.batches()} hybrid batches, cold L2",
        peers.halves("cold"),
        peers.fusing("cold"),
        "hopper-peers",
    )
    steady = f"the same back to back, at {peers.watts():.0f} W"
    for name, way in {steady: "steady", "their energy": "energy"}.items():
        yield name, peers.halves(way), peers.fusing(way), "hopper-peers"
    if not graphs.FIGURE.lacks:
        steady = f"inside CUDA graphs, back to back, at {graphs.watts():.0f} W"
        for name, way in {"inside CUDA graphs, cold L2": "cold", steady: "steady"}.items():
            yield name, graphs.halves(way), graphs.fusing(way), "hopper-graphs"


def _gain_of_many() -> Rows:
    sweep, drawn = registry.page("hopper-sweep"), registry.page("hopper-any")
    whole = f"its two calls, all {sweep.swept():,} batches of a sweep like the paper's"
    fewer = f"{sweep.kept():,} of them, where each part takes 20 % or more"
    for name, which in {whole: "all", fewer: "filtered"}.items():
        yield name, sweep.halves(which), sweep.fusing(which), "hopper-sweep"
    name = f"its fastest of nine ways, {drawn.batches()} drawn batches of any kind"
    yield name, drawn.halves(), drawn.fusing(), "hopper-any"


def _gain_of_iterations() -> Rows:
    runs = registry.page("engine-windows")
    for model in (model for model in windows.LOADS if model in SHAPES):
        name = f"its faster call each time, {runs.ITERATIONS[model]} iterations of the engine, {SHAPES[model].name}"
        yield name, 1 + runs.halves(model) / 100, 1 + runs.fused(model) / 100, "engine-windows"


def hosts() -> str:
    """Seconds inside transformers, and how many answers are those of its own FlashAttention-3."""
    df = registry.page("hosts").table()
    told = ("attention, and whether in CUDA graphs", "seconds", "answers that begin the same", "the same to the end")
    rows = [(r.name, f"{r.seconds:.1f}", f"{r.same_first_percent:.0f} %", f"{r.same_percent:.0f} %")
            for r in df.sort_values("seconds", kind="stable").itertuples()]  # fmt: skip
    lines = [f"| {' | '.join(row)} |\n" for row in (told, ("---", "--:", "--:", "--:"), *rows)]
    return "".join(lines) + f"\nOne run each on an H200 ({_recording('hosts')}): {registry.find('hosts').method}.\n"


BLOCKS: dict[str, Callable[[], str]] = {"chapters": contents, "gain": gain, "hosts": hosts, "claims": claims.markdown}
BLOCKS |= {block: partial(picture, figure) for block, figure in PICTURES.items()} | {"stutter": stutter}


def refreshed(text: str) -> str:
    """The README with every generated part made anew."""
    for name, make in BLOCKS.items():
        parts = re.split(rf"(<!-- {name}:.*?-->\n|<!-- end of {name} -->)", text)
        if len(parts) != 5:
            raise ValueError(f"README.md: {len(parts) // 4} blocks named {name!r}, wanted is one")
        text = "".join([*parts[:2], make(), *parts[3:]])
    return text


def draw(name: str):
    """The figure as pixels [height, width, 3], floats from 0 to 1."""
    plt.switch_backend("Agg")
    module, file = registry.load(name), io.BytesIO()
    figure = module.draw(module.table())
    figure.savefig(file, format="png", dpi=110, bbox_inches="tight", facecolor="white")
    plt.close(figure)
    return plt.imread(io.BytesIO(file.getvalue()))[..., :3]


def same_picture(one, other) -> bool:
    """Fonts are drawn a little differently from system to system; anything that a reader could see is a change."""
    return one.shape == other.shape and float(np.mean(np.abs(one - other).max(axis=-1) > 0.3)) < 1e-3


def is_fresh(name: str) -> bool:
    path = path_of(name)
    return path.is_file() and same_picture(plt.imread(path)[..., :3], draw(name))


def _save(name: str) -> None:
    pixels = io.BytesIO()
    plt.imsave(pixels, draw(name), format="png")
    path_of(name).parent.mkdir(parents=True, exist_ok=True)
    files.replace(path_of(name), pixels.getvalue())


def _old_pictures() -> list[str]:
    return [figure for figure in PICTURES.values() if not is_fresh(figure)]


def out_of_date() -> list[str]:
    text = README.read_text(encoding="utf-8")
    parts = [] if refreshed(text) == text else [README.name]
    return parts + [path_of(name).relative_to(ROOT).as_posix() for name in _old_pictures()]


def configure(parser) -> None:
    parser.add_argument("--check", action="store_true", help="only say what is out of date")


def run(args) -> int:
    stale = out_of_date()
    if args.check:
        if stale:
            print(f"out of date: {', '.join(stale)}; `python -m pod readme` mends it", file=sys.stderr)
        return 1 if stale else 0
    files.replace(README, refreshed(README.read_text(encoding="utf-8")))
    for name in _old_pictures():
        _save(name)
    print(f"refreshed {', '.join(stale)}" if stale else "README.md is up to date")
    return 0
