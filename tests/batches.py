"""Random small hybrid batches for the kernels of all families: lengths and heads beside every border of their tiles."""

import os

from hypothesis import strategies as st

from pod.batch import HybridBatch

LENGTHS = [1, 2, 15, 16, 17, 33, 63, 64, 65, 100, 127, 129, 190]
HEADS = [(1, 1), (2, 2), (4, 1), (6, 2), (8, 1), (10, 2), (12, 1), (18, 1)]


@st.composite
def batches(draw):
    kv_lens = draw(st.lists(st.sampled_from(LENGTHS), min_size=1, max_size=5))
    q_lens = [draw(st.sampled_from(sorted({1, min(n, 2), min(n, 31), n}))) for n in kv_lens]
    return HybridBatch(
        q_lens, kv_lens, *draw(st.sampled_from(HEADS)),
        head_dim=draw(st.sampled_from([64, 128])), page_size=draw(st.sampled_from([None, 16, 64, 128])),
        dtype=draw(st.sampled_from(["float16", "bfloat16"])), causal=draw(st.booleans()),
    )  # fmt: skip


# Seeds of the emulator's order of events: 0, which is its own, unless new examples are searched for.
SEEDS = st.integers(0, 2**32) if os.environ.get("HYPOTHESIS_PROFILE") == "search" else st.just(0)
