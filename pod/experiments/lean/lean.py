"""Decode by stream-K on an H200, shape by shape, beside every other way to cut the same work and the best peers."""

from copy import copy
from functools import cached_property, partial
from random import Random

from pod.batch import HybridBatch
from pod.kernels import lean as method
from pod.lab.measure import peers
from pod.schedule.choose import flash_splits
from pod.schedule.work import PERSISTENT

RECORDING = "lean"
KEYS = ("batch", "q_heads", "kv_heads", "head_dim", "dtype", "page")
UNITS = ("hopper", "lean")
ROUNDS, REPEATS = 5, 15
K, M = 1024, 1 << 20
SMS = 132
PAGE = 64  # of the one batch whose longest request would not let the others fit side by side
SMALL_PAGE = 16  # of all others once more, in random order, as a server has them
MIXED = "1 x 1M, 63 x 1K"


def ragged(batch: int, longest: int, ratio: float, seed: int = 0) -> list[int]:
    """`batch` lengths with one at `longest` and an average of `ratio` of it, the others spread around their mean."""
    draw, mean = Random(seed), (ratio * batch - 1) / (batch - 1) * longest
    if not 0 < mean <= longest:
        raise ValueError(f"ratio: got {ratio}, allowed for {batch} requests is more than 1 / {batch} and at most 1")
    spread = min(0.9 * mean, longest - mean)
    others = [round(mean + spread * draw.uniform(-1, 1)) for _ in range(batch - 1)]
    return [longest, *others]


RATIOS = (0.1, 0.25, 0.5, 0.75, 1.0)
LENGTHS: dict[str, list[int]] = {
    **{f"{b} x {n}K": [n * K] * b for b, n in ((1, 64), (1, 256), (2, 64), (2, 256), (6, 16), (6, 64))},
    **{f"{b} x {n}K": [n * K] * b for b, n in ((64, 16), (66, 16), (67, 16), (80, 12), (128, 4), (32, 8))},
    **{f"16 x 64K, ratio {r}": ragged(16, 64 * K, r) for r in RATIOS},
    MIXED: [M, *[K] * 63],
    **{f"1 x {n}K": [n * K] for n in (4, 8, 16, 32, 128)},
}
SHAPES: dict[tuple[int, int, int, str], tuple[str, ...]] = {
    (56, 56, 64, "float16"): ("1 x 64K", "1 x 256K", "2 x 64K", "2 x 256K"),
    (48, 48, 64, "float16"): ("6 x 16K", "6 x 64K"),
    (48, 48, 128, "bfloat16"): ("6 x 64K",),
    (32, 4, 128, "bfloat16"): ("64 x 16K", "66 x 16K", "67 x 16K"),
    (16, 4, 128, "bfloat16"): ("80 x 12K",),
    (16, 16, 128, "bfloat16"): ("32 x 8K",),
    (32, 8, 128, "bfloat16"): ("128 x 4K", *(f"16 x 64K, ratio {r}" for r in RATIOS), MIXED,
                               *(f"1 x {n}K" for n in (4, 8, 16, 32, 64, 128))),
}  # fmt: skip


def cases() -> list[dict]:
    rows = [(name, *shape, PAGE if name == MIXED else 0) for shape, names in SHAPES.items() for name in names]
    return [dict(zip(KEYS, row, strict=True)) for row in rows]


def measure(case: dict) -> dict:
    lens, heads = LENGTHS[case["batch"]], (case["q_heads"], case["kv_heads"], case["head_dim"])
    batch = HybridBatch((1,) * len(lens), tuple(lens), *heads, dtype=case["dtype"], page_size=case["page"] or None)
    setting = Paged(batch) if batch.page_size else peers.Setting(batch)
    others = {"fa3": fa3_paged if batch.page_size else peers.fa3_decode, "read": read}
    if (batch.head_dim, batch.dtype) == (128, "bfloat16"):
        others["flashinfer"] = flashinfer
        if not batch.page_size:
            others |= {"auto_page16": lean_in_pages, "fa3_page16": partial(peers.fa3_paged, page=SMALL_PAGE)}
    return {"batch_bytes": batch.kv_bytes} | compare(setting, others, ROUNDS)


# ---------------------------------------------------------------- every cut of the same tile code
def compare(setting, others: dict, rounds: int, ms: float = 2.0, paper: bool = False) -> dict:
    """One row: equal ranges, what the plan chooses, the splits of FlashDecoding's old and today's rule, no split, the
    best split, and `others`. With `paper`, also the paper's tile, rebuilt in csrc/lean/lean.cu, under the same cuts."""
    batch = setting.batch
    rules = chosen_splits(batch)
    splits = {**rules, **{f"try_{n}": n for n in promising_splits(batch)}}
    makers = {"lean": partial(lean, splits="stream-k"), "auto": lean}
    makers |= {f"split_{n}": partial(lean, splits=n) for n in dict.fromkeys(splits.values())}
    if paper:
        makers |= {"paper_lean": partial(lean, worker="cta128"),
                   "paper_host": partial(lean, worker="cta128", merge="host")}  # fmt: skip
        names = {f"paper_{name}": n for name, n in rules.items()}
        makers |= {f"paper_split_{n}": partial(lean, worker="cta128", splits=n) for n in dict.fromkeys(names.values())}
    row = peers.table_row(setting, makers | others, rounds, ms)
    if paper:
        _name(row, "paper_split_", names)
    best = min(splits.values(), key=lambda n: row[f"split_{n}"] or float("inf"))
    _name(row, "split_", rules | {"best_split": best})
    return row


