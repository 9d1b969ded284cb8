"""How long one layer's attention takes, from what its kernel does: so many CTAs, each over so many keys.

A kernel starts (`floor`), then every SM works through its share of the CTAs. Prefill cuts the rows of a chunk into
tiles, one CTA for a tile and query head, and each computes all keys up to its tile's end, those beyond the diagonal
too. Decode has a CTA for each request and KV head. Where that leaves SMs idle, the keys are split. Decode CTAs that are
one too many for a wave start another. Before all this a kernel of its own may write the new keys and values into the
cache.

The constants are fitted to public measurements; `python -m pod judge` holds them against others, see
data/judged.csv.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, hypot, inf

from pod.hardware import GPU

BLOCK = 128  # keys that are not split further
WRITERS = 512  # threads at most of a CTA that writes one token's keys and values into the cache
FEW = 0.8  # share of the SMs below which keys are split


@dataclass(frozen=True)
class Kernel:
    """Seconds, shares of the data sheet's rates, and lengths in keys.

    rows            Of a prefill tile. `setup` is what a CTA costs beside its keys, in keys.
    alone           Time of the longest CTA over that of one which has its SM's full rate.
    tail            Share of the longest CTA in which the last SM works and the others are done.
    append          New keys cost this much more: a kernel that also writes them to the cache does so in every tile.
    grouped, merge  Seconds more where query heads share KV heads, and where keys are split; `part` for each of their
                    parts, which are merged one after the other.
    moved           The query heads of a group become the rows of a tile by moving them, which `grouped` pays for. One
                    request, or one KV head, has them in that order already.
    one, two        Least time of decode CTAs, one or two an SM, over the time that their bytes take.
    spread          CTAs an SM that splitting aims at.
    waves           Decode CTAs of a next wave start together. Hopper's kernels deal the work out evenly.
    splits_all      Keys of decode are split also where query heads share no KV heads.
    writer, copies  K and V of new tokens go into the cache by a kernel of its own, a CTA a token: how long such a CTA
                    lasts, and the share of the data sheet's rate at which bytes are read and written. None of it counts
                    for kernels that append, or whose writing nobody timed.
    packed          The query heads that share a KV head lie in the rows of one tile, keys of prefill are split into
                    whole parts, as many as fit into one wave, and waves are whole: `alone`, `tail`, `spread` and
                    `append` mean nothing then.
    """

    rows: int
    floor: float
    setup: float
    rate: float
    alone: float
    tail: float
    stream: float
    append: float
    spread: float
    decode_floor: float
    grouped: float
    merge: float
    decode_setup: float
    decode_rate: float
    decode_spread: float
    one: float
    part: float = 0.0
    moved: bool = False
    two: float = 0.0
    waves: bool = True
    splits_all: bool = False
    writer: float = 0.0
    copies: float = inf
    packed: bool = False

    def prefill(self, gpu: GPU, heads: int, kv_heads: int, head_dim: int, chunks: Sequence[tuple[int, int]]) -> float:
        """Chunks of (new tokens, tokens before)."""
        if self.packed:
            return self._packed(gpu, heads, kv_heads, head_dim, chunks)
        ctas = keys = longest = moved = 0
        for new, before in chunks:
            tiles, each = ceil(new / self.rows), before + self.append * new
            ctas += tiles * heads
            keys += heads * (tiles * each + self.rows * tiles * (tiles - 1) // 2 + new)
            longest = max(longest, each + new)
            moved += 2 * new * heads + 2 * (before + new) * kv_heads
        splits = _splits(gpu, ctas, longest, self.spread)
        pieces, last = ctas * splits, self.alone * (longest / splits + self.setup)
        work = max((keys + pieces * self.setup) / gpu.sms, last)
        if pieces > gpu.sms:
            work += self.tail * last
        return self.floor + self._key(gpu, head_dim) * work + self._moving(gpu, head_dim, moved)

    def write(self, gpu: GPU, kv_heads: int, head_dim: int, tokens: int) -> float:
        """Prompts' new K and V into the cache; those of decodes are few, and in their floor."""
        values = kv_heads * head_dim
        waves = tokens * min(values, WRITERS) / gpu.threads_per_sm / gpu.sms
        nbytes = 2 * 2 * 2 * tokens * values  # two of each value, K and V, read and written
        return hypot(waves * self.writer, gpu.memory_time(nbytes) / self.copies)

    def _packed(self, gpu: GPU, heads: int, kv_heads: int, head_dim: int, chunks: Sequence[tuple[int, int]]) -> float:
        each = self.rows * kv_heads / heads  # new tokens of a tile
        tiles = [ceil(new / each) * kv_heads for new, _ in chunks]
        first = [before + min(new, each) for new, before in chunks]
        last = [before + new for new, before in chunks]
        ctas = sum(tiles)
        splits = max(1, gpu.sms // ctas)
        keys = sum(n * (a + b) / 2 for n, a, b in zip(tiles, first, last, strict=True))
        whole = ceil(ctas * splits / gpu.sms) * (min(first) / splits + self.setup)
        work = max((keys + ctas * splits * self.setup) / gpu.sms, whole, max(last) / splits + self.setup)
        moved = sum(2 * new * heads + 2 * (before + new) * kv_heads for new, before in chunks)
        fixed = self.floor + self.merge * (splits > 1)
        return fixed + self._key(gpu, head_dim) * work + self._moving(gpu, head_dim, moved)

    def _key(self, gpu: GPU, head_dim: int) -> float:
        """Seconds that a CTA of prefill computes at one key, on its SM."""
        return 4 * head_dim * self.rows * gpu.sms / gpu.tensor_flops / self.rate

    def _moving(self, gpu: GPU, head_dim: int, rows: int) -> float:
        return 2 * head_dim * rows / gpu.dram_bytes_per_s / self.stream

    def decode(self, gpu: GPU, heads: int, kv_heads: int, head_dim: int, requests: int, context: int) -> float:
        """`context` is the sum over the requests."""
        return self.decodes(gpu, heads, kv_heads, head_dim, requests)(context)

    def decodes(self, gpu: GPU, heads: int, kv_heads: int, head_dim: int, requests: int) -> Callable[[int], float]:
        """The same by `context` alone, which grows while all else stays: who asks again and again saves half."""
        ctas, grouped = requests * kv_heads, heads > kv_heads
        most = _most_splits(gpu, ctas, self.decode_spread) if self.splits_all or grouped else 1.0
        moving = grouped and not (self.moved and min(requests, kv_heads) == 1)
        key = 4 * head_dim / gpu.dram_bytes_per_s / self.decode_rate

        def by_splits(splits: float) -> tuple[float, float]:
            fixed = self.decode_floor + self.grouped * moving + (self.merge + self.part * splits) * (splits > 1)
            return fixed, self._in_waves(gpu, ctas * splits)

        long = by_splits(most)

        def seconds(context: int) -> float:
            each = context / requests
            splits = max(1.0, min(most, each / BLOCK))
            fixed, waves = long if splits == most else by_splits(splits)
            return fixed + key * (each / splits + self.decode_setup) * waves

        return seconds

    def _in_waves(self, gpu: GPU, ctas: float) -> float:
        """How many CTAs' bytes could be read in the time that these CTAs take."""
        if not self.waves:
            return max(ctas, gpu.sms * self.one)
        slots = 2 * gpu.sms
        full, rest = divmod(round(ctas, 6), slots)
        if not rest:
            return full * slots
        least = gpu.sms * self.one if rest <= gpu.sms else slots * self.two
        return full * slots + max(rest, least)


def _splits(gpu: GPU, ctas: int, keys: float, spread: float) -> float:
    """Into how many parts the keys of a CTA go. A fraction, for among near shapes a kernel takes one or the other."""
    return max(1.0, min(_most_splits(gpu, ctas, spread), keys / BLOCK))


def _most_splits(gpu: GPU, ctas: int, spread: float) -> float:
    """The same for keys that are many."""
    return 1.0 if ctas >= FEW * gpu.sms else max(1.0, spread * gpu.sms / ctas)


# fa2-2024  FlashAttention of early 2024 with a paged cache, A100, fitted to Vidur's profile of Llama-2-70B on two GPUs
#           (microsoft/vidur, blob ee3dec76, MIT), every other row of the half in data/public. It appends the new keys.
# fa3-h200  FlashAttention-3 on our H200, pages, fitted to data/recorded/h200/operators.csv of Llama-3-8B. Its chats are
#           of unequal lengths, those of the others are equal.
# fa2       vllm-flash-attn of vLLM 0.14.0, A100; fa3: the same of 0.24.0, H100. Fitted to the heads of Llama-3-8B on 1,
#           2, 4 and 8 GPUs (decode of fa2 and fa3 also to Llama-2-7B's on 4 and 8) in NVIDIA's aiconfigurator
#           (ai-dynamo/aiconfigurator 095f58a, Apache-2.0). For chunks with a context, which it lacks, fa3's prefill was
#           fitted together with our own H200 recording of Llama-3-8B, weighing a sixth. Public prefill is timed with
#           vLLM's writing of K and V; `copies` is what element-wise operators reach (LINEAR in cost.py), for in the
#           fitted models the writer's threads bind and not its bytes. Moving Q and the output then hides: `stream`.
KERNELS = {
    "fa2-2024": Kernel(rows=64, floor=6e-6, setup=521, rate=0.631, alone=1.224, tail=0.442, stream=0.787, append=1.0,
                       spread=1.0, decode_floor=4.4e-6, grouped=1.5e-6, merge=7.8e-6, decode_setup=99.4,
                       decode_rate=0.849, decode_spread=2.0, one=1.006, two=0.730),
    "fa2": Kernel(rows=64, floor=8.67e-6, setup=140, rate=0.590, alone=0.810, tail=0.866, stream=inf, append=0.0,
                  spread=2.0, decode_floor=8.76e-6, grouped=5.40e-6, merge=5.41e-6, part=0.16e-6, moved=True,
                  decode_setup=17.7, decode_rate=0.757, decode_spread=2.0, one=0.644, two=0.638, writer=2.56e-6,
                  copies=0.692),
    "fa3": Kernel(rows=64, floor=9.34e-6, setup=332, rate=0.717, alone=1.78, tail=0.0621, stream=inf, append=0.0,
                  spread=3.0, decode_floor=8.0e-6, grouped=0.0, merge=1.6e-6, decode_setup=105.9,
                  decode_rate=0.897, decode_spread=1.0, one=0.776, waves=False, splits_all=True, writer=2.36e-6,
                  copies=0.594),
    "fa3-h200": Kernel(rows=128, floor=9.8e-6, setup=403, rate=0.753, alone=0.0, tail=0.0, stream=2.23, append=0.0,
                       spread=0.0, decode_floor=12.1e-6, grouped=0.0, merge=4.4e-6, decode_setup=220,
                       decode_rate=0.907, decode_spread=1.0, one=0.318, two=0.623, splits_all=True, packed=True),
}  # fmt: skip
FITTED_ON = {"fa2-2024": "a100", "fa2": "a100", "fa3": "h100", "fa3-h200": "h200"}
