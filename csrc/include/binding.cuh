// Bindings: how a CTA learns whether to compute prefill or decode, and which piece. Everything else is the same kernel.
#pragma once
#include "ptx.cuh"

enum Op : int { kPrefill = 0, kDecode = 1 };

// What a CTA needs to choose. Slots are CTAs' worth of work: one prefill tile, or as many decode pieces as warps.
struct Choice {
    int slots[2];               // of prefill and decode
    gptr<int> tickets;          // [sms] by SM, [2] by operation, [1] CTAs that have drawn; zero between launches
    gptr<const int> deal;       // [deals] what an SM's first, second, ... ticket asks for
    int sms, deals;
};
struct alignas(16) Assignment { int op, id, ticket, draws; };

// Prefill or decode alone: serial and streams are two such launches.
struct OnlyPrefill {
    static constexpr bool kPrefills = true, kDecodes = false, kHalves = false, kDraws = false;
    DEV static Assignment assign(const Choice&, sptr<Assignment>) { return {kPrefill, int(blockIdx.x), -1, 0}; }
};
struct OnlyDecode {
    static constexpr bool kPrefills = false, kDecodes = true, kHalves = false, kDraws = false;
    DEV static Assignment assign(const Choice&, sptr<Assignment>) { return {kDecode, int(blockIdx.x), -1, 0}; }
};

// CTA-parallel: the block index decides before anyone knows where the CTA will run.
struct ByBlock {
    static constexpr bool kPrefills = true, kDecodes = true, kHalves = false, kDraws = false;
    DEV static Assignment assign(const Choice& c, sptr<Assignment>) {
        const int block = blockIdx.x;
        if (block < c.slots[kPrefill]) return {kPrefill, block, -1, 0};
        return {kDecode, block - c.slots[kPrefill], -1, 0};
    }
};

// Warp-parallel, as HFuse does it: the first warps of each CTA prefill, the others decode. The CTA ends with its longer
// half.
struct ByWarp {
    static constexpr bool kPrefills = true, kDecodes = true, kHalves = true, kDraws = false;
    template <int kPrefillThreads> DEV static Assignment assign_half() {
        return {int(threadIdx.x) < kPrefillThreads ? kPrefill : kDecode, int(blockIdx.x), -1, 0};
    }
};

// SM-aware (POD): the CTA asks where it runs, and how many have started there before it. kDraws: where two launches at
// once have shared the tickets (pod/kernels/launch.py lets none), neither operation may have anything left, and the CTA
// goes without work.
struct ByTicket {
    static constexpr bool kPrefills = true, kDecodes = true, kHalves = false, kDraws = true;

    // A policy is a table, the same for all SMs (pod/schedule/binding.py makes it). Past its end decode comes first:
    // it is short.
    DEV static int draw_op(const Choice& c, int ticket) {
        if (ticket >= c.deals) return kDecode;
        return c.deal[ticket];
    }
    DEV static Assignment draw(const Choice& c) {
        const int sm = ptx::smid() % c.sms;  // ids may have gaps: two SMs that share a counter do no harm
        Assignment a;
        a.ticket = atomicAdd(c.tickets + sm, 1);
        a.op = draw_op(c, a.ticket);
        a.id = atomicAdd(c.tickets + c.sms + a.op, 1);
        a.draws = 1;
        if (a.id >= c.slots[a.op]) {  // nothing left of it: there are as many CTAs as slots, so the other has some
            a.op ^= 1;
            a.id = atomicAdd(c.tickets + c.sms + a.op, 1);
            a.draws = 2;
        }
        return a;
    }
    // The last CTA to draw leaves zeros for the next launch, so that no memset is needed.
    DEV static void reset_if_last(const Choice& c) {
        if (ptx::atomic_add_acq_rel(c.tickets + c.sms + 2, 1) != int(gridDim.x) - 1) return;
        for (int i = 0; i < c.sms + 3; ++i) c.tickets[i] = 0;
    }
    DEV static Assignment assign(const Choice& c, sptr<Assignment> box) {
        if (threadIdx.x == 0) box[0] = draw(c);
        __syncthreads();
        const Assignment a = box[0];
        __syncthreads();  // the box lies in memory that the work will use
        if (threadIdx.x == 0) reset_if_last(c);
        return a;
    }
};