def _name(row: dict, prefix: str, names: dict[str, int]) -> None:
    """Replace the columns of measured splits by those that have a meaning, and say how many parts each has."""
    ends = ("", "_p10", "_p90")
    named = {f"{name}{end}": row[f"{prefix}{n}{end}"] for name, n in names.items() for end in ends}
    for column in [c for c in row if c.startswith(prefix)]:
        del row[column]
    row |= named | {f"{name}_parts": n for name, n in names.items()}


def chosen_splits(batch: HybridBatch, sms: int = SMS) -> dict[str, int]:
    """Parts that FlashDecoding would choose for this batch: by the rule of 2.5.6, by today's, and without a split."""
    units = len(batch.kv_lens) * batch.num_kv_heads
    blocks = -(-max(batch.kv_lens) // (256 if batch.head_dim == 64 else 128))
    old, now = (flash_splits(units, blocks, sms, ctas) for ctas in (1, 2))
    return {"rule_256": old, "rule_now": now, "single": 1}


def promising_splits(batch: HybridBatch) -> list[int]:
    """The three fixed splits that would end first if every part took as long as its tiles and a little more."""
    tile = PERSISTENT.decode_keys
    units, tiles = len(batch.kv_lens) * batch.num_kv_heads, -(-max(batch.kv_lens) // tile)
    work = sum(-(-n // tile) for n in batch.kv_lens) * batch.num_kv_heads

    def time(parts: int) -> float:
        longest = -(-tiles // parts) + 4
        return max(-(-units * parts // SMS) * longest * work / (units * tiles), longest)

    return sorted(range(1, min(64, tiles) + 1), key=time)[:3]


def lean(s, splits: int | str = "auto", **choice):
    """Ours: the cut that it chooses, equal ranges ("stream-k"), or the same tile code with `splits` parts of a head."""
    plan = method.plan(s.batch, s.device, splits, **choice)
    table = getattr(s, "table", None)
    return lambda: (None, plan.run(s.q, s.k, s.v, table))


def lean_in_pages(s):
    batch, caches, table = peers.in_pages(s, SMALL_PAGE)
    plan = method.plan(batch, s.device)
    return lambda: (None, plan.run(s.q, *caches, table))


def flashinfer(s, tensor_cores: bool = True):
    wrapper, cache = peers._fi_decode(s, tensor_cores), s.pages[:2]
    return lambda: (None, wrapper.run(s.q_decode, cache))


# Its prefill's tile, which wastes rows where few heads share keys, and its decode kernel, which has no tensor cores.
FLASHINFER = {"flashinfer": flashinfer, "flashinfer_plain": partial(flashinfer, tensor_cores=False)}


def read(s):
    """As many bytes as the batch has in its caches, read by torch and summed: what DRAM gives to a plain kernel."""
    import torch

    words = s.batch.kv_bytes // 8
    flat = [x.view(torch.float32).flatten()[:words] for x in (s.k, s.v)]

    def call():
        for x in flat:
            x.sum()
        return None, None

    return call


# ---------------------------------------------------------------- a batch in pages
class Paged(peers.Setting):
    """A decode-only batch in pages that lie in order: for lengths so unequal that equal rooms would not fit."""

    def __post_init__(self):
        import torch

        b, dtype = self.batch, getattr(torch, self.batch.dtype)
        torch.manual_seed(self.seed)
        self.q = torch.randn(len(b.q_lens), b.num_q_heads, b.head_dim, device=self.device, dtype=dtype)
        shape = (sum(b.pages), b.page_size, b.num_kv_heads, b.head_dim)
        self.k, self.v = (torch.empty(shape, device=self.device, dtype=dtype).normal_() for _ in "kv")
        self.chunk = self.context = self.first = 0
        self.lens = torch.tensor(b.kv_lens, dtype=torch.int32, device=self.device)
        ends = torch.tensor(b.pages).cumsum(0)
        self.starts = ends - torch.tensor(b.pages)
        page = self.starts[:, None] + torch.arange(max(b.pages))
        self.table = torch.minimum(page, ends[:, None] - 1).int().to(self.device)

    @cached_property
    def pages(self):
        """As in Setting: the same memory as smaller pages."""
        import torch

        b, small = self.batch, self.batch.page_size // peers.PAGE
        counts = [-(-n // peers.PAGE) for n in b.kv_lens]
        ids = [torch.arange(small * int(i), small * int(i) + n) for i, n in zip(self.starts, counts, strict=True)]
        shape = (-1, peers.PAGE, b.num_kv_heads, b.head_dim)
        return self.k.view(shape), self.v.view(shape), torch.cat(ids).int().to(self.device), counts

    def _row(self, q, sequence: int, visible: int):
        first = int(self.starts[sequence])
        alone = copy(self)
        for name in "kv":
            pool = getattr(self, name)[first : first + self.batch.pages[sequence]]
            setattr(alone, name, pool.flatten(0, 1)[None])
        return super(Paged, alone)._row(q, 0, visible)


def fa3_paged(s):
    import flash_attn_interface as fa3

    def call():
        out = fa3.flash_attn_with_kvcache(s.q[:, None], s.k, s.v, cache_seqlens=s.lens, page_table=s.table, causal=True)
        return None, (out[0] if isinstance(out, tuple) else out)[:, 0]

    return call
