"""The time that a schedule takes on a GPU that may not be here: workers that share SMs, L2 and DRAM.

A worker is what computes one piece of work: the warps of a prefill tile, or one warp of decode. Each key costs it some
time of its SM's tensor cores and some bytes, and it never has more than so many bytes under way. All that happens
between two events, a CTA starting or a worker ending, is a fluid: everybody makes progress at a constant pace.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from typing import NamedTuple

import numpy as np

from pod import files
from pod.batch import HybridBatch
from pod.files import ROOT
from pod.hardware import GPU, H200
from pod.schedule import binding, choose, decide
from pod.schedule.work import SHAPES, WorkList
from pod.simulate import tensor_core_queue

RECORDING = ROOT / "data" / "recorded" / "h200" / "gpusim-calibrate.csv"
QUANTUM = 1 / 400  # of the time a run takes at least: events that lie closer together are taken as one


@dataclass(frozen=True)
class Chip:
    """A GPU, in what its workers share."""

    sms: int
    dram: float  # bytes/s
    l2: float  # bytes/s, of hits and misses together
    miss: float  # seconds from asking until the bytes are here when nobody else asks, from DRAM
    hit: float  # and from L2


@dataclass(frozen=True)
class Kind:
    """What one key costs a worker of this kind, and how much of its SM one worker can use."""

    name: str
    warps: int
    busy: float  # seconds of its SM, when the SM is full of such workers
    alone: float  # seconds, when there is no other worker and memory answers at once
    bytes: float  # from L2 or DRAM
    misses: float  # share of them that comes from DRAM
    in_flight: float  # bytes that it has under way at most

    def trip(self, chip: Chip) -> float:
        """Seconds in which they arrive when nobody else asks."""
        return chip.hit + self.misses * (chip.miss - chip.hit)


class Piece(NamedTuple):
    """Work of one worker: which kind, how many keys, and how long it takes beyond them (e.g. to merge)."""

    kind: int
    keys: float
    extra: float = 0.0


class Cta(NamedTuple):
    """What a slot of an SM holds at a time; it is free again when all pieces are done."""

    id: int
    pieces: Sequence[Piece]


class Ran(NamedTuple):
    """What a CTA did of one kind, as pod.lab.show.gantt draws it."""

    sm: int
    start: float
    end: float
    op: str
    id: int


class Pace:
    """How fast everybody is, given who is where.

    An SM shares itself out by water-filling: who wants little gets it, the rest is shared evenly among warps. Memory
    serves requests in the order in which they come, hits behind misses, so all of them wait equally long; that wait is
    the one number that ties the SMs together, and it grows until DRAM and L2 can follow.
    """

    def __init__(self, chip: Chip, kinds: Sequence[Kind]):
        self.chip, self.kinds, self.wait = chip, kinds, 0.0
        self.own = [(1 / k.alone, k.in_flight / k.bytes, k.trip(chip), k.busy / k.warps, k.warps) for k in kinds]
        self._count, self._pace = np.zeros(0), np.zeros(0)

    def __call__(self, count: np.ndarray) -> np.ndarray:
        """count: workers [sms, kinds] -> keys per second of each [sms, kinds]."""
        if not np.array_equal(count, self._count):  # between two events often nothing changes
            held, of, sms = np.unique(count, axis=0, return_inverse=True, return_counts=True)
            self._count, self._pace = count, np.array(self._solve(held.tolist(), sms.tolist()))[of.ravel()]
        return self._pace

    def _solve(self, held: list[list[int]], sms: list[int]) -> list[list[float]]:
        """`sms` SMs each for what they hold."""

        def load(wait: float) -> float:
            """What is asked of memory, over what it can do."""
            dram = l2 = 0.0
            for counts, times in zip(held, sms, strict=True):
                for kind, n, keys in zip(self.kinds, counts, self.on_sm(counts, wait), strict=True):
                    l2 += times * n * keys * kind.bytes
                    dram += times * n * keys * kind.bytes * kind.misses
            return max(dram / self.chip.dram, l2 / self.chip.l2)

        self.wait = balance(load, self.wait)
        return [self.on_sm(counts, self.wait) for counts in held]

    def on_sm(self, counts: Sequence[int], wait: float) -> list[float]:
        """Keys per second of a worker of each kind on an SM that holds so many of each."""
        pace = [min(alone, arriving / (trip + wait)) for alone, arriving, trip, _, _ in self.own]
        wants = [rate * busy for rate, (_, _, _, busy, _) in zip(pace, self.own, strict=True)]  # of the SM, for a warp
        warps = [n * own[-1] for n, own in zip(counts, self.own, strict=True)]
        left, waiting = 1.0, sum(warps)
        for i in sorted(range(len(pace)), key=wants.__getitem__):
            if warps[i]:
                share = min(wants[i], left / waiting)
                pace[i] *= share / wants[i]
                left, waiting = left - warps[i] * share, waiting - warps[i]
        return pace


def balance(load: Callable[[float], float], guess: float, exact: float = 2e-3) -> float:
    """The shortest wait at which a falling `load` is at most 1; about `guess`, perhaps."""
    if load(0.0) <= 1:
        return 0.0
    low, high = 0.0, max(1.05 * guess, 1e-9)
    while load(high) > 1:
        low, high = high, 2 * high
    if guess and load(0.95 * guess) > 1:
        low = max(low, 0.95 * guess)
    while high - low > exact * high:
        middle = (low + high) / 2
        low, high = (middle, high) if load(middle) > 1 else (low, middle)
    return high


class Source:
    """Who comes next: the hardware asks for a CTA whenever a slot of an SM is free."""

    def next(self, sm: int, slot: int) -> Cta | None:
        raise NotImplementedError

    def ended(self, sm: int, cta: Cta) -> None:
        """This CTA has left its slot."""


class InOrder(Source):
    """CTAs by their index, wherever there is room: how a GPU starts a grid, and one grid after another."""

    def __init__(self, ctas: Iterable[Cta]):
        self.ctas = iter(ctas)

    def next(self, sm: int, slot: int) -> Cta | None:
        return next(self.ctas, None)


def simulate(chip: Chip, kinds: Sequence[Kind], source: Source, slots: int, workers: int, quantum: float) -> list[Ran]:
    """Run what `source` hands out on SMs of `slots` slots, each for a CTA of up to `workers` workers.

    Events that lie within `quantum` seconds are taken together; whoever follows late makes up for it.
    """
    pace, shape = Pace(chip, kinds), (chip.sms, slots, workers)
    kind, keys, extra, end = np.zeros(shape, int), np.zeros(shape), np.zeros(shape), np.zeros(shape)
    late = np.zeros(shape)  # seconds by which the step that brings a worker in is longer for it
    active = np.zeros(shape, bool)
    sm_of = np.broadcast_to(np.arange(chip.sms)[:, None, None], shape)
    held: dict[tuple[int, int], tuple[Cta, float]] = {}
    ran, now = [], 0.0

    def start(sm: int, slot: int, at: float) -> None:
        cta = source.next(sm, slot)
        if cta is None:
            return
        held[sm, slot] = cta, at
        for i, piece in enumerate(cta.pieces):
            kind[sm, slot, i], keys[sm, slot, i], extra[sm, slot, i] = piece
        n = len(cta.pieces)
        active[sm, slot, :n], late[sm, slot, :n] = True, now - at

    for slot in range(slots):
        for sm in range(chip.sms):
            start(sm, slot, 0.0)
    while held:
        count = np.bincount((sm_of * len(kinds) + kind)[active], minlength=chip.sms * len(kinds))
        speed = pace(count.reshape(chip.sms, -1))[sm_of, kind]
        needs = np.where(active, extra + keys / speed - late, np.inf)
        step = max(needs.min(), quantum)
        done = needs <= step
        end[done] = now + needs[done]
        spent = step + late
        keys -= speed * np.maximum(spent - extra, 0.0)
        extra, late[:] = np.maximum(extra - spent, 0.0), 0.0
        active &= ~done
        now += step
        free = np.argwhere(done.any(-1) & ~active.any(-1))
        ends = end.max(-1)[tuple(free.T)]
        for i in np.lexsort((*free.T, ends)):  # of slots that fall free together, first one on each SM
            place = tuple(free[i].tolist())
            cta, began = held.pop(place)
            for k in dict.fromkeys(piece.kind for piece in cta.pieces):
                last = max(end[(*place, j)] for j, piece in enumerate(cta.pieces) if piece.kind == k)
                ran.append(Ran(place[0], began, float(last), kinds[k].name, cta.id))
            source.ended(place[0], cta)
            end[place] = 0.0
            start(*place, float(ends[i]))
    return ran


# ---------------------------------------------------------------- what is measured once, on an H200


@dataclass(frozen=True)
class Efficiency:
    """Share of an SM's tensor rate that workers of a kind reach: as many as fit, and one alone."""

    full: float
    alone: float


