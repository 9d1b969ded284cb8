"""Broken Hopper kernels: all in one library, each tried on a few batches until one of them gives it away."""

from emulator import HERE
from emulator.hybrid90 import Case, Outcome
from layouts import WIDER_TABLE

from pod.batch import HybridBatch
from pod.lab.mutate import Mistake, Source

PREFILL, DECODE, COMMON = (f"sm90/{name}.cuh" for name in ("prefill", "decode", "common"))
RING = "include/ring.cuh"
SOURCE = Source(HERE / "hybrid90.cu", (COMMON, PREFILL, DECODE), also=(HERE,))
# Between them every part of the kernel: tails of one key, split tiles and requests, small and large pages, groups that
# are no power of two, prefill that yields, a few tokens that are decode, parts that become one in two rounds, maxima
# that rise, padding.
CASES = [
    Case(HybridBatch((20, 1, 1), (127, 63, 200), 12, 1, 64, page_size=16), 2, roles=(8, 1), layout=WIDER_TABLE),
    Case(HybridBatch((100, 1), (300, 1100), 4, 2, 64), 4, splits=2, roles=(8, 1), yields=True),
    Case(HybridBatch((70, 1), (300, 200), 2, 1, 64, page_size=128), 2, roles=(8, 1)),
    Case(HybridBatch((150, 1), (520, 400), 2, 1, 64, dtype="float16"), 2, roles=(8, 1), rise=40),
    Case(HybridBatch((2,), (34 * 8 * 64,), 7, 1, 64), 34, parts=34, roles=(16, 2), free_sms=4),
    Case(HybridBatch((4, 3, 60), (130, 200, 100), 6, 2, 64, page_size=16), 2, roles=(16, 4)),
    Case(HybridBatch((9, 20), (10 * 128, 300), 7, 1, 64, page_size=16), 10, splits=10, roles=(8, 1), free_sms=4),
    Case(HybridBatch((1, 0, 40, 1), (0, 0, 100, 60), 4, 2, 64, page_size=16), 2, roles=(8, 2)),
    Case(HybridBatch((9, 4), (18 * 128, 1500), 4, 1, 64, page_size=16), 10, splits=18, roles=(8, 0), free_sms=4),
]


def outcome(library, cases=CASES) -> str:
    """What the first case says that the kernel does not get right."""
    return next((text for case in cases if (text := Outcome(library, case).text) != "right result"), "right result")


