// What a cell and the machine that it is linked to know of each other.
#pragma once
#include "../emulate/types.h"
#include <climits>

namespace cell {

// Memories: 0, 1, ... are the launch's arguments, -1, -2, ... the cell's shared arrays.
constexpr int kNull = INT_MIN, kOwn = INT_MIN + 1;  // no memory; a thread's own variable
struct Place {
    int memory = kNull;
    int64_t byte = 0;
    char* own = nullptr;  // of kOwn: where it begins, and its size, 0 where nobody knows it
    int64_t own_bytes = 0;
    int64_t address() const { return int64_t(reinterpret_cast<uintptr_t>(own)) + byte; }  // in its memory
    Place moved(int64_t by) const { return {memory, byte + by, own, own_bytes}; }
};
// A value of `bytes` goes to and from memory in parts of its alignment, as a struct does member by member.
void load(Place, int bytes, int alignment, int line, void* to);
void store(Place, int bytes, int alignment, int line, const void* from);
// old = what is there; then `change` makes it into what shall be there. `fresh`: that does not depend on what was there.
void atomic(Place, int bytes, int line, bool fresh, void (*change)(void* there, const void* operands), const void* operands,
            void* old);
// atomicCAS: what it compares with was read before, by a plain read that need not be ordered with others' atomicCAS.
void compare_and_swap(Place, int bytes, int line, const void* compare, const void* with, void* old);
// name[index] or name[outer][index] of a thread's own array is not there; nor is element `index` of a row of shared memory.
[[noreturn]] void outside_own(const char* name, int64_t outer, int64_t index, int64_t size, int line);
[[noreturn]] void outside_row(Place row, int64_t index, int64_t size, int line);
[[noreturn]] void unset_own(const char* name, int line);  // a variable of a thread's own that nobody has set
void barrier(int line);
int barrier_count(bool vote, int line);  // and how many voted yes
void syncwarp(unsigned mask, int line);
void fence(int line);
uint64_t shuffle(const char* word, unsigned mask, uint64_t bits, int from, int line);
unsigned ballot(const char* word, unsigned mask, bool vote, int line);
bool step(int line = __builtin_LINE());
const uint3& thread_index();
const uint3& block_index();
const dim3& block_size();
const dim3& grid_size();
unsigned special_register(const char* name);
// The memory of a __shared__ variable is known by its number, whenever it is added.
constexpr int shared_memory(int number) { return -1 - number; }
// With the sizes of its inner dimensions; bytes 0: as the launch says.
bool add_shared(int number, int bytes, int element, int inner = 0, int innermost = 0);

// A launch's argument: a tensor, or the bytes of a number.
struct Argument {
    Place tensor;
    char scalar[8];
};
struct Kernel {
    const char* name;
    void (*run)(const Argument*);
};
extern const Kernel kernels[];
extern const int kernel_count;

}  // namespace cell
