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
template <class T, int kNumber> struct Shared;
struct Index {  // remembers the line in which it was used
    int64_t i;
    int line;
    template <class I> constexpr Index(const I& i, CELL_LINE) : i(int64_t(i)), line(line) {
        static_assert(!std::is_floating_point<I>::value, "an index is a whole number");
    }
};
template <class T> class Element {
    Place place;
    int line;

public:
    using V = std::remove_const_t<T>;
    Element(Place place, int line) : place(place), line(line) {}
    Element in(int other) const { return {place, other}; }
    V get() const {
        static_assert(sizeof(V) != 1, "the emulator has no values of one byte in memory");
        V v;
        return load(place, sizeof(V), alignof(V), line, &v), v;
    }
    operator V() const { return get(); }
    Pointer<T> operator&() const { return Pointer<T>(place); }
    template <class F> auto member(F of) const {
        using M = std::remove_reference_t<decltype(of(std::declval<V&>()))>;
        V whole{};
        const auto offset = reinterpret_cast<char*>(&of(whole)) - reinterpret_cast<char*>(&whole);
        return Element<std::conditional_t<std::is_const<T>::value, const M, M>>(place.moved(offset), line);
    }
    const Element& operator=(V v) const {  // by value: to a reference, an index one past the end is none
        static_assert(!std::is_const<T>::value, "this pointer is const");
        static_assert(sizeof(V) != 1, "the emulator has no values of one byte in memory");
        return store(place, sizeof(V), alignof(V), line, &v), *this;
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
template <class T> constexpr T&& value(T&& x) { return static_cast<T&&>(x); }
template <class T> std::remove_const_t<T> known(Element<T>&& e, const char*) { return e.get(); }
template <class V> __attribute__((always_inline)) inline bool is_unset(const V& x) {  // as check_set of machine.cpp
    uint32_t words[sizeof(V) / 4];
    memcpy(words, &x, sizeof words);
    bool unset = true;
    for (uint32_t word : words) unset &= word == 0xfefefefe;
    return unset;
}
// A compiler keeps one bit of a bool, and that is always a value. So it gets a byte that is none, and is read as a byte.
__attribute__((always_inline)) inline void unset(bool& x) { *reinterpret_cast<volatile unsigned char*>(&x) = 0xfe; }
__attribute__((always_inline)) inline bool is_unset(const bool& x) {
    return *reinterpret_cast<const volatile unsigned char*>(&x) == 0xfe;
}
template <class T>  // a value of the thread's own, of which something is computed
__attribute__((always_inline)) constexpr T&& known(T&& x, const char* name, CELL_LINE) {
    using V = std::remove_cv_t<std::remove_reference_t<T>>;
    if constexpr (std::is_arithmetic<V>::value && (sizeof(V) >= 4 || std::is_same<V, bool>::value))
        if (!__builtin_is_constant_evaluated() && is_unset(x)) unset_own(name, line);
    return static_cast<T&&>(x);
}
template <class T> Element<T> here(Element<T>& e, CELL_LINE) { return e.in(line); }
template <class T, int kNumber> Element<T> here(Shared<T, kNumber>& e, CELL_LINE) { return e.in(line); }
template <class T> T& here(T& own) { return own; }
template <class T> Element<T> refer(Element<T>&& e) { return e; }  // what `float& v = x[i]` is bound to
template <class T> T& refer(T& own) { return own; }
template <class T, class F> auto member(Element<T>&& e, F of) { return e.member(of); }
template <class T, class F> auto& member(T& x, F of) { return of(x); }

template <class T> struct Pointer {
    Place place;
    Pointer(std::nullptr_t = nullptr) {}
    explicit Pointer(Place place) : place(place) {}
    template <class P, std::enable_if_t<std::is_convertible<P, T*>::value && !std::is_array<P>::value, int> = 0>
    Pointer(const P& own) : place(of_own(own, 0)) {}
    template <class U, size_t N, std::enable_if_t<std::is_convertible<U*, T*>::value, int> = 0>
    Pointer(U (&own)[N]) : place(of_own(own, sizeof own)) {}
    template <class P, std::enable_if_t<std::is_pointer<P>::value && !std::is_convertible<P, T*>::value &&
                                        !std::is_void<std::remove_pointer_t<P>>::value, int> = 0>
    explicit Pointer(const P& own) : place(Pointer<std::remove_pointer_t<P>>(own).place) {}
    template <class U, size_t N, std::enable_if_t<!std::is_convertible<U*, T*>::value, int> = 0>
    explicit Pointer(U (&own)[N]) : place(Pointer<U>(own).place) {}
    template <class U> explicit Pointer(Pointer<U> other) : place(other.place) {}
    operator Pointer<const T>() const { return Pointer<const T>(place); }
    explicit operator bool() const { return place.memory != kNull; }
    template <class I> Pointer operator+(I n) const { return Pointer(place.moved(int64_t(n) * int(sizeof(T)))); }
    template <class I, std::enable_if_t<!std::is_convertible<I, Pointer<const T>>::value, int> = 0>
    Pointer operator-(I n) const { return *this + -int64_t(n); }
    int64_t operator-(Pointer<const T> other) const { return (place.address() - other.place.address()) / int(sizeof(T)); }
    template <class I> Pointer& operator+=(I n) { return *this = *this + n; }
    template <class I> Pointer& operator-=(I n) { return *this = *this - n; }
    Pointer& operator++() { return *this += 1; }
    Pointer& operator--() { return *this -= 1; }
    Pointer operator++(int) { const Pointer old = *this; return *this += 1, old; }
    Pointer operator--(int) { const Pointer old = *this; return *this -= 1, old; }
    bool operator==(Pointer<const T> o) const {
        return place.memory == o.place.memory && place.address() == o.place.address();
    }
    bool operator!=(Pointer<const T> o) const { return !(*this == o); }
    bool operator<(Pointer<const T> o) const { return place.address() < o.place.address(); }
    bool operator>(Pointer<const T> o) const { return place.address() > o.place.address(); }
    bool operator<=(Pointer<const T> o) const { return place.address() <= o.place.address(); }
    bool operator>=(Pointer<const T> o) const { return place.address() >= o.place.address(); }
    Element<T> operator[](Index i) const { return {(*this + i.i).place, i.line}; }
    Element<T> at(CELL_LINE) const { return {place, line}; }

private:
    static Place of_own(T* own, int64_t bytes) {
        return {kOwn, 0, const_cast<char*>(reinterpret_cast<const char*>(own)), bytes};
    }
};
template <class T> Element<T> at(Pointer<T> p, CELL_LINE) { return p.at(line); }
template <class T> T& at(T* own) { return *own; }

// ---------------------------------------------------------------- arrays of a thread's own
template <class T, size_t N> struct Own {
    T (&all)[N];
    const char* name;
    int64_t outer = -1;  // of a row: its number
    template <class U, std::enable_if_t<std::is_same<const U, const T>::value, int> = 0> operator Pointer<U>() const { return all; }
    template <class I> Pointer<T> operator+(I n) const { return Pointer<T>(all) + n; }
    constexpr decltype(auto) operator[](Index i) const {
        if (i.i < 0 || i.i >= int64_t(N)) outside_own(name, outer, i.i, N, i.line);
        return element(all[i.i], i.i);
    }

private:
    template <class V> constexpr V& element(V& v, int64_t) const { return v; }
    template <class V, size_t M> constexpr Own<V, M> element(V (&row)[M], int64_t i) const { return {row, name, i}; }
};
template <class T, size_t N> constexpr Own<T, N> in(T (&own)[N], const char* name) { return {own, name}; }
template <class T, size_t N> constexpr T (&value(Own<T, N>&& row))[N] { return row.all; }
template <class T, size_t N> constexpr T (&refer(Own<T, N>&& row))[N] { return row.all; }
// An address in an array of the thread's own: where the array ends is known, not only where a row does.
template <class T, size_t N, class U, std::enable_if_t<!std::is_array<U>::value, int> = 0>
Pointer<U> inside(T (&all)[N], U* at) {
    char* const first = const_cast<char*>(reinterpret_cast<const char*>(&all));
    return Pointer<U>(Place{kOwn, reinterpret_cast<const char*>(at) - first, first, sizeof all});
}
template <class P, class A> A inside(const P&, A at) { return at; }
template <class T, size_t N> constexpr T (&known(Own<T, N>&& row, const char*))[N] { return row.all; }
template <class P> constexpr P&& in(P&& p, const char*) { return static_cast<P&&>(p); }
template <class To> struct Cast {
    template <class From> static To of(const From& from) { return To(from); }
};
template <class T> struct Cast<Pointer<T>> {
    template <class U> static Pointer<T> of(Pointer<U> from) { return Pointer<T>(from); }
    template <class U> static Pointer<T> of(U* own) { return Pointer<T>(own); }
    template <class U, size_t N> static Pointer<T> of(U (&own)[N]) { return Pointer<T>(own); }
    template <class R> static auto of(const R& row) -> decltype(Pointer<T>(row.start)) { return Pointer<T>(row.start); }
};
template <class To, class From> To cast(From&& from) { return Cast<To>::of(from); }

// ---------------------------------------------------------------- __shared__
template <class T, int kNumber> struct Slot {  // one a variable in the text; there before main begins
    static_assert(sizeof(T) <= 48 << 10, "shared memory of a fixed size is 48 KiB at most; more is `extern __shared__`");
    static inline const bool added =
        add_shared(kNumber, sizeof(T), sizeof(std::remove_all_extents_t<T>), std::extent<T, 1>::value, std::extent<T, 2>::value);
    static Place place() { return (void)&added, Place{shared_memory(kNumber), 0}; }
};
template <class T, int kNumber> struct Slot<T[], kNumber> {  // extern: as large as the launch says
    static inline const bool added = add_shared(kNumber, 0, sizeof(T));
    static Place place() { return (void)&added, Place{shared_memory(kNumber), 0}; }
};
struct Flag {  // a bool as wide as what threads may write side by side
    int set;
    Flag() = default;
    Flag(bool set) : set(set) {}
    operator bool() const { return set; }
};
template <class T, bool kInner = false> struct Row;
template <class T, size_t N, bool kInner> struct Row<T[N], kInner> {
    using V = std::remove_all_extents_t<T>;
    Pointer<V> start;
    operator Pointer<V>() const { return start; }
    operator Pointer<const V>() const { return start; }
    template <class I> Pointer<V> operator+(I n) const { return start + n; }
    auto operator[](Index i) const {
        if (kInner && (i.i < 0 || i.i >= int64_t(N))) outside_row(start.place, i.i, N, i.line);
        if constexpr (std::is_array<T>::value) return Row<T, true>{start + i.i * int64_t(sizeof(T) / sizeof(V))};
        else return start[i];
    }
};
template <class T, bool kInner> auto at(const Row<T, kInner>& row, CELL_LINE) { return row[Index(0, line)]; }
template <class T> struct Rows {  // `float (*rows)[8]`: the first of some; T is float[8]
    Pointer<std::remove_all_extents_t<T>> start;
    template <size_t N, bool kInner> Rows(const Row<T[N], kInner>& of) : start(of.start) {}
    Row<T, true> operator[](Index i) const { return {start + i.i * kEach}; }

private:
    static constexpr int64_t kEach = sizeof(T) / sizeof(std::remove_all_extents_t<T>);
};
template <class T, int kNumber> struct Shared : Element<T> {  // of one value
    explicit Shared(CELL_LINE) : Element<T>(Slot<T, kNumber>::place(), line) {}
    using Element<T>::operator=;
};
template <class T, size_t N, int kNumber> struct Shared<T[N], kNumber> : Row<T[N]> {
    Shared() : Row<T[N]>{Pointer<std::remove_all_extents_t<T>>(Slot<T[N], kNumber>::place())} {}
};
template <class T, int kNumber> struct Shared<T[], kNumber> : Pointer<T> {
    Shared() : Pointer<T>(Slot<T[], kNumber>::place()) {}
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
inline int __syncthreads_count(int vote, CELL_LINE) { return cell::barrier_count(vote, line); }
inline int __syncthreads_or(int vote, CELL_LINE) { return cell::barrier_count(vote, line) > 0; }
inline int __syncthreads_and(int vote, CELL_LINE) { return cell::barrier_count(!vote, line) == 0; }
inline void __syncwarp(unsigned mask = ~0u, CELL_LINE) { cell::syncwarp(mask, line); }
inline void __threadfence(CELL_LINE) { cell::fence(line); }
inline void __threadfence_block(CELL_LINE) { cell::fence(line); }
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
// The lane itself where `from` is in another group of `width` lanes.
inline int same_group(int from, int width) { return (from ^ lane()) & ~(width - 1) ? lane() : from; }
}  // namespace cell
template <class T> T __shfl_sync(unsigned mask, T x, int from, int width = warpSize, CELL_LINE) {
    return cell::shuffled("__shfl_sync", mask, x, (cell::lane() & ~(width - 1)) | (from & (width - 1)), line);
}
template <class T> T __shfl_xor_sync(unsigned mask, T x, int bits, int width = warpSize, CELL_LINE) {
    const int from = cell::lane() ^ (bits & 31);  // a lower group may be read, a higher one not
    return cell::shuffled("__shfl_xor_sync", mask, x, from > (cell::lane() | (width - 1)) ? cell::lane() : from, line);
}
template <class T> T __shfl_up_sync(unsigned mask, T x, unsigned by, int width = warpSize, CELL_LINE) {
    return cell::shuffled("__shfl_up_sync", mask, x, cell::same_group(cell::lane() - int(by), width), line);
}
template <class T> T __shfl_down_sync(unsigned mask, T x, unsigned by, int width = warpSize, CELL_LINE) {
    return cell::shuffled("__shfl_down_sync", mask, x, cell::same_group(cell::lane() + int(by), width), line);
}
inline unsigned __ballot_sync(unsigned mask, bool vote, CELL_LINE) { return cell::ballot("__ballot_sync", mask, vote, line); }
inline bool __any_sync(unsigned mask, bool vote, CELL_LINE) { return cell::ballot("__any_sync", mask, vote, line) != 0; }
inline bool __all_sync(unsigned mask, bool vote, CELL_LINE) { return cell::ballot("__all_sync", mask, vote, line) == ~0u; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
#include "numbers.h"

namespace cell {
template <class T> struct Same { using type = T; };  // of an argument from which T is not deduced
template <class Change, class T> T atomic(Pointer<T> p, typename Same<T>::type v, int line) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "atomics are of values of 4 or 8 bytes");
    T old;
    atomic(p.place, sizeof(T), line, Change::fresh, [](void* there, const void* operand) {
        T now, with;
        memcpy(&now, there, sizeof(T)), memcpy(&with, operand, sizeof(T));
        now = Change::of(now, with);
        memcpy(there, &now, sizeof(T));
    }, &v, &old);
    return old;
}
}  // namespace cell
#define CELL_ATOMIC(word, kFresh, ...)                                                            \
    namespace cell {                                                                              \
    struct word {                                                                                 \
        static constexpr bool fresh = kFresh;                                                     \
        template <class T> static T of(T old, T v) { return __VA_ARGS__; }                        \
    };                                                                                            \
    }                                                                                             \
    template <class T> T word(cell::Pointer<T> p, typename cell::Same<T>::type v, CELL_LINE) {     \
        return cell::atomic<cell::word>(p, v, line);                                              \
    }                                                                                             \
    template <class T> T word(T* own, typename cell::Same<T>::type v, CELL_LINE) {                \
        return cell::atomic<cell::word>(cell::Pointer<T>(own), v, line);                          \
    }
CELL_ATOMIC(atomicAdd, false, old + v)
CELL_ATOMIC(atomicSub, false, old - v)
CELL_ATOMIC(atomicMax, false, old < v ? v : old)
CELL_ATOMIC(atomicMin, false, v < old ? v : old)
CELL_ATOMIC(atomicExch, true, (void(old), v))
CELL_ATOMIC(atomicAnd, false, old & v)
CELL_ATOMIC(atomicOr, false, old | v)
CELL_ATOMIC(atomicXor, false, old ^ v)
CELL_ATOMIC(atomicInc, false, old >= v ? 0 : old + 1)
CELL_ATOMIC(atomicDec, false, old == 0 || old > v ? v : old - 1)
#undef CELL_ATOMIC
template <class T> using CellSame = typename cell::Same<T>::type;
template <class T> T atomicCAS(cell::Pointer<T> p, CellSame<T> compare, CellSame<T> v, CELL_LINE) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "atomics are of values of 4 or 8 bytes");
    T old;
    cell::compare_and_swap(p.place, sizeof(T), line, &compare, &v, &old);
    return old;
}
template <class T> T atomicCAS(T* own, CellSame<T> compare, CellSame<T> v, CELL_LINE) {
    return atomicCAS(cell::Pointer<T>(own), compare, v, line);
}
