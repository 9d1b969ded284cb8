"""CUDA in a cell: it means what CUDA means, faults and mistakes come back in plain words, and the process lives on."""

import os
import re
import shutil
import subprocess
import sys
import textwrap
import time
from contextlib import suppress

import numpy as np
import pytest
from matplotlib.text import Text

from pod import kernels, learn
from pod.files import ROOT
from pod.kernels import build
from pod.learn import faults, gpu, program, rewrite

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.any_processor,
    pytest.mark.skipif(kernels.mode().name == "recorded", reason=kernels.mode().reason),
]


def kernel(body: str, parameters: str = "float* x", before: str = ""):
    """A kernel `k` of these lines; the first line of the body is line 3 of the text."""
    body = textwrap.indent(f"int t = threadIdx.x;\n{body}", "    ")
    return learn.cuda(f"{before}__global__ void k({parameters}) {{\n{body}\n}}\n").k


def numbers(n: int = 64):
    return torch.arange(float(n))


def run(body: str, x=None, grid=1, block: int = 64, parameters: str = "float* x", *more, before: str = ""):
    x = numbers() if x is None else x
    kernel(body, parameters, before)[grid, block](x, *more)
    return x


def fault_of(body: str, *arguments, block: int = 64, grid: int = 1, parameters: str = "float* x", before: str = ""):
    watched = kernel(body, parameters, before)[grid, block].watch(*(arguments or (numbers(),)))
    assert watched.fault is not None, "the emulator found nothing"
    return watched.fault


# ---------------------------------------------------------------- what CUDA means


def test_expressions_mean_what_they_mean_in_cuda():
    body = """
    x[t] = x[t] > 3 ? x[t] : 0;              // the zero is an int, the element is not
    auto v = x[t];                           // a number from now on
    x[t] = max(v, 1.5f) + fmaxf(v, 0.f);
    x[t] *= 2, x[t]++, x[t] -= t / 2, *(x + t) += 1;
    float own[2] = {v, x[t]}, other[2];
    other[1] = own[1] / 2;
    x[t] = other[1] * *(x + t) / x[t];
    """
    v = torch.where(numbers() > 3, numbers(), 0.0)
    wanted = (v.clamp(min=1.5) + v) * 2 + 1 - numbers().div(2, rounding_mode="floor") + 1
    torch.testing.assert_close(run(body), wanted / 2)


def test_a_star_takes_what_it_takes_in_cuda():
    body = """
    float own[4] = {1, 2, 3, 4};
    float* p = own;
    float first = *p++;                      // the pointer moves, the element stays
    first = 10 * first + *p;                 // 12
    *p++ = 5, ++*p, (*p) += 1, (*p)++;
    float* q = of(x, t);
    *q = first + own[1] * 100 + *p * 1000;   // 12 + 500 + 6000
    *of(x, t) += *own;
    """
    before = "__device__ float* of(float* x, int t) { return x + t; }\n"
    assert torch.equal(run(body, before=before), torch.full([64], 6513.0))
    said = str(fault_of(f"{body}\nif (t == 63) *++q = 0;", before=before))
    assert "thread 63 of CTA 0 writes x[64]" in said


def test_four_numbers_are_read_and_written_at_a_time_or_one_of_them_alone():
    body = """
    __shared__ float2 s[16];
    __shared__ float first[64];
    if (t == 0) *first = 0, *first += 1;
    if (t < 16) {
        float4 four = *reinterpret_cast<const float4*>(x + 4 * t), same = *(float4*)&x[4 * t];
        s[t].x = four.y + same.z;            // its y is never written
        *reinterpret_cast<float4*>(x + 4 * t) = make_float4(0, 1, 2, 3);
        float4* fours = reinterpret_cast<float4*>(x);
        fours[t].w = s[t].x + __ldg(x + 4 * t) + __ldg(&x[4 * t + 1]);
    }
    """
    x = numbers().view(16, 4)
    wanted = torch.arange(4.0).repeat(16, 1)
    wanted[:, 3] = x[:, 1] + x[:, 2] + 1
    assert torch.equal(run(body).view(16, 4), wanted)
    body = "float4 v = *reinterpret_cast<const float4*>(x + t);\nx[t] = v.x;"
    assert "misaligned: thread 1 of CTA 0 reads x[1] to [4] as one value of 16 bytes" in str(fault_of(body))


def test_a_function_that_returns_nothing_is_told_with_its_line():
    with pytest.raises(learn.CompileError, match="line 1: no return statement in function returning non-void"):
        kernel("x[t] = f(x[t]);", before="__device__ float f(float a) { a += 1; }\n")


@pytest.mark.parametrize("size", ["8][9", "8 + 1][8 + 1"])
def test_shared_arrays_of_two_dimensions(size):
    body = f"""
    __shared__ float s[{size}], total;
    s[t / 8][t % 8] = x[t];
    if (t == 0) total = 3;
    __syncthreads();
    x[t] = s[t % 8][t / 8] + total;
    """
    assert torch.equal(run(body), numbers().view(8, 8).T.reshape(-1) + 3)


def test_dynamic_shared_memory_is_as_large_as_the_launch_says():
    body = "extern __shared__ float s[];\ns[t] = x[t];\n__syncthreads();\nx[t] = s[63 - t];"
    x = numbers()
    kernel(body)[1, 64, 256](x)
    assert torch.equal(x, numbers().flip(0))
    assert "s is empty: kernel[grid, block, bytes]" in str(fault_of(body))


def test_device_functions_take_pointers_to_both_memories():
    before = "__device__ float add(const float* p, int n) {\n    return p[0] + *(p + n);\n}\n"
    body = "__shared__ float s[64];\ns[t] = x[t];\n__syncthreads();\ny[t] = add(s, t) + add(&x[1], 0);"
    y = torch.zeros(64)
    kernel(body, "float* y, const float* x", before)[1, 64](y, numbers())
    assert torch.equal(y, numbers() + 2)


def test_templates_structs_and_macros_are_read():
    before = """#include <cuda_fp16.h>
#define N 4
struct Pair { float a, b; };
template <class T> __device__ T second(T* p) { return p[1]; }
template <int M> __device__ int of(int i) { return i * M; }
"""
    body = "Pair p{x[t], 2};\nfloat4 v = reinterpret_cast<float4*>(x)[1];\ny[t] = second(x) * of<N>(t) + p.b + v.x;"
    y = torch.zeros(64)
    kernel(body, "float* y, float* x", before)[1, 64](y, numbers() + 32)
    assert torch.equal(y, 33 * 4 * numbers() + 2 + 36)


MACROS = """#define FLOAT4(value) (reinterpret_cast<float4*>(&(value))[0])
#define AT(i) x[i]
#define OR_ZERO(p, i) ((i) < 64 ? p[i] : 0)
#define MAX(a, b) ((a) > (b) ? (a) : (b))
#define SWAP(a, b) { float c = a; a = b; b = c; }
#define DEREF(i) (*(x + (i)))
"""


def test_a_macro_that_chooses_between_an_element_and_a_whole_number_cuts_nothing_off():
    body = """
    __shared__ float s;
    if (t == 0) s = 2.5f;
    __syncthreads();
    float v = OR_ZERO(x, t + 1), w = AT(t) > 3 ? AT(t) : 0, m = MAX(s, 0);
    __syncthreads();
    x[t] = v + 100 * w + 10000 * m;
    """
    x = numbers() + 0.5
    wanted = torch.cat([x[1:], torch.zeros(1)]) + 100 * torch.where(x > 3, x, 0.0) + 25000
    assert torch.equal(run(body, x.clone(), before=MACROS), wanted)


def test_a_macro_may_stand_for_a_place():
    body = """
    float own[4];
    if (t < 16) {
        FLOAT4(own[0]) = FLOAT4(x[4 * t]);
        own[1] += FLOAT4(x[4 * t]).w;
        FLOAT4(x[4 * t]) = FLOAT4(own[0]);
    }
    __syncthreads();
    AT(t) += 1, DEREF(t) *= 2, ++DEREF(t);
    __syncthreads();
    if (t < 32) SWAP(x[t], x[63 - t]);
    """
    x = numbers().view(16, 4)
    x[:, 1] += x[:, 3].clone()
    assert torch.equal(run(body, before=MACROS), (2 * (x.view(-1) + 1) + 1).flip(0))
    assert "writes x[64] in line 9" in str(fault_of("AT(t + 1) = 1;", before=MACROS))


@pytest.mark.parametrize("before, smem", [("extern __shared__ float s[];\n", 256), ("__shared__ float s[64];\n", 0)])
def test_shared_memory_may_be_declared_outside_of_its_kernel(before, smem):
    x, y = torch.zeros(128), numbers()
    launch = kernel("s[t] = y[t];\n__syncthreads();\nx[64 * blockIdx.x + t] = s[63 - t];", "float* x, float* y", before)
    launch[2, 64, smem](x, y)
    assert torch.equal(x, numbers().flip(0).repeat(2)) and torch.equal(y, numbers())


