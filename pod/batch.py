"""A hybrid batch: some sequences bring a chunk of their prompt, the others one new token each."""

from array import array
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, fields
from functools import cached_property
from numbers import Real
from operator import index

import numpy as np

from pod.hardware import GPU
from pod.reference import PADDING

HEAD_DIMS = (64, 128)
LONGEST = 1 << 30  # tokens of a sequence: the kernels count them in 32 bits
HUGE = 1 << 100  # nobody's count: Python writes no integers of thousands of digits
NO_LISTS = (str, type, Set, Mapping)  # of a set nobody knows the order
DTYPE_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}
KV_BYTES = {"float8_e4m3fn": 1}  # what keys and values may have where queries have 16 bits
RULES = ("window", "softcap", "sinks")  # of scores
# In float32 a score of 2^31 is off by more than an exponential can take (2^127), and gives NaN. A tanh is off by 1e-7,
# so a score by 1e-4 under a cap of 1000; and 2 log2(e) scale / cap must not overflow.
SCALES, SOFTCAPS = (1e-30, 1e6), (1e-30, 1e3)


@dataclass(frozen=True)
class HybridBatch:
    """Sequence i brings q_lens[i] new tokens and sees kv_lens[i] tokens, the new ones included.

    One new token is a decode, more are a prefill chunk; any mix in any order. The chunk is the end of its sequence,
    so under the causal mask its token j sees the kv_len - q_len tokens before the chunk and the chunk up to j. Engines
    pad: a sequence may bring no token; one that brings one may see none, and gets 0 (a log-sum-exp of -inf).
    """

    q_lens: Sequence[int]
    kv_lens: Sequence[int]
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    page_size: int | None = None
    dtype: str = "bfloat16"
    causal: bool = True
    window: int | None = None  # a token sees so many keys, its own the last of them
    softcap: float | None = None  # a score s becomes softcap x tanh(s / softcap)
    sinks: bool = False  # every query head has one more score, without a value
    kv_dtype: str | None = None  # of keys and values, where it is not dtype

    def __post_init__(self):
        lens = []
        for name in ("q_lens", "kv_lens"):
            lengths = getattr(self, name)
            if isinstance(lengths, NO_LISTS) or not hasattr(lengths, "__iter__") or getattr(lengths, "ndim", 1) == 0:
                raise ValueError(f"{name}: got {shown(lengths)}, allowed is a sequence of integers")
            lengths, numbers = _lengths(lengths, name)
            object.__setattr__(self, name, lengths)
            lens.append(numbers)
        object.__setattr__(self, "lens", tuple(lens))
        for name in ("num_q_heads", "num_kv_heads", "head_dim"):
            object.__setattr__(self, name, _positive(getattr(self, name), name))
        if self.page_size is not None:
            object.__setattr__(self, "page_size", _positive(self.page_size, "page_size"))
        self._check()

    def _check(self) -> None:
        if not self.q_lens:
            raise ValueError("q_lens: got no sequence, allowed is at least one")
        if len(self.kv_lens) != len(self.q_lens):
            raise ValueError(f"kv_lens: got {len(self.kv_lens)} lengths, allowed is {len(self.q_lens)}, one a q_len")
        if not any(self.q_lens):
            raise ValueError(f"q_lens: got {self.q_lens}, allowed is at least one new token")
        q_lens, kv_lens = self.lens
        if (kv_lens < q_lens).any():
            self._check_seen()
        if self.num_q_heads % self.num_kv_heads:
            raise ValueError(
                f"num_q_heads: got {self.num_q_heads}, allowed are multiples of num_kv_heads = {self.num_kv_heads}"
            )
        if (rows := int(q_lens.sum()) * self.num_q_heads) >= 1 << 31 or kv_lens.max() > LONGEST:
            raise ValueError(f"kv_lens: got {kv_lens.max()} at most and {rows} rows of queries, allowed are "
                             f"{LONGEST} and {(1 << 31) - 1}")  # fmt: skip
        if self.head_dim not in HEAD_DIMS:
            raise ValueError(f"head_dim: got {self.head_dim}, allowed are {', '.join(map(str, HEAD_DIMS))}")
        self._check_rules()
        if not isinstance(self.causal, bool):
            raise ValueError(f"causal: got {shown(self.causal)}, allowed are True and False")
        if not isinstance(self.dtype, str) or self.dtype not in DTYPE_BYTES:
            raise ValueError(f"dtype: got {shown(self.dtype)}, allowed are {', '.join(DTYPE_BYTES)}")
        if self.kv_dtype is not None and (not isinstance(self.kv_dtype, str) or self.kv_dtype not in KV_BYTES):
            got, allowed = shown(self.kv_dtype), ", ".join(KV_BYTES)
            raise ValueError(f"kv_dtype: got {got}, allowed are {allowed} and None (as dtype)")
        if self.rules and self.kv_dtype:
            raise ValueError(f"kv_dtype: got {self.kv_dtype!r} beside {self.rules[0]}, allowed is None, as dtype")

    def _check_seen(self) -> None:
        for i, (q_len, kv_len) in enumerate(zip(self.q_lens, self.kv_lens, strict=True)):
            if kv_len < q_len and (q_len, kv_len) != PADDING:
                raise ValueError(f"kv_lens: got {kv_len} at {i}, allowed is at least q_lens[{i}] = {q_len}")

    def _check_rules(self) -> None:
        if self.window is not None:
            object.__setattr__(self, "window", _positive(self.window, "window"))
            if self.window > LONGEST:
                raise ValueError(f"window: got {self.window}, allowed are integers from 1 to {LONGEST}, and None")
            if self.causal is False:
                raise ValueError(f"window: got {self.window} with causal=False, allowed is None, or a causal mask")
        if self.softcap is not None:
            low, high, cap = *SOFTCAPS, self.softcap
            if isinstance(cap, bool) or not isinstance(cap, Real) or not low <= cap <= high:
                raise ValueError(f"softcap: got {shown(cap)}, allowed are None and numbers from {low:g} to {high:g}")
        if not isinstance(self.sinks, bool):
            raise ValueError(f"sinks: got {shown(self.sinks)}, allowed are True and False")

    @classmethod
    def of(
        cls,
        chunk: int,
        context: int,
        decodes: int,
        decode_context: int,
        num_q_heads: int,
        num_kv_heads: int,
        head_dim: int = 128,
        **rest,
    ) -> "HybridBatch":
        """One chunk at the end of a context of `context` tokens, and `decodes` decodes of `decode_context` tokens.

        chunk=0 leaves the prefill out, decodes=0 the decodes.
        """
        chunk, decodes = _positive(chunk, "chunk", least=0), _positive(decodes, "decodes", least=0)
        if decodes >= (1 << 31) // _positive(num_q_heads, "num_q_heads"):  # before a list of them takes all memory
            raise ValueError(f"decodes: got {decodes}, allowed are 2^31 rows of queries, {num_q_heads} a decode")
        q_lens = (chunk,) * (chunk > 0) + (1,) * decodes
        kv_lens = (context,) * (chunk > 0) + (decode_context,) * decodes
        return cls(q_lens, kv_lens, num_q_heads, num_kv_heads, head_dim, **rest)

    @cached_property
    def group(self) -> int:
        """Query heads that share one KV head: 1 is multi-head attention, num_q_heads is multi-query."""
        return self.num_q_heads // self.num_kv_heads

    @cached_property
    def lens(self) -> tuple[np.ndarray, np.ndarray]:
        """q_lens and kv_lens, for who reckons with all of them at once."""
        return _array(self.q_lens), _array(self.kv_lens)

    @cached_property
    def prefill(self) -> "HybridBatch | None":
        """The sequences with more than one new token, in order."""
        return self._only(lambda q_len: q_len > 1)

    @cached_property
    def decode(self) -> "HybridBatch | None":
        """The sequences with one new token, in order."""
        return self._only(lambda q_len: q_len == 1)

    def _only(self, keep) -> "HybridBatch | None":
        chosen = [(q, kv) for q, kv in zip(self.q_lens, self.kv_lens, strict=True) if keep(q)]
        if not chosen:
            return None
        q_lens, kv_lens = zip(*chosen, strict=True)
        part = object.__new__(HybridBatch)  # of what has been checked, so it need not be once more
        part.__dict__.update({f.name: getattr(self, f.name) for f in fields(self)}, q_lens=q_lens, kv_lens=kv_lens)
        return part

    @cached_property
    def rules(self) -> tuple[str, ...]:
        """What is asked of the scores, by name."""
        return tuple(rule for rule in RULES if getattr(self, rule) not in (None, False))

    @cached_property
    def pages(self) -> tuple[int, ...]:
        """Pages that each sequence takes, the last one perhaps not full; none when the cache is contiguous."""
        return tuple(-(-kv_len // self.page_size) for kv_len in self.kv_lens) if self.page_size else ()

    @property
    def seen_lens(self) -> tuple[int, ...]:
        """Tokens that some new one sees, of each sequence: all, but for a window, and none where none is new."""
        if self.window is None and all(self.q_lens):
            return self.kv_lens
        before = (self.window or LONGEST) - 1
        return tuple(min(kv, q + before) if q else 0 for q, kv in zip(self.q_lens, self.kv_lens, strict=True))

    @property
    def visible_pairs(self) -> int:
        """Pairs of query and key that the mask leaves, for one query head."""
        pairs = (
            q * kv - (q * (q - 1) // 2 if self.causal else 0) for q, kv in zip(self.q_lens, self.kv_lens, strict=True)
        )
        return sum(pairs) - self._hidden_pairs

    @property
    def _hidden_pairs(self) -> int:
        """Of the pairs that the causal mask leaves, those that lie before the window: token j of a chunk at the end of
        kv tokens has kv - q + 1 + j keys so far."""
        if self.window is None:
            return 0
        over = ((q, kv - self.window) for q, kv in zip(self.q_lens, self.kv_lens, strict=True))
        triangle = lambda n: n * (n + 1) // 2 if n > 0 else 0  # noqa: E731
        return sum(triangle(last) - triangle(last - q) for q, last in over)

    @property
    def flops(self) -> int:
        """FLOPs of the two matrix products over the visible pairs. The softmax is not counted, as is custom."""
        return 4 * self.head_dim * self.num_q_heads * self.visible_pairs

    @property
    def kv_bytes(self) -> int:
        """Bytes of the keys and values that are seen, of all sequences, each counted once."""
        return 2 * sum(self.seen_lens) * self.num_kv_heads * self.head_dim * self.kv_width

    @cached_property
    def kv_width(self) -> int:
        """Bytes of a number in K and V."""
        return KV_BYTES[self.kv_dtype] if self.kv_dtype else DTYPE_BYTES[self.dtype]

    @property
    def bytes(self) -> int:
        """Bytes that must move at least: keys and values once, queries in, output out."""
        return self.kv_bytes + 2 * sum(self.q_lens) * self.num_q_heads * self.head_dim * DTYPE_BYTES[self.dtype]

    @cached_property
    def bounds(self) -> tuple[int, int]:
        """FLOPs of the prefill part and bytes of the decode part: what each of them waits for."""
        return (self.prefill.flops if self.prefill else 0), (self.decode.bytes if self.decode else 0)

    def times(self, gpu: GPU) -> tuple[float, float]:
        """Roofline seconds of the prefill part and of the decode part, each as if alone on `gpu`."""
        return tuple(
            float(gpu.roofline_time(part.flops, part.bytes)) if part else 0.0 for part in (self.prefill, self.decode)
        )

    def tensors(self, seed: int = 0, device: str = "cpu"):
        """Random q, k_cache, v_cache and block_table (None when contiguous), laid out as `hybrid_attention` takes them.

        q [sum of q_lens, Hq, D]; caches [sequences, longest kv_len, Hkv, D] or [pages, page_size, Hkv, D];
        block_table int32 [sequences, most pages of a sequence]. Every slot that holds no token is NaN, and unused
        entries of the block table point to a page of NaN: who reads too far cannot miss it.
        """
        import torch

        dtype, random = getattr(torch, self.dtype), torch.Generator(device).manual_seed(seed)
        heads = (self.num_kv_heads, self.head_dim)
        q = torch.randn(sum(self.q_lens), self.num_q_heads, self.head_dim, generator=random, device=device, dtype=dtype)
        block_table = self._block_table(random, device) if self.page_size else None
        slots = (sum(self.pages) + 1, self.page_size) if self.page_size else (len(self.kv_lens), max(self.kv_lens))
        caches = [torch.full((*slots, *heads), torch.nan, device=device, dtype=dtype) for _ in "kv"]
        for i, kv_len in enumerate(self.kv_lens):
            token = torch.arange(kv_len, device=device)
            place = (i, token)
            if block_table is not None:
                place = (block_table[i].long()[token // self.page_size], token % self.page_size)
            for cache in caches:
                cache[place] = torch.randn(kv_len, *heads, generator=random, device=device, dtype=dtype)
        if self.kv_dtype:
            caches = [cache.to(getattr(torch, self.kv_dtype)) for cache in caches]
        return q, *caches, block_table

    def _block_table(self, random, device):
        """Pages in random order, so that no kernel passes by assuming neighbours. The last page stays NaN."""
        import torch

        pages, total = self.pages, sum(self.pages)
        order = torch.randperm(total, generator=random, device=device, dtype=torch.int32)
        table = torch.full((len(pages), max(pages)), total, device=device, dtype=torch.int32)
        for row, mine in zip(table, order.split(list(pages)), strict=True):
            row[: len(mine)] = mine
        return table


def shown(value) -> str:
    """What somebody passed, in one line; of a tensor no value, for which a GPU would be waited for."""
    if hasattr(value, "shape") and not isinstance(value, (type, np.generic)):
        return f"{type(value).__name__} of shape {tuple(value.shape)}"
    try:
        text = " ".join(repr(value).split())
    except Exception:
        kind = type(value).__name__
        return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind} that cannot be written"
    return text if len(text) <= 120 else f"{text[:117]}..."


def _lengths(values, name: str) -> tuple[tuple[int, ...], np.ndarray]:
    """Also as an array. Lists of plain integers, as all but careless callers bring, are looked at as a whole: every
    plan is checked."""
    values = tuple(values)
    if values and list(map(type, values)).count(int) == len(values):
        numbers = _array(values)
        if numbers.dtype == int and numbers.min() >= 0:
            return values, numbers
    values = tuple(_positive(n, name, least=0) for n in values)
    return values, _array(values)


def _array(values: tuple[int, ...]) -> np.ndarray:
    """As np.array has it, which takes twice as long for what fits into 64 bits."""
    try:
        return np.frombuffer(array("q", values), np.int64)
    except OverflowError:
        return np.array(values)


def _positive(value, name: str, least: int = 1) -> int:
    try:
        number = index(value)
    except (TypeError, RuntimeError):  # also of a tensor without values
        raise ValueError(f"{name}: got {shown(value)}, allowed are integers") from None
    if number < least or isinstance(value, bool):
        raise ValueError(f"{name}: got {shown(value)}, allowed are integers from {least} on")
    if number >= HUGE:
        raise ValueError(f"{name}: got {shown(value)}, allowed are integers below 2^100")
    return number


@dataclass(frozen=True)
class Model:
    """The attention shape of a model, and the tensor parallelism (GPUs that share the heads) of the POD paper."""

    name: str
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    layers: int
    tp: int

    def heads(self, tp: int | None = None) -> dict[str, int]:
        """Head counts on one of `tp` GPUs, as keyword arguments for HybridBatch."""
        tp = self.tp if tp is None else _positive(tp, "tp")
        if self.num_kv_heads % tp:
            raise ValueError(f"tp: got {tp}, allowed are divisors of the {self.num_kv_heads} KV heads of {self.name}")
        return {
            "num_q_heads": self.num_q_heads // tp,
            "num_kv_heads": self.num_kv_heads // tp,
            "head_dim": self.head_dim,
        }


MODELS: dict[str, Model] = {
    "yi-6b": Model("Yi-6B", num_q_heads=32, num_kv_heads=4, head_dim=128, layers=32, tp=1),
    "llama-2-7b": Model("Llama-2-7B", num_q_heads=32, num_kv_heads=32, head_dim=128, layers=32, tp=2),
    "llama-3-8b": Model("Llama-3-8B", num_q_heads=32, num_kv_heads=8, head_dim=128, layers=32, tp=2),
}

K = 1024
_LLAMA = MODELS["llama-3-8b"].heads()
TABLE1: dict[str, HybridBatch] = {
    "C0": HybridBatch.of(1 * K, 12 * K, decodes=80, decode_context=12 * K, **_LLAMA),
    "C1": HybridBatch.of(12 * K, 12 * K, decodes=220, decode_context=12 * K, **_LLAMA),
    "C2": HybridBatch.of(16 * K, 16 * K, decodes=250, decode_context=12 * K, **_LLAMA),
}
