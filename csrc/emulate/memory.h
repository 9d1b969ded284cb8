// Checked memory: pointers that know their bounds, loads and stores that are checked for bounds, alignment and races,
// and cp.async, whose bytes arrive only when they are waited for.
#pragma once
#include "check.h"

namespace emulate {

// ---------------------------------------------------------------- shared memory
constexpr uint32_t kSharedStart = 1024;  // not 0, so that an address nobody set is out of bounds

inline Span shared_span(uint32_t address, int bytes) {
    return {kShared, int64_t(address) - kSharedStart, bytes};
}

inline char* shared_bytes(const Thread& t, uint32_t address, int bytes) {
    const Span span = shared_span(address, bytes);
    if (span.offset < 0 || span.offset + bytes > int64_t(t.cta->smem_bytes))
        fault("out of bounds: " + span.text() + ", but the CTA has " + std::to_string(t.cta->smem_bytes), t.at, &t);
    if (address % bytes) fault("misaligned: " + span.text(), t.at, &t);
    return t.cta->smem + span.offset;
}
template <class F> void each_cell(Cta& c, uint32_t address, int bytes, F&& f) {
    const uint32_t first = (address - kSharedStart) / kCell;
    for (uint32_t i = first; i < first + (bytes + kCell - 1) / kCell; ++i) f(c.cells[i]);
}
inline const char* read_shared(Thread& t, uint32_t address, int bytes) {
    const char* p = shared_bytes(t, address, bytes);
    each_cell(*t.cta, address, bytes, [&](Cell& c) { note_read(t, c, shared_span(address, bytes), true); });
    t.warp->time += bytes * machine().cost.shared_byte;
    return p;
}
inline char* write_shared(Thread& t, uint32_t address, int bytes, How how = How::plain) {
    char* p = shared_bytes(t, address, bytes);
    const Span span = shared_span(address, bytes);
    each_cell(*t.cta, address, bytes, [&](Cell& c) { note_write(t, c, span, how); });
    t.warp->time += bytes * machine().cost.shared_byte;
    return p;
}
template <class V> V load_shared(uint32_t address, Where at) {
    self->at = at;
    V v;
    memcpy(&v, read_shared(*self, address, sizeof(V)), sizeof(V));
    return v;
}
template <class V> void store_shared(uint32_t address, const V& v, Where at) {
    self->at = at;
    memcpy(write_shared(*self, address, sizeof(V)), &v, sizeof(V));
}

// ---------------------------------------------------------------- global memory
struct Range {  // a tensor that the host has handed over
    const char *begin = nullptr, *end = nullptr, *name = "a null pointer";
};
inline Span global_span(const void* p, int bytes, const Range& r) {
    return {r.name, static_cast<const char*>(p) - r.begin, bytes};
}

inline void check_global(const void* p, int bytes, int alignment, const Range& r, Where at) {
    const char* c = static_cast<const char*>(p);
    if (c < r.begin || c + bytes > r.end)
        fault("out of bounds: " + global_span(p, bytes, r).text() + ", which has " + std::to_string(r.end - r.begin),
              at);
    if (reinterpret_cast<uintptr_t>(p) % alignment) fault("misaligned: " + global_span(p, bytes, r).text(), at);
}
// Cells exist only for the 4 KB pages that a kernel has written.
template <class F> void each_global_cell(const void* p, int bytes, bool create, F&& f) {
    constexpr uintptr_t kPage = 4096;
    auto& pages = machine().global_cells;
    const uintptr_t address = reinterpret_cast<uintptr_t>(p);
    auto page = pages.find(address / kPage);
    if (page == pages.end()) {
        if (!create) return;
        page = pages.emplace(address / kPage, std::vector<Cell>(kPage / kCell)).first;
    }
    for (uintptr_t i = address % kPage / kCell; i <= (address % kPage + bytes - 1) / kCell; ++i) f(page->second[i]);
}
template <class V> V load_global(const void* p, const Range& r, Where at) {
    check_global(p, sizeof(V), sizeof(V), r, at);
    if (self) {
        self->at = at;
        const Span span = global_span(p, sizeof(V), r);
        each_global_cell(p, sizeof(V), false, [&](Cell& c) { note_read(*self, c, span, false); });
        Warp& w = *self->warp;
        w.ready = std::max(w.ready, machine().transfer(w.time, r.begin, p, sizeof(V)));
    }
    V v;
    memcpy(&v, p, sizeof(V));
    return v;
}
template <class V> void store_global(void* p, const Range& r, const V& v, Where at) {
    check_global(p, sizeof(V), sizeof(V), r, at);
    if (self) {
        self->at = at;
        each_global_cell(p, sizeof(V), true, [&](Cell& c) { note_write(*self, c, global_span(p, sizeof(V), r)); });
        machine().transfer(self->warp->time, r.begin, p, sizeof(V));
    }
    memcpy(p, &v, sizeof(V));
}

// ---------------------------------------------------------------- checked pointers
// What p[i] is: a place that can be read, written and added to.
template <class P, class T> class Element {
    P p;
    Where at;

public:
    using Value = std::remove_const_t<T>;
    Element(P p, Where at) : p(p), at(at) {}
    operator Value() const { return p.load(at); }
    const Element& operator=(const Value& v) const { p.store(v, at); return *this; }
    const Element& operator=(const Element& e) const { return *this = Value(e); }
    const Element& operator+=(const Value& v) const { return *this = Value(*this) + v; }
    const Element& operator*=(const Value& v) const { return *this = Value(*this) * v; }
};
struct Index {  // an index that remembers where in the source it was used
    int64_t i;
    Where at;
    template <class I> Index(const I& i, Where at = Where::here()) : i(int64_t(i)), at(at) {}
};

}  // namespace emulate