def test_shared_memory_as_large_as_the_launch_says_is_cut_by_casts():
    body = """
    extern __shared__ __align__(16) unsigned char all[];
    float* values = reinterpret_cast<float*>(all);
    int* places = (int*)(all + 64 * sizeof(float));
    values[t] = x[t], places[t] = t;
    __syncthreads();
    x[t] = values[63 - t] + 100 * places[t];
    """
    x = numbers()
    kernel(body)[1, 64, 512](x)
    assert torch.equal(x, numbers().flip(0) + 100 * numbers())
    overlap = kernel(body.replace("64 * sizeof(float)", "64"))[1, 64, 512].watch(numbers())
    assert overlap.fault.kind == "race" and overlap.fault.element[0] == "all"


def test_shared_memory_of_a_fixed_size_is_as_small_as_on_a_gpu():
    with pytest.raises(learn.CompileError, match="line 3: shared memory of a fixed size is 48 KiB at most"):
        kernel("__shared__ float s[13000];\ns[t] = 1;")


def test_shared_memory_holds_flags_and_structs():
    before = "struct __align__(4) Three { float a, b, c; };\n"
    body = """
    __shared__ bool large[64], any;
    __shared__ __align__(16) Three s[64];
    if (t == 0) any = false;
    large[t] = x[t] > 31;
    Three& mine = s[t];
    mine = {x[t], 1, 2};
    mine.c += 1;
    __syncthreads();
    if (x[t] == 40) any = true;
    __syncthreads();
    const Three& other = s[63 - t];
    x[t] = other.a + other.b + other.c + (large[63 - t] ? 100 : 0) + 1000 * any;
    """
    assert torch.equal(run(body, before=before), numbers().flip(0) + 1004 + 100 * (numbers() < 32))
    body = "__shared__ Three s[64];\ns[t].a = s[t].b = 1;\n__syncthreads();\nx[t] = s[63 - t].c;"
    assert "reads s[0] in line 7, and nobody ever writes it" in str(fault_of(body, before=before))


def test_a_reference_to_an_element_is_one():
    body = """
    __shared__ float s[64];
    float& mine = s[t];
    const float& v = x[t] + 1;               // of a sum, and so a number of its own
    mine = v, mine += mine > 3 ? 1.5f : 0;
    __syncthreads();
    auto& out = x[t];
    out = s[63 - t];
    out = out > 40 ? 0.5f : out;
    """
    sums = numbers() + 1 + torch.where(numbers() + 1 > 3, 1.5, 0.0)
    assert torch.equal(run(body), torch.where(sums > 40, 0.5, sums).flip(0))
    assert "writes x[64] in line 4" in str(fault_of("float& v = x[t + 1];\nv = 1;"))
    with pytest.raises(learn.CompileError, match="a reference to an element goes from no function to another: hand"):
        kernel("add(x[t]);", before="__device__ void add(float& v) { v += 1; }\n")


def test_one_declaration_may_have_many_pointers():
    body = """
    const float *a = x + t, *end = a + 2;
    float sum = 0, *p = x, last = 1;
    if (t < 63) for (const float *q = a, *none = end; q < none; ++q) sum += *q;
    auto* mine = p + t;
    __syncthreads();
    *mine = sum + last + (end - a);
    """
    x = numbers()
    assert torch.equal(run(body), torch.cat([x[:-1] + x[1:], torch.zeros(1)]) + 3)
    with pytest.raises(learn.CompileError, match="line 3: got pointers and numbers in one declaration"):
        kernel("for (int i = 0, *p = nullptr; i < 3; ++i) x[t] = i;")


def test_functions_take_arrays_as_parameters():
    before = """__device__ void put(float s[8][9], const float from[], int t) { s[t / 8][t % 8] = from[t]; }
__device__ float get(float (*s)[9], int t) { return s[t % 8][t / 8]; }
"""
    body = "__shared__ float s[8][9];\nput(s, x, t);\n__syncthreads();\nfloat (*rows)[9] = s;\nx[t] = get(rows, t);"
    assert torch.equal(run(body, before=before), numbers().view(8, 8).T.reshape(-1))
    said = str(fault_of(body, before=before.replace("[t % 8]", "[t % 8 + 2]")))
    assert "thread 7 of CTA 0 uses s[0][9] in line 1, but that row has 9 elements" in said


def test_constant_memory_has_what_the_text_says():
    before = "__constant__ float w[2][2] = {{1, 2}, {3, 4}};\n"
    before += "__device__ static float f(float* p, int i) { return p[i]; }\n"
    assert torch.equal(run("x[t] = f(x, t) * w[1][t % 2];", before=before), numbers() * torch.tensor([3.0, 4.0] * 32))


def test_words_for_bits_and_numbers():
    body = """
    unsigned odd = __ballot_sync(~0u, t & 1);
    int many = __syncthreads_count(t > 60) + 10 * __syncthreads_or(t == 5);
    many += 100 * __syncthreads_and(t < 64) + 1000 * __syncthreads_and(t < 63);
    x[t] = rsqrtf(4.f) + __ffs(odd) + __clz(1) + __popcll(7) + __int_as_float(__float_as_int(1.f)) + many;
    """
    assert torch.equal(run(body), torch.full((64,), 0.5 + 2 + 31 + 3 + 1 + 113))


CAS = """__device__ void add(float* p, float v) {
    unsigned* bits = (unsigned*)p;
    unsigned old = *bits, seen;
    do {
        seen = old;
        old = atomicCAS(bits, seen, __float_as_uint(__uint_as_float(seen) + v));
    } while (seen != old);
}
"""


@pytest.mark.parametrize("seed", range(3))
def test_a_loop_around_compare_and_swap_is_no_race(seed):
    body = "__shared__ float s;\nif (t == 0) s = 0;\n__syncthreads();\nadd(x, 1), add(&s, 1);\n__syncthreads();\n"
    body += "if (t == 0) x[1 + blockIdx.x] = s;"
    x = torch.zeros(5)
    watched = kernel(body, before=CAS)[4, 64].watch(x, seed=seed)
    assert watched.fault is None and x.tolist() == [256, 64, 64, 64, 64]


@pytest.mark.parametrize("last", ["x[1 + t] = *p;", "if (t == 40) *p = 1;", "if (t == 40) x[0] += 1;"])
def test_who_touches_what_others_swap_races_unless_a_swap_of_its_own_follows(last):
    body = f"unsigned* p = (unsigned*)x;\natomicCAS(p, 0u, 1u + t);\n{last}"
    fault = fault_of(body, torch.zeros(65))
    assert fault.kind == "race" and fault.element == ("x", 0) and 4 in fault.lines


def test_counters_that_begin_anew():
    n = torch.zeros(2, dtype=torch.int32)
    run("unsigned* n = (unsigned*)m;\natomicInc(n, 9), atomicDec(n + 1, 5);", n, 1, 32, "int* m")
    assert n.tolist() == [32 % 10, (6 - 32 % 6) % 6]


def test_an_atomic_without_a_fence_behind_it_is_said_to_lack_one():
    body = """if (t == 0) {
    x[1 + blockIdx.x] = 1;
    __threadfence();
    bool last = atomicAdd(x, 1) == 3;
    // here
    if (last) x[0] = x[1] + x[2] + x[3] + x[4];
}"""
    said = str(fault_of(body, torch.zeros(5), grid=4, block=32))
    assert "wrote it in line 4, and an atomic said so, but no __threadfence() stands between that and this read" in said
    assert run(body.replace("// here", "__threadfence();"), torch.zeros(5), 4, 32)[0] == 4


def test_one_thread_alone_waits():
    said = str(fault_of("if (t == 3) x[t] = __shfl_xor_sync(~0u, x[t], 1);"))
    assert "barrier: thread 3 waits for ever at __shfl_xor_sync in line 3. Threads 0 to 2, 4 to 31 never" in said


def test_lanes_that_a_mask_leaves_out_are_the_emulators_limit():
    told = "mask: the mask in line 3 leaves lanes out. A GPU may do that, the emulator knows only whole"
    assert str(fault_of("x[t] = __shfl_down_sync(0xffff, x[t], 1);")).startswith(told)


def test_what_only_a_gpu_can_compile_is_said_to_be_so():
    before = "template <class T> __device__ T second(const T* p) { return p[1]; }\n"
    with pytest.raises(learn.CompileError, match="line 4: this is CUDA, but the emulator cannot do it: no matching"):
        kernel("x[t] = second(x);", before=before)


