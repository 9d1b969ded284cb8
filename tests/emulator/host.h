// What the test kernels share: an exported function runs a body and returns nullptr or the text of the error.
#pragma once
#include "include/launch.cuh"
#include "include/ptx.cuh"

#define EXPORT extern "C" __attribute__((visibility("default")))

template <class Body> const char* outcome(Body&& body) {
    static std::string text;
    try {
        body();
        return nullptr;
    } catch (const std::exception& e) {
        text = e.what();
        return text.c_str();
    }
}
// An array of the test as the kernel's input.
template <class T> gptr<const T> input(T* p, size_t elements, const char* name) {
    return device_ptr<const T>(p, elements, name);
}
// A machine like the default one, but for these three.
inline void use_machine(int sms, int ctas_per_sm, size_t smem_per_sm = 164 << 10) {
    emulate::Machine& m = emulate::machine();
    m.sms = sms, m.ctas_per_sm = ctas_per_sm, m.smem_per_sm = smem_per_sm;
}
