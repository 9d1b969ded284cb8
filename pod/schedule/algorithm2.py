"""LeanAttention's Algorithm 2 in float64: equal ranges of tiles, partial results, and hosts that add them up.

The printed algorithm finds the last CTA of a head by dividing by the wrong number (line 26). `printed_last` keeps that
mistake, so that it can be seen failing; `last` is right. Tiles are numbered along the whole line, CTAs from 0.
"""

from collections.abc import Callable, Sequence

import numpy as np

from pod.reference import State
from pod.schedule.decode import equal_cuts

Last = Callable[[int, int, np.ndarray], int]  # end of the head on the line, tiles a head, cuts -> its last CTA


def last(end: int, tiles: int, cuts: np.ndarray) -> int:
    """The CTA that holds the last tile of a head: the first whose range ends at or after it."""
    return int(np.searchsorted(cuts, end))


def printed_last(end: int, tiles: int, cuts: np.ndarray) -> int:
    """Line 26 as printed, tile_iter_end / C_n: a number of heads, taken for a number of CTAs."""
    return end // tiles


Head = tuple[np.ndarray, np.ndarray]  # scores [1, keys] and values [keys, D]


def run(heads: Sequence[Head], tile: int, ctas: int, find_last: Last = last) -> list[np.ndarray]:
    """Outputs [1, D] of equally long heads on `ctas` CTAs."""
    tiles = -(-heads[0][0].shape[1] // tile)
    cuts = equal_cuts(np.full(len(heads), tiles), ctas)
    partials: dict[int, State] = {}  # by CTA: at most one, since only the first part of a range can begin inside a head
    hosts: dict[int, State] = {}  # by head: what its first CTA has
    for cta, (begin, end) in enumerate(zip([0, *cuts[:-1]], cuts, strict=True)):
        at = begin
        while at < end:
            head = at // tiles
            until = min((head + 1) * tiles, end)
            part = _state(*heads[head], slice((at - head * tiles) * tile, (until - head * tiles) * tile))
            if at == head * tiles:
                hosts[head] = part
            else:
                partials[cta] = part
            at = until
    return [_fix_up(head, tiles, cuts, partials, hosts, find_last) for head in range(len(heads))]


def _state(scores: np.ndarray, values: np.ndarray, keys: slice) -> State:
    return State.of(scores[:, keys], values[keys])


def _fix_up(head, tiles, cuts, partials, hosts, find_last: Last) -> np.ndarray:
    """The host merges what the CTAs after it have left, up to the one that it believes to be the last."""
    whole, host = hosts[head], last(head * tiles + 1, tiles, cuts)
    for cta in range(host + 1, find_last((head + 1) * tiles, tiles, cuts) + 1):
        whole = whole.merge(partials[cta])
    return whole.finish()[0]


def ended(grid: Sequence[tuple[int, int]], slots: int) -> list[tuple[int, int]]:
    """CTAs (head, part) of `grid` that come to an end if each part 0, the host, waits for the others of its head.

    A GPU starts CTAs in order, in `slots` places, and takes none out before it ends. Fewer than all means: it hangs.
    """
    waiting, running, done = list(grid), [], []
    while True:
        while waiting and len(running) < slots:
            running.append(waiting.pop(0))
        free = [cta for cta in running if _may_end(cta, grid, done)]
        if not free:
            return done
        running = [cta for cta in running if cta not in free]
        done += free


def _may_end(cta: tuple[int, int], grid, done) -> bool:
    head, part = cta
    return part > 0 or all(other in done for other in grid if other[0] == head and other[1] > 0)