template <class T> struct gptr {
    T* p = nullptr;
    emulate::Range range;
    using Value = std::remove_const_t<T>;

    gptr(std::nullptr_t = nullptr) {}
    gptr(T* p, emulate::Range range) : p(p), range(range) {}
    operator gptr<const T>() const { return {p, range}; }
    explicit operator bool() const { return p != nullptr; }
    bool operator==(std::nullptr_t) const { return !p; }
    bool operator!=(std::nullptr_t) const { return p; }
    gptr operator+(int64_t n) const { return {p + n, range}; }
    gptr operator-(int64_t n) const { return {p - n, range}; }
    gptr& operator+=(int64_t n) { p += n; return *this; }
    emulate::Element<gptr, T> operator[](emulate::Index i) const { return {*this + i.i, i.at}; }
    Value load(emulate::Where at) const { return emulate::load_global<Value>(p, range, at); }
    void store(const Value& v, emulate::Where at) const { emulate::store_global(p, range, v, at); }
};
template <class T> struct sptr {
    uint32_t byte = 0;
    using Value = std::remove_const_t<T>;

    uint32_t address() const { return byte; }
    operator sptr<const T>() const { return {byte}; }
    sptr operator+(int64_t n) const { return {uint32_t(byte + n * int64_t(sizeof(T)))}; }
    sptr operator-(int64_t n) const { return *this + -n; }
    sptr& operator+=(int64_t n) { return *this = *this + n; }
    emulate::Element<sptr, T> operator[](emulate::Index i) const { return {*this + i.i, i.at}; }
    Value load(emulate::Where at) const { return emulate::load_shared<Value>(byte, at); }
    void store(const Value& v, emulate::Where at) const { emulate::store_shared(byte, v, at); }
};
template <class U, class T> gptr<U> ptr_cast(gptr<T> p) { return {reinterpret_cast<U*>(p.p), p.range}; }
template <class U, class T> sptr<U> ptr_cast(sptr<T> p) { return {p.byte}; }
template <class T> gptr<T> device_ptr(T* p, size_t elements, const char* name) {
    const char* begin = reinterpret_cast<const char*>(p);
    return p ? gptr<T>{p, {begin, begin + elements * sizeof(T), name}} : nullptr;
}

