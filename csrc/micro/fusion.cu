// Two loops, one bound by arithmetic and one by memory, and every way to run them at once (POD-Attention, Figure 7):
//
//   compute   d[i] is multiplied by a number, over and over: it stands for prefill
//   memory    c[i] += a[i] + b[i], 16 bytes a thread: it stands for decode
//
// Both go in steps with a barrier after each, as attention does for each block of keys. As in hybrid.cu, a way to run
// them is a binding: how a CTA learns which tile of which operation is its own.
#include "include/binding.cuh"
#include "include/launch.cuh"
#include "include/trace.cuh"
#include "micro/fusion.h"

constexpr int kThreads = 256;
constexpr int kSteps = 4;  // of one compute element, so that both operations have as many barriers

struct Params {
    gptr<const float> a, b;  // [4 elements[kDecode]]
    gptr<float> c, d;        // likewise; [elements[kPrefill]]
    int elements[2];         // of compute (kPrefill) and memory (kDecode), multiples of kThreads
    int multiplications;     // in a step
    float factor;
    Choice choice;           // slots: tiles of compute and memory
    gptr<int64_t> trace;
};

// The threads that share a tile, and the barrier at which they meet.
struct Team {
    int thread, threads, barrier;
    DEV void meet() const { ptx::named_barrier_sync(barrier, threads); }
};
DEV Team whole_cta() { return {int(threadIdx.x), kThreads, 1}; }

// A tile takes every `tiles`-th row of as many elements as the team has threads.
struct Rows {
    int tile, tiles, width, thread, count;
    DEV Rows(const Params& p, int op, int tile, const Team& t)
        : tile(tile), tiles(p.choice.slots[op]), width(t.threads), thread(t.thread),
          count(tile < tiles ? (p.elements[op] / width - tile + tiles - 1) / tiles : 0) {}
    DEV int element(int row) const { return (tile + row * tiles) * width + thread; }
};

// x times `factor`, over and over. The emulator's clock sees no plain arithmetic, so it is told: a warp has the SM's
// arithmetic to itself for 32 x `times` multiplications, 128 a cycle at 1.4 GHz: an H200's lanes at an A100's clock.
DEV float multiply(float x, float factor, int times AT) {
#pragma unroll 16
    for (int i = 0; i < times; ++i) x *= factor;
    CPU(char none; emulate::meet("multiply", none, at, [=](auto) {
        emulate::Warp& w = *emulate::self->warp;
        double& free = w.cta->sm->tensor_free;
        free = w.time = std::max(free, w.time) + 32 * times / (128 * 1.4);
    });)
    return x;
}

struct Compute {
    const Params& p;
    const Rows rows;
    float x = 0;
    DEV Compute(const Params& p, int tile, const Team& t) : p(p), rows(p, kPrefill, tile, t) {}
    DEV int steps() const { return kSteps * rows.count; }
    DEV void step(int s) {
        const int i = rows.element(s / kSteps);
        if (s % kSteps == 0) x = p.d[i];
        x = multiply(x, p.factor, p.multiplications);
        if (s % kSteps == kSteps - 1) p.d[i] = x;
    }
};

// A step is begun by asking for its data and ended when they are there; what a thread does in between costs no waiting.
struct Memory {
    const Params& p;
    const Rows rows;
    const sptr<uint4> box;  // [a, b, c][threads]
    DEV Memory(const Params& p, int tile, const Team& t, sptr<uint4> smem)
        : p(p), rows(p, kDecode, tile, t), box(smem + t.thread) {}
    DEV int steps() const { return rows.count; }
    DEV void begin(int s) const {
        const int i = 4 * rows.element(s);
        ptx::cp_async_16(ptx::smem_u32(box), p.a + i);
        ptx::cp_async_16(ptx::smem_u32(box + rows.width), p.b + i);
        ptx::cp_async_16(ptx::smem_u32(box + 2 * rows.width), gptr<const float>(p.c) + i);
        ptx::cp_async_commit();
    }
    DEV void end(int s) const {
        ptx::cp_async_wait<0>();
        const float4 a = ptr_cast<float4>(box)[0], b = ptr_cast<float4>(box)[rows.width];
        const float4 c = ptr_cast<float4>(box)[2 * rows.width];
        const float4 sum = {c.x + (a.x + b.x), c.y + (a.y + b.y), c.z + (a.z + b.z), c.w + (a.w + b.w)};
        ptr_cast<float4>(p.c)[rows.element(s)] = sum;
    }
};

