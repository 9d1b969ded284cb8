"""When the last SM of the Hopper kernel would end, by the schedule's own times, beside what no plan could undercut.

The aim was 1.1 of the floor for any batch. A third miss it, and here stands what holds: 1.1 of it and one piece.
Prefill's pieces aim at one length, which fills the last wave as it can, or are equal ranges; decode cuts no beginning
of a head.
"""

from functools import cache, partial
from heapq import heapreplace
from typing import NamedTuple

import numpy as np
import pytest

from pod.batch import HybridBatch
from pod.schedule import choose, decide, decode, prefill
from pod.schedule.work import PERSISTENT, WIDE, Schedule, WorkList
from pod.simulate.mixes import mixes

SMS, SEED, BATCHES, FEW = 132, 18, 10_000, 400
AIM = 1.1
merge_steps = np.vectorize(choose.merge_steps)
MOST = {0.5: 1.04, 0.9: 1.285, 0.99: 1.535, 1.0: 2.05}  # of the makespans over their floors; all as they are, and 1 %


class Ends(NamedTuple):
    """In tenths of a block of prefill: when the last SM ends, when at the soonest, and the longest piece."""

    last: float
    floor: float
    piece: float


@cache
def drawn(count: int) -> list[HybridBatch]:
    return [mix.batch for mix in mixes(count, SEED)]


def ends(batch: HybridBatch) -> Ends:
    """Both sides run side by side, and prefill is no faster than memory."""
    plan = decide.hopper(batch, SMS)
    sides = [side for side in (of_prefill(plan), of_decode(plan)) if side]
    return Ends(*(max(column) for column in zip(*sides, strict=True)))


# ---------------------------------------------------------------- prefill: a queue of pieces
def of_prefill(plan: Schedule) -> Ends | None:
    work, slower = plan.prefill, choose.WIDE_COST if plan.shape == WIDE else 1.0
    if not len(work):
        return None
    blocks = work.blocks(PERSISTENT.prefill_keys)
    _, tile = np.unique([work.token, work.head], axis=1, return_inverse=True)  # parts in ranges stand apart
    tiles = np.bincount(tile, blocks).astype(int)
    pieces, merging = 10 * blocks + own_cost(work.parts), choose.MERGE_COST * merge_steps(work.parts).max()
    keys = sum(plan.batch.kv_lens[i] for i in set(work.seq.tolist())) * plan.batch.num_kv_heads
    memory = choose.kv_us(plan.batch.head_dim, keys, choose.PREFILL_BYTES) / choose.BLOCK_US[plan.batch.head_dim] * 10
    last, floor = (queue_ends(pieces) + merging) * slower, prefill_floor(tiles) * slower
    return Ends(max(last, memory), max(floor, memory), pieces.max() * slower)


def own_cost(parts: np.ndarray) -> np.ndarray:
    return choose.PIECE_COST + choose.PART_COST * (parts > 1)


def queue_ends(pieces: np.ndarray) -> int:
    """Whoever is free takes the next."""
    ends = [0] * SMS
    for piece in pieces.tolist():
        heapreplace(ends, ends[0] + piece)
    return max(ends)