def test_warps_and_atomics():
    body = """
    int v = t;
    for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(0xffffffff, v, step);
    if (t % 32 == 0) n[t / 32] = v;
    atomicAdd(&n[2], 1);
    atomicMax(n + 3, t);
    if (__any_sync(~0u, t == 40)) atomicAdd(n + 4, __popc(__ballot_sync(~0u, t % 2)));
    """
    n = torch.zeros(5, dtype=torch.int32)
    run(body, n, parameters="int* n")
    assert n.tolist() == [496, 496 + 1024, 64, 63, 16 * 32]


def test_halves_are_halves():
    x = torch.full((64,), 0.1, dtype=torch.float16)
    run("x[t] = __float2half(__half2float(x[t]) * 3);", x, parameters="half* x")
    assert torch.equal(x, (torch.full((64,), 0.1, dtype=torch.float16).float() * 3).half())


def test_the_same_tensor_twice_is_one_memory_and_half_of_it_is_refused():
    x = numbers()
    kernel("y[t] = x[t] + 1;", "float* y, const float* x")[1, 64](x, x)
    assert torch.equal(x, numbers() + 1)
    with pytest.raises(learn.LaunchError, match="overlap"):
        kernel("y[t] = x[t] + 1;", "float* y, const float* x")[1, 32](x[:40], x[20:60])


def test_what_a_kernel_prints_is_printed(capsys):
    run('if (t == 3) printf("%d %.1f\\n", blockIdx.x, x[t]);')
    assert capsys.readouterr().out == "0 3.0\n"


def test_a_gridded_launch_in_three_dimensions():
    x = torch.zeros(2 * 3 * 64)
    body = "x[((blockIdx.y * gridDim.x + blockIdx.x) * 8 + threadIdx.y) * 8 + threadIdx.x] = threadIdx.y;"
    kernel(body)[(3, 2), (8, 8)](x)
    assert torch.equal(x, torch.arange(8.0).repeat_interleave(8).repeat(6))


def test_a_place_is_asked_for_as_ptx_has_it():
    body = 'unsigned sm;\nasm volatile("mov.u32 %0, %%smid;" : "=r"(sm));\nif (t == 0) n[blockIdx.x] = sm;'
    n = torch.full((8,), -1, dtype=torch.int32)
    run(body, n, 8, parameters="int* n")
    assert n.tolist() == [0, 1, 2, 3, 0, 1, 2, 3]


# ---------------------------------------------------------------- faults, in words


def test_a_race_names_both_threads_and_both_lines():
    fault = fault_of("__shared__ float s[64];\ns[t] = x[t];\nx[t] = s[63 - t];")
    assert str(fault).splitlines() == [
        "race: thread 31 reads s[32] in line 5 before thread 32 has written it in line 4, and no barrier stands "
        "between.",
        "    4 |     s[t] = x[t];",
        "    5 |     x[t] = s[63 - t];",
    ]
    assert (fault.kind, fault.element, fault.lines, set(fault.threads)) == ("race", ("s", 32), (4, 5), {31, 32})


def test_a_value_that_is_overwritten_too_early_is_told_so():
    body = "__shared__ float s[64];\ns[t] = x[t];\n__syncthreads();\nif (t < 32) x[t] = s[t + 32];\nelse s[t] = 0;"
    race = "thread 32 overwrites s[32] in line 7. thread 0 reads the old value in line 6"
    assert f"{race}, and no barrier stands between." in str(fault_of(body))


def test_a_race_of_two_ctas_names_them():
    fault = fault_of("x[t] = t;", grid=2)
    assert "thread 0 of CTA 1 writes x[0] in line 3. thread 0 of CTA 0 wrote it, too" in str(fault)
    assert fault.ctas == (1, 0)


@pytest.mark.parametrize("body, size", [("x[t + 1] = 1;", "x[64]"), ("x[t - 1] = 1;", "x[-1]")])
def test_out_of_bounds_names_index_and_size(body, size):
    assert f"writes {size} in line 3, but x has 64 elements, x[0] to x[63]." in str(fault_of(body))


def test_an_empty_tensor_has_no_elements():
    assert "points nowhere: is a tensor empty?" in str(fault_of("x[t] = 1;", torch.empty(0)))


def test_shared_memory_that_nobody_wrote_is_told():
    fault = fault_of("__shared__ float s[64];\nif (t < 32) s[t] = 1;\n__syncthreads();\nx[t] = s[t];")
    assert str(fault).startswith("unwritten: thread 32 of CTA 0 reads s[32] in line 6, and nobody ever writes it.")


@pytest.mark.parametrize(
    "condition, wait, gone",
    [("t < 32", "0 to 31", "32 to 63"), ("t < 16", "0 to 15", "16 to 31"), ("t != 5", "0 to 4, 6 to 31", "5")],
)
def test_a_barrier_names_who_waits_and_who_never_comes(condition, wait, gone):
    said = str(fault_of(f"if ({condition}) __syncthreads();"))
    many = "s" if "to" in gone else ""
    assert f"threads {wait} wait at __syncthreads() in line 3. Thread{many} {gone} never reached it" in said


def test_lanes_at_two_instructions_are_told_of_both():
    said = str(fault_of("if (t % 2) __syncwarp();\nelse x[t] = __shfl_xor_sync(~0u, x[t], 1);"))
    assert "is at __syncwarp in line 3, while others of its warp wait at __shfl_xor_sync in line 4" in said


def test_a_fault_leaves_the_tensors_alone_and_is_raised():
    x = numbers()
    with pytest.raises(learn.Fault, match="out of bounds"):
        kernel("x[t] = 7;\nif (t == 63) x[t + 1] = 7;")[1, 64](x)
    assert torch.equal(x, numbers())


def test_a_picture_shows_the_memory_of_the_fault():
    watched = kernel("__shared__ float s[64];\ns[t] = x[t];\nx[t] = s[63 - t];")[1, 64].watch(numbers())
    ax = watched.draw()
    words = {text.get_text() for text in ax.texts}
    assert ax.get_ylabel() == "element of s" and words == {"thread 31 reads [32]", "thread 32 writes [32]"}
    right = kernel("__shared__ float s[64];\ns[t] = x[t];\n__syncthreads();\nx[t] = s[63 - t];")[1, 64].watch(numbers())
    assert right.fault is None and repr(right) == "k: no fault"
    before, after = right.draw().figure.axes
    assert [len(c.get_offsets()) for c in before.collections] == [64, 0]
    assert [len(c.get_offsets()) for c in after.collections] == [0, 64]
    with pytest.raises(ValueError, match="memory: got 'z', allowed are s, x"):
        right.draw("z")
    with pytest.raises(ValueError, match="memory: got None, allowed are none: the kernel has no memory"):
        kernel("if (n == t) return;", "int n")[1, 64].watch(3).draw()


@pytest.mark.parametrize("body, words, places", [
    ("x[t + 1] = 1;", "thread 63 at [64]", [(63, 64)]),
    ("x[t - 1] = 1;", "thread 0 at [-1]", [(0, -1)]),
    ("unsigned i = t;\nx[i - 1] = 1;", "thread 0 at [4294967295]", [(0, 63.5 + 0.08 * 64)]),
    ("__shared__ float s[8][8];\ns[t / 8][t % 8 + 1] = 1;", "thread 7 beyond its row", [(7, 8)]),
])  # fmt: skip
def test_a_picture_of_an_element_that_is_not_there_shows_where_it_would_be(body, words, places):
    ax = kernel(body)[1, 64].watch(numbers()).draw()
    assert [text.get_text() for text in ax.texts] == [words]
    assert [tuple(place) for place in ax.collections[-1].get_offsets().tolist()] == places
    assert ax.get_ylim()[0] < places[0][1] < ax.get_ylim()[1]


def _boxes(texts) -> list:
    return [Text.get_window_extent(text) for text in texts]  # an annotation's own has its line, too


ATOMIC = """__shared__ float s;
if (t == 0) s = 0;
__syncthreads();
atomicAdd(&s, 1);
x[t] = s;"""


@pytest.mark.parametrize("body, grid", [
    (ATOMIC, 1),
    ("x[t] = t;", 2),
    ("__shared__ float s[64];\ns[t] = x[t];\nx[t] = s[t + 1 & 63];", 1),
    ("__shared__ float s[64];\nfor (int i = 0; i < 9; ++i) {\n__syncthreads();\ns[t] = i;\n}\nx[t] = s[63 - t];", 1),
])  # fmt: skip
def test_words_of_a_picture_do_not_collide(body, grid):
    ax = kernel(body)[grid, 64].watch(numbers()).draw()
    panels = ax.figure.axes
    ax.figure.canvas.draw()
    said = [text for panel in panels for text in panel.texts]
    titles = [panel.title if panel.title.get_text() else panel._right_title for panel in panels]
    others = _boxes([*titles, *ax.get_legend().get_texts(), *(x for p in panels for x in p.get_xticklabels())])
    boxes = _boxes(said)
    assert len(said) == 2 and not boxes[0].overlaps(boxes[1]) and not any(b.overlaps(o) for b in boxes for o in others)
    legend = ax.get_legend().get_window_extent()
    assert not any(legend.overlaps(title) for title in _boxes(t for t in titles if t.get_text()))
    inside = said[0].axes.get_window_extent()
    assert all(inside.x0 <= box.x0 and box.x1 <= inside.x1 for box in boxes)