namespace emulate {

template <class T> sptr<T> dynamic_smem() { return {kSharedStart}; }
template <class V, class T> V load_global(gptr<T> p, Where at) { return load_global<V>(p.p, p.range, at); }
template <class T, class V> void store_global(gptr<T> p, const V& v, Where at) { store_global<V>(p.p, p.range, v, at); }

// __ldg may answer from a cache that hears of no write, so what it reads must not change while the kernel runs.
template <class T> void need_constant(gptr<T> p, Where at) {
    each_global_cell(p.p, sizeof(T), false, [&](Cell& c) {
        if (c.write.cta >= 0 && machine().launch_of_cta[c.write.cta] == self->cta->launch)
            fault("stale: __ldg reads " + global_span(p.p, sizeof(T), p.range).text() + " that " + who(*self, c.write) +
                  " wrote at " + c.write.at.text() + " in this launch", at);
    });
}

// ---------------------------------------------------------------- structs in shared memory
inline uint8_t* plain_smem() { return reinterpret_cast<uint8_t*>(self->cta->smem); }
inline uint32_t address_of(const void* p) {
    return uint32_t(static_cast<const char*>(p) - self->cta->smem) + kSharedStart;
}
// A member of a struct in shared memory: it knows where it lies, so each access to it is checked. Where in the source
// that is, only an index can tell; a report without one names the last place that the thread told.
template <class T> class shared {
    T value;

public:
    shared(const shared&) = delete;
    operator T() const { return load_shared<T>(address_of(this), self->at); }
    const shared& operator=(const T& v) { store_shared(address_of(this), v, self->at); return *this; }
};
template <class T, size_t N> class shared<T[N]> {
    shared<T> elements[N];

public:
    shared<T>& operator[](Index i) {
        if (i.i < 0 || i.i >= int64_t(N))
            fault("out of bounds: element " + std::to_string(i.i) + " of " + std::to_string(N) + " in shared memory",
                  i.at);
        self->at = i.at;
        return elements[i.i];
    }
    sptr<T> operator+(int64_t n) { return sptr<T>{address_of(this)} + n; }
};

// ---------------------------------------------------------------- cp.async
template <class T> void cp_async(uint32_t to, gptr<T> from, int bytes, bool keep, Where at) {
    Thread& t = *self;
    t.at = at;
    const char* source = reinterpret_cast<const char*>(from.p);
    if (keep) {
        check_global(source, bytes, bytes, from.range, at);
        const Span span = global_span(source, bytes, from.range);
        each_global_cell(source, bytes, false, [&](Cell& c) { note_read(t, c, span, false); });
        t.open.ready = machine().transfer(t.warp->time, from.range.begin, source, bytes);
    }
    write_shared(t, to, bytes, How::cp_async);
    t.open.copies.push_back({to, keep ? source : nullptr, bytes});
}
inline void cp_async_commit(Where at) {
    self->at = at;
    self->groups.push_back(std::move(self->open));
    self->open = {};
}
inline void cp_async_wait(int pending, Where at) {
    Thread& t = *self;
    t.at = at;
    for (; int(t.groups.size()) > pending; t.groups.pop_front()) {
        const CopyGroup& g = t.groups.front();
        t.warp->ready = std::max(t.warp->ready, g.ready);
        for (const Copy& c : g.copies) {
            char* to = t.cta->smem + (c.to - kSharedStart);
            if (c.from) memcpy(to, c.from, c.bytes);
            else memset(to, 0, c.bytes);
            each_cell(*t.cta, c.to, c.bytes, [&](Cell& cell) { cell.in_flight = false, cell.write.when = t.cta->now; });
        }
    }
}

// ---------------------------------------------------------------- atomics
// The memory's answer takes a while; meanwhile other warps run, so a loop that waits for another CTA makes progress.
template <class T, class F> T atomic(gptr<T> p, Order order, Where at, F&& change) {
    Thread& t = *self;
    t.at = at;
    check_global(p.p, sizeof(T), sizeof(T), p.range, at);
    const Span span = global_span(p.p, sizeof(T), p.range);
    each_global_cell(p.p, sizeof(T), true, [&](Cell& c) { note_write(t, c, span, How::atomic); });
    order_atomic(p.p, order);
    const T old = *p.p;
    *p.p = change(old);
    t.warp->ready = std::max(t.warp->ready, t.warp->time + machine().cost.global_latency);
    machine().pause();
    return old;
}
template <class T, class F> T atomic(sptr<T> p, Order, Where at, F&& change) {
    self->at = at;
    char* there = write_shared(*self, p.byte, sizeof(T), How::atomic);
    T old;
    memcpy(&old, there, sizeof(T));
    const T now = change(old);
    memcpy(there, &now, sizeof(T));
    return old;
}
template <class P, class V> auto atomic_add(P p, V v, Order order, Where at) {
    return atomic(p, order, at, [=](auto old) { return decltype(old)(old + v); });
}

}  // namespace emulate
