// Hopper's asynchronous instructions: mbarriers, TMA copies, wgmma and setmaxnreg. Copies and products run beside the
// threads that start them. Their writes and reads count as those of an engine of their own, which a thread gets to know
// of only by waiting: for the copy's mbarrier, or for the product's group.
#pragma once
#include "cuda.h"

// A tensor of elements of 1 or 2 bytes and the box of it that one TMA copy takes; the inner dimension is contiguous.
struct CUtensorMap {
    const char* data = nullptr;
    int rank = 0, bytes = 2;
    uint64_t dims[5] = {}, strides[4] = {};  // elements; bytes between neighbours of dimensions 1, 2, ...
    uint32_t box[5] = {};
};
using cuuint64_t = uint64_t;
using cuuint32_t = uint32_t;

namespace emulate {

// As the driver makes one: it refuses what its manual says the hardware cannot do.
inline bool make_map(CUtensorMap* map, bool /*half*/, const void* data, int rank, const uint64_t* dims,
                     const uint64_t* strides, const uint32_t* box, int bytes = 2) {
    bool possible = reinterpret_cast<uintptr_t>(data) % 16 == 0 && rank >= 3 && rank <= 5 && box[0] * bytes <= 128;
    for (int d = 0; d < rank; ++d) possible &= dims[d] >= 1 && dims[d] <= 1ull << 32 && box[d] >= 1 && box[d] <= 256;
    for (int d = 0; d + 1 < rank; ++d) possible &= strides[d] % 16 == 0 && strides[d] < 1ull << 40;
    if (!possible) return false;
    *map = {static_cast<const char*>(data), rank, bytes, {}, {}, {}};
    std::copy_n(dims, rank, map->dims);
    std::copy_n(strides, rank - 1, map->strides);
    std::copy_n(box, rank, map->box);
    return true;
}

// What an engine of the CTA did up to now.
inline void publish_engine(Knowledge& into, Cta& c, uint32_t engine) {
    Clock& known = into[c.number];
    if (known.size() <= engine) known.resize(engine + 1);
    known[engine] = c.now++;
}

// ---------------------------------------------------------------- mbarriers
inline Mbarrier& mbarrier(uint32_t address, Where at) {
    Thread& t = *self;
    t.at = at;
    const auto found = t.cta->mbarriers.find(address);
    if (found == t.cta->mbarriers.end()) fault("no mbarrier was initialised at this address", at);
    each_cell(*t.cta, address, 8, [&](Cell& c) { note_read(t, c, shared_span(address, 8), false); });
    return found->second;
}
inline void mbar_init(uint32_t address, uint32_t count, Where at) {
    Thread& t = *self;
    t.at = at;
    write_shared(t, address, 8);
    const uint32_t threads = t.cta->threads.size(), engines = t.cta->mbarriers.size();
    Mbarrier& b = t.cta->mbarriers[address] = {};
    b.count = b.missing = count;
    b.init_thread = t.id;
    b.engine = threads + threads / 32 + engines;
}
inline void fence_mbar_init(Where at) {
    self->at = at;
    for (auto& [address, b] : self->cta->mbarriers) b.seen_by_tma |= int(b.init_thread) == self->id;
}
// What `t` knows once it has seen the last complete phase. Threads that knew the same still do.
inline void learn_phase(Thread& t, Mbarrier& b) {
    if (b.asked != t.known) {
        b.asked = t.known;
        learn(t, b.complete);
        b.answer = t.known;
    }
    t.known = b.answer;
    t.warp->ready = std::max(t.warp->ready, b.time);
}
inline void complete_if_done(Mbarrier& b) {
    if (b.missing || b.bytes) return;
    b.phase++;
    b.missing = b.count;
    b.complete = std::move(b.gathered);
    b.gathered.clear();
    b.asked = nullptr;
    for (Thread* t : b.waiting) {
        learn_phase(*t, b);
        t->state = State::ready;
        t->warp->time = std::max(t->warp->time, b.time);
        machine().wake(*t->warp);
    }
    b.waiting.clear();
}
inline void mbar_arrive(uint32_t address, uint32_t bytes, Where at) {
    Mbarrier& b = mbarrier(address, at);
    if (b.missing == 0)
        fault("mbarrier reached by more than the " + std::to_string(b.count) + " it was initialised for", at);
    publish(b.gathered, *self);
    self->cta->now++;
    b.missing--;
    b.bytes += bytes;
    b.time = std::max(b.time, self->warp->time);
    complete_if_done(b);
}
inline void mbar_wait(uint32_t address, uint32_t parity, Where at) {
    Mbarrier& b = mbarrier(address, at);
    if ((b.phase & 1) != parity) return learn_phase(*self, b);
    b.waiting.push_back(self);
    self->state = State::waiting;
    machine().pause();
}

// ---------------------------------------------------------------- the async proxy
// Ordinary writes reach the copy engine and the tensor cores only through a fence.proxy.async of the writing thread.
inline void fence_proxy_async(Where at) {
    self->at = at;
    self->proxy_fences.push_back(self->cta->now++);
}
inline void need_proxy_fence(const Thread& t, const Cell& c, const char* does, const Span& span) {
    if (c.write.cta < 0 || c.async) return;
    const auto& fences = t.cta->threads[c.write.thread].proxy_fences;
    const auto fence = std::lower_bound(fences.begin(), fences.end(), c.write.when);
    const bool own = int(c.write.thread) == t.id;
    if (fence != fences.end() && (own || *fence <= t.known->at(t.cta->number)[c.write.thread])) return;
    fault(does + span.text() + " that " + who(t, c.write) + " wrote at " + c.write.at.text() +
          " with no fence.proxy.async between", t.at, &t);
}
// The swizzle of rows of 128 bytes: bits 4-6 of an address are XORed with bits 7-9; of 64: bits 4-5 with bits 7-8.
inline uint32_t swizzle(uint32_t address, int row_bytes = 128) { return address ^ (address >> 3 & (row_bytes - 16)); }

// ---------------------------------------------------------------- TMA
inline void tma_load(uint32_t to, const CUtensorMap* map, uint32_t bar, std::array<int, 5> at_element, Where at) {
    Thread& t = *self;
    Cta& c = *t.cta;
    Mbarrier& b = mbarrier(bar, at);
    if (!b.seen_by_tma) fault("TMA on an mbarrier whose initialisation no fence_mbar_init made visible to it", at);
    int rows = 1;
    for (int d = 1; d < map->rank; ++d) rows *= map->box[d];
    const int row_bytes = map->box[0] * map->bytes, bytes = rows * row_bytes;
    if (row_bytes != 128 && row_bytes != 64) fault("the emulator's TMA knows only rows of 128 and of 64 bytes", at);
    if (to % (8 * row_bytes))
        fault("misaligned: a swizzled box must start at a multiple of " + std::to_string(8 * row_bytes) + " bytes", at);
    const Span span = shared_span(to, bytes);
    for (uint32_t a = to; a < to + bytes; a += 16) shared_bytes(t, a, 16);
    each_cell(c, to, bytes, [&](Cell& cell) {
        need_proxy_fence(t, cell, "a TMA copy overwrites ", span);
        note_write(t, cell, span, How::tma, b.engine);
    });
    double arrival = t.warp->time + machine().cost.global_latency;
    std::vector<const char*> from(rows);  // null outside the tensor
    for (int row = 0; row < rows; ++row) {
        const char* p = map->data + at_element[0] * map->bytes;
        bool inside = true;
        for (int d = 1, rest = row; d < map->rank; rest /= map->box[d++]) {
            const int64_t i = at_element[d] + rest % int(map->box[d]);
            inside &= i >= 0 && i < int64_t(map->dims[d]);
            p += i * int64_t(map->strides[d - 1]);
        }
        if (inside) {
            from[row] = p;
            arrival = machine().transfer(t.warp->time, map->data, p, row_bytes);
        }
    }
    c.copies++;
    machine().later(arrival, [=, &c, &b] {
        for (int row = 0; row < rows; ++row)
            for (int chunk = 0; chunk < row_bytes; chunk += 16) {
                char* there = c.smem + (swizzle(to + row * row_bytes + chunk, row_bytes) - kSharedStart);
                if (from[row]) memcpy(there, from[row] + chunk, 16);
                else memset(there, 0, 16);
            }
        each_cell(c, to, bytes, [&](Cell& cell) { cell.in_flight = false, cell.write.when = c.now; });
        publish_engine(b.gathered, c, b.engine);
        b.bytes -= bytes, b.time = std::max(b.time, arrival), c.copies--;
        complete_if_done(b);
    });
}

// ---------------------------------------------------------------- wgmma
// An operand in shared memory, from its descriptor: start, two strides and the swizzle. Element (i, k) of a K-major one
// lies in row i; of an MN-major one in row k. Rows of a swizzled operand are 128 bytes, of a plain one 16.
struct Operand {
    uint32_t start, lbo, sbo;
    bool swizzled, mn_major;

