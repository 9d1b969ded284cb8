"""Broken kernels: the real source with one line changed, and a batch that touches every part of it.

Each change is a mistake that somebody could make. It is applied to the source as it is today, so it cannot go stale
unnoticed: a line that is no longer found exactly once fails the tests.
"""

from pod.lab.mutate import Mistake

TILE, MERGE, BINDING = "include/tile_attention.cuh", "include/merge.cuh", "include/binding.cuh"
MISTAKES = [
    Mistake("the barrier before a slot is read and refilled is missing", TILE,
            "        team.sync();\n        fetch_ahead(key);", "        fetch_ahead(key);", "race: "),
    Mistake("a panel is read before its copy has arrived", TILE,
            "cp_async_wait<kLate ? 0 : kSlots / 2 - 2>()",
            "cp_async_wait<kLate ? 1 : kSlots / 2 - 1>()", "un-awaited copy: "),
    Mistake("the slots still in use are refilled", TILE,
            "first = wrap(slot + kSlots - 2), second = wrap(slot + kSlots - 1)",
            "first = wrap(slot), second = wrap(slot + 1)", "un-awaited copy: "),
    Mistake("the output is not rescaled when the maximum grows", TILE,
            "o[r][j][e] *= fade[r][e / 2];", ";", "wrong result"),
    Mistake("the sum is not rescaled when the maximum grows", "include/softmax.cuh",
            "float sum = l[r][h] * fade[r][h];", "float sum = l[r][h];", "wrong result"),
    Mistake("the mask is one key off", TILE, "if (column(j) + e >= seen)", "if (column(j) + e > seen)", "wrong result"),
    Mistake("the mask is aligned to the top left instead of the bottom right", TILE,
            "min(work.end, work.pos + 1 + row * diagonal)", "min(work.end, 1 + row * diagonal)", "wrong result"),
    Mistake("the page after the right one is read", TILE,
            "+ (key >> x.page_shift)))",
            "+ (key >> x.page_shift) + 1))", "out of bounds: 4 bytes of block_table|wrong result"),
    Mistake("rows past the end are copied instead of zeroed", TILE,
            "r + first < valid)", "true)", "out of bounds: |wrong result"),
    Mistake("the last, partly filled tile of keys is lost", TILE,
            "for (; key < work.end; key += kKeys) step<true>(key);",
            "for (; key + kKeys <= work.end; key += kKeys) step<true>(key);", "wrong result"),
    Mistake("shared memory is written with one swizzle and read with another", TILE,
            "return place((lane & 7) + (lane >> 4) * 8, lane >> 3 & 1);",
            "return ((lane & 7) + (lane >> 4) * 8) * kRowBytes + ((lane >> 3 & 1) << 4);", "wrong result"),
    Mistake("all heads of a tile are read from the first KV head", TILE,
            "work.kv_head * x.kv_head", "0 * x.kv_head", "wrong result"),
    Mistake("all parts of a tile are stored in the same slot", MERGE,
            "work.slot + work.part, inverse", "work.slot, inverse", "race: |wrong result"),
    Mistake("partial results are counted before all warps have stored theirs", MERGE,
            "    team.sync();  // all have stored their piece\n", "", "race: "),
    Mistake("the ticket publishes nothing", MERGE,
            "ptx::atomic_add_acq_rel(parts.arrived",
            "atomicAdd(parts.arrived", "race: .* with no release and acquire between"),
    Mistake("the parts are added without their weights", MERGE,
            "const float weight = ptx::ex2(float(lse2[i * Tile::kRows]) - base);",
            "const float weight = 1;", "wrong result"),
    Mistake("the arrival counters are not set back", MERGE, "parts.arrived[work.group] = 0;", ";", "wrong result"),
    Mistake("the tickets are not set back", BINDING, "c.tickets[i] = 0;", ";", "out of bounds: |wrong result|slot"),
    Mistake("the number of an SM is taken for its place among them", BINDING,
            "ptx::smid() % c.sms", "ptx::smid()", "wrong result|race: "),
    Mistake("thread 0's choice is read without waiting for it", BINDING,
            "        __syncthreads();\n        const Assignment a = box[0]",
            "        const Assignment a = box[0]", "race: "),
    Mistake("the choice is overwritten while others still read it", BINDING,
            "        __syncthreads();  // the box lies in memory that the work will use\n", "", "race: "),
]  # fmt: skip