// Loops are not unrolled: copies of a step would cost the registers that 8 CTAs an SM need.
DEV void compute_tile(const Params& p, int tile, const Team& team) {
    Compute compute(p, tile, team);
#pragma unroll 1
    for (int s = 0; s < compute.steps(); ++s) {
        compute.step(s);
        team.meet();
    }
}
DEV void memory_tile(const Params& p, int tile, const Team& team, sptr<uint4> smem) {
    const Memory memory(p, tile, team, smem);
#pragma unroll 1
    for (int s = 0; s < memory.steps(); ++s) {
        memory.begin(s);
        memory.end(s);
        team.meet();
    }
}

// ---------------------------------------------------------------- ways to fuse, beside those of include/binding.cuh
// CTA-parallel, the memory loop's CTAs first, as in the paper's artifact.
struct MemoryFirst {
    DEV static Assignment assign(const Choice& c, sptr<Assignment>) {
        const int block = blockIdx.x;
        if (block < c.slots[kDecode]) return {kDecode, block, -1, 0};
        return {kPrefill, block - c.slots[kDecode], -1, 0};
    }
};
// CTA-parallel, the two loops' CTAs in turn.
struct Alternate {
    DEV static Assignment assign(const Choice& c, sptr<Assignment>) {
        const int block = blockIdx.x, pairs = min(c.slots[kPrefill], c.slots[kDecode]);
        if (block >= 2 * pairs) return {c.slots[kPrefill] > pairs ? kPrefill : kDecode, block - pairs, -1, 0};
        return {block % 2 ? kDecode : kPrefill, block / 2, -1, 0};
    }
};
struct InTurn {};       // intra-thread: every thread has both loops, one after the other
struct Interleaved {};  // intra-thread: every thread has one loop with both steps in it

template <class Binding, bool kTrace> DEV void bound_tile(const Params& p, sptr<uint4> smem) {
    const Trace<kTrace> trace;
    const Assignment a = Binding::assign(p.choice, ptr_cast<Assignment>(smem));
    __syncwarp();  // thread 0 may come late from the tickets
    if (a.op == kPrefill) compute_tile(p, a.id, whole_cta());
    else memory_tile(p, a.id, whole_cta(), smem);
    if (kTrace && threadIdx.x == 0) trace.write(p.trace, blockIdx.x, a);
}

template <bool kTrace> DEV void halves(const Params& p, sptr<uint4> smem) {
    const Trace<kTrace> trace;
    const Assignment a = ByWarp::assign_half<kThreads / 2>();
    const Team team = {int(threadIdx.x) % (kThreads / 2), kThreads / 2, 1 + a.op};
    if (a.id >= p.choice.slots[a.op]) return;
    if (a.op == kPrefill) compute_tile(p, a.id, team);
    else memory_tile(p, a.id, team, smem);
    if (kTrace && team.thread == 0) trace.write(p.trace, 2 * blockIdx.x + a.op, a);
}

template <bool kTrace> DEV void in_turn(const Params& p, sptr<uint4> smem) {
    for (int op : {kDecode, kPrefill}) {
        const Trace<kTrace> trace;
        if (int(blockIdx.x) >= p.choice.slots[op]) continue;
        if (op == kPrefill) compute_tile(p, blockIdx.x, whole_cta());
        else memory_tile(p, blockIdx.x, whole_cta(), smem);
        if (kTrace && threadIdx.x == 0) trace.write(p.trace, 2 * blockIdx.x + op, {op, int(blockIdx.x), -1, 0});
    }
}