def test_a_picture_of_a_race_of_two_ctas_shows_both():
    ax = kernel("x[t + 32 * blockIdx.x] = t;")[3, 64].watch(torch.zeros(128)).draw()
    assert {text.get_text() for text in ax.texts} == {"thread 0 writes [32]", "thread 32 writes [32]"}
    assert ax.get_xlabel() == "thread of CTA 0; of CTA 1"
    assert [label.get_text() for label in ax.get_xticklabels()] == ["0", "63", "0", "63"]
    marks = {tuple(place) for c in ax.collections[-2:] for place in c.get_offsets().tolist()}
    assert marks == {(32, 32), (96, 32)}


def test_a_picture_of_many_barriers_shows_the_latest():
    body = "__shared__ float s[64];\nfor (int i = 0; i < 9; ++i) {\n__syncthreads();\ns[t] = i;\n}\nx[t] = s[63 - t];"
    ax = kernel(body)[1, 64].watch(numbers()).draw()
    panels = ax.figure.axes
    assert [panel.get_title(loc="right") for panel in panels] == [f"after barrier {n}" for n in (6, 7, 8, 9)]
    assert not panels[0].texts and len(panels[-1].texts) == 2


OF_ITS_OWN = "uses [{}] of an array of its own in line {}, but that has {} elements"


@pytest.mark.parametrize("body, says", [
    ("float own[4];\nfor (int i = 0; i <= 4; ++i) own[i] = t;\nx[t] = own[0];", "uses own[4] in line 5, but own has 4"),
    ("float own[4] = {1};\nx[t] = own[t];", "thread 4 of CTA 0 uses own[4] in line 5, but own has 4 elements, own[0]"),
    ("float own[4] = {1};\nx[t] = own[t - 1];", "uses own[-1] in line 5, but own has 4 elements, own[0] to own[3]."),
    ("float own[2][4] = {};\nx[t] = own[1][t];", "uses own[1][4] in line 5, but own[1] has 4 elements, own[1][0] to"),
    ("float own[4] = {1};\nfloat* p = own;\np[4] = 1;", OF_ITS_OWN.format(4, 6, 4)),
    ("float own[4] = {1};\nx[t] = *last(own);", OF_ITS_OWN.format(4, 5, 4)),
    ("float own[2][2] = {};\nfloat* p = &own[0][0];\nx[t] = p[4];", OF_ITS_OWN.format(4, 6, 4)),
    ("float own[4] = {1};\nfloat* p = &own[2];\nfor (int i = 0; i < 3; ++i) p[i] = i;", OF_ITS_OWN.format(4, 6, 4)),
    ("float own[2][4] = {1};\nx[t] = *last(&(own[1][0]));", OF_ITS_OWN.format(8, 5, 8)),
    ("float own[4] = {1};\nfloat* p = own + 2;\np[2] = 1;", OF_ITS_OWN.format(4, 6, 4)),
    ("float own[4] = {1};\nx[t] = *(own + 4) + *(&own[0] + 1);", OF_ITS_OWN.format(4, 5, 4)),
    ("float own[2][2] = {};\nx[t] = (&own[0][0])[4];", OF_ITS_OWN.format(4, 5, 4)),
    ("float own[4] = {1};\nauto p = own;\nauto* q = own;\nx[t] = p[3] + q[4];", OF_ITS_OWN.format(4, 7, 4)),
    ("Pair own{};\nx[t] = own.ab[t];", OF_ITS_OWN.format(2, 5, 2) + ", [0] to"),
])  # fmt: skip
def test_an_array_of_a_threads_own_has_an_end(body, says):
    before = "struct Pair { float ab[2]; }; __device__ float* last(float* p) { return p + 4; }\n"
    fault = fault_of(body, before=before)
    assert fault.kind == "own array" and says in str(fault) and fault.element is None


def test_addresses_in_an_array_of_a_threads_own_mean_what_they_mean_in_cuda():
    """Over the ends of rows, up to the end of the array, as another type, and for functions that are not the cell's."""
    body = """
    float own[2][4] = {{0, 1, 2, 3}, {4, 5, 6, 7}}, wave[2], total = 0;
    float* p = &own[0][2];
    for (float* end = own[1] + 4; p != end; ++p) total += *p;   // 2 + ... + 7
    for (const float* q = &own[1][1]; q < own[1] + 4; q++) total += *q;
    float4 row = *reinterpret_cast<float4*>(&own[1][0]), same = ((float4*)&own[0][0])[1];
    sincosf(0, &wave[0], &wave[1]);
    p = t % 2 ? &own[0][0] : &own[1][0];
    x[t] = total + row.x + same.y + wave[0] + wave[1] + last(&own[0][1]) + p[1] + (&own[1][0] - &own[0][1]);
    """
    before = "__device__ float last(const float* p) { return p[6]; }\n"
    odd = torch.arange(64) % 2
    assert torch.equal(run(body, before=before), (27 + 18 + 4 + 5 + 0 + 1 + 7 + 3) + torch.where(odd == 1, 1.0, 5.0))


def test_arrays_of_a_threads_own_mean_what_they_mean_in_cuda():
    body = """
    const float halves[2] = {0.5, 1.5};
    float own[2][4] = {{0, 1, 2, 3}, {4, 5, 6, 7}};
    float* row = own[1];
    float& one = own[0][1];
    one += sum(own[0], 4);                   // 0 + 1 + 2 + 3, before the sum is kept
    own[1][t % 4]++;
    constexpr int sizes[2] = {1, 3};
    float three[sizes[1]] = {};
    auto& last = own[1];
    float flat[3] = {1, 2, 3}, sine[2];
    for (const float* p = flat + 1; p != flat + 3; p++) three[0] += *p;   // 5
    sincosf(0, sine + 1, sine);
    auto copied = flat, moved = flat + 1;
    three[0] += sum(flat + 1, 2) - 5 + sine[1] + sine[0] - 1 + (*flat + *moved - 3) + (flat + 2 - (copied + 1) - 1);
    one += three[0] - 5;
    x[t] = *row + *(own[1] + 1) + one + halves[1] + Table<3>::of[2] + three[2] + last[0] - *last;
    """
    before = """__device__ float sum(const float* p, int n) { return n ? *p + sum(p + 1, n - 1) : 0; }
template <int N> struct Table { static constexpr float of[N] = {1, 2, 3}; };
"""
    wanted = 4 + 5 + 7 + 1.5 + 3 + (torch.arange(64) % 4 < 2).float()
    assert torch.equal(run(body, before=before), wanted)


@pytest.mark.parametrize("body, says", [
    ("int none = t - t; x[t] = 5 / none;", "division: thread 0 of CTA 0 divides 5 by zero in line 3."),
    ("x[t] = t % (t - 40);", "division: thread 40 of CTA 0 divides 40 by zero in line 3."),
    ("unsigned n = t;\nn /= n - 3;", "division: thread 3 of CTA 0 divides 3 by zero in line 4."),
    ("int n = 1; for (int i = 1; i > 0; i *= 2) n++;", "computes 1073741824 * 2 in line 3, which is no int any more."),
    ("int big = 2147483647;\nx[t] = big + t;", " in line 4, which is no int any more."),
    ("x[t] = 1 << t;", "thread 32 of CTA 0 shifts by 32 in line 3; a number of 32 bits is shifted by 0 to 31."),
])  # fmt: skip
def test_whole_numbers_that_leave_their_range_are_told_with_their_line(body, says):
    assert says in str(fault_of(body))


def test_a_float_divides_by_zero_and_an_unsigned_number_begins_anew():
    body = "unsigned n = t;\nn -= 65, n *= 3000000000u;\nx[t] = n > 0 ? x[t] / 0.f : 0;"
    assert torch.equal(run(body, numbers() + 1), torch.full((64,), torch.inf))


@pytest.mark.parametrize("body, says", [
    ("float sum;\nfor (int i = 0; i < 4; ++i) sum += i;\nx[t] = sum;",
     "unset: thread 0 of CTA 0 computes with `sum` in line 4, and nobody has set it."),
    ("float v;\nif (t < 32) v = 1;\nx[t] = v;", "thread 32 of CTA 0 writes x[32] in line 5, but the value comes from"),
    ("float own[4];\nx[t] = own[t % 4];", "unset: thread 0 of CTA 0 writes x[0] in line 4, but the value comes from"),
])  # fmt: skip
@pytest.mark.skipif(not program._unset(), reason="the compiler has no value for what nobody has set")
def test_a_value_that_nobody_has_set_is_told_where_it_is_kept(body, says):
    assert says in str(fault_of(body))
    said = str(fault_of("int i;\nif (t > 5) i = t;\nx[i] = 1;"))
    assert "writes x[-16843010] in line 5" in said and "an index was used before it had a value" in said


