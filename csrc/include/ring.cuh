// Who may use a place in shared memory: a Ring of stages between one that fills and many that read, and a Turn that
// goes round among warpgroups. Hopper only: they stand on mbarriers and named barriers that are announced without
// waiting.
#pragma once
#include "ptx90.cuh"

// Where one side of a ring is: at which stage, and whether its number of rounds is odd. A counter tells both where the
// remainder costs nothing; elsewhere they are counted apart.
template <int kStages, bool kOneCounter = (kStages & (kStages - 1)) == 0> struct Place {
    uint32_t uses = 0;

    DEV uint32_t stage() const { return uses % kStages; }
    DEV uint32_t odd() const { return uses / kStages % 2; }
    DEV void advance() { uses++; }
    DEV Place next() const { return {uses + 1}; }
};
template <int kStages> struct Place<kStages, false> {
    uint32_t at = 0, round = 0;

    DEV uint32_t stage() const { return at; }
    DEV uint32_t odd() const { return round; }
    DEV void advance() {
        if (++at < kStages) return;
        at = 0;
        round ^= 1;
    }
};

// Stages that one side fills and others read.
//
//   the one that fills   acquire, then expect and copies that report to filled(..); or stores, and fill
//   those that read      wait, and release when they are through
//
// A ring has no position: each side keeps a Place of its own, and may look ahead.
template <int kStages> struct Ring {
    using Place = ::Place<kStages>;
    uint64_t full[kStages], empty[kStages];  // mbarriers: they know of a phase only whether its number is odd

    // By one thread, once. An arrival and the bytes it expects fill a stage; `readers` arrivals empty it.
    DEV void init(int readers) {
        for (int s = 0; s < kStages; ++s) {
            ptx::mbar_init(ptx::smem_u32(&full[s]), 1);
            ptx::mbar_init(ptx::smem_u32(&empty[s]), readers);
        }
    }
    DEV smem_addr filled(Place p) const { return ptx::smem_u32(full) + 8 * p.stage(); }
    DEV smem_addr emptied(Place p) const { return ptx::smem_u32(empty) + 8 * p.stage(); }

    // In the first round nobody has read yet: the phase before an mbarrier's first counts as complete.
    DEV void acquire(Place p AT) { ptx::mbar_wait(emptied(p), p.odd() ^ 1 PASS_AT); }
    DEV void expect(Place p, uint32_t bytes AT) { ptx::mbar_arrive_tx(filled(p), bytes PASS_AT); }
    DEV void fill(Place p AT) { ptx::mbar_arrive(filled(p) PASS_AT); }

    DEV void wait(Place p AT) const { ptx::mbar_wait(filled(p), p.odd() PASS_AT); }
    DEV void release(Place p AT) { ptx::mbar_arrive(emptied(p) PASS_AT); }
};

// Whose turn it is among the kGroups warpgroups that want the tensor cores, each with a named barrier for its own
// turn: the group waits there for the one before it, which only announces. Group 0 goes first, as if the last had
// passed to it.
template <int kGroups> struct Turn {
    static constexpr int kFirst = 1, kThreads = 256;  // the first group's barrier; one that waits, one that announces
    int mine, next;

    DEV explicit Turn(int group) : mine(kFirst + group), next(group == kGroups - 1 ? kFirst : kFirst + group + 1) {
        if (next == kFirst) pass();
    }
    DEV void take(AT_ONLY) const {
        ptx::named_barrier_sync(mine, kThreads PASS_AT);
    }
    DEV void pass(AT_ONLY) const {
        ptx::named_barrier_arrive(next, kThreads PASS_AT);
    }
};