def prefill_floor(tiles: np.ndarray) -> int:
    """The least time in which each tile ends, in as many parts as it likes, and all fit: total / SMs and the longest
    that cannot be split, where being cut costs what it does."""
    sizes, counts = np.unique(tiles, return_counts=True)
    parts = np.arange(1, decode.MOST_PARTS + 1)
    done = 10 * -(-sizes[:, None] // parts) + own_cost(parts) + choose.MERGE_COST * merge_steps(parts)
    spent = 10 * sizes[:, None] + parts * own_cost(parts)
    low, high = int(done.min(axis=1).max()), int(done[:, 0].max() + spent[:, 0] @ counts // SMS)
    while low < high:
        middle = (low + high) // 2
        fewest = (done <= middle).argmax(axis=1)
        fits = spent[np.arange(len(sizes)), fewest] @ counts <= SMS * middle
        low, high = (low, middle) if fits else (middle + 1, high)
    return low


# ---------------------------------------------------------------- decode: a range each
def of_decode(plan: Schedule) -> Ends | None:
    """Its floor is an even share among as many SMs as ranges of no fewer than MIN_TILES tiles allow."""
    work, head_dim = plan.decode, plan.batch.head_dim
    if not len(work):
        return None
    tiles, begins, pad = work.blocks(PERSISTENT.decode_keys), work.begin == 0, choose.pad(head_dim)
    alike = decode.alike_for(passes(work), SMS)
    ranges = max(1, min(SMS // alike, int(tiles.sum()) // alike // choose.MIN_TILES)) * alike
    tile = 10 * choose.tile_us(head_dim) / choose.BLOCK_US[head_dim]
    padded = tiles + pad * begins
    last = np.add.reduceat(padded, work.pieces[:-1]).max()
    return Ends(last * tile, padded.sum() / ranges * tile, (pad + 1) * tile)  # a beginning is never cut


def passes(work: WorkList) -> int:
    return len(np.unique(work.head))


# ---------------------------------------------------------------- what holds
def missed(count: int = FEW) -> list[str]:
    """The bars that plans of so many batches miss."""
    made = np.array([ends(batch) for batch in drawn(count)])
    last, floor, piece = made.T
    over = last / floor
    assert (over > 1 - 1e-9).all(), "a floor that a plan undercuts is none"
    late = f"{(last > AIM * floor + piece).sum()} end later than {AIM} of the floor and a piece"
    bars = [f"{q}: {np.quantile(over, q):.3f}, allowed {most}" for q, most in MOST.items()
            if np.quantile(over, q) > most]  # fmt: skip
    return bars + [late] * bool((last > AIM * floor + piece).any())


def test_no_plan_of_ten_thousand_ends_later_than_a_tenth_and_a_piece_over_the_floor():
    assert missed(BATCHES) == []


def test_the_aim_without_the_piece_is_missed_by_a_third():
    """So that whoever mends it says so here."""
    within = np.mean([e.last <= AIM * e.floor for e in map(ends, drawn(FEW))])
    assert 0.6 < within < 0.7


# ---------------------------------------------------------------- and what does not
def test_a_few_batches_would_do_to_notice():
    assert missed() == []


def uncut(blocks, *_):
    return np.ones_like(blocks), 0


def halved(real, blocks, workers, *rest):
    """Prefill that knows half of the SMs."""
    return real(blocks, workers // 2, *rest)


def shortest_first(real, *arguments):
    made = real(*arguments)
    return made.in_order(np.argsort(made.end, kind="stable"))


WORSE = {
    "no tile is cut": (choose, "prefill_parts", uncut),
    "half of the SMs": (choose, "prefill_parts", partial(halved, choose.prefill_parts)),
    "two lengths to choose from": (choose, "SHARES", (4, 8)),
    "parts cost nothing": (choose, "PART_COST", 0),
    "shortest first": (prefill, "in_sections", partial(shortest_first, prefill.in_sections)),
    "beginnings cost nothing": (choose, "pad", lambda head_dim: 0),
    "long ranges": (decide, "hopper_ranges", partial(decide.hopper_ranges, least=16)),
}


@pytest.mark.parametrize("worse", WORSE)
def test_worse_plans_are_noticed(worse, monkeypatch):
    """Planned with the mistake, timed without."""
    module, name, wrong = WORSE[worse]
    honest, plan = getattr(module, name), decide.hopper

    def planned(*arguments):
        monkeypatch.setattr(module, name, wrong)
        made = plan(*arguments)
        monkeypatch.setattr(module, name, honest)
        return made

    monkeypatch.setattr(decide, "hopper", planned)
    assert missed()
