"""Tensors as engines keep them: parts of larger ones, interleaved, heads outside, with a corner of a wider table."""

import torch
from hypothesis import strategies as st

PLAIN = {"cache_order": (0, 1, 2), "q_order": (0, 1), "pad": [0, 0, 0], "interleaved": False, "wider": 0}
WIDER_TABLE = PLAIN | {"wider": 3}
ENGINE = PLAIN | {"pad": [0, 2, 0], "interleaved": True, "wider": 5}  # q beside K and V of its tokens, one pool
HEADS_OUTSIDE = PLAIN | {"cache_order": (0, 2, 1), "q_order": (1, 0)}
HEADS_FIRST = PLAIN | {"cache_order": (2, 0, 1), "pad": [1, 1, 0]}  # all pages of one head, then those of the next


@st.composite
def layouts(draw):
    """How to lay q, K and V and the table out: `lay_out` takes it."""
    orders = st.permutations(range(3)), st.permutations(range(2))
    pads = st.lists(st.integers(0, 2), min_size=3, max_size=3)
    cache_order, q_order = (tuple(draw(order)) for order in orders)
    return {"cache_order": cache_order, "q_order": q_order, "pad": draw(pads), "interleaved": draw(st.booleans()),
            "wider": draw(st.integers(0, 3))}  # fmt: skip


def lay_out(tensors, cache_order, q_order, pad, interleaved, wider):
    """The same values elsewhere, with NaN and pages that are not there around them."""
    q, k, v, table = tensors
    if interleaved:
        both = torch.stack([k, v], 1)
        k, v = both[:, 0], both[:, 1]
    else:
        k, v = (embed(x, cache_order, pad) for x in (k, v))
    if table is not None:
        wide = torch.full([n + wider for n in table.shape], 10**6, dtype=torch.int32, device=table.device)
        wide[: len(table), : table.shape[1]] = table
        table = wide[: len(table), : table.shape[1]]
    return embed(q, q_order, pad), k, v, table


def embed(x, order, pad):
    """x in a larger tensor full of NaN, whose outer dimensions lie in `order`."""
    dims = len(order)
    sizes = [x.shape[d] + 2 * pad[d] for d in order]
    large = torch.full((*sizes, *x.shape[dims:]), torch.nan, dtype=x.dtype, device=x.device)
    view = large.permute(*(order.index(d) for d in range(dims)), *range(dims, x.dim()))
    view = view[tuple(slice(pad[d], pad[d] + x.shape[d]) for d in range(dims))]
    return view.copy_(x)
