"""Which tensors a plan takes: checked before any launch, and quickly, since every layer of every iteration asks."""

import os
from numbers import Real

from pod.batch import SCALES, HybridBatch, shown

NAMES = ("q", "k_cache", "v_cache", "block_table", "sinks")
MOST = (1 << 31) - 1  # what the kernels keep in 32 bits: strides, places for heads (sm80.py, sm90.py)


class Allowed:
    """What tensors a plan takes. Layers bring the same layout again and again, so that of the last call, once found
    right, is only compared."""

    def __init__(self, b: HybridBatch, device, check_layout=lambda batch, q, k: None):
        from torch.autograd import forward_ad

        self.forward_ad = forward_ad
        self.batch, self.device, self.check_layout, self.seen = b, device, check_layout, None
        self.starts = (0, 0, 0, 0)  # of q, K, V and the table: where they may begin in storages of the size seen
        self.sizes = (0, 0, 0, 0)  # and the bytes that they reach over
        q_lens, kv_lens = b.lens
        self.q_shape, self.heads = (int(q_lens.sum()), b.num_q_heads, b.head_dim), (b.num_kv_heads, b.head_dim)
        self.sequences, self.longest = len(q_lens), int(kv_lens.max())
        self.most_pages = -(-self.longest // b.page_size) if b.page_size else 0
        self.debug = device.type == "cpu" or bool(os.environ.get("POD_DEBUG"))

    def check(self, q, k, v, table, scale=None, causal=None, out=None, sinks=None) -> None:
        """All that a call brings: its tensors, and what it may leave out."""
        self._check_layout(q, k, v, table)
        if sinks is not None or self.batch.sinks:
            self._check_sinks(sinks)
        if scale is not None:
            check_scale(scale)
        if causal is False and self.batch.window is not None:
            raise ValueError("causal: got False, allowed is True, as the plan has a window")
        if out is not None:
            check_out(out, q)
            self._check_apart(out, q, k, v, table, sinks)

    def _check_layout(self, q, k, v, table) -> None:
        try:
            layout = (q.shape, q.stride(), q.dtype, q.device, q.untyped_storage().nbytes(),
                      k.shape, k.stride(), k.dtype, k.device, k.untyped_storage().nbytes(),
                      v.shape, v.stride(), v.dtype, v.device, v.untyped_storage().nbytes())  # fmt: skip
            if table is not None:
                layout += table.shape, table.stride(), table.dtype, table.device, table.untyped_storage().nbytes()
            grads = q.requires_grad or k.requires_grad or v.requires_grad or self.forward_ad._current_level >= 0
            q_at, k_at, v_at = q.data_ptr(), k.data_ptr(), v.data_ptr()
            odd = (q_at | k_at | v_at) % 16 or not (q_at and k_at and v_at) or q.is_neg() or k.is_neg() or v.is_neg()
            q_last, k_last, v_last, table_last = self.starts
            odd = odd or q.storage_offset() > q_last or k.storage_offset() > k_last or v.storage_offset() > v_last
            odd = odd or (table is not None and table.storage_offset() > table_last)
        except (AttributeError, TypeError, RuntimeError):
            layout, grads, odd = None, False, True
        if odd or grads or layout != self.seen:
            self._check(q, k, v, table)
            self.starts = tuple(0 if x is None else _last_start(x) for x in (q, k, v, table))
            self.sizes = tuple(0 if x is None else _size(x) for x in (q, k, v, table))
            self.seen = layout
        if self.debug and table is not None:
            _check_pages(table, self.batch.pages, k.shape[0])

    def _check_apart(self, out, q, k, v, table, sinks) -> None:
        """No other tensor of the call lies where `out`, a dense one, does."""
        sizes = (*self.sizes, 0 if sinks is None else _size(sinks))
        first = out.data_ptr()
        end = first + out.numel() * out.element_size()
        for x, size, name in zip((q, k, v, table, sinks), sizes, NAMES, strict=True):
            if x is not None and x.data_ptr() < end and first < x.data_ptr() + size:
                raise ValueError(f"out: got memory of {name}, allowed is memory of its own")

    def _check(self, q, k, v, table) -> None:
        tensors = {"q": q, "k_cache": k, "v_cache": v}
        for name, x in (tensors if table is None else tensors | {"block_table": table}).items():
            _check_is_tensor(name, x)
        if tuple(q.shape) != self.q_shape:
            raise ValueError(f"q: got shape {tuple(q.shape)}, allowed by the plan is {self.q_shape}")
        page_size = self.batch.page_size
        for name, cache in (("k_cache", k), ("v_cache", v)):
            if cache.dim() != 4 or tuple(cache.shape[2:]) != self.heads:
                first = f"pages, {page_size}" if page_size else "sequences, slots"
                wanted = f"[{first}, {', '.join(map(str, self.heads))}]"
                raise ValueError(f"{name}: got shape {tuple(cache.shape)}, allowed by the plan is {wanted}")
        if v.shape != k.shape or _steps(v) != _steps(k):
            got, wanted = (f"{tuple(x.shape)} with strides {x.stride()}" for x in (v, k))
            raise ValueError(f"v_cache: got {got}, allowed is what k_cache has, {wanted}")
        for name, x in tensors.items():
            _check_tensor(name, x, self.batch, self.device)
        (self._check_contiguous if page_size is None else self._check_paged)(k, table)
        self.check_layout(self.batch, q, k)

        for name, x in tensors.items():
            if not x.data_ptr():
                raise ValueError(f"{name}: got a tensor without memory, allowed are at least 1 page and 1 token")

    def _check_sinks(self, sinks) -> None:
        import torch

        batch = self.batch
        if not batch.sinks:
            raise ValueError("sinks: got some, allowed by the plan is None; a plan with sinks=True takes them")
        if str(getattr(sinks, "dtype", "")) != "torch.float32" or sinks.shape != (batch.num_q_heads,):
            got = f"{sinks.dtype} of shape {tuple(sinks.shape)}" if hasattr(sinks, "dtype") else type(sinks).__name__
            raise ValueError(f"sinks: got {got}, allowed by the plan is torch.float32 of shape ({batch.num_q_heads},)")
        grads = sinks.requires_grad and torch.is_grad_enabled()
        if sinks.device != self.device or not sinks.is_contiguous() or grads:
            raise ValueError(f"sinks: got a tensor on {sinks.device}, allowed is a dense one on {self.device} without "
                             "a gradient")  # fmt: skip
        _check_plain("sinks", sinks)

    def _check_contiguous(self, k, table) -> None:
        if table is not None:
            raise ValueError("block_table: got one, allowed is None as the plan has no page_size")
        if k.shape[0] < self.sequences or k.shape[1] < self.longest:
            raise ValueError(f"k_cache: got {k.shape[0]} sequences of {k.shape[1]} slots, allowed are at least "
                             f"{self.sequences} of {self.longest}")  # fmt: skip

    def _check_paged(self, k, table) -> None:
        page_size = self.batch.page_size
        if k.shape[1] != page_size:
            raise ValueError(f"k_cache: got pages of {k.shape[1]} tokens, allowed by the plan is {page_size}")
        if table is None:
            wanted = f"int32 [{self.sequences}, pages]"
            raise ValueError(f"block_table: got None, allowed is {wanted}, as the plan has page_size")
        if str(table.dtype) != "torch.int32" or table.dim() != 2 or (table.stride(1) != 1 and table.shape[1] > 1):
            raise ValueError(f"block_table: got {table.dtype} of shape {tuple(table.shape)}, allowed is dense int32 "
                             "[sequences, pages]")  # fmt: skip
        if table.device != self.device:
            raise ValueError(f"block_table: got device {table.device}, allowed by the plan is {self.device}")
        if table.shape[0] > 1 and table.stride(0) > MOST:
            raise ValueError(f"block_table: got a stride of {table.stride(0)} elements, allowed are up to {MOST}")
        _check_memory("block_table", table)
        if table.shape[0] < self.sequences or table.shape[1] < self.most_pages:
            raise ValueError(f"block_table: got shape {tuple(table.shape)}, allowed is at least "
                             f"{(self.sequences, self.most_pages)}")  # fmt: skip


def scales_of(k_scale, v_scale, plan) -> tuple:
    """Of K and V, where the plan has them in 8 bits."""
    if plan.batch.kv_dtype:
        return scale_of("k_scale", k_scale, plan), scale_of("v_scale", v_scale, plan)
    for name, value in (("k_scale", k_scale), ("v_scale", v_scale)):
        if value is not None:
            raise ValueError(f"{name}: got {shown(value)}, allowed by the plan is None, as it has no kv_dtype")
    return ()


def scale_of(name: str, scale, plan):
    """float32 [Hkv] on the plan's device: as it is, or made of one number for all heads, or of none, which is 1."""
    import torch

    heads = plan.batch.num_kv_heads
    if scale is None or _is_number(scale) and 0 < scale < 1e30:
        return torch.full((heads,), 1.0 if scale is None else float(scale), dtype=torch.float32, device=plan.device)
    got = type(scale).__name__
    if isinstance(scale, torch.Tensor):  # whose repr would wait for the GPU
        if scale.dtype == torch.float32 and scale.device == plan.device and tuple(scale.shape) in ((), (1,), (heads,)):
            _check_plain(name, scale)
            return scale.expand(heads).contiguous()
        got = f"{scale.dtype} of shape {tuple(scale.shape)} on {scale.device}"
    elif isinstance(scale, (Real, str)):
        got = repr(scale)
    raise ValueError(f"{name}: got {got}, allowed are numbers above 0 and float32 [{heads}], one a KV head, on "
                     f"{plan.device}")  # fmt: skip


def _is_number(value) -> bool:
    """NumPy's are numbers, too; truth is none."""
    return isinstance(value, Real) and not isinstance(value, bool)


def check_scale(scale) -> None:
    if not _is_number(scale) or not SCALES[0] <= scale <= SCALES[1]:
        raise ValueError("softmax_scale: got {}, allowed are numbers from {:g} to {:g}".format(shown(scale), *SCALES))


def check_out(out, q) -> None:
    import torch

    tensor = isinstance(out, torch.Tensor)
    if not tensor or out.shape != q.shape or out.dtype != q.dtype or out.device != q.device:
        got = f"{out.dtype} of shape {tuple(out.shape)}" if tensor else type(out).__name__
        raise ValueError(f"out: got {got}, allowed is what q has, {q.dtype} of shape {tuple(q.shape)} on {q.device}")
    _check_plain("out", out)
    if not out.is_contiguous() or out.data_ptr() % 16:
        raise ValueError(f"out: got strides {out.stride()}, allowed is a dense tensor that starts at 16 bytes")
    if out.requires_grad:
        raise ValueError("out: got a tensor that requires a gradient, allowed is inference")


def _size(x) -> int:
    """Bytes from where a tensor begins to where it ends."""
    return _reach(x) * x.element_size()


def _check_is_tensor(name: str, x) -> None:
    import torch
    from torch.autograd import forward_ad

    if not isinstance(x, torch.Tensor) or x.layout != torch.strided or x.is_nested:
        kind = "nested" if getattr(x, "is_nested", False) else getattr(x, "layout", None)
        got = kind if isinstance(x, torch.Tensor) else type(x).__name__
        raise ValueError(f"{name}: got {got}, allowed is a dense torch tensor")
    if x.requires_grad and torch.is_grad_enabled():
        raise ValueError(f"{name}: got a tensor that requires a gradient, allowed is inference (torch.no_grad)")
    try:
        x.data_ptr()
    except RuntimeError:  # of torch.func's transforms
        raise ValueError(f"{name}: got a tensor without memory, allowed is a dense torch tensor") from None
    if forward_ad._current_level >= 0 and forward_ad.unpack_dual(x).tangent is not None:
        raise ValueError(f"{name}: got a tensor with a tangent, allowed is inference, without derivatives")


def _check_tensor(name: str, x, batch: HybridBatch, device) -> None:
    dtype = batch.dtype if name == "q" else batch.kv_dtype or batch.dtype
    if str(x.dtype) != f"torch.{dtype}":
        raise ValueError(f"{name}: got dtype {x.dtype}, allowed by the plan is torch.{dtype}")
    if x.device != device:
        raise ValueError(f"{name}: got device {x.device}, allowed by the plan is {device}")
    _check_plain(name, x)
    if x.stride(-1) != 1:
        raise ValueError(f"{name}: got strides {x.stride()}, allowed is a dense last dimension")
    if any(step * x.element_size() % 16 for step in _steps(x)) or x.data_ptr() % 16:
        raise ValueError(f"{name}: got strides {x.stride()}, allowed are rows that start at multiples of 16 bytes")


def _check_plain(name: str, x) -> None:
    if x.is_neg():
        raise ValueError(f"{name}: got a view that negates, allowed is a tensor of plain numbers")
    _check_memory(name, x)


def _check_memory(name: str, x) -> None:
    """A storage may have been made smaller than what the tensor says."""
    if x.numel() and x.storage_offset() > _last_start(x):
        room = x.untyped_storage().nbytes()
        wanted = (x.storage_offset() + _reach(x)) * x.element_size()
        got = f"{room} bytes of memory" if room else "a tensor without memory"
        raise ValueError(f"{name}: got {got} for shape {tuple(x.shape)}, allowed are at least {wanted} bytes")


def _last_start(x) -> int:
    """Where in a storage of this size a tensor of this layout may begin at most."""
    return x.untyped_storage().nbytes() // x.element_size() - _reach(x)


def _reach(x) -> int:
    """Elements from the first to the last."""
    return sum((size - 1) * step for size, step in zip(x.shape, x.stride(), strict=True)) + 1


def _steps(x) -> list[int]:
    """Strides that are ever stepped over: those of dimensions of one entry may be anything."""
    return [step for step, size in zip(x.stride()[:-1], x.shape, strict=False) if size > 1]


def _check_pages(block_table, used, pages: int) -> None:
    for i, n in enumerate(used):
        row = block_table[i, :n]
        if bool(((row < 0) | (row >= pages)).any()):
            raise ValueError(f"block_table: got {row.tolist()} in row {i}, allowed are pages 0 to {pages - 1}")