    Operand(uint64_t d, bool mn_major)
        : start((d & 0x3fff) << 4), lbo((d >> 16 & 0x3fff) << 4), sbo((d >> 32 & 0x3fff) << 4), swizzled(d >> 62 == 1),
          mn_major(mn_major) {}
    uint32_t address(int i, int k) const {
        if (!swizzled) return start + i / 8 * sbo + k / 8 * lbo + k % 8 * 16 + i % 8 * 2;
        if (mn_major) return swizzle(start + i / 64 * lbo + k / 8 * sbo + k % 8 * 128 + i % 64 * 2);
        return swizzle(start + i / 8 * sbo + i % 8 * 128 + k * 2);
    }
};
// One warp's share of D[64 x N] (+)= A[64 x 16] B[16 x N]: 16 rows.
struct Product {
    int n;
    bool accumulate, a_in_registers;
    Operand a, b;
    std::array<float*, 32> d;
    std::array<std::array<uint32_t, 4>, 32> registers;  // A, if it is there
    std::vector<float> saved;  // what the accumulators held, while they are poisoned
    uint32_t start;            // moment of the CTA's clock
    Where at;
};

// The elements of an operand that a product reads: at its start copies must have been awaited and ordinary writes
// fenced; until its end nobody may write them.
template <class F> void each_element(const Operand& o, int first, int count, F&& f) {
    for (int i = first; i < first + count; ++i)
        for (int k = 0; k < 16; ++k) f(i, k, o.address(i, k));
}
inline void check_operand(Thread& t, const Operand& o, int first, int count, const Product* finished) {
    each_element(o, first, count, [&](int, int, uint32_t address) {
        const Span span = shared_span(address, 2);
        shared_bytes(t, address, 2);
        Cell& c = t.cta->cells[(address - kSharedStart) / kCell];
        if (finished && c.write.when > finished->start)
            fault("race: a wgmma reads " + span.text() + " that " + who(t, c.write) + " overwrote at " +
                  c.write.at.text() + " before the wgmma was waited for", t.at, &t);
        note_read(t, c, span, finished, t.cta->threads.size() + t.warp->id);
        need_proxy_fence(t, c, "wgmma reads ", span);
    });
}
template <class T> float element(const Cta& c, uint32_t address) {
    uint16_t bits;
    memcpy(&bits, c.smem + (address - kSharedStart), 2);
    return to_float<T>(bits);
}
template <class T> void multiply(Warp& w, const Product& p) {
    const int first = w.id % 4 * 16;
    float a[16][16];
    std::vector<std::array<float, 16>> b(p.n);
    if (p.a_in_registers)
        for (int l = 0; l < 32; ++l)
            for (int i = 0; i < 4; ++i) {
                const float2 x = unpack2<T>(p.registers[l][i]);
                float* to = &a[l / 4 + i % 2 * 8][l % 4 * 2 + i / 2 * 8];
                to[0] = x.x;
                to[1] = x.y;
            }
    else each_element(p.a, first, 16, [&](int i, int k, uint32_t at) { a[i - first][k] = element<T>(*w.cta, at); });
    each_element(p.b, 0, p.n, [&](int i, int k, uint32_t at) { b[i][k] = element<T>(*w.cta, at); });
    for (int row = 0; row < 16; ++row)
        for (int n = 0; n < p.n; ++n) {
            float& d = p.d[row % 8 * 4 + n % 8 / 2][n / 8 * 4 + row / 8 * 2 + n % 2];
            float sum = 0;
            for (int k = 0; k < 16; ++k) sum += a[row][k] * b[n][k];
            d = p.accumulate ? d + sum : sum;
        }
}

// Starts a product. Until it is waited for, its accumulators hold NaN.
template <class T, int N>
void wgmma(float* d, const uint32_t* a_registers, Operand a, Operand b, bool accumulate, Where at) {
    struct Args {
        float* d;
        const uint32_t* a;
    } mine{d, a_registers};
    meet("wgmma", mine, at, [&](Args* const* lanes) {
        Warp& w = *self->warp;
        if (!w.products_fenced) fault("wgmma without a wgmma_fence since the last wait", at);
        auto p = std::make_shared<Product>(Product{N, accumulate, a_registers != nullptr, a, b, {}, {}, {}, 0, at});
        for (int l = 0; l < 32; ++l) {
            p->d[l] = lanes[l]->d;
            if (a_registers) std::copy_n(lanes[l]->a, 4, p->registers[l].begin());
        }
        if (!a_registers) check_operand(*self, a, w.id % 4 * 16, 16, nullptr);
        check_operand(*self, b, 0, N, nullptr);
        p->start = w.cta->now++;
        if (w.accumulating.insert(p->d[0]).second)  // the first product under way on these registers
            for (float* x : p->d) p->saved.insert(p->saved.end(), x, x + N / 2), std::fill_n(x, N / 2, NAN);
        Sm& sm = *w.cta->sm;
        sm.tensor_free = w.open_products.ready = std::max(sm.tensor_free, w.time) + machine().cost.mma * N / 8;
        w.open_products.finish.push_back([p, &w] {
            Thread& t = *w.threads;
            t.at = p->at;
            if (!p->a_in_registers) check_operand(t, p->a, w.id % 4 * 16, 16, p.get());
            check_operand(t, p->b, 0, N, p.get());
            for (size_t i = 0; i < p->saved.size(); ++i) p->d[i / (N / 2)][i % (N / 2)] = p->saved[i];
            multiply<T>(w, *p);
            w.accumulating.erase(p->d[0]);
        });
    });
}
inline void wgmma_fence(Where at) {
    char none;
    meet("wgmma.fence", none, at, [](auto) { self->warp->products_fenced = true; });
}
inline void wgmma_commit(Where at) {
    char none;
    meet("wgmma.commit_group", none, at, [](auto) {
        Warp& w = *self->warp;
        w.products.push_back(std::move(w.open_products));
        w.open_products = {};
    });
}
inline void wgmma_wait(int pending, Where at) {
    char none;
    meet("wgmma.wait_group", none, at, [=](auto) {
        Warp& w = *self->warp;
        Cta& c = *w.cta;
        w.products_fenced = false;
        for (; int(w.products.size()) > pending; w.products.pop_front()) {
            for (auto& finish : w.products.front().finish) finish();
            w.ready = std::max(w.ready, w.products.front().ready);
        }
        Knowledge done;
        publish_engine(done, c, c.threads.size() + w.id);
        for (Thread* t = w.threads; t < w.threads + 32; ++t) t->at = at, learn(*t, done);
    });
}

// ---------------------------------------------------------------- registers
// A CTA starts with as many registers a thread as fit; a warp can give some back, and wait for what others give back.
inline void setmaxnreg(int registers, bool up, Where at) {
    char none;
    if (registers % 8 || registers < 24 || registers > 256) fault("setmaxnreg takes multiples of 8 from 24 to 256", at);
    meet(up ? "setmaxnreg.inc" : "setmaxnreg.dec", none, at, [=](auto) {
        Warp& w = *self->warp;
        Cta& c = *w.cta;
        if (up ? registers < w.registers : registers > w.registers)
            fault("setmaxnreg to " + std::to_string(registers) + " from " + std::to_string(w.registers), at);
        c.want_registers.push_back({&w, registers});
        for (Thread* t = w.threads; t < w.threads + 32; ++t) t->state = State::waiting;
        // First those that give, then those that take, as far as it goes.
        auto served = [&](const std::pair<Warp*, int>& want) {
            auto [asker, now] = want;
            if ((now - asker->registers) * 32 > c.spare_registers) return false;
            c.spare_registers -= (now - asker->registers) * 32, asker->registers = now;
            for (Thread* t = asker->threads; t < asker->threads + 32; ++t) t->state = State::ready;
            asker->time = std::max(asker->time, w.time), machine().wake(*asker);
            return true;
        };
        auto& wants = c.want_registers;
        if (served(wants.back())) wants.pop_back();
        wants.erase(std::remove_if(wants.begin(), wants.end(), served), wants.end());
    });
}

}  // namespace emulate
