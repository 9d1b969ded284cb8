// Who ran where and when, written by one thread of each CTA (each half under ByWarp) at its end.
#pragma once
#include "binding.cuh"

enum TraceField : int {
    kTraceOp, kTraceId, kTraceSm, kTraceStart, kTraceEnd, kTraceTicket, kTraceDraws, kTraceBlock, kTraceFields
};

template <bool kOn> struct Trace {
    DEV Trace() {}
    DEV void write(gptr<int64_t>, int, const Assignment&) const {}
};
template <> struct Trace<true> {
    int64_t start;
    DEV Trace() : start(ptx::globaltimer()) {}
    DEV void write(gptr<int64_t> rows, int row, const Assignment& a) const {
        const gptr<int64_t> to = rows + int64_t(row) * kTraceFields;
        to[kTraceOp] = a.op;
        to[kTraceId] = a.id;
        to[kTraceSm] = ptx::smid();
        to[kTraceStart] = start;
        to[kTraceEnd] = ptx::globaltimer();
        to[kTraceTicket] = a.ticket;
        to[kTraceDraws] = a.draws;
        to[kTraceBlock] = blockIdx.x;
    }
};