@dataclass(frozen=True)
class Calibration:
    """All that is fitted. Each comes from one or two rows of h200/gpusim-calibrate.csv, none from a hybrid batch."""

    dram: float  # share of the data sheet's bytes/s that bare reads reach
    l2: float  # bytes that L2 delivers in a clock cycle
    miss: float  # seconds from asking to having when nobody else asks, from DRAM
    hit: float  # and from L2
    mma: float  # share of the data sheet's tensor rate that mma.sync reaches; on Ampere there is no faster way
    launch: dict[str, float]  # seconds of a method without any work
    start: float  # seconds of a CTA before its first key and after its last
    merge: tuple[float, float]  # seconds to write or to read a part of a tile's result: prefill, decode
    efficiency: dict[str, Efficiency]  # of "prefill 2", with two CTAs an SM, and so on

    def chip(self, gpu: GPU) -> Chip:
        return Chip(gpu.sms, self.dram * gpu.dram_bytes_per_s, self.l2 * gpu.clock_hz, self.miss, self.hit)

    def tensor_flops(self, gpu: GPU) -> float:
        """Of one SM, with mma.sync."""
        return gpu.tensor_flops / gpu.sms * (self.mma if gpu.key in choose.MMA_SYNC else 1.0)


# ---------------------------------------------------------------- kernels, as their sources have them