TWICE = "for (int i = 0; i < 2; ++i)"
COMPUTED = {
    "compared in a loop": ("float best;\nfor (int i = 0; i < 64; ++i)\nif (x[i] > best) best = x[i];", "`best`", 0, 5),
    "given to a function": ("float best;\nfor (int i = 0; i < 64; ++i)\nbest = fmaxf(best, x[i]);", "`best`", 0, 5),
    "given to a macro": ("float best;\nfor (int i = 0; i < 64; ++i)\nbest = MOST(best, x[i]);", "`best`", 0, 5),
    "counted up": ("int n;\nfor (int i = 0; i < 64; ++i) if (x[i] > 1) n++;", "`n`", 0, 4),
    "added to": ("unsigned n;\nfor (int i = 0; i < 4; ++i)\n(n) += 1;", "`n`", 0, 5),
    "set by some": ("int found;\nif (t < 32) found = t;\nif (found == 3) x[t] = 1;", "`found`", 32, 5),
    "a condition of its own": ("int found;\nif (t < 32) found = 1;\nwhile (found) found = 0;", "`found`", 32, 5),
    "chosen by": ("int found;\nif (t < 40) found = 1;\nx[t] = found ? 1 : 2;", "`found`", 40, 5),
    "of a double": ("double v;\nif (t) v = 1;\nx[t] = -v;", "`v`", 0, 5),
    "one of two": ("float a = 1, v;\nif (t < 5) v = a;\nx[t] = a * v;", "`v`", 5, 5),
    "in an array": ("float v[2];\nif (t < 7) v[1] = t;\nif (v[1] > 2) x[t] = 1;", "an element of `v`", 7, 5),
    "a flag": ("bool seen;\nif (t < 3) seen = true;\nif (seen) x[t] = 1;", "`seen`", 3, 5),
    "a flag that is copied": ("bool one = true, seen;\nif (t < 3) seen = one;\nx[t] = seen;", "`seen`", 3, 5),
    "a flag in a loop": (f"{TWICE} {{\nbool no;\nif (t < 8) no = i;\nif (!no) x[t] = 1;\n}}", "`no`", 8, 6),
    "flags": ("bool v[2];\nif (t < 7) v[1] = t;\nif (v[1]) x[t] = 1;", "an element of `v`", 7, 5),
    "in an array of arrays": ("int v[2][2];\nv[0][0] = t;\nx[t] = v[0][t % 2] * 2;", "an element of `v`", 1, 5),
}


@pytest.mark.parametrize("body, what, thread, line", COMPUTED.values(), ids=COMPUTED)
@pytest.mark.skipif(not program._unset(), reason="the compiler has no value for what nobody has set")
def test_what_nobody_has_set_is_told_where_something_is_computed_of_it(body, what, thread, line):
    fault = fault_of(body, before="#define MOST(a, b) ((a) > (b) ? (a) : (b))\n")
    said = f"unset: thread {thread} of CTA 0 computes with {what} in line {line + 1}, and nobody has set it."
    assert fault.kind == "unset" and str(fault).startswith(said)


def test_what_is_set_in_time_may_be_computed_with():
    """Also by a function of the cell, behind a pointer, in both branches, or in a loop's second round."""
    body = """
    struct Two { bool one, other; } two;
    float a, b, c, d, own[2][2];
    int n, low;
    bool yes, no;
    flag(no), yes = !no, two.one = yes, two.other = no;
    unsigned char small;
    set(a, t), put(&b, t);
    if (t < 32) c = 1; else c = 2;
    for (int i = 0; i < 3; ++i) {
        if (i == 0) d = 0, low = -16843009;
        d += i;
    }
    for (n = 0; n < 5; ++n) own[n / 2 % 2][n % 2] = n;
    small = 0xfe, low -= 2;
    x[t] = a + b * c + d + n + (own[1][1] > 2) + sizeof(n) + (small == 0xfe) + (low < 0)
        + (yes && !no) + two.one;
    """
    before = "__device__ void set(float& v, float to) { v = to; }\n__device__ void flag(bool& v) { v = false; }\n"
    before += "__device__ void put(float* v, float to) { *v = to; }\n"
    t = torch.arange(64)
    assert torch.equal(run(body, before=before), t + t * (1 + (t >= 32)) + 3 + 5 + 1 + 4 + 1 + 1 + 1 + 1.0)


@pytest.mark.parametrize("body, line", [("x[t] = i;", 5), ("x[i] = 1;", 5), ("x[t] = 1;\nx[t] = f(x, i);", 6)])
def test_a_variable_that_is_never_set_is_named(body, line):
    with pytest.raises(learn.CompileError, match=f"line {line}: `i` is used before it is set\n"):
        kernel(f"int i;\n{body}", before="__device__ int f(float* x, int i) { return x[i]; }\n")


@pytest.mark.parametrize("body, grid", [("if (t < 63) x[t] = x[t + 1];", 1), ("x[t] = x[(t + 1) % 64];", 2)])
def test_who_reads_what_another_overwrites_later_is_told(body, grid):
    said = str(fault_of(body, grid=grid))
    assert "thread 1 overwrites x[1] in line 3. thread 0 reads the old value in line 3, and no barrier" in said


def test_what_all_have_read_before_a_barrier_may_be_overwritten():
    body = "float v = x[0] + x[(t + 1) % 64];\n__syncthreads();\nx[t] = v;"
    assert torch.equal(run(body), numbers().roll(-1))


def test_two_kernels_may_have_shared_variables_of_one_name():
    text = """__global__ void a(float* x) { __shared__ float s[64]; s[threadIdx.x] = 1; }
__global__ void k(float* x) { __shared__ float s[8][8]; s[threadIdx.x / 8][0] = 1; x[0] = s[7][0]; }
"""
    watched = learn.cuda(text).k[1, 64].watch(numbers())
    assert "thread 1 writes s[0][0] in line 2. thread 0 wrote it, too" in str(watched.fault)
    assert watched.draw().get_ylabel() == "element of s" and watched.memories["s"] == -2


def test_ctas_of_a_grid_with_rows_have_all_their_numbers():
    fault = fault_of("x[t] = blockIdx.y;", grid=(2, 2))
    assert "thread 0 of CTA (1, 0, 0) writes x[0] in line 3. thread 0 of CTA (0, 0, 0) wrote" in str(fault)
    fault = fault_of("if (blockIdx.y + blockIdx.z == 2) x[t + 1] = 0;", grid=(2, 2, 2))
    assert "thread 63 of CTA (0, 1, 1) writes x[64] in line 3" in str(fault) and fault.ctas == (6,)


def test_an_index_is_a_whole_number():
    with pytest.raises(learn.CompileError, match=r"line 3: invalid types 'float\*\[float\]' for array subscript"):
        kernel("x[t * 0.5f] = 1;")


def test_rows_of_shared_memory_have_an_end_and_two_indices():
    array = "__shared__ float s[8][8];\n"
    said = str(fault_of(f"{array}s[t / 8][t % 8 + 1] = x[t];"))
    assert "thread 7 of CTA 0 uses s[0][8] in line 4, but that row has 8 elements, s[0][0] to s[0][7]." in said
    said = str(fault_of(f"{array}s[t / 8 + 1][t % 8] = x[t];"))
    assert "thread 56 of CTA 0 writes s[8][0] in line 4, but s has 64 elements, s[0][0] to s[7][7]." in said
    fault = fault_of(f"{array}s[t / 8][t % 8] = x[t];\nx[t] = s[t % 8][t / 8];")
    assert "thread 1 reads s[1][0] in line 5 before thread 8 has written it" in str(fault) and fault.element == ("s", 8)
    body = "__shared__ float s[2][4][8];\nif (t < 8) s[1][3][t] = 1;\n__syncthreads();\nx[t] = s[0][0][0];"
    said = str(fault_of(body))
    assert "reads s[0][0][0] in line 6, and nobody ever writes it" in said


