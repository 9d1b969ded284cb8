"""Pictures of the Hopper kernel: its rooms and roles on one SM, the line of decode tiles, the plan of both sides, and
turns at the tensor cores."""

import re
from collections.abc import Sequence
from itertools import accumulate, count, pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

from pod.files import CSRC
from pod.hardware import H200, KIB
from pod.lab.show import code, style
from pod.lab.show.gantt import gantt
from pod.lab.show.tiles import CELLS
from pod.schedule.execute import rows
from pod.schedule.waves import run
from pod.schedule.work import PERSISTENT, WorkList
from pod.simulate import tensor_core_queue

SOURCE = CSRC / "sm90" / "hybrid.cu"
DECODE = SOURCE.with_name("decode.cuh")
GRANULE, HEADS = 8 * KIB, 8  # of decode's ring; query heads of a pass
RUNS = r"(Producer|consume|Consumer)<"  # what a role's warps run


def registers() -> dict[str, int]:
    """Registers of one thread of each warpgroup, as the kernel's source sets them."""
    found = re.search(r"kRegisters<8, 16> = {(\d+), (\d+), (\d+)}", SOURCE.read_text(encoding="utf-8"))
    producer, prefill, decode = map(int, found.groups())
    return {"producers": producer, "prefill 0": prefill, "prefill 1": prefill, "decode": decode}


def shared_memory(head_dim: int = 128) -> dict[str, int]:
    """Bytes of the CTA's shared memory by what lives there."""
    found = re.search(r"kGranules = \(D == 64 \? (\d+) : (\d+)\)", DECODE.read_text(encoding="utf-8"))
    granules = int(found[2 if head_dim == 128 else 1])
    tile = 128 * head_dim * 2
    rooms = {"Q": tile, "K": tile, "K ": tile, "V": tile, "V ": tile}
    rooms["ring of K, V"] = granules * GRANULE
    rooms["q, p"] = 2 * HEADS * head_dim * 2 + 2 * 64 * HEADS * 2
    return rooms


def roles() -> code.Listing:
    """The branches in which the kernel's warps take their roles, cut from its source: registers, and what each runs.

    Left out are arguments, and what only a trace or a cache of 8 bits needs.
    """
    whole = code.piece("csrc/sm90/hybrid.cu", "if (warp < 4) {", "decode::Consumer<")
    told = re.compile(rf"if .*(warp|kDecodes|kRows)|setmaxnreg|{RUNS}")
    lines = [line for line in whole.lines if told.search(line) and "widener" not in line]
    return code.Listing(whole.file, "\n".join(re.sub(rf"{RUNS}.*", r"\1<…>(…);", line) for line in lines) + "\n}")


def rooms() -> Figure:
    """One SM: registers above, shared memory in the middle, memory below; widths are true to scale."""
    ax = style.axes(9.5, 4.3)
    ax.axis("off")
    regs, smem = registers(), shared_memory()
    kinds = {"producers": "load", "prefill 0": "prefill", "prefill 1": "prefill", "decode": "decode"}
    words = {"producers": "warps\nthat\ncopy", "prefill 0": "prefill warpgroup 0\n64 query rows",
             "prefill 1": "prefill warpgroup 1\n64 query rows", "decode": "decode\nwarpgroup"}  # fmt: skip
    scale, left, middle = 100 / sum(regs.values()), 0.0, {}
    for name, number in regs.items():
        _room(ax, left, 5.6, number * scale, 1.9, f"{words[name]}\n{number}", kinds[name])
        middle[name] = left + number * scale / 2
        left += number * scale
    scale, left, places = 100 / H200.smem_per_cta, 0.0, {}
    for name, size in smem.items():
        kind = "prefill" if len(name) < 3 else "decode"
        label = {"ring of K, V": f"ring of K, V\n{size // GRANULE} x 8 KB\n{size // KIB} KB", "q, p": "q,\np"}.get(name)
        _room(ax, left, 2.7, size * scale, 1.6, label or f"{name.strip()}\n{size // KIB} KB", kind)
        places[name] = left + size * scale / 2
        left += size * scale
    _room(ax, 0, 0.3, 100, 0.9, "L2 and DRAM", "linear")
    for name in ("Q", "K", "V", "ring of K, V"):
        _arrow(ax, (places[name], 1.2), (places[name], 2.7))
    operands = ("Q", -4), ("K ", -1), ("V ", 2)
    feeds = [(operand, f"prefill {i}", side) for operand, side in operands for i in (0, 1)]
    for source, target, side in (*feeds, ("ring of K, V", "decode", 0)):
        _arrow(ax, (places[source], 4.3), (middle[target] + side, 5.6))
    for x, y, text in ((101, 6.5, "registers\na thread"), (101, 3.5, f"shared\nmemory\n{H200.smem_per_cta // KIB} KB")):
        ax.text(x, y, text, va="center", fontsize=9, color=style.INK)
    ax.text(places["K "], 1.95, "copies by TMA", ha="center", va="center", fontsize=9, color=style.INK)
    ax.text(places["q, p"], 5.0, "products by wgmma", ha="center", va="center", fontsize=9, color=style.INK)
    ax.set(xlim=(-0.5, 110), ylim=(0.2, 7.7))
    return ax.figure


def _room(ax: Axes, x: float, y: float, width: float, height: float, text: str, kind: str) -> None:
    ax.add_patch(Rectangle((x, y), width, height, facecolor=style.colour(kind), edgecolor="white", linewidth=2))
    ax.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=9, color=style.text_on(kind))


def _arrow(ax: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    ax.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=11, color=style.INK, linewidth=1.2))


