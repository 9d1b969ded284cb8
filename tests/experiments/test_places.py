"""One batch's place in the band: its rows are those of the recordings."""

import pytest

from pod.batch import TABLE1
from pod.data import read
from pod.experiments.basics import places


def test_both_recordings_begin_with_the_batch_of_table_1():
    batch = TABLE1[places.BATCH]
    for name in ("methods-peers", "hopper-peers"):
        row = read(name).iloc[0]
        sizes = (row.chunk, row.context, row.decodes, row.decode_context, row.q_heads, row.kv_heads)
        assert sizes == (batch.q_lens[0], batch.kv_lens[0], len(batch.q_lens) - 1, batch.kv_lens[1],
                         batch.num_q_heads, batch.num_kv_heads)  # fmt: skip


def test_a_place_is_what_is_saved_of_the_shorter_part():
    df, row = places.table().set_index("way"), read("methods-peers").iloc[0]
    saved = row.prefill + row.decode - row["pod"]
    assert df.place["POD"] == pytest.approx(saved / min(row.prefill, row.decode))
    assert df.place["two streams"] < df.place["POD"] < df.place["one kernel with Hopper's instructions"]
    assert set(df[df.evidence == "simulated"].chapter) == {"10"}