def test_a_shared_number_is_known_by_the_lines_that_use_it():
    begin = "__shared__ int n;\nif (t == 0) n = 0;\n__syncthreads();\natomicAdd(&n, 1);\n"
    said = str(fault_of(f"{begin}x[t] = n;"))
    assert "thread 1 overwrites n[0] in line 6. thread 0 reads the old value in line 7" in said
    assert torch.equal(run(f"{begin}__syncthreads();\nint m = n > 3 ? n : 0;\nx[t] = m;"), torch.full((64,), 64.0))
    said = str(fault_of("__shared__ float sum;\nif (t == 0) sum += 1;\n__syncthreads();\nx[t] = sum;"))
    assert "unwritten: thread 0 of CTA 0 reads sum[0] in line 4, and nobody has written it before." in said
    said = str(fault_of("__shared__ int n;\natomicAdd(&n, 1);\n__syncthreads();\nx[t] = n;"))
    assert "unwritten: thread 0 of CTA 0 reads n[0] in line 4, and nobody has written it before." in said
    assert "line 3 has an atomic on a thread's own variable" in str(fault_of("int n = 0; atomicAdd(&n, 1);"))


def test_a_shared_number_may_be_hidden_or_set_by_a_macro():
    before = "#define SET(a, b) a = b\n"
    body = "__shared__ int n, m;\nif (t == 0) { SET(n, 3); m = 5; }\n__syncthreads();\nx[t] = n + m;\n"
    body += "for (int m = 0; m < 2; ++m) x[t] += m;"
    assert torch.equal(run(body, before=before), torch.full((64,), 9.0))


def test_shuffles_stay_within_their_group():
    body = """
    float up = __shfl_up_sync(~0u, x[t], 1, 4), down = __shfl_down_sync(~0u, x[t], 1, 4);
    x[t] = up + 100 * down + 10000 * __shfl_sync(~0u, x[t], 1, 4);
    x[t] += 100000 * __shfl_xor_sync(~0u, t % 32 / 4, 4, 4);  // a lower group may be read, a higher one not
    """
    lane, group = torch.arange(64) % 4, torch.arange(64) % 32 // 4
    wanted = (lane - 1).clamp(min=0) + 100 * (lane + 1).clamp(max=3) + 10000 + 100000 * (group - group % 2)
    assert torch.equal(run(body, lane.float()), wanted.float())


# ---------------------------------------------------------------- bad input: one message, and the process lives on


@pytest.mark.parametrize("body", [
    "while (true) {}",
    "for (;;) t++;",
    "while (x[0] < 1000) {}",
    "do { t++; } while (t > -1);",
    "again: if (x[0] < 9) goto again; else x[0]++;",
    "volatile float* flag = x; while (flag[0] == 0) {}",
])  # fmt: skip
def test_an_endless_loop_is_stopped_with_its_line(body):
    assert "endless: line 3 still goes round after 5,000,000 rounds of all threads." in str(fault_of(body))


def test_waiting_for_what_never_comes_is_endless():
    said = str(fault_of("while (atomicAdd(n, 0) == 0) {}", torch.zeros(1).int(), parameters="int* n"))
    assert "endless: line 3" in said


def test_an_endless_loop_of_a_macro_is_stopped_where_the_macro_stands():
    for loop, line in (("for (;;)", 4), ("while (x[t] < 9 || t >= 0)", 4), ("\\\n  while (true)", 5)):
        said = str(fault_of("FOREVER { x[t] += 1; }", before=f"#define FOREVER {loop}\n", block=32))
        assert f"endless: line {line} still goes round" in said
    assert torch.equal(run("LOOP x[t] += i;", before="#define LOOP for (int i = 0; i < 3; ++i)\n"), numbers() + 3)


def test_a_loop_without_a_step_is_stopped_by_the_clock(monkeypatch):
    monkeypatch.setattr(program, "MOST_SECONDS", 1)
    said = str(fault_of("x[t] = 1;\nAGAIN t >= 0) {}", before="#define AGAIN while (\n"))
    assert said.startswith("endless: the kernel did not end within 1 s, so it was stopped after line 4: a loop")
    assert "    4 |     x[t] = 1;" in said


def test_volatile_means_what_it_means_in_cuda():
    body = "volatile float* y = x;\nvolatile int i = t;\ny[i] = y[i] + 1;"
    assert torch.equal(run(body, parameters="volatile float* x"), numbers() + 1)


def test_a_stack_of_a_gigabyte_is_refused():
    told = "stack: got 1,073,741,\\d+ bytes of a thread's own variables, allowed are 65,536"
    with pytest.raises(learn.CompileError, match=told):
        kernel("float big[1 << 28];\nfor (int i = 0; i < 3; ++i) big[i + t] = 1;\nx[t] = big[t];")


def test_a_kernel_that_takes_all_memory_is_told(monkeypatch):
    monkeypatch.setattr(program, "MOST_MEMORY", 1 << 30)
    said = str(fault_of("for (;;) { float* p = new float[1 << 24]; p[t] = 1; x[t] = p[t]; }"))
    assert "asked for more memory than there is" in said


def test_of_a_flood_of_words_the_beginning_is_printed(capsys):
    run('for (int i = 0; i < 1000; ++i) printf("again\\n");')
    out = capsys.readouterr().out
    assert len(out) == program.MOST_PRINTED + len(" ...\n") and out.startswith("again\nagain\n")


def test_a_crash_is_told_with_the_last_line():
    body = "float own;\nfloat* p = &own;\nfor (int i = 0; i < 1 << 20; ++i) p[i] = 1;\nx[t] = own;"
    said = str(fault_of(body))
    assert said.startswith("crash: the kernel's program ended after line 5. It left an array of a thread's own")


HOST = """fork() popen("ls","r") execl("/bin/ls","ls",nullptr) std::system("ls") kill(0,9) sleep(1) fopen("x","w")
unlink("x") socket(1,1,1) pthread_create(0,0,0,0) raise(9) getenv("A") signal(3,0) vfork() clone(0,0,0,0) std::thread()
std::abort() syscall(1) write(1,"a",1) mmap(0,0,0,0,0,0) dlopen("a",1) std::cout std::remove("x") puts("x") rand()
std::filesystem::remove("x") cudaMalloc(0,0) cudaDeviceSynchronize()""".split()


@pytest.mark.parametrize("call", HOST)
def test_functions_of_the_host_are_refused_by_name(call):
    """Read, never run."""
    told = r"^`\w+` is for the host; a cell has only what runs on the GPU"
    for text in (f"__global__ void k(float* x) {{\n    {call};\n}}", f"__global__ void k() {{}}\n#define DO {call}"):
        with pytest.raises(rewrite.NotCuda, match=told) as error:
            rewrite.read(text)
        assert error.value.line == 2 and error.value.sure


def test_names_of_the_host_are_free_for_the_readers_own():
    before = "__device__ float read(const float* p, int i) { return p[i]; }\n"
    before += "struct Pair { float open(int i) { return i; } };\n"
    body = "float signal = 1, time = 2, write = 3;\nauto send = [](float v) { return v; };\nint thread = t;\n"
    x = run(f"{body}x[t] = signal + time + write + send(read(x, thread)) + Pair().open(4);", before=before)
    assert torch.equal(x, numbers() + 10)


@pytest.mark.parametrize(
    "line", ["__device__ int n;", "int n = 3;", "static float n[4];", "__device__ float n[2] = {1, 2};", "Pair n;"]
)
def test_variables_of_all_threads_are_refused(line):
    text = f"struct Pair {{ float a, b; }};\n{line}\n__global__ void k(float* x) {{ x[0] = 1; }}"
    told = "line 2: got `n`, one for all threads, allowed are tensors and `__shared__`"
    with pytest.raises(learn.CompileError, match=told):
        learn.cuda(text)
    with pytest.raises(learn.CompileError, match=told):
        learn.cuda("__global__ void k(float* x) {\n    static int n = 0;\n    x[0] = n++;\n}")
    before = "typedef float real;\nconst int N = 4;\n__device__ const float of[2] = {1, 2};\n"
    before += "template <int A, int B> struct C {};\nextern __shared__ real s[];\n__device__ int later(int a, int b);\n"
    kernel("real* p = x;\np[t] = N + of[1];", before=before)


@pytest.mark.parametrize("words, says", [
    ('"%d", x[t]', "format '%d' expects argument of type 'int', but argument 2 has type 'double'"),
    ('"%f", t', "format '%f' expects argument of type 'double', but argument 2 has type 'int'"),
    ('"%d %d", t', "format '%d' expects a matching 'int' argument"),
    ('"%d", t, t', "too many arguments for format"),
    ('"%s", t', "format '%s' expects argument of type 'char*', but argument 2 has type 'int'"),
    ('"%f", s', "format '%f' expects argument of type 'double', but argument 2 has type 'float*'"),
])  # fmt: skip
def test_what_is_printed_must_fit_its_format(words, says):
    with pytest.raises(learn.CompileError, match=f"line 4: {re.escape(says)}\n"):
        kernel(f"__shared__ float s[64];\nif (t == 0) printf({words});")


