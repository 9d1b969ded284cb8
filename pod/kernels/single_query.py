"""The decode attention that vLLM began with: one new token a sequence, keys and values in pages of 16 tokens.

The cache has vLLM's early layout: K [pages, heads, 128 / 8, 16, 8], so that neighbouring threads read neighbouring
bytes of a page's keys, and V [pages, heads, 128, 16]. `attention` runs one of several versions of the same
kernel (csrc/micro/single_query.cu), on a GPU or in the emulator.
"""

from pod.kernels import build

HEAD_DIM, PAGE, PIECE, THREADS = 128, 16, 8, 128
IDEAS = {
    "registers": "each pair of threads keeps the query in its registers",
    "shared": "the query lies once in shared memory",
    "table batch": "as shared, and a warp reads 32 page numbers at once",
    "atomics": "as shared, and the warps' sums meet by atomicAdd",
    "registers in turn": "as registers, but a thread's next key is asked for when the last has come",
    "shared in turn": "as shared, with keys in turn",
}


def _fake(kind, q, k, v, table, lens, max_len, scale, idea):
    return q.new_empty(q.shape)


FAMILY = build.Family("single_query", "micro/single_query_bindings.cpp", "micro/single_query.cu", _fake)


def attention(q, k_cache, v_cache, table, lens, max_len: int, idea: str = "shared", scale: float | None = None):
    """q [sequences, heads, 128], table int32 [sequences, pages of the longest], lens int32 [sequences] -> as q.

    `max_len` is the longest of `lens`, said by the host so that nobody waits for the GPU.
    """
    heads = q.shape[1]
    _check_caches(k_cache, v_cache, heads, q)
    if idea not in IDEAS:
        raise ValueError(f"idea: got {idea!r}, allowed are {', '.join(IDEAS)}")
    if q.shape[2] != HEAD_DIM or q.stride()[1:] != (HEAD_DIM, 1) or q.stride(0) % PIECE:
        raise ValueError(f"q: got shape {tuple(q.shape)} with strides {q.stride()}, allowed is dense [n, heads, 128]")
    for name, x, shape in (("table", table, (len(q), -(-max_len // PAGE))), ("lens", lens, (len(q),))):
        fits = x.dim() == len(shape) and x.shape[0] == shape[0] and x.shape[-1] >= shape[-1]
        if not fits or str(x.dtype) != "torch.int32" or not x.is_contiguous():
            raise ValueError(f"{name}: got {x.dtype} {tuple(x.shape)}, allowed is dense int32 {shape} or longer rows")
    scale = HEAD_DIM**-0.5 if scale is None else scale
    op = build.operator(FAMILY, "", q.device)
    return op(q, k_cache, v_cache, table, lens, max_len, scale, list(IDEAS).index(idea))


def write(k, v, k_cache, v_cache, slots) -> None:
    """New tokens' k and v [tokens, heads, 128] into the cache, each at its slot: page * 16 + place in the page."""
    import torch

    _check_caches(k_cache, v_cache, k.shape[1], k)
    for name, x in (("k", k), ("v", v)):
        if x.shape != k.shape or x.stride()[1:] != (HEAD_DIM, 1) or x.stride(0) % PIECE:
            raise ValueError(f"{name}: got shape {tuple(x.shape)} with strides {x.stride()}, allowed is dense "
                             "[n, heads, 128]")  # fmt: skip
    if slots.dtype != torch.int32 or slots.shape != (len(k),):
        raise ValueError(f"slots: got {slots.dtype} {tuple(slots.shape)}, allowed is int32 [{len(k)}]")
    build.operator(FAMILY, "", k.device)
    torch.ops.pod.write_cache(k, v, k_cache, v_cache, slots)


def caches(pages: int, heads: int, dtype, device="cuda"):
    """Empty K and V caches, all zero."""
    import torch

    shapes = (pages, heads, HEAD_DIM // PIECE, PAGE, PIECE), (pages, heads, HEAD_DIM, PAGE)
    return tuple(torch.zeros(shape, dtype=dtype, device=device) for shape in shapes)


def early_layout(k_cache, v_cache):
    """Today's paged caches, [pages, 16, heads, 128] each, in the layout of this kernel."""
    pages, _, heads, _ = k_cache.shape
    k = k_cache.view(pages, PAGE, heads, HEAD_DIM // PIECE, PIECE).permute(0, 2, 3, 1, 4).contiguous()
    return k, v_cache.permute(0, 2, 3, 1).contiguous()


def resources(idea: str, max_len: int, dtype: str = "bfloat16", device="cuda") -> dict[str, int]:
    """Registers and spilled bytes a thread, shared memory a CTA, and CTAs an SM holds when the longest has max_len."""
    import torch

    like = torch.empty(0, dtype=getattr(torch, dtype), device=device)
    build.operator(FAMILY, "", like.device)
    counts = torch.ops.pod.single_query_resources(like, list(IDEAS).index(idea), max_len)
    return dict(zip(("registers", "spill_bytes", "smem_bytes", "ctas_per_sm"), counts, strict=True))


def _check_caches(k_cache, v_cache, heads: int, x) -> None:
    pages = k_cache.shape[0]
    wanted = {"k_cache": (pages, heads, HEAD_DIM // PIECE, PAGE, PIECE), "v_cache": (pages, heads, HEAD_DIM, PAGE)}
    for (name, shape), cache in zip(wanted.items(), (k_cache, v_cache), strict=True):
        if tuple(cache.shape) != shape or not cache.is_contiguous():
            raise ValueError(f"{name}: got shape {tuple(cache.shape)}, allowed is dense {shape}")
        if cache.dtype != x.dtype or str(cache.dtype).removeprefix("torch.") not in build.DTYPES:
            raise ValueError(f"{name}: got {cache.dtype} with {x.dtype}, allowed is float16 or bfloat16 for both")
        if cache.device != x.device:
            raise ValueError(f"{name}: got device {cache.device}, allowed is {x.device}")