LAST = "last_to_arrive(p.arrived + r.counter * kWarps + warp, r.count)"
FEW_LAST = "last_to_arrive(p.arrived + (r.counter * kGroups + group) * 4 + warp, r.count)"
RELEASE = "            if (lane == 0) c.q.release({uint32_t(ptx::anew(int(piece.uses)))});"
DECODE_LAST = "last_to_arrive(p.arrived + r.counter, r.count)"
STORE = "ptx::st_global_16(dst + 32 * j, make_uint4(x[0], x[1], x[2], x[3]));"
MISTAKES = (
    Mistake("V's cleared tail is not shown to the tensor cores", PREFILL,
            "        ptx::fence_proxy_async();\n        __syncwarp();",
            "        __syncwarp();", "wgmma reads .* with no fence.proxy.async between"),
    Mistake("the wrong phase of an empty stage is awaited", RING,
            "ptx::mbar_wait(emptied(p), p.odd() ^ 1 PASS_AT);",
            "ptx::mbar_wait(emptied(p), p.odd() PASS_AT);", "deadlock: "),
    Mistake("a stage of K is freed before its product is through", PREFILL,
            "            ptx::wgmma_wait<1>();\n            ptx::touch(s);\n            free_k(block.next());",
            "            free_k(block.next());\n            ptx::wgmma_wait<1>();\n            ptx::touch(s);",
            r"race: overwrites .* that a wgmma of warp \d+ read"),
    Mistake("the causal mask is one key off", PREFILL, "column > last", "column > last + 1", "wrong result"),
    Mistake("the output is not rescaled when the maximum rises", PREFILL,
            "if (__any_sync(~0u, fade[0] != 1.f || fade[1] != 1.f)) rescale(o, fade);", ";", "wrong result"),
    Mistake("parts of prefill are merged with no release", PREFILL,
            LAST, "atomicAdd(p.arrived + r.counter * kWarps + warp, 1) == r.count - 1",
            "race: .* of partial results of prefill .* with no release and acquire between"),
    Mistake("parts of prefill are read through the cache that hears of no write", PREFILL,
            "for (int j = 0; j < D / 8; j++) x[j] = __ldcg(part + j * 32);",
            "for (int j = 0; j < D / 8; j++) x[j] = __ldg(part + j * 32);",
            "stale: __ldg reads 16 bytes of partial results of prefill"),
    Mistake("parts of few rows are merged with no release", PREFILL,
            FEW_LAST, "atomicAdd(p.arrived + (r.counter * kGroups + group) * 4 + warp, 1) == r.count - 1",
            "race: .* of partial results of prefill .* with no release and acquire between"),
    Mistake("a part of few rows is counted before all warps have stored it", PREFILL,
            "ptx::named_barrier_sync(kBarrier + group, 128);  // all have stored",
            "__syncwarp();", "race: .* of partial results of prefill"),
    Mistake("a warp merges its first piece of few rows again", PREFILL,
            "parts + r.first * kPart + i * Piece::kStep", "parts + r.first * kPart + warp * Piece::kStep",
            "wrong result"),
    Mistake("parts of few rows do not fade when a higher maximum comes", PREFILL,
            "fade[r] = ptx::ex2(fmaf(m[r], scale_log2, -base[r]));", "fade[r] = 1.f;", "wrong result"),
    Mistake("parts of few rows are read through the cache that hears of no write", PREFILL,
            "x[i][j] = __ldcg(at + min(i, count - 1) * stride + j * 32);",
            "x[i][j] = __ldg(at + min(i, count - 1) * stride + j * 32);",
            "stale: __ldg reads 16 bytes of partial results of prefill"),
    Mistake("a barrier of two warpgroups counts one", RING,
            "ptx::named_barrier_sync(mine, kThreads PASS_AT)", "ptx::named_barrier_sync(mine, 128 PASS_AT)",
            "barrier of 128 threads reached by more, or for another count"),
    Mistake("a turn that yields is never handed on", PREFILL, "if (yields) turn.pass();", ";", "deadlock: "),
    Mistake("a tile's record is announced before all lanes have written it", PREFILL,
            "        w.copy_to(c.work[group][tile.odd()], lane);\n        __syncwarp();",
            "        w.copy_to(c.work[group][tile.odd()], lane);",
            "race: reads 4 bytes of shared memory .* wrote at prefill.cuh"),
    Mistake("a tail of V that lacks one row is taken for full", PREFILL,
            "kValues && kv_len - row < kKeys", "kValues && kv_len - row < kKeys - 1", "wrong result"),
    Mistake("rows past the end of a tile are stored", PREFILL,
            f"if (real) {STORE}", STORE, "out of bounds: 16 bytes of out|race: writes 16 bytes of out"),
    Mistake("the arrivals of a split tile are not set back", "include/partials.cuh",
            "arrived[0] = 0;", ";", "counters: got"),
    Mistake("Q is never given back", PREFILL, "if (lane == 0) c.q[group].release(at);", ";", "deadlock: "),
    Mistake("the page table is read past the sequence's end", COMMON,
            "min(base + lane, last)", "base + lane", "out of bounds: 4 bytes of block_table"),
    Mistake("padding asks for the page before its first", COMMON,
            "(max(kv_len, 1) - 1) >> shift", "(kv_len - 1) >> shift", "out of bounds: 4 bytes of block_table"),
    Mistake("padding is divided by what it has seen, nothing", COMMON,
            "l == 0.f ? 0.f : 1.f / l", "1.f / l", "wrong result"),
    Mistake("the end of prefill's list is not seen", PREFILL,
            "if (FIELD(w, tokens) == 0) break;", "",
            "out of bounds: 4 bytes of block_table"),  # an entry of zeros is a sequence without a page
    Mistake("the end of decode's list is not seen", DECODE,
            "if (i == last) break;", "", "out of bounds: 4 bytes of decode_chunks"),
    Mistake("a row is looked for past its page", COMMON, "row & ((1 << shift) - 1)", "row", "wrong result"),
    Mistake("nobody makes the barriers visible to the copy engine", "sm90/hybrid.cu",
            "        ptx::fence_mbar_init();", "        ;", "no fence_mbar_init made visible"),
    Mistake("the warps' maxima are read before all are there", DECODE,
            "meet();  // all warps have shown theirs", ";", "race: reads 8 bytes of shared memory"),
    Mistake("P that was made again is not awaited", DECODE,
            "            make(e, dst, scale_log2);\n            meet();",
            "            make(e, dst, scale_log2);", r"race: reads 2 bytes of shared memory .* wrote at decode.cuh"),
    Mistake("slots of K are freed before their product is through", DECODE,
            "        ptx::wgmma_wait<kPending>();\n        ptx::touch(s);\n        ptx::touch(s2);",
            "        if constexpr (kBits == 16) free(k);\n        ptx::wgmma_wait<kPending>();\n        "
            "ptx::touch(s);\n        ptx::touch(s2);",
            r"race: overwrites .* that a wgmma of warp \d+ read"),
    Mistake("a tail that lacks one key is taken for a full tile", DECODE,
            "seen < kTokens", "seen < kTokens - 1", "wrong result"),
    Mistake("heads of padding are stored", DECODE,
            "if (!rows.real(n)) continue;", ";", "out of bounds: 2 bytes of out|race: writes 2 bytes of out"),
    Mistake("of small pages all heads read the first one's keys", COMMON,
            "id * page + kv_head * head", "id * page", "wrong result"),
    Mistake("the second pack of a group reads the heads of the first", DECODE,
            "ptx::tma_load_5d(dst + panel * S::kQPanel, &maps.q, filled, head0, token, panel, kv_head);",
            "ptx::tma_load_5d(dst + panel * S::kQPanel, &maps.q, filled, 0, token, panel, kv_head);", "wrong result"),
    Mistake("a record is given back while lanes still read it", DECODE,
            "            __syncwarp();\n            // as if it were new, or ptxas keeps (and spills) its address\n"
            + RELEASE, RELEASE, "race: overwrites 4 bytes of shared memory"),
    Mistake("the m and l of parts are read while they are stored", DECODE,
            "meet();  // before they are read", ";", "race: (overwrites|reads) 16 bytes of shared memory"),
    Mistake("parts of a request are merged with no acquire", DECODE,
            DECODE_LAST, "atomicAdd(p.arrived + r.counter, 1) == r.count - 1",
            "race: reads 16 bytes of partial results of decode .* with no release and acquire between"),
    Mistake("a draft's token sees the next one", DECODE,
            "(p.causal ? w.tokens - 1 : 0)", "(p.causal ? w.tokens - 2 : 0)", "wrong result"),
    Mistake("all tokens of a draft see what the first sees", DECODE,
            "(p.causal ? state.row(i, lane) >> p.pack_shift : 0)", "0", "wrong result"),
    Mistake("a row's token is looked up as if its heads were a power of two", PREFILL,
            "return row * inverse >> 16;", "return row >> 3;", "wrong result|out of bounds|race: writes"),
    Mistake("the next warpgroup has the same tokens", PREFILL,
            "FIELD(w, q_row) + group * p.pack.next_token", "FIELD(w, q_row)", "wrong result"),
    Mistake("the second round of merging reads neighbours", COMMON,
            "step = last ? fan : 1;", "step = 1;", "wrong result"),
    Mistake("both rounds of merging count on one counter", COMMON,
            "counter = last ? w.group : w.group + 1 + w.part / fan;",
            "counter = w.group;", "wrong result|race: |counters: got"),
)  # fmt: skip