@pytest.mark.parametrize("body", ["x[t] = x[t] * x[t];", "x[t] += x[t];", "float v = x[t];", "half h = 1.0f;"])
def test_arithmetic_of_halves_is_said_to_be_the_emulators_limit(body):
    told = "line 3: CUDA computes with halves, the emulator does not: take __half2float"
    with pytest.raises(learn.CompileError, match=told) as e:
        kernel(body, "half* x")
    assert "aka" not in str(e.value) and "operator" not in str(e.value)


@pytest.mark.parametrize(
    "text",
    ["__global__ void k(float* x);", "__device__ float k(float v);\n__global__ void j(float* x) { x[0] = k(1); }"],
)
def test_what_has_no_body_is_named(text):
    with pytest.raises(learn.CompileError, match="line 1: `k` has no body"):
        learn.cuda(text)


def test_a_line_ends_where_the_compiler_ends_it():
    with pytest.raises(learn.CompileError, match="line 3: 'y' was not declared in this scope\n    3 |     x"):
        learn.cuda("// a\f b \u2028 c \x85\n__global__ void k(float* x) {\n    x[0] = y;\n}")


@pytest.mark.parametrize("text, line, says", [
    ("__global__ void k(float* x) {\n    x[0] = y;\n}", 2, "'y' was not declared"),
    ("__global__ void k(float* x) {\n    float v = x[0]\n    x[1] = v;\n}", 3, "expected"),
    ("__global__ void k(const float* x) {\n    x[0] = 1;\n}", 2, "`x` points at what is read-only, const\n"),
    ("__global__ void k(const float* x) {\n    x[threadIdx.x] = 1;\n}", 2, "`x` points at what is read-only, const"),
    ("__global__ void k(float* x) {\n    x = (float*)malloc(4);\n}", 2, "no matching function for call to 'float*("),
    ("__global__ void k(float* x) {\n    x[0] = sqrtt(2);\n}", 2, "sqrtt"),
    ("__global__ void k(float* x) {\n    if (x[0] {\n}", 2, "expected"),
    ("int f() { return 1; }", 1, "no kernel here"),
    ("", 1, "no kernel here"),
    ("__global__ void k(float* x) {\n    k<<<1, 2>>>(x);\n}", 2, "the launch stands in Python"),
    ("__global__ void k(float x[]) {}", 1, "parameter `float x [ ]`"),
    ('\n#include "mine.h"\n__global__ void k(float* x) {}', 1, 'got #include "mine.h", allowed is #include of CUDA'),
    ("#include <..hosts>\n__global__ void k(float* x) {}", 1, "got #include <"),
    ('#line 7 "x"\n__global__ void k(float* x) {}', 1, "got #line 7"),
    ("__global__ void k(float* x) {\n    exit(0);\n}", 2, "`exit` is for the host"),
    ("__global__ void k(float* x) {\n    throw 1;\n}", 2, "`throw` is for the host"),
    ('__global__ void k(int n) {\n    asm("add.s32 %0, %0, 1;" : "+r"(n));\n}', 2, "got other asm, allowed is asm("),
    ("__global__ void k(int n) {\n    if (n) __syncthreads(); else __syncthreads();\n}", 2, "got two barriers"),
    ("\ntemplate <class T>\n__global__ void k(T* x) {}", 2, "got a kernel with template parameters, allowed is one"),
    ("template <int N> __global__ void k(float* x) {}", 1, "got a kernel with template parameters, allowed is one"),
    ("namespace a {\n__global__ void k(float* x) {}\n}", 2, "got a kernel within braces"),
    ("__global__ void k(int n) {}\n__global__ void k(float* x) {}", 2, "got two kernels `k`, allowed is one"),
    ("\n\n__global__ void cell(float* x) {}", 1, "got a kernel `cell`, allowed is any other name"),
    ("__global__ void k(float* x) {\n    x[0] = clock64();\n}", 2, "`clock64` is CUDA, but the emulator does not"),
    ("__constant__ float c;\n__global__ void k(float* x) {}", 1, "`__constant__` is CUDA, but the emulator"),
    ("__global__ void k(float* x) {\n    x[0] = “1”;\n}", 2, "extended character “"),
    ("__global__ void k(float* x) {\n    float a[4][4];\n    float (*p)[4] = a;\n    x[0] = p[0][0];\n}", 3,
     "this is CUDA, but the emulator cannot do it: a pointer to rows points into shared memory only."),
])  # fmt: skip
def test_compilers_speak_of_the_readers_lines_alone(text, line, says):
    with pytest.raises(learn.CompileError) as error:
        learn.cuda(text)
    said = str(error.value)
    assert error.value.line == line and said.startswith(f"line {line}: ") and says in said, said
    assert not any(word in said for word in ("cell::", "Pointer", "Element", "Rows", ".h:", "/")), said
    assert error.value._render_traceback_() == [f"CompileError: {said}"]


@pytest.mark.parametrize("arguments, says", [
    ((1.0, 2), "x: got 1.0, allowed is a tensor (`float* x`)"),
    ((torch.zeros(64, dtype=torch.float64), 2), "x: got torch.float64, allowed is torch.float32 (`float* x`)"),
    ((torch.zeros(128)[::2], 2), "x: got strides (2,), allowed is a contiguous tensor: say .contiguous()"),
    ((torch.zeros(64),), "k: got 1 arguments, allowed are 2: float* x, int n"),
    ((torch.zeros(64), 1.5), "n: got 1.5, allowed is a whole number (`int n`)"),
    ((torch.zeros(64), True), "n: got True, allowed is a whole number (`int n`)"),
    ((torch.eye(8).to_sparse(), 2), "x: got torch.sparse_coo, allowed is a dense tensor"),
    ((torch.zeros(64), 1 << 40), "n: got 1099511627776, allowed is what fits `int`"),
    ((torch.zeros(64, device="meta"), 2), "k: got tensors on meta, allowed is one device, cpu or cuda"),
])  # fmt: skip
def test_arguments_that_do_not_fit_are_refused_in_one_line(arguments, says):
    with pytest.raises(learn.LaunchError) as error:
        kernel("x[t] = n;", "float* x, int n")[1, 64](*arguments)
    assert str(error.value) == says


@pytest.mark.parametrize("shape, says", [
    ((1, 100), "block: got 100 threads, allowed are multiples of 32 up to 1024"),
    ((1, 2048), "block: got 2048 threads"),
    ((0, 64), "grid: got 0, allowed is a whole number from 1 on"),
    ((1.0, 64), "grid: got 1.0, allowed is a whole number from 1 on"),
    ((1 << 20, 64), "grid: got 1,048,576 CTAs, allowed are 65,536"),
    ((1, 64, 1 << 20), "shared memory: got 1048576 bytes"),
    (64, "k: got [64], allowed is k[grid, block]"),
])  # fmt: skip
def test_launches_that_do_not_fit_are_refused_in_one_line(shape, says):
    with pytest.raises(learn.LaunchError) as error:
        kernel("x[t] = 1;")[shape]
    assert says in str(error.value)


def test_a_call_without_a_launch_says_how():
    with pytest.raises(learn.LaunchError, match=r"allowed is k\[grid, block\]\(x\)"):
        kernel("x[t] = 1;")(numbers())
    with pytest.raises(AttributeError, match="kernel: got 'j', allowed are k"):
        learn.cuda("__global__ void k(float* x) {}").j  # noqa: B018


def test_numbers_of_numpy_are_numbers():
    x = numbers()
    kernel("x[t] = a * n;", "float* x, float a, int n")[np.int64(1), np.int32(64)](x, np.float32(2.5), np.int64(2))
    assert torch.equal(x, torch.full((64,), 5.0))


@pytest.mark.parametrize("text", [3, None, b"__global__ void k(float* x) {}"])
def test_what_is_no_text_is_refused_in_one_line(text):
    with pytest.raises(learn.CellError, match="^text: got .*, allowed is CUDA as a str$"):
        learn.cuda(text)


def test_letters_of_all_languages_may_stand_in_comments_and_words(capsys):
    run('if (t == 0) printf("größer 你好 🎉\\n");  // größer als µ → 你好 \udc80')
    assert capsys.readouterr().out == "größer 你好 🎉\n"


@pytest.mark.parametrize("name", ["step", "value", "call", "lambda"])
def test_a_kernel_may_be_called_as_the_emulators_own_words_are(name):
    x = torch.zeros(64)
    text = f"__global__ void {name}(float* x) {{ for (int i = 0; i < 3; ++i) x[threadIdx.x] += 1; }}"
    getattr(learn.cuda(text), name)[1, 64](x)
    assert (x == 3).all()


CELL = """#include <cmath>
__device__ float twice(const float* p, int n) { return 2 * *(p + n); }
__global__ void k(float* x, int n) {
    __shared__ float s[8][8], total;
    int i = blockIdx.x * 64 + threadIdx.x;
    for (int j = 0; j < n; ++j) if (i < n) x[i] += twice(x, j);
    s[i / 8][i % 8] = x[i];
    __syncthreads();
    while (x[i] > 1) x[i] = *x - s[i % 8][i / 8];
}"""