template <bool kTrace> DEV void interleaved(const Params& p, sptr<uint4> smem) {
    const Trace<kTrace> trace;
    const Team team = whole_cta();
    Compute compute(p, blockIdx.x, team);
    const Memory memory(p, blockIdx.x, team, smem);
#pragma unroll 1
    for (int s = 0; s < max(compute.steps(), memory.steps()); ++s) {
        if (s < memory.steps()) memory.begin(s);
        if (s < compute.steps()) compute.step(s);
        if (s < memory.steps()) memory.end(s);
        team.meet();
    }
    const int ops = compute.steps() == 0 ? kDecode : memory.steps() == 0 ? kPrefill : 2;  // 2: both
    if (kTrace && threadIdx.x == 0) trace.write(p.trace, blockIdx.x, {ops, int(blockIdx.x), -1, 0});
}

template <class Binding, bool kTrace>
__global__ void __launch_bounds__(kThreads, 8) fusion(const __grid_constant__ Params p) {
    const sptr<uint4> smem = ptx::dynamic_smem<uint4>();
    if constexpr (std::is_same<Binding, ByWarp>::value) halves<kTrace>(p, smem);
    else if constexpr (std::is_same<Binding, InTurn>::value) in_turn<kTrace>(p, smem);
    else if constexpr (std::is_same<Binding, Interleaved>::value) interleaved<kTrace>(p, smem);
    else bound_tile<Binding, kTrace>(p, smem);
}

// ---------------------------------------------------------------- host
static Params params(const FusionArgs& args) {
    Params p;
    const size_t floats = 4 * size_t(args.memory_elements);
    p.a = device_ptr(args.a, floats, "a");
    p.b = device_ptr(args.b, floats, "b");
    p.c = device_ptr(args.c, floats, "c");
    p.d = device_ptr(args.d, args.compute_elements, "d");
    p.elements[kPrefill] = args.compute_elements;
    p.elements[kDecode] = args.memory_elements;
    p.multiplications = args.multiplications;
    p.factor = args.factor;
    p.choice = {};
    p.choice.slots[kPrefill] = args.compute_tiles;
    p.choice.slots[kDecode] = args.memory_tiles;
    p.choice.tickets = device_ptr(args.counters, args.sms + 3, "tickets");
    p.choice.deal = device_ptr(args.deal, args.deals, "deal");
    p.choice.sms = args.sms;
    p.choice.deals = args.deals;
    p.trace = device_ptr(args.trace, args.trace_rows * kTraceFields, "trace");
    return p;
}
template <class Binding> void launch_bound(const FusionArgs& args, int grid, Stream stream) {
    if (grid == 0) return;
    const Params p = params(args);
    if (args.trace) launch<fusion<Binding, true>>(stream, dim3(grid), dim3(kThreads), args.smem_bytes, p);
    else launch<fusion<Binding, false>>(stream, dim3(grid), dim3(kThreads), args.smem_bytes, p);
}
void launch_fusion(const FusionArgs& args, Stream stream) {
    const int compute = args.compute_tiles, memory = args.memory_tiles, pairs = max(compute, memory);
    switch (args.how) {
        case Fusion::compute: return launch_bound<OnlyPrefill>(args, compute, stream);
        case Fusion::memory: return launch_bound<OnlyDecode>(args, memory, stream);
        case Fusion::cta: return launch_bound<MemoryFirst>(args, compute + memory, stream);
        case Fusion::alternate: return launch_bound<Alternate>(args, compute + memory, stream);
        case Fusion::warp: return launch_bound<ByWarp>(args, pairs, stream);
        case Fusion::in_turn: return launch_bound<InTurn>(args, pairs, stream);
        case Fusion::interleaved: return launch_bound<Interleaved>(args, pairs, stream);
        case Fusion::sm_aware: return launch_bound<ByTicket>(args, compute + memory, stream);
    }
}