@dataclass(frozen=True)
class Tiles:
    """What the CTAs of a kernel hold. Pairs are (prefill, decode), in the order of binding.OPS."""

    ctas_per_sm: int
    rows: tuple[int, int]  # query rows that a worker computes, used or not
    keys: tuple[int, int]  # that it takes at a time
    warps: tuple[int, int]  # of a worker
    virtual: int  # workers of decode in a CTA
    in_flight: tuple[float, float]  # bytes of K and V that a worker has under way
    efficiency: tuple[str, str]  # which of the calibrated ones it has


def ring(space: int, rows: int, keys: int, row: int) -> float:
    """Bytes under way in what shared memory the query rows leave: all panels of the ring but the two being read. With
    three panels each step fetches its own V (csrc/sm80/hybrid.cu, Shape)."""
    panels = (space - rows * row) // (keys * row)
    return max(min(panels, 6) // 2 * 2 - 2, 1.5) * keys * row


def our_tiles(gpu: GPU, ctas_per_sm: int, head_dim: int) -> Tiles:
    """Those of csrc/sm80/hybrid.cu on this GPU."""
    shape, room, row = SHAPES[ctas_per_sm], gpu.smem_per_sm // ctas_per_sm - 1024, 2 * head_dim
    rows, keys = (shape.prefill_rows, shape.decode_rows), (shape.prefill_keys, shape.decode_keys)
    rings = [ring(space, r, k, row) for space, r, k in zip((room, room // shape.virtual), rows, keys, strict=True)]
    fitted = tuple(f"{op} {ctas_per_sm}" for op in binding.OPS)
    return Tiles(ctas_per_sm, rows, keys, (shape.virtual, 1), shape.virtual, tuple(rings), fitted)


@dataclass(frozen=True)
class Program:
    """What a GPU is given: grids that run one after the other, and what a key costs their workers."""

    kinds: Sequence[Kind]
    grids: Sequence[Source]
    slots: int
    workers: int  # of a CTA, at most
    launch: float  # seconds


def seconds(batch: HybridBatch, gpu: GPU, method: str = "pod", **choice) -> float:
    """Time of a batch. method and choice: as in pod.plan; kernel: "ours", or one of FLASH2."""
    made = program(batch, gpu, method, **choice)
    return made.launch + max(r.end for r in _run(made, batch, gpu))


def trace(batch: HybridBatch, gpu: GPU, method: str = "pod", **choice) -> list[Ran]:
    """Who ran where and when, from the first CTA on."""
    return _run(program(batch, gpu, method, **choice), batch, gpu)


def _run(made: Program, batch: HybridBatch, gpu: GPU) -> list[Ran]:
    quantum = QUANTUM * float(gpu.roofline_time(batch.flops, batch.bytes))
    ran, now = [], 0.0
    for grid in made.grids:
        part = simulate(calibration().chip(gpu), made.kinds, grid, made.slots, made.workers, quantum)
        ran += [r._replace(start=now + r.start, end=now + r.end) for r in part]
        now = max((r.end for r in ran), default=0.0)
    return ran


def program(batch: HybridBatch, gpu: GPU, method: str = "pod", policy: str = "proportional", ctas_per_sm="auto",
            prefill_splits="limited", decode_splits="auto", kernel: str = "ours") -> Program:  # fmt: skip
    """The CTAs of a method, as its kernel's launch would make them for this GPU."""
    if method == "hopper":
        return _hopper(batch, gpu)
    if method not in calibration().launch:
        raise ValueError(f"method: got {method!r}, allowed are {', '.join(calibration().launch)}, hopper")
    if kernel not in ("ours", *FLASH2):
        raise ValueError(f"kernel: got {kernel!r}, allowed are ours, {', '.join(FLASH2)}")
    if kernel in FLASH2:
        tiles = FLASH2[kernel]
        made = decide.flash2(batch, gpu.sms, tiles.keys)
    else:
        made = decide.hybrid(batch, gpu, gpu.sms, method, policy, ctas_per_sm, prefill_splits, decode_splits,
                             causal=batch.causal)  # fmt: skip
        tiles = our_tiles(gpu, made.ctas_per_sm, batch.head_dim)
    c = calibration()
    ctas = [_ctas(work, tiles, op, c) for op, work in enumerate((made.prefill, made.decode))]
    halves = method == "warp"  # CTAs that hold both, so half as many
    return Program(
        kinds=_kinds(batch, made.prefill, tiles, gpu, c),
        grids=_grids(method, *ctas, made.deal, gpu.sms),
        slots=tiles.ctas_per_sm // (1 + halves),
        workers=tiles.virtual + halves,
        launch=c.launch[method],
    )


def _grids(method: str, prefill: list[Cta], decode: list[Cta], deal, sms: int) -> list[Source]:
    if method == "serial":
        return [InOrder(prefill), InOrder(decode)]
    if method == "warp":
        halves = zip_longest(prefill, decode, fillvalue=Cta(0, []))
        return [InOrder(Cta(i, [*p.pieces, *d.pieces]) for i, (p, d) in enumerate(halves))]
    if method == "pod":
        return [ByTicket(deal, prefill, decode, sms)]
    return [InOrder(prefill + decode)]  # of two streams the second grid starts when all CTAs of the first have


class ByTicket(Source):
    """SM-aware binding (csrc/include/binding.cuh): an SM's next CTA is what its ticket asks for, while there is any."""

    def __init__(self, deal: np.ndarray, prefill: Iterable[Cta], decode: Iterable[Cta], sms: int):
        self.deal, self.tickets = deal, [0] * sms
        self.queues = iter(prefill), iter(decode)

    def next(self, sm: int, slot: int) -> Cta | None:
        op = binding.wish(self.deal, self.tickets[sm])
        self.tickets[sm] += 1
        return next(self.queues[op], None) or next(self.queues[1 - op], None)


def _ctas(work: WorkList, tiles: Tiles, op: int, c: Calibration) -> list[Cta]:
    """The CTAs of one operation. A piece of several segments starts several times; whoever has a part of a tile writes
    it, and who has the last one reads them all."""
    keys, ends = -(-work.costs // tiles.keys[op]) * tiles.keys[op], work.pieces
    parts = work.parts
    moved = np.append(0, np.cumsum((parts > 1) * (1 + parts * (work.part == parts - 1))))
    extra = c.start * np.diff(ends) + c.merge[op] * np.diff(moved[ends])
    pieces = [Piece(op, *x) for x in zip(keys.tolist(), extra.tolist(), strict=True)]
    width = (1, tiles.virtual)[op]
    return [Cta(i // width, pieces[i : i + width]) for i in range(0, len(pieces), width)]


def _kinds(batch: HybridBatch, prefill: WorkList, tiles: Tiles, gpu: GPU, c: Calibration) -> list[Kind]:
    """What a key costs the workers of prefill and of decode."""
    made, nbytes, flops = [], 4 * batch.head_dim, 4 * batch.head_dim / c.tensor_flops(gpu)
    wave = gpu.sms * tiles.ctas_per_sm
    misses = (_prefill_misses(batch, int(prefill.costs.sum()), -(-len(prefill) // wave), gpu), 1.0)
    for op, name in enumerate(binding.OPS):
        e, rows = c.efficiency[tiles.efficiency[op]], tiles.rows[op]
        busy, alone = rows * flops / e.full, rows * flops / e.alone
        made.append(Kind(name, tiles.warps[op], busy, alone, nbytes, misses[op], tiles.in_flight[op]))
    return made


def _prefill_misses(batch: HybridBatch, keys: int, waves: int, gpu: GPU) -> float:
    """Share of prefill's reads that L2 does not serve: K and V once, or once a wave when they do not fit."""
    if not batch.prefill:
        return 0.0
    kv = batch.prefill.kv_bytes
    return min(1.0, kv * (waves if kv > gpu.l2_bytes / 2 else 1) / (keys * 4 * batch.head_dim))


# ---------------------------------------------------------------- other people's tiles, and the Hopper kernel

# FlashAttention-2 at head dimension 128. Its decode is a tile of prefill of which a few rows are used: 64 rows in the
# paper's patched copy, 128 in torch's.
FLASH2 = {
    "flash2": Tiles(2, (128, 64), (64, 128), (4, 4), 1, (16384.0, 32768.0), ("flash2", "flash2")),
    "flash2 torch": Tiles(2, (128, 128), (64, 64), (4, 4), 1, (16384.0, 16384.0), ("flash2", "flash2")),
}


class ByRole(Source):
    """Hopper's persistent CTAs: prefill warps draw from one queue, decode warps from another."""

    def __init__(self, *queues: Iterable[Cta]):
        self.queues = [iter(queue) for queue in queues]

    def next(self, sm: int, slot: int) -> Cta | None:
        return next(self.queues[slot], None)


HOPPER_RINGS = (65536.0, 98304.0)  # bytes of K and V under way: csrc/sm90/prefill.cuh, decode.cuh


def _hopper(batch: HybridBatch, gpu: GPU) -> Program:
    """The Hopper kernel: wgmma's full rate, tensor cores that serve waiting warps in turn (tensor_core_queue.py)."""
    for name in ("softcap", "kv_dtype"):  # a window is in the schedule, and sinks cost nothing
        if getattr(batch, name) is not None:
            raise ValueError(f"{name}: got {getattr(batch, name)!r}, allowed in this model is None: it has no price")
    made, c = decide.hopper(batch, gpu.sms, causal=batch.causal), calibration()
    queues = [_hopper_ctas(made.prefill, 0, made.shape.prefill_keys, c.start),
              _hopper_ctas(made.decode, 1, made.shape.decode_keys, c.start)]  # fmt: skip
    keys = sum(piece.keys for cta in queues[0] for piece in cta.pieces)
    product = tensor_core_queue.decode_product(gpu) / gpu.clock_hz  # of 64 tokens and 16 of the head's dimensions
    decode_key = 2 * batch.head_dim / tensor_core_queue.DEPTH * product / tensor_core_queue.ROWS
    flops = 4 * batch.head_dim * made.shape.prefill_rows
    prefill_key = flops / (choose.PREFILL_FLOPS / H200.tensor_flops * gpu.tensor_flops / gpu.sms)
    turn = tensor_core_queue.prefill_product(gpu) / tensor_core_queue.decode_product(gpu) * (1 if made.yields else 2)
    misses = (_prefill_misses(batch, int(keys), 1, gpu), 1.0)
    kinds = [
        Kind(name, warps, key, key, 4 * batch.head_dim, missing, ring)
        for name, warps, key, missing, ring in zip(
            binding.OPS, (turn, 1.0), (prefill_key, decode_key), misses, HOPPER_RINGS, strict=True)
    ]  # fmt: skip
    return Program(kinds, [ByRole(*queues)], 2, 1, c.launch["cta"])


def _hopper_ctas(work: WorkList, op: int, tile: int, start: float) -> list[Cta]:
    keys = np.append(0, np.cumsum(work.blocks(tile) * tile))
    pieces = zip(np.diff(keys[work.pieces]).tolist(), np.diff(work.pieces).tolist(), strict=True)
    return [Cta(i, [Piece(op, n, start * segments)]) for i, (n, segments) in enumerate(pieces)]


# ---------------------------------------------------------------- the fit


@cache
def calibration() -> Calibration:
    return fit(files.rows(RECORDING))


def fit(recording: Iterable[dict]) -> Calibration:
    """Read every parameter off the one or two rows that isolate it."""
    rows = {(r["probe"], r["shape"], int(r["ctas"]), int(r["size"])): r for r in recording}
    gpu, head_dim = H200, 128

    def took(probe: str, shape, ctas: int, size: int) -> float:
        return 1e-3 * float(rows[probe, str(shape), ctas, size]["ms"])

    idle = took("read", 1, 1, 0)  # a launch that finds nothing to do

    def best(probe: str, column: str) -> float:
        """The highest rate of a probe."""
        mine = (r for key, r in rows.items() if key[0] == probe and key[3])
        return max(float(r[column]) / (1e-3 * float(r["ms"]) - idle) for r in mine)

    mma = best("multiply", "flops") / gpu.tensor_flops
    sm_flops = mma * gpu.tensor_flops / gpu.sms
    start = took("empty", "cta", 2, 16) - idle

    empty = [shape for probe, shape, _, _ in rows if probe == "empty"]  # of the methods

    def efficiency(op: str, shape: int) -> Efficiency:
        """Of the longest runs: of all slots full, and of one CTA on each SM."""
        probe, keys, rows, workers = op, 4224, SHAPES[shape].prefill_rows, 1
        if op == "decode":  # from L2, so that DRAM does not hide what the SM can
            probe, keys, rows, workers = "decode shared", 4096, SHAPES[shape].decode_rows, SHAPES[shape].virtual
        flops = 4 * rows * head_dim * keys
        full, alone = (took(probe, shape, n, keys) - idle - start for n in (shape * gpu.sms, gpu.sms))
        return Efficiency(shape * workers * flops / full / sm_flops, flops / alone / sm_flops)

    def merge(side: str, longest: int) -> float:
        """Four parts of 1056 keys, less what whole pieces of so many keys take. One is written, then four are read."""
        key = (took(side, 2, 264, longest) - took(side, 2, 264, 1024)) / (longest - 1024)
        return (took(f"{side} split", 2, 264, 4224) - took(side, 2, 264, 1024) - 32 * key) / 5

    return Calibration(
        dram=best("read", "bytes") / gpu.dram_bytes_per_s,
        l2=best("read again", "bytes") / gpu.clock_hz,
        miss=(took("read", 1, 1, 4096) - idle) / 1024,
        hit=(took("read again", 1, 1, 4096) - idle) / 1024,
        mma=mma,
        launch={m: took("empty", m, 2, 16) - start * (1 + (m == "serial")) for m in empty},
        start=start,
        merge=(merge("prefill", 4224), merge("decode", 4096)),
        efficiency={f"{op} {shape}": efficiency(op, shape) for shape in (2, 4) for op in binding.OPS}
        | {"flash2": efficiency("fa2 prefill", 2)},
    )
