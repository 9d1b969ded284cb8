// Fibers: functions that can stop in the middle and go on later. Every CUDA thread of the emulated machine is one, so a
// thread that waits for its warp simply stops, and the next one runs. All on one CPU thread; a switch takes a few ns.
#pragma once
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

namespace emulate {

// Push the registers that a function must preserve, store the stack pointer in *from, take the stack `to`, pop its.
extern "C" void emulate_switch(void** from, void* to) __asm__("emulate_switch");

#if defined(__x86_64__)
asm(R"(
.text
.p2align 4
emulate_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");
constexpr int kSavedWords = 8, kReturnWord = 6;  // 6 registers, the return address, 1 word to align
#elif defined(__aarch64__)
asm(R"(
.text
.p2align 4
emulate_switch:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
)");
constexpr int kSavedWords = 20, kReturnWord = 11;  // x19..x30, d8..d15; x30 is the return address
#else
#error "the emulator's fibers know x86-64 and aarch64; add the context switch of this processor here"
#endif

// A stack, used again by one fiber after the other. Only the pages that are touched take memory.
class Stack {
    static constexpr size_t kBytes = 128 << 10;
    static constexpr uint64_t kCanary = 0x5eed0fcab1e5afe5;
    std::unique_ptr<char[]> bytes{new char[kBytes]};
    size_t shift;  // stacks start at different cache sets, or 32 lanes would fight for the same few

public:
    explicit Stack(size_t number) : shift(number % 16 * 576) { memcpy(bytes.get(), &kCanary, 8); }
    bool overflown() const { return memcmp(bytes.get(), &kCanary, 8) != 0; }

    // The stack pointer of a fiber that will start in `entry` when it is first switched to.
    void* prepare(void (*entry)()) const {
        auto top = (reinterpret_cast<uintptr_t>(bytes.get()) + kBytes - shift) & ~uintptr_t(15);
        auto** words = reinterpret_cast<void**>(top) - kSavedWords;
        memset(words, 0, kSavedWords * sizeof(void*));
        words[kReturnWord] = reinterpret_cast<void*>(entry);
        return words;
    }
};

}  // namespace emulate
