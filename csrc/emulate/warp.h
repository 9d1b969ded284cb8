// The instructions at which the 32 lanes of a warp meet, and the barriers at which warps do. A lane that arrives leaves
// its arguments and stops; the last one carries the instruction out for all.
#pragma once
#include "memory.h"

namespace emulate {

// act(lanes) sees the arguments of all 32 lanes, through pointers into their stacks, and writes the results there.
template <class Args, class Act> void meet(const char* op, Args& mine, Where at, Act&& act) {
    Thread& t = *self;
    Warp& w = *t.warp;
    t.at = at;
    if (w.met == 0) {
        w.op = op;
        w.op_at = at;
    }
    else if (!(at == w.op_at) || strcmp(op, w.op))
        fault(std::string("divergence: this lane is at ") + op + " while others of its warp wait at " + w.op + " (" +
                  w.op_at.text() + ")", at);
    w.slots[t.lane] = &mine;
    t.state = State::meeting;
    if (++w.met == 32) {
        w.met = 0;
        w.time = std::max(w.time, w.ready) + machine().cost.meeting;
        for (Thread* l = w.threads; l < w.threads + 32; ++l) l->state = State::ready;
        act(reinterpret_cast<Args* const*>(w.slots.data()));
    }
    machine().pause();
}

// ---------------------------------------------------------------- barriers
inline void exchange(Warp& w) {
    exchange(*w.cta, {}, [&](auto&& f) { std::for_each(w.threads, w.threads + 32, f); });
}
inline void syncwarp(Where at) {
    char none;
    meet("__syncwarp", none, at, [](auto) { exchange(*self->warp); });
}
// One warp reaches a barrier. When it is complete, those that wait go on, knowing what all did.
inline void arrive(Warp& w, Barrier& b, int threads, bool wait, bool any, Where at) {
    if (b.arrived == 0) b.expected = threads;
    if (b.expected != threads || threads % 32 || b.arrived + 32 > threads || threads > int(w.cta->threads.size()))
        fault("barrier of " + std::to_string(threads) + " threads reached by more, or for another count: " +
              std::to_string(b.arrived) + " of " + std::to_string(b.expected) + " had arrived", at);
    b.arrived += 32;
    b.time = std::max(b.time, w.time);
    b.any |= any;
    for (Thread* t = w.threads; t < w.threads + 32; ++t) {
        if (wait) {
            b.waiting.push_back(t);
            t->state = State::waiting;
        }
        else publish(b.announced, *t);
    }
    w.cta->now++;
    if (b.arrived < b.expected) return;
    const Barrier complete = std::move(b);
    b = {};
    if (complete.waiting.empty()) return;
    exchange(*w.cta, complete.announced, [&](auto&& f) { for (Thread* t : complete.waiting) f(*t); });
    for (Thread* t : complete.waiting) {
        t->state = State::ready;
        t->vote = complete.any;
        t->warp->time = std::max(t->warp->time, complete.time);
        if (t->warp != &w) machine().wake(*t->warp);
    }
}
// Returns whether any of the threads that came voted yes.
inline bool barrier(int id, int threads, bool wait, Where at, bool vote = false) {
    if (id < 0 || id > 15) fault("barrier " + std::to_string(id) + " does not exist; there are 0 to 15", at);
    struct Args { int id; bool vote; } mine{id, vote};
    meet(wait ? "bar.sync" : "bar.arrive", mine, at, [&](Args* const* lanes) {
        bool any = false;
        for (int l = 0; l < 32; ++l) {
            if (lanes[l]->id != id) fault("divergence: lanes of one warp name different barriers", at);
            any |= lanes[l]->vote;
        }
        arrive(*self->warp, self->warp->cta->barriers[id], threads, wait, any, at);
    });
    return self->vote;
}

// ---------------------------------------------------------------- votes and shuffles
template <class T, class Source> T shuffle(const char* op, T value, Where at, Source&& source) {
    struct Args { T value, result; int from; } mine{value, value, source(self->lane)};
    meet(op, mine, at, [](Args* const* lanes) {
        for (int l = 0; l < 32; ++l) lanes[l]->result = lanes[lanes[l]->from]->value;
    });
    return mine.result;
}
inline uint32_t ballot(const char* op, bool vote, Where at) {
    struct Args { bool vote; uint32_t result; } mine{vote, 0};
    meet(op, mine, at, [](Args* const* lanes) {
        uint32_t all = 0;
        for (int l = 0; l < 32; ++l) all |= uint32_t(lanes[l]->vote) << l;
        for (int l = 0; l < 32; ++l) lanes[l]->result = all;
    });
    return mine.result;
}
inline bool elect(Where at) {
    char none;
    meet("elect.sync", none, at, [](auto) {});
    return self->lane == 0;
}
inline void need_full(uint32_t mask, Where at) {
    if (mask != 0xffffffff) fault("the emulator knows only whole warps: mask 0xffffffff", at);
}

// ---------------------------------------------------------------- matrices
// N 8x8 matrices of 16-bit elements; lane 8i + r points at row r of matrix i.
template <int N, bool kTrans> void ldmatrix(uint32_t (&r)[N], uint32_t row, Where at) {
    struct Args { uint32_t* r; uint32_t row; } mine{r, row};
    meet(kTrans ? "ldmatrix.trans" : "ldmatrix", mine, at, [=](Args* const* lanes) {
        uint16_t m[N][8][8];
        Warp& w = *self->warp;
        for (int l = 0; l < 8 * N; ++l) {
            w.threads[l].at = at;
            memcpy(m[l / 8][l % 8], read_shared(w.threads[l], lanes[l]->row, 16), 16);
        }
        for (int l = 0; l < 32; ++l)
            for (int i = 0; i < N; ++i) {
                const int row = l / 4, col = l % 4 * 2;
                lanes[l]->r[i] = kTrans ? m[i][col][row] | uint32_t(m[i][col + 1][row]) << 16
                                        : m[i][row][col] | uint32_t(m[i][row][col + 1]) << 16;
            }
    });
}
inline uint32_t movmatrix(uint32_t x, Where at) {
    struct Args { uint32_t x, result; } mine{x, 0};
    meet("movmatrix", mine, at, [](Args* const* lanes) {
        auto element = [&](int row, int col) { return lanes[row * 4 + col / 2]->x >> col % 2 * 16 & 0xffff; };
        for (int l = 0; l < 32; ++l) lanes[l]->result = element(l % 4 * 2, l / 4) | element(l % 4 * 2 + 1, l / 4) << 16;
    });
    return mine.result;
}
template <class T> void mma_16816(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, Where at) {
    struct Args { float* d; const uint32_t* a; uint32_t b[2]; } mine{d, a, {b0, b1}};
    meet("mma.sync", mine, at, [](Args* const* lanes) {
        float A[16][16], B[16][8];
        for (int l = 0; l < 32; ++l) {
            const int g = l / 4, c = l % 4 * 2;
            for (int i = 0; i < 4; ++i) {
                const float2 x = unpack2<T>(lanes[l]->a[i]);
                float* to = &A[g + i % 2 * 8][c + i / 2 * 8];
                to[0] = x.x, to[1] = x.y;
            }
            for (int i = 0; i < 2; ++i) {
                const float2 x = unpack2<T>(lanes[l]->b[i]);
                B[c + i * 8][g] = x.x, B[c + i * 8 + 1][g] = x.y;
            }
        }
        for (int row = 0; row < 16; ++row) {
            float sum[8] = {};
            for (int k = 0; k < 16; ++k)
                for (int n = 0; n < 8; ++n) sum[n] += A[row][k] * B[k][n];
            for (int n = 0; n < 8; ++n) lanes[row % 8 * 4 + n / 2]->d[row / 8 * 2 + n % 2] += sum[n];
        }
        Warp& w = *self->warp;
        Sm& sm = *w.cta->sm;
        sm.tensor_free = w.time = std::max(sm.tensor_free, w.time) + machine().cost.mma;
    });
}

// ---------------------------------------------------------------- place and time
inline uint32_t smid() { return self->cta->sm->id; }
inline uint32_t nsmid() { return machine().sms * machine().sm_step; }
inline uint64_t globaltimer() { return uint64_t(std::max(self->warp->time, self->warp->ready)); }
inline float ex2(float x) {
    const float y = std::exp2(x);
    return y < 0x1p-126f ? 0.0f : y;  // denormals to zero
}

}  // namespace emulate
