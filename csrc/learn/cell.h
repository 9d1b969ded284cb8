// The words of CUDA C++ for the text of one notebook cell, emulated. Pointers are checked as those of memory.cuh, but a cell
// is compiled in a moment: all that takes long to compile is in machine.cpp, once. pod/learn/rewrite.py puts `Pointer`,
// `Shared`, `value` and `step` where a reader writes *, __shared__, x[i] and loops.
#pragma once
#include "boundary.h"
#include <cstdio>
#include <utility>

using half = __half;
using std::abs, std::isinf, std::isnan;

namespace cell {

#define CELL_LINE int line = __builtin_LINE()

// ---------------------------------------------------------------- pointers
template <class T> struct Pointer;
struct Index {  // remembers the line in which it was used
    int64_t i;
    int line;
    template <class I> Index(const I& i, CELL_LINE) : i(int64_t(i)), line(line) {}
};
template <class T> class Element {
    Place place;
    int line;

public:
    using V = std::remove_const_t<T>;
    Element(Place place, int line) : place(place), line(line) {}
    V get() const { V v; return load(place, sizeof(V), line, &v), v; }
    operator V() const { return get(); }
    Pointer<T> operator&() const { return Pointer<T>(place); }
    template <class F> auto member(F of) const {
        using M = std::remove_reference_t<decltype(of(std::declval<V&>()))>;
        V whole{};
        const auto offset = reinterpret_cast<char*>(&of(whole)) - reinterpret_cast<char*>(&whole);
        return Element<std::conditional_t<std::is_const<T>::value, const M, M>>(Place{place.memory, place.byte + offset}, line);
    }
    const Element& operator=(const V& v) const {
        static_assert(!std::is_const<T>::value, "this pointer is const");
        return store(place, sizeof(V), line, &v), *this;
    }
    const Element& operator=(const Element& e) const { return *this = e.get(); }
    template <class U> const Element& operator+=(const U& u) const { return *this = V(get() + u); }
    template <class U> const Element& operator-=(const U& u) const { return *this = V(get() - u); }
    template <class U> const Element& operator*=(const U& u) const { return *this = V(get() * u); }
    template <class U> const Element& operator/=(const U& u) const { return *this = V(get() / u); }
    template <class U> const Element& operator%=(const U& u) const { return *this = V(get() % u); }
    template <class U> const Element& operator&=(const U& u) const { return *this = V(get() & u); }
    template <class U> const Element& operator|=(const U& u) const { return *this = V(get() | u); }
    template <class U> const Element& operator^=(const U& u) const { return *this = V(get() ^ u); }
    V operator++() const { return *this = V(get() + 1), get(); }
    V operator--() const { return *this = V(get() - 1), get(); }
    V operator++(int) const { const V old = get(); return *this = V(old + 1), old; }
    V operator--(int) const { const V old = get(); return *this = V(old - 1), old; }
};
template <class T> std::remove_const_t<T> value(Element<T>&& e) { return e.get(); }
template <class T> T&& value(T&& x) { return static_cast<T&&>(x); }
template <class T, class F> auto member(Element<T>&& e, F of) { return e.member(of); }
template <class T, class F> auto& member(T& x, F of) { return of(x); }

template <class T> struct Pointer {
    static_assert(sizeof(T) != 1, "the emulator has no elements of one byte");
    Place place;
    Pointer(std::nullptr_t = nullptr) {}
    explicit Pointer(Place place) : place(place) {}
    Pointer(T* own) : place{kOwn, reinterpret_cast<int64_t>(own)} {}
    template <class U> explicit Pointer(Pointer<U> other) : place(other.place) {}
    operator Pointer<const T>() const { return Pointer<const T>(place); }
    explicit operator bool() const { return place.memory != kNull; }
    template <class I> Pointer operator+(I n) const { return Pointer(Place{place.memory, place.byte + int64_t(n) * int(sizeof(T))}); }
    template <class I> Pointer operator-(I n) const { return *this + -int64_t(n); }
    int64_t operator-(Pointer other) const { return (place.byte - other.place.byte) / int(sizeof(T)); }
    template <class I> Pointer& operator+=(I n) { return *this = *this + n; }
    template <class I> Pointer& operator-=(I n) { return *this = *this - n; }
    Pointer& operator++() { return *this += 1; }
    Pointer& operator--() { return *this -= 1; }
    Pointer operator++(int) { const Pointer old = *this; return *this += 1, old; }
    Pointer operator--(int) { const Pointer old = *this; return *this -= 1, old; }
    bool operator==(Pointer o) const { return place.memory == o.place.memory && place.byte == o.place.byte; }
    bool operator!=(Pointer o) const { return !(*this == o); }
    bool operator<(Pointer o) const { return place.byte < o.place.byte; }
    Element<T> operator[](Index i) const { return {(*this + i.i).place, i.line}; }
    Element<T> at(CELL_LINE) const { return {place, line}; }
};
template <class T> Element<T> at(Pointer<T> p, CELL_LINE) { return p.at(line); }
template <class T, size_t N> T& at(T (&own)[N]) { return own[0]; }
template <class To, class From> To cast(From from) { return To(from); }

// ---------------------------------------------------------------- __shared__
template <class T, int kNumber> struct Slot {  // one a variable in the text; there before main begins
    static inline const int memory = add_shared(kNumber, sizeof(T), sizeof(std::remove_all_extents_t<T>));
};
template <class T> struct Row;
template <class T, size_t N> struct Row<T[N]> {
    using V = std::remove_all_extents_t<T>;
    Pointer<V> start;
    operator Pointer<V>() const { return start; }
    operator Pointer<const V>() const { return start; }
    template <class I> Pointer<V> operator+(I n) const { return start + n; }
    auto operator[](Index i) const {
        if constexpr (std::is_array<T>::value) return Row<T>{start + i.i * int64_t(sizeof(T) / sizeof(V))};
        else return start[i];
    }
};
template <class T> auto at(const Row<T>& row, CELL_LINE) { return row[Index(0, line)]; }
template <class T, int kNumber> struct Shared : Element<T> {  // of one value
    explicit Shared(CELL_LINE) : Element<T>(Place{Slot<T, kNumber>::memory, 0}, line) {}
    using Element<T>::operator=;
};
template <class T, size_t N, int kNumber> struct Shared<T[N], kNumber> : Row<T[N]> {
    Shared() : Row<T[N]>{Pointer<std::remove_all_extents_t<T>>(Place{Slot<T[N], kNumber>::memory, 0})} {}
};
template <class T, int kNumber> struct Shared<T[], kNumber> : Pointer<T> {  // extern: as large as the launch says
    static inline const int memory = add_shared(kNumber, 0, sizeof(T));
    Shared() : Pointer<T>(Place{memory, 0}) {}
};

// ---------------------------------------------------------------- the kernels of a cell, for machine.cpp
template <class T> struct From {
    static T of(const Argument& a) { T v; return memcpy(&v, a.scalar, sizeof v), v; }
};
template <class T> struct From<Pointer<T>> {
    static Pointer<T> of(const Argument& a) { return Pointer<T>(a.tensor); }
};
template <class... P, size_t... I> void call(void (*kernel)(P...), const Argument* a, std::index_sequence<I...>) {
    kernel(From<P>::of(a[I])...);
}
template <class... P> void call(void (*kernel)(P...), const Argument* a) {
    call(kernel, a, std::index_sequence_for<P...>());
}
}  // namespace cell

