// One result computed in parts, by stream-K or a fixed split, and merged in the same launch.
//
// Every part is stored where it has its own place, and then counted. Who counts the last one merges all, in the order
// of their places, so that the result does not depend on who came when. Nobody waits for anybody, so the parts need
// not run at the same time. Each kernel stores a part as its registers have it: (o, m, l), or o / l and its
// log-sum-exp.
#pragma once
#include "ptx.cuh"

// Counts a part that is stored: true for the last of `parts`, and the counter is back at zero for the next launch. By
// one thread, after a barrier with all who have stored and before one with all who will merge. (Teams
// of the sm_80 family do the same in merge.cuh, where all learn the ticket.)
DEV bool last_to_arrive(gptr<int> arrived, int parts) {
    const bool last = ptx::atomic_add_acq_rel(arrived, 1) == parts - 1;
    if (last) arrived[0] = 0;
    return last;
}