def swapped_operands(queries: int = 4) -> Figure:
    """The scores of one tile of 64 tokens, to scale: queries padded to 64 rows, or as 8 columns."""
    axes = style.axes(7.5, 2.9, columns=2)
    shapes = (
        (64, 64, (64, queries), "S = Q Kᵀ: queries are the rows"),
        (8, 64, (queries, 64), "Sᵀ = K Qᵀ: tokens are the rows"),
    )
    for ax, (width, height, useful, title) in zip(axes, shapes, strict=True):
        face, hatch = CELLS["padding"]
        ax.add_patch(Rectangle((0, 0), width, height, facecolor=face, edgecolor=style.FRAME, hatch=hatch))
        ax.add_patch(Rectangle((0, 0), *useful, facecolor=style.DECODE))
        share = width * height // (useful[0] * useful[1])
        ax.text(width + 3, height / 2, f"{share} x the work", va="center", fontsize=10, fontweight="bold")
        ax.set(xlim=(-1, 100), ylim=(65, -1), aspect="equal", xticks=[0, width], yticks=[0, height])
        ax.set_xlabel("tokens" if width == 64 else "queries", loc="left")
        ax.set_ylabel("queries" if width == 64 else "tokens")
        ax.set_title(title, fontsize=10, loc="left")
        ax.spines[:].set_visible(False)
    return axes[0].figure


def decode_line(work: WorkList, names: Sequence[str]) -> Axes:
    """The line of all decode tiles, one row a KV head; the colour of a tile is the SM whose piece it is in.

    `names` of the requests, in the order of the batch; the number of the KV head follows. Parts of a merged result are
    hatched and name their slot: the number of their partial result.
    """
    ax, keys = style.axes(9.5, 2.5), PERSISTENT.decode_keys
    tiles = {seq: -(-kv_len // keys) for seq, kv_len in zip(work.seq.tolist(), work.kv_len.tolist(), strict=True)}
    sequences, ends = sorted(tiles), list(accumulate(tiles[seq] for seq in sorted(tiles)))
    pieces = np.searchsorted(work.pieces, np.arange(len(work)), side="right") - 1
    for row, piece, width in zip(rows(work), pieces, work.blocks(keys).tolist(), strict=True):
        place, head = sequences.index(row["seq"]), row["kv_head"]
        x = ends[place] - tiles[row["seq"]] + row["begin"] // keys
        tone, split = style.WORKERS[piece % len(style.WORKERS)], row["parts"] > 1
        ax.add_patch(Rectangle((x, head + 0.08), width, 0.84, facecolor=tone, edgecolor="white", linewidth=2,
                               hatch="//" if split else None))  # fmt: skip
        ax.bar(0, 0, 0, color=tone, label=f"SM {piece}")  # for the legend, without the hatch
        slot = f"\nslot {row['partial'] + row['part']}" if split else ""
        ax.text(x + width / 2, head + 0.5, f"{names[place]}{head}{slot}", ha="center", va="center", fontsize=9,
                color="white", bbox={"facecolor": tone, "edgecolor": "none", "pad": 1.5})  # fmt: skip
    heads = int(work.kv_head.max()) + 1
    ax.set(xlim=(0, ends[-1]), ylim=(heads, 0), xlabel="tiles of 64 tokens", xticks=[0, *ends])
    ax.set_yticks([h + 0.5 for h in range(heads)], [f"KV head {h}" for h in range(heads)])
    ax.tick_params(axis="y", length=0)
    style.legend(ax, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=8, borderaxespad=0.2)
    return ax


def plan(prefill: WorkList, decode: WorkList, sms: int, block: float, tile: float) -> list[tuple]:
    """Bars (row, start, end, kind, label) of both queues on `sms` SMs, each side at the pace that it has alone:
    `block` is the time of a prefill block of 128 tokens, `tile` that of a decode tile of 64."""
    blocks, sizes = prefill.blocks(PERSISTENT.prefill_keys), decode.blocks(PERSISTENT.decode_keys)
    bars = [(f"SM {r.slot} prefill", r.start, r.end, "prefill", str(blocks[r.cta])) for r in run(blocks * block, sms)]
    for piece, (first, last) in enumerate(pairwise(decode.pieces)):
        now = 0.0
        for size in sizes[first:last]:
            end = now + float(size) * tile
            bars.append((f"SM {piece} decode", now, end, "decode", f"{size} tiles"))
            now = end
    return bars


def plan_rows(sms: int) -> list[str]:
    return [f"SM {i} {side}" for i in range(sms) for side in ("prefill", "decode")]


def in_turn(ax: Axes, queued: int, cycles: float = 720) -> Axes:
    """The tensor cores of one SM over time, with `queued` warpgroups of prefill in the queue beside decode."""
    served = tensor_core_queue.serve(tensor_core_queue.queue(H200, queued), 1.001 * cycles)  # a product: 64.0 cycles
    numbers = count(1)
    bars = [("tensor cores", a, b, name.split()[0], "" if name == "decode" else name[-1]) for name, a, b in served]
    gantt(bars, unit="cycles", ax=ax, slots_per_row=1)
    for _, start, _, kind, _ in bars:
        if kind == "decode":
            ax.text(start, 1.02, next(numbers), fontsize=8.5, color=style.DECODE, va="top", fontweight="bold")
    ax.set(yticks=[], xlim=(0, cycles), ylim=(1.22, 0))
    if not ax.get_subplotspec().is_first_col():
        ax.get_legend().remove()  # the one on the left serves both
    turns = sum(kind == "decode" for *_, kind, _ in bars)
    ax.set_title(f"beside {queued} of prefill: {turns} turns for decode", fontsize=10, loc="right")
    return ax