// ---------------------------------------------------------------- CUDA's own names
static const uint3 &threadIdx = cell::thread_index(), &blockIdx = cell::block_index();
static const dim3 &blockDim = cell::block_size(), &gridDim = cell::grid_size();
constexpr int warpSize = 32;

inline void __syncthreads(CELL_LINE) { cell::barrier(line); }
inline void __syncwarp(unsigned mask = ~0u, CELL_LINE) { cell::syncwarp(mask, line); }
inline void __threadfence(CELL_LINE) { cell::fence(line); }
template <class T> std::remove_const_t<T> __ldg(cell::Pointer<T> p, CELL_LINE) { return p.at(line).get(); }

namespace cell {
template <class T> T shuffled(const char* word, unsigned mask, T x, int from, int line) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "lanes exchange values of 4 or 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &x, sizeof(T));
    bits = shuffle(word, mask, bits, from, line);
    memcpy(&x, &bits, sizeof(T));
    return x;
}
inline int lane() { return int(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) & 31; }
}  // namespace cell
template <class T> T __shfl_sync(unsigned mask, T x, int lane, CELL_LINE) {
    return cell::shuffled("__shfl_sync", mask, x, lane & 31, line);
}
template <class T> T __shfl_xor_sync(unsigned mask, T x, int bits, CELL_LINE) {
    return cell::shuffled("__shfl_xor_sync", mask, x, (cell::lane() ^ bits) & 31, line);
}
template <class T> T __shfl_up_sync(unsigned mask, T x, int by, CELL_LINE) {
    return cell::shuffled("__shfl_up_sync", mask, x, cell::lane() < by ? cell::lane() : cell::lane() - by, line);
}
template <class T> T __shfl_down_sync(unsigned mask, T x, int by, CELL_LINE) {
    return cell::shuffled("__shfl_down_sync", mask, x, cell::lane() + by > 31 ? cell::lane() : cell::lane() + by, line);
}
inline unsigned __ballot_sync(unsigned mask, bool vote, CELL_LINE) { return cell::ballot("__ballot_sync", mask, vote, line); }
inline bool __any_sync(unsigned mask, bool vote, CELL_LINE) { return cell::ballot("__any_sync", mask, vote, line) != 0; }
inline bool __all_sync(unsigned mask, bool vote, CELL_LINE) { return cell::ballot("__all_sync", mask, vote, line) == ~0u; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }

namespace cell {
template <class T> struct Same { using type = T; };  // of an argument from which T is not deduced
template <class Change, class T> T atomic(Pointer<T> p, typename Same<T>::type v, int line) {
    T old;
    atomic(p.place, sizeof(T), line, [](void* there, const void* operand) {
        T now, with;
        memcpy(&now, there, sizeof(T)), memcpy(&with, operand, sizeof(T));
        now = Change::of(now, with);
        memcpy(there, &now, sizeof(T));
    }, &v, &old);
    return old;
}
}  // namespace cell
#define CELL_ATOMIC(word, ...)                                                                    \
    namespace cell { struct word { template <class T> static T of(T old, T v) { return __VA_ARGS__; } }; }  \
    template <class T> T word(cell::Pointer<T> p, typename cell::Same<T>::type v, CELL_LINE) {     \
        return cell::atomic<cell::word>(p, v, line);                                              \
    }
CELL_ATOMIC(atomicAdd, old + v)
CELL_ATOMIC(atomicSub, old - v)
CELL_ATOMIC(atomicMax, old < v ? v : old)
CELL_ATOMIC(atomicMin, v < old ? v : old)
CELL_ATOMIC(atomicExch, (void(old), v))
CELL_ATOMIC(atomicAnd, old & v)
CELL_ATOMIC(atomicOr, old | v)
#undef CELL_ATOMIC
