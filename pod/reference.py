"""The truth: attention in numpy float64, and the algebra that lets it be computed in pieces.

`attention` and `hybrid_attention` are written to be obviously right, not fast. `State` is the online softmax.
"""

from dataclasses import dataclass

import numpy as np

PADDING = (1, 0)  # new tokens, and all tokens, of a row that fills up a batch: its result is 0


@dataclass(frozen=True)
class State:
    """What online softmax remembers of the keys seen so far, for each row (query).

    m [...]     largest score seen
    l [...]     sum of exp(score - m)
    o [..., D]  sum of exp(score - m) * value: the output before the division by l

    States form a commutative monoid under `merge`, so any split of the keys and any merge order give one result.
    """

    m: np.ndarray
    l: np.ndarray
    o: np.ndarray

    @classmethod
    def identity(cls, rows: int | tuple[int, ...], head_dim: int) -> "State":
        """The state before any key. `rows` is the shape of the queries (one int for a plain vector of them)."""
        rows = (rows,) if isinstance(rows, int) else tuple(rows)
        if min((*rows, head_dim)) < 1:
            raise ValueError(f"rows, head_dim: got {rows} and {head_dim}, allowed are numbers from 1 on")
        return cls(np.full(rows, -np.inf), np.zeros(rows), np.zeros((*rows, head_dim)))

    @classmethod
    def of(cls, scores, values) -> "State":
        """The state of one block alone: scores [..., n] (-inf where masked) and values [n, D]."""
        scores, values = np.asarray(scores, np.float64), np.asarray(values, np.float64)
        if scores.ndim < 1 or values.ndim != 2 or scores.shape[-1] != values.shape[0]:
            raise ValueError(
                f"scores, values: got shapes {scores.shape} and {values.shape}, allowed [..., n] and [n, D]"
            )
        m = scores.max(axis=-1, initial=-np.inf)
        p = np.exp(scores - _finite(m)[..., None])
        return cls(m, p.sum(axis=-1), p @ values)

    def update(self, scores, values) -> "State":
        """The state after one more block of keys."""
        return self.merge(State.of(scores, values))

    def merge(self, other: "State") -> "State":
        """The state of both sets of keys together. Both sides are brought to the larger maximum, then added."""
        if self.o.shape != other.o.shape:
            raise ValueError(f"other: got a state of shape {other.o.shape}, allowed {self.o.shape}")
        m = np.maximum(self.m, other.m)
        a, b = np.exp(self.m - _finite(m)), np.exp(other.m - _finite(m))
        return State(m, a * self.l + b * other.l, a[..., None] * self.o + b[..., None] * other.o)

    def finish(self) -> tuple[np.ndarray, np.ndarray]:
        """Output [..., D] and log-sum-exp [...]. A row that saw no key gets output 0 and log-sum-exp -inf."""
        empty = self.l == 0
        l = np.where(empty, 1.0, self.l)
        return self.o / l[..., None], np.where(empty, -np.inf, self.m + np.log(l))


def _finite(m: np.ndarray) -> np.ndarray:
    """m, with 0 for rows whose every score is -inf: exp(-inf - 0) is the 0 we want, exp(-inf + inf) would be NaN."""
    return np.where(np.isneginf(m), 0.0, m)