@pytest.mark.parametrize("begin", range(4))
def test_a_text_that_ends_anywhere_is_read_or_refused(begin):
    for end in range(begin, len(CELL), 4):
        with suppress(rewrite.NotCuda):
            rewrite.read(CELL[:end])


def test_a_text_that_ends_too_early_gets_the_compilers_word():
    with pytest.raises(learn.CompileError, match="line 2: expected ';' at end of input"):
        learn.cuda("__global__ void k(float* x) {\n    x[0] = 2 * x[1]")


def test_a_compiler_that_goes_on_and_on_is_stopped_with_what_it_has_started(monkeypatch, tmp_path):
    kernel("x[t] = 1;")  # the machine is there
    slow, child = tmp_path / "slow", tmp_path / "child"
    slow.write_text(f"#!/bin/sh\nsleep 300 &\necho $! > {child}\nwait\n")
    slow.chmod(0o755)
    monkeypatch.setattr(program, "_compiler", lambda: str(slow))
    monkeypatch.setattr(program, "MOST_COMPILING", 2)
    told = "line 1: got a text that is not compiled in 2 s, allowed is a shorter"
    with pytest.raises(learn.CompileError, match=told):
        kernel(f"x[t] = {os.getpid()} + {time.time()};")
    state = subprocess.run(["ps", "-o", "stat=", "-p", child.read_text().strip()], capture_output=True, text=True)
    assert state.stdout.strip()[:1] in ("", "Z")


# ---------------------------------------------------------------- building


def test_a_new_cell_takes_three_seconds_at_most_and_an_old_one_none():
    """Of the machine's time: what others do on it does not count."""
    resource = pytest.importorskip("resource", reason="no system that counts the time of programs")

    def spent(body: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        kernel(body)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    run("x[t] = 1;")  # the machine is there
    new = [f"x[t] = {os.getpid()}; __syncthreads(); x[t] += __shfl_xor_sync(~0u, x[t], {n});" for n in (1, 2, 4)]
    quickest = min(map(spent, new))  # beside others, whose work slows a core down, it counts more
    assert 0.05 < quickest < 3 and min(map(spent, 3 * new)) < quickest / 20


def test_an_unchanged_cell_is_not_compiled_again(monkeypatch):
    body = "x[t] = 12345;"
    kernel(body)
    monkeypatch.setattr(program, "_start", None)
    assert run(body)[0] == 12345
    with pytest.raises(TypeError):
        kernel("x[t] = 54321;")


def test_a_kernel_whose_program_has_gone_is_built_again():
    k, x = kernel("x[t] = 7;"), numbers()
    k.module.program.unlink()
    k[1, 64](x)
    assert (x == 7).all()


def test_a_program_in_use_is_not_the_oldest():
    path = kernel("x[t] = 8;").module.program
    os.utime(path, (0, 0))
    kernel("x[t] = 8;")
    assert path.stat().st_mtime > 0


def test_the_oldest_programs_go(tmp_path, monkeypatch):
    monkeypatch.setattr(program, "MOST_KEPT", 2)
    for i, name in enumerate(("cell-a.kernel", "cell-b", "machine-x.o", "cell-c.kernel")):
        (tmp_path / name).touch()
        (tmp_path / f"{name}.sum").touch()
        os.utime(tmp_path / name, (i, i))
    program.sweep(tmp_path)
    left = {p.name for p in tmp_path.iterdir() if ".sum" not in p.name}
    assert left == {"cell-b", "cell-c.kernel", "machine-x.o"}


def test_two_notebooks_may_sweep_at_a_time(tmp_path, monkeypatch):
    for i in range(3):
        (tmp_path / f"cell-{i}").touch()
    found = type(tmp_path).glob

    def glob(folder, pattern):
        programs = list(found(folder, pattern))
        (tmp_path / "cell-1").unlink()
        return iter(programs)

    monkeypatch.setattr(program, "MOST_KEPT", 1)
    monkeypatch.setattr(type(tmp_path), "glob", glob)
    program.sweep(tmp_path)
    assert len(os.listdir(tmp_path)) == 1


def test_rewriting_moves_no_line():
    loop = "  for (int i = 0;\n  i < n; ++i) x[i] = 1;\n"
    text = f"// a\n__global__ void k(float* x,\n   int n)\n{{\n  /* b\n  c */\n{loop}}}\n"
    made = rewrite.read(text).emulated
    assert [i for i, line in enumerate(made.splitlines()) if '"x")[i] = 1' in line] == [7]
    assert made.count("\n") == text.count("\n")


@pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc here")
def test_the_text_is_cuda_for_nvcc_too(tmp_path):
    """What a GPU would get, with a launch for each kernel; the reader's lines keep their numbers."""
    text = """__global__ void k(float* x, int n) {
    __shared__ float s[64];
    int t = threadIdx.x;
    s[t] = x[t];
    __syncthreads();
    unsigned sm;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    x[t] = s[63 - t] + sm;
}
"""
    for name, source, fails in (("right", text, False), ("wrong", text.replace("+ sm", "+ sn"), True)):
        file = tmp_path / f"{name}.cu"
        file.write_text(gpu.source(rewrite.read(source)))
        command = ["nvcc", "-std=c++17", "-arch=sm_80", "-c", str(file), "-o", str(tmp_path / f"{name}.o")]
        done = subprocess.run(command, capture_output=True, text=True)
        assert (done.returncode != 0) == fails, done.stderr
    error = faults.complaint(done.stderr, source)
    assert error.line == 8 and "sn" in str(error)


def test_the_magic_puts_kernels_among_the_names():
    code = """
    from IPython.core.interactiveshell import InteractiveShell
    shell = InteractiveShell.instance()
    shell.run_line_magic("load_ext", "pod.learn")
    shell.run_cell("%%cuda\\n__global__ void k(float* x) { x[threadIdx.x] = 7; }")
    shell.run_cell("import torch; x = torch.zeros(32); k[1, 32](x); print(x.sum().item())")
    shell.run_cell("%%cuda\\n__global__ void k(float* x) { x[threadIdx.x] = y; }")
    shell.run_cell("k[1, 31](x)")
    shell.run_cell("print('alive')")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == [
        "224.0", "CompileError: line 1: 'y' was not declared in this scope",
        "    1 | __global__ void k(float* x) { x[threadIdx.x] = y; }", "      | " + " " * 47 + "^",
        "LaunchError: block: got 31 threads, allowed are multiples of 32 up to 1024", "alive",
    ], done.stderr  # fmt: skip


@pytest.mark.parametrize("error", [RuntimeError, OSError, build.BuildError])
def test_an_environment_is_made_where_no_machine_can_be(error, monkeypatch):
    def machine():
        raise error("no compiler")

    monkeypatch.setattr(program, "machine", machine)
    program.make_ahead()
    assert "program.make_ahead()" in (ROOT / "Makefile").read_text(encoding="utf-8")


UNSET_INSIDE = """In constructor 'constexpr cell::Index::Index(const I&, int) [with I = int]',
    inlined from 'void k(cell::Pointer<float>)' at cell:2:20:
{}/cell.h:22:67: error: 'i' is used uninitialized [-Werror=uninitialized]
cc1plus: some warnings being treated as errors
"""
TOO_LARGE = """{}/cell.h:195:90:   required from 'cell::Shared<T [N], kNumber>::Shared()'
cell:2:35:   required from here
{}/cell.h:153:29: error: static assertion failed: shared memory of a fixed size is 48 KiB at most
{}/cell.h:153:29: note: the comparison reduces to '(52000 <= 49152)'
"""


@pytest.mark.parametrize("folder", ["/here/csrc/learn", "/mäßig schön/csrc/learn"])
@pytest.mark.parametrize(
    "said, told", [(UNSET_INSIDE, "`i` is used before it is set"), (TOO_LARGE, "shared memory of a fixed size is 48")]
)
def test_complaints_are_read_wherever_the_repository_lies(folder, said, told):
    error = faults.complaint(said.replace("{}", folder), "first\nsecond\nthird")
    assert error.line == 2 and str(error).startswith(f"line 2: {told}")


@pytest.mark.parametrize("word", ["asm", "asm volatile", "asm\tvolatile ", "__asm__ ", "__asm__ __volatile__"])
@pytest.mark.parametrize(
    "said", ['("mov.u32 %0, %%laneid;" : "=r"(lane))', '( "mov.u32  %0,%%laneid ;":"=r" ( lane ) )']
)
def test_a_register_is_read_however_the_line_is_spaced(word, said):
    assert torch.equal(run(f"unsigned lane;\n{word}{said};\nx[t] = lane;"), torch.arange(64.0) % 32)