def attention(
    q, k, v, causal: bool = True, scale: float | None = None, window: int | None = None, softcap: float | None = None,
    sinks=None,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Attention of one sequence: q [n, Hq, D], k and v [s, Hkv, D] -> output [n, Hq, D], log-sum-exp [n, Hq].

    The n queries are the last n of the s tokens, so under the causal mask query i sees keys 0 .. s - n + i, of a
    `window` the last so many of these. Query heads share KV heads in consecutive groups of Hq / Hkv. `scale` defaults
    to 1 / sqrt(D). A score s becomes softcap * tanh(s / softcap). `sinks` [Hq]: one more score of every query, without
    a value.
    """
    q, k, v = (_float64(x, name) for x, name in ((q, "q"), (k, "k"), (v, "v")))
    _check_qkv(q, k, v, causal)
    n, num_q_heads, head_dim = q.shape
    s, group = k.shape[0], num_q_heads // k.shape[1]
    scale = head_dim**-0.5 if scale is None else scale
    if not np.isfinite(scale):
        raise ValueError(f"scale: got {scale}, allowed are finite numbers")
    last, keys = np.arange(s - n, s)[:, None], np.arange(s)
    hidden = keys > last if causal else np.zeros((n, s), bool)
    if window is not None:
        hidden |= keys <= last - window

    out, lse = np.empty(q.shape), np.empty((n, num_q_heads))
    for h in range(num_q_heads):
        scores = scale * q[:, h] @ k[:, h // group].T
        if softcap is not None:
            scores = softcap * np.tanh(scores / softcap)
        scores = np.where(hidden, -np.inf, scores)
        sink = -np.inf if sinks is None else float(sinks[h])
        top = np.maximum(scores.max(axis=1, keepdims=True), sink)
        p = np.exp(scores - top)
        total = p.sum(axis=1, keepdims=True) + np.exp(sink - top)
        out[:, h] = p / total @ v[:, h // group]
        lse[:, h] = (top + np.log(total))[:, 0]
    return out, lse


def hybrid_attention(
    q, k_cache, v_cache, q_lens, kv_lens, block_table=None, causal: bool = True, scale: float | None = None, **rules
) -> tuple[np.ndarray, np.ndarray]:
    """Attention of a whole batch, one sequence after the other; torch or numpy in, numpy float64 out.

    `rules`: window, softcap and sinks, as `attention` has them.

    q [sum of q_lens, Hq, D] holds the queries of all sequences end to end. The caches are
    [sequences, slots, Hkv, D], or, with a block_table [sequences, pages per sequence], [pages, page size, Hkv, D].
    A sequence may bring no token; one that brings one and sees none gets 0, and minus infinity.
    Returns output [sum of q_lens, Hq, D] and log-sum-exp [sum of q_lens, Hq].
    """
    q = _float64(q, "q")
    q_lens, kv_lens = _lengths(q_lens, "q_lens"), _lengths(kv_lens, "kv_lens")
    block_table = None if block_table is None else _table(block_table)
    _check_batch(q, k_cache, v_cache, q_lens, kv_lens, block_table)

    outs, lses, start = np.zeros(q.shape), np.full(q.shape[:2], -np.inf), 0
    for i, (q_len, kv_len) in enumerate(zip(q_lens, kv_lens, strict=True)):
        own = slice(start, start + q_len)
        if q_len and kv_len:
            k, v = (_float64(_gather(cache, i, kv_len, block_table), "cache") for cache in (k_cache, v_cache))
            outs[own], lses[own] = attention(q[own], k, v, causal, scale, **rules)
        elif q_len and rules.get("sinks") is not None:
            lses[own] = _float64(rules["sinks"], "sinks")
        start += q_len
    return outs, lses


def _gather(cache, sequence: int, kv_len: int, block_table):
    """The first kv_len tokens of one sequence, [kv_len, Hkv, D]. Slots after them are never touched."""
    if block_table is None:
        return cache[sequence, :kv_len]
    page_size = cache.shape[1]
    pages = block_table[sequence, : -(-kv_len // page_size)]
    bad = pages[(pages < 0) | (pages >= cache.shape[0])]
    if bad.size:
        raise ValueError(f"block_table: got page {bad[0]} in row {sequence}, allowed are 0 to {cache.shape[0] - 1}")
    return cache[pages].reshape(-1, *cache.shape[2:])[:kv_len]


def _float64(x, name: str) -> np.ndarray:
    if hasattr(x, "detach"):  # a torch tensor; numpy has no bfloat16, so widen first
        if not x.dtype.is_floating_point:
            raise ValueError(f"{name}: got dtype {x.dtype}, allowed are floating-point types")
        return x.detach().double().cpu().numpy()
    x = np.asarray(x)
    if not np.issubdtype(x.dtype, np.floating):
        raise ValueError(f"{name}: got dtype {x.dtype}, allowed are floating-point types")
    return x.astype(np.float64)


def _lengths(lengths, name: str) -> list[int]:
    lengths = [int(n) for n in lengths]
    if not lengths or min(lengths) < 0:
        raise ValueError(f"{name}: got {lengths}, allowed is at least one length, none below 0")
    return lengths


def _table(block_table) -> np.ndarray:
    table = block_table.cpu().numpy() if hasattr(block_table, "detach") else np.asarray(block_table)
    if table.ndim != 2 or not np.issubdtype(table.dtype, np.integer):
        raise ValueError(
            f"block_table: got {table.dtype} of shape {table.shape}, allowed are integers [sequences, pages]"
        )
    return table


def _check_qkv(q, k, v, causal: bool) -> None:
    for x, name in ((q, "q"), (k, "k"), (v, "v")):
        if x.ndim != 3 or 0 in x.shape:
            raise ValueError(f"{name}: got shape {x.shape}, allowed is [tokens, heads, head_dim], none of them 0")
    if v.shape != k.shape:
        raise ValueError(f"v: got shape {v.shape}, allowed is the shape of k, {k.shape}")
    if k.shape[2] != q.shape[2]:
        raise ValueError(f"k: got head_dim {k.shape[2]}, allowed is that of q, {q.shape[2]}")
    if q.shape[1] % k.shape[1]:
        raise ValueError(f"q: got {q.shape[1]} heads, allowed are multiples of the {k.shape[1]} KV heads")
    if causal and k.shape[0] < q.shape[0]:
        raise ValueError(f"k: got {k.shape[0]} tokens, allowed with causal=True are at least the {q.shape[0]} of q")


def _check_batch(q, k_cache, v_cache, q_lens, kv_lens, block_table) -> None:
    if q.ndim != 3 or q.shape[0] != sum(q_lens):
        raise ValueError(f"q: got shape {q.shape}, allowed is [{sum(q_lens)} (sum of q_lens), heads, head_dim]")
    if len(kv_lens) != len(q_lens):
        raise ValueError(f"kv_lens: got {len(kv_lens)} lengths, allowed is one for each of the {len(q_lens)} q_lens")
    for i, (q_len, kv_len) in enumerate(zip(q_lens, kv_lens, strict=True)):
        if kv_len < q_len and (q_len, kv_len) != PADDING:
            raise ValueError(f"kv_lens: got {kv_len} at {i}, allowed is at least q_lens[{i}] = {q_len}")
    for cache, name in ((k_cache, "k_cache"), (v_cache, "v_cache")):
        if len(cache.shape) != 4:
            raise ValueError(f"{name}: got shape {tuple(cache.shape)}, allowed are 4 dimensions")
    if tuple(v_cache.shape) != tuple(k_cache.shape):
        raise ValueError(
            f"v_cache: got shape {tuple(v_cache.shape)}, allowed is that of k_cache, {tuple(k_cache.shape)}"
        )
    rows = k_cache.shape[0] if block_table is None else len(block_table)
    name = "k_cache" if block_table is None else "block_table"
    if rows < len(q_lens):
        raise ValueError(f"{name}: got {rows} sequences, allowed are at least {len(q_lens)}")
    slots = k_cache.shape[1] * (1 if block_table is None else block_table.shape[1])
    if slots < max(kv_lens):
        raise ValueError(f"{name}: got room for {slots} tokens a sequence, allowed are at least {max(kv_lens)}")
