// A CUDA machine for the CPU: SMs with limited room, a scheduler that gives CTAs to them, warps whose 32 threads meet
// at collective instructions, and a virtual clock in nanoseconds. Whichever warp is earliest on that clock runs next,
// up to its next meeting, so that tickets and traces come out in an order that a GPU could produce.
#pragma once
#include "fiber.h"
#include "types.h"
#include <array>
#include <cstdlib>
#include <cxxabi.h>
#include <deque>
#include <exception>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <new>
#include <pthread.h>
#include <queue>
#include <set>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <unordered_set>

inline uint3 threadIdx, blockIdx;  // of the fiber that runs now
inline dim3 blockDim, gridDim;

namespace emulate {

// A place in the kernel's source. As a default argument, here() is the line of the caller.
struct Where {
    const char* file = "?";
    int line = 0;
    static constexpr Where here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
        return {file, line};
    }
    bool operator==(const Where& o) const { return line == o.line && (file == o.file || !strcmp(file, o.file)); }
    std::string text() const {
        const char* slash = strrchr(file, '/');
        return std::string(slash ? slash + 1 : file) + ":" + std::to_string(line);
    }
};

// Rough costs in nanoseconds, an A100's at 1.4 GHz. They make traces plausible; they are no performance model.
struct Costs {
    double meeting = 4;            // an instruction at which a warp's lanes meet
    double mma = 1.4;              // tensor cores of an SM, busy with one m16n8k16
    double shared_byte = 1 / 180.; // shared memory moves 128 bytes a cycle
    double global_latency = 500;
    double dram_byte = 1 / 14.4;   // for one SM's share of the bandwidth
    double l2_byte = 1 / 45.;      // likewise
    double cta_start = 500;
};

struct Cta;
struct Thread;
struct Warp;
struct Machine;

// What a thread knows of others' work: by CTA number, for each of its threads, the moment of that CTA's clock up to
// which everything the thread did happened before.
using Clock = std::vector<uint32_t>;
using Knowledge = std::map<int, Clock>;

struct Copy {  // one cp.async on its way
    uint32_t to;
    const char* from;  // null: zeros
    int bytes;
};
struct CopyGroup {
    std::vector<Copy> copies;
    double ready = 0;
};

// An mbarrier: a phase is complete when all arrivals have come and all announced bytes have been copied.
struct Mbarrier {
    uint32_t count = 0, missing = 0, phase = 0;
    int64_t bytes = 0;                   // announced, not yet copied
    uint32_t init_thread = 0;
    bool seen_by_tma = false;            // fence_mbar_init came after the initialisation
    uint32_t engine = 0;                 // the thread number under which its copies write
    double time = 0;
    Knowledge gathered, complete;        // published in this phase; in the one before
    std::shared_ptr<const Knowledge> asked, answer;  // memo: what who knew `asked` knows after the last phase
    std::vector<Thread*> waiting;
};

enum class State : uint8_t { ready, meeting, waiting, done };

struct Thread {
    void* stack_pointer = nullptr;
    std::unique_ptr<Stack> stack;
    Cta* cta = nullptr;
    Warp* warp = nullptr;
    int id = 0, lane = 0;
    uint3 index{};
    State state = State::ready;
    Where at;                                    // last place it told us
    std::shared_ptr<const Knowledge> known;      // shared, because after a barrier all know the same
    Knowledge fenced, heard;                     // known at its last fence; heard through relaxed atomics since
    CopyGroup open;                              // cp.async not committed yet
    std::deque<CopyGroup> groups;                // committed, oldest first
    std::vector<uint32_t> proxy_fences;          // moments of its fence.proxy.async
    bool vote = false;                           // result of its last voting barrier
};

struct ProductGroup {  // wgmma: what to do when it is waited for
    std::vector<std::function<void()>> finish;
    double ready = 0;
};

struct Warp {
    Cta* cta = nullptr;
    Thread* threads = nullptr;  // 32
    int id = 0;
    double time = 0, ready = 0;  // its clock; when the last value it asked of memory is there
    bool queued = false;
    int met = 0;                 // lanes that have reached the open meeting
    const char* op = nullptr;    // the meeting's instruction and place
    Where op_at;
    std::array<void*, 32> slots{};  // each lane's arguments
    int done = 0;                   // lanes that have left the kernel
    int registers = 0;              // a thread
    bool products_fenced = false;   // wgmma.fence since the last wait
    ProductGroup open_products;
    std::deque<ProductGroup> products;  // wgmma groups under way, oldest first
    std::set<const float*> accumulating;  // accumulators of the products under way
};

struct Barrier {
    int expected = 0, arrived = 0;
    double time = 0;
    bool any = false;               // some thread voted yes
    Knowledge announced;            // by warps that arrive without waiting
    std::vector<Thread*> waiting;
};

// One access to memory, for the race checks; and what is remembered of each kCell bytes.
struct Access {
    int cta = -1;  // -1: none
    uint32_t thread = 0, when = 0;
    Where at;
};
struct Cell {
    Access write;
    bool in_flight = false, atomic = false, async = false;  // async: written by the copy engine
    std::vector<Access> reads;  // since the write, without those that a later read implies
};
constexpr uint32_t kCell = 2;

struct Sm {
    int id, ctas = 0, threads = 0;
    size_t smem = 0;
    double tensor_free = 0;  // when its tensor cores are free again
};

struct Launch {
    std::string kernel;
    int stream;
    dim3 grid, block;
    size_t smem;
    std::function<void()> body;
    uint64_t next = 0, live = 0, order = 0;
    uint64_t ctas() const { return uint64_t(grid.x) * grid.y * grid.z; }
    int threads() const { return int(block.x * block.y * block.z); }
    bool finished() const { return next == ctas() && live == 0; }
};

struct Cta {
    Launch* launch = nullptr;
    Sm* sm = nullptr;
    int number = 0;  // counts all CTAs of a run
    uint3 index{};
    uint32_t now = 1;  // its clock counts the moments at which some thread published its work
    int warps_left = 0;
    std::vector<Thread> threads;
    std::vector<Warp> warps;
    std::vector<char> storage;
    char* smem = nullptr;  // 1024-byte aligned
    size_t smem_bytes = 0;
    std::vector<Cell> cells;
    std::array<Barrier, 16> barriers;
    std::map<uint32_t, Mbarrier> mbarriers;  // by address
    int copies = 0;                          // TMA copies under way
    int spare_registers = 0;
    std::vector<std::pair<Warp*, int>> want_registers;
};

inline Thread* self = nullptr;  // the thread that runs now; null on the host

// Every report names the kernel, the CTA, the warp and the line.
[[noreturn]] inline void fault(const std::string& what, Where at, const Thread* t = self) {
    std::string text = "emulator: " + what + "\n  at " + at.text();
    if (t) {
        const uint3 c = t->cta->index;
        const auto s = [](auto x) { return std::to_string(x); };
        text += " in kernel " + t->cta->launch->kernel + ", CTA (" + s(c.x) + ", " + s(c.y) + ", " + s(c.z) + ")";
        text += " on SM " + s(t->cta->sm->id) + ", warp " + s(t->warp->id) + ", lane " + s(t->lane);
    }
    throw std::runtime_error(text);
}

// ---------------------------------------------------------------- the machine
struct Machine {
    int sms = 4, ctas_per_sm = 32, threads_per_sm = 2048;
    int sm_step = 1;  // 2: SMs have the numbers 0, 2, 4, ..., as some are missing on a real card
    size_t smem_per_sm = 164 << 10, smem_per_cta = 163 << 10;
    Costs cost;
    double time_limit = 1e9;  // a second: a kernel that takes longer waits for something that never comes

    // CTAs of this size that one SM holds; the hardware keeps 1 KB of shared memory for each.
    int resident_ctas(int threads, size_t smem) const {
        return std::min({ctas_per_sm, threads_per_sm / threads, int(smem_per_sm / (smem + 1024))});
    }
    void run(std::vector<Launch>& launches);
    void pause() { emulate_switch(&self->stack_pointer, scheduler); }  // the running thread stops here
    void later(double time, std::function<void()> event) { events.emplace(time, std::move(event)); }
    void wake(Warp& w) {
        if (!w.queued) {
            w.queued = true;
            queue.push({w.time, ticket++, &w});
        }
    }
    // `bytes` at `p` of the tensor at `begin` are asked for at `time`; returns when they have arrived. Only the first
    // to touch a 128-byte line in this run brings it from DRAM: L2 holds all that kernels of a size for the emulator
    // use. Lines count from the tensor's begin, as on a GPU, where tensors are aligned: a run repeats itself wherever
    // they lie.
    double transfer(double time, const char* begin, const void* p, int bytes) {
        double busy = bytes * cost.l2_byte;
        const char* const first = static_cast<const char*>(p);
        for (const char* line = first - (first - begin) % 128; line < first + bytes; line += 128)
            if (in_l2.insert(uintptr_t(line)).second) busy += 128 * cost.dram_byte;
        memory_free = std::max(memory_free, time) + busy / sms;
        return memory_free + cost.global_latency + held_up();
    }
    // With POD_EMULATE_SEED in the environment, one warp or copy in eight is held up, by a microsecond at most: another
    // order in which a GPU could do the same.
    double held_up() {
        if (!chance) return 0;
        chance ^= chance << 13;
        chance ^= chance >> 7;
        chance ^= chance << 17;
        return chance % 8 ? 0 : double(chance >> 32 & 1023);
    }
    std::unordered_map<uintptr_t, std::vector<Cell>> global_cells;  // by 4 KB page, where a kernel has written
    std::unordered_map<uintptr_t, Knowledge> released;              // what atomics on an address have published
    std::vector<Launch*> launch_of_cta;                             // by CTA number

private:
    struct Next {
        double time;
        uint64_t ticket;
        Warp* warp;
        bool operator<(const Next& o) const { return time != o.time ? time > o.time : ticket > o.ticket; }
    };
    void* scheduler = nullptr;
    std::exception_ptr failure;
    std::priority_queue<Next> queue;
    std::multimap<double, std::function<void()>> events;  // what will happen without a warp: copies that arrive
    uint64_t ticket = 0, chance = 0;        // the latter: state of a generator, 0 without a seed
    double memory_free = 0;                 // when L2 and DRAM are free again
    std::unordered_set<uintptr_t> in_l2;    // 128-byte lines, by their first byte
    std::vector<Sm> sm;
    std::list<Cta> ctas;
    std::vector<std::unique_ptr<Stack>> spare_stacks;
    size_t stacks_made = 0;
    std::vector<Launch>* launches = nullptr;

    static void fiber_main();
    void check(const Launch& l) const;
    void dispatch(double time);
    Sm* roomiest(const Launch& l);
    void start(Launch& l, Sm& s, double time);
    void step(Warp& w);
    void resume(Thread& t);
    void retire(Cta& c, double time);
    [[noreturn]] void report_deadlock();
};

inline Machine& machine() {
    static Machine m;
    return m;
}

inline void Machine::check(const Launch& l) const {
    if (l.threads() % 32 || l.threads() == 0 || l.threads() > 1024)
        throw std::runtime_error("emulator: " + l.kernel + " launched with " + std::to_string(l.threads()) +
                                 " threads a CTA; allowed are multiples of 32 up to 1024");
    if (l.smem > smem_per_cta || !resident_ctas(l.threads(), l.smem))
        throw std::runtime_error("emulator: " + l.kernel + " launched with " + std::to_string(l.smem) +
                                 " bytes of shared memory a CTA; this machine allows " + std::to_string(smem_per_cta));
}

inline void Machine::run(std::vector<Launch>& all) {
    for (const Launch& l : all) check(l);
    sm.clear();
    ctas.clear();
    queue = {};
    events.clear();
    global_cells.clear();
    released.clear();
    launch_of_cta.clear();
    for (int i = 0; i < sms; ++i) sm.push_back({i * sm_step});
    const char* seed = getenv("POD_EMULATE_SEED");
    chance = seed ? strtoull(seed, nullptr, 10) : 0;
    memory_free = 0;
    in_l2.clear();
    ticket = 0;
    failure = nullptr;
    launches = &all;
    for (size_t i = 0; i < all.size(); ++i) all[i].order = i;
    dispatch(0);
    while (!queue.empty() || !events.empty()) {
        if (!events.empty() && (queue.empty() || events.begin()->first <= queue.top().time)) {
            events.extract(events.begin()).mapped()();
            continue;
        }
        Warp& w = *queue.top().warp;
        queue.pop();
        w.queued = false;
        step(w);
    }
    if (!ctas.empty()) report_deadlock();
}

// CTAs go out in order, each to the SM that holds the fewest: first one each, then a second each. A launch waits for
// those before it in its stream; a launch of another stream gets the room that is left when all CTAs before it are out.
inline void Machine::dispatch(double time) {
    for (Launch& l : *launches) {
        bool may_start = true;
        for (const Launch& before : *launches)
            may_start &= before.order >= l.order || before.stream != l.stream || before.finished();
        while (may_start && l.next < l.ctas()) {
            Sm* s = roomiest(l);
            if (!s) return;
            start(l, *s, time);
        }
    }
}
inline Sm* Machine::roomiest(const Launch& l) {
    Sm* best = nullptr;
    for (Sm& s : sm) {
        const bool has_slot = s.ctas < ctas_per_sm && s.threads + l.threads() <= threads_per_sm;
        if (has_slot && s.smem + l.smem + 1024 <= smem_per_sm && (!best || s.ctas < best->ctas)) best = &s;
    }
    return best;
}

inline void Machine::start(Launch& l, Sm& s, double time) {
    const uint64_t i = l.next++;
    l.live++;
    s.ctas++;
    s.threads += l.threads();
    s.smem += l.smem + 1024;
    const uint3 index{uint32_t(i % l.grid.x), uint32_t(i / l.grid.x % l.grid.y), uint32_t(i / l.grid.x / l.grid.y)};
    const int n = l.threads(), number = int(launch_of_cta.size());
    launch_of_cta.push_back(&l);
    Cta& c = ctas.emplace_back();
    c.launch = &l;
    c.sm = &s;
    c.number = number;
    c.index = index;
    c.warps_left = n / 32;
    c.threads.resize(n);
    c.warps.resize(n / 32);
    c.cells.resize((l.smem + kCell - 1) / kCell);
    c.storage.assign(l.smem + 1024, char(0xff));  // poison: NaN as float, bf16 and fp16, -1 as int
    c.smem = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(c.storage.data()) + 1023) & ~uintptr_t(1023));
    c.smem_bytes = l.smem;
    const int registers = std::min(65536 / n / 8 * 8, 248);
    c.spare_registers = 65536 - registers * n;
    const auto nothing = std::make_shared<const Knowledge>(Knowledge{{number, Clock(n, 0)}});
    for (int t = 0; t < n; ++t) {
        Thread& th = c.threads[t];
        if (spare_stacks.empty()) spare_stacks.push_back(std::make_unique<Stack>(stacks_made++));
        th.stack = std::move(spare_stacks.back());
        spare_stacks.pop_back();
        th.stack_pointer = th.stack->prepare(fiber_main);
        th.cta = &c;
        th.warp = &c.warps[t / 32];
        th.id = t;
        th.lane = t % 32;
        th.known = nothing;
        th.index = {t % l.block.x, t / l.block.x % l.block.y, t / l.block.x / l.block.y};
    }
    for (int w = 0; w < n / 32; ++w) {
        c.warps[w].cta = &c;
        c.warps[w].threads = &c.threads[w * 32];
        c.warps[w].id = w;
        c.warps[w].time = time + cost.cta_start;
        c.warps[w].registers = registers;
        wake(c.warps[w]);
    }
}

inline void Machine::fiber_main() {
    Machine& m = machine();
    try {
        self->cta->launch->body();
    } catch (...) {
        m.failure = std::current_exception();
    }
    self->state = State::done;
    m.pause();
    abort();  // a finished fiber is never resumed
}
inline void Machine::resume(Thread& t) {
    self = &t;
    threadIdx = t.index;
    emulate_switch(&scheduler, t.stack_pointer);
    self = nullptr;
    if (t.stack->overflown()) {
        fputs("emulator: a kernel's stack overflowed; raise Stack::kBytes\n", stderr);
        abort();
    }
    if (failure) std::rethrow_exception(failure);
}
// Every lane of the warp that can run does so, up to its next meeting. Lanes that a latecomer sets free on the way go
// on in the next step, together with it.
inline void Machine::step(Warp& w) {
    blockIdx = w.cta->index;
    blockDim = w.cta->launch->block;
    gridDim = w.cta->launch->grid;
    uint32_t can_run = 0;
    for (const Thread* t = w.threads; t < w.threads + 32; ++t) can_run |= uint32_t(t->state == State::ready) << t->lane;
    for (Thread* t = w.threads; t < w.threads + 32; ++t) {
        if (!(can_run >> t->lane & 1)) continue;
        resume(*t);
        w.done += t->state == State::done;
    }
    w.time = std::max(w.time, w.ready) + held_up();
    const auto first = [&](State s) {
        return std::find_if(w.threads, w.threads + 32, [=](const Thread& t) { return t.state == s; });
    };
    if (w.met && w.done)
        fault("divergence: " + std::to_string(w.done) + " lanes have left the kernel while others wait for them at " +
              w.op, w.op_at, first(State::meeting));
    if (w.time > time_limit) fault("endless: waits for something that never comes", w.threads->at, w.threads);
    if (w.done == 32 && --w.cta->warps_left == 0) retire(*w.cta, w.time);
    else if (first(State::ready) != w.threads + 32) wake(w);
}
inline void Machine::retire(Cta& c, double time) {
    Launch& l = *c.launch;
    Thread& t = c.threads[0];
    if (c.copies) fault("the CTA ended while TMA copies were on their way to its shared memory", t.at, &t);
    l.live--;
    c.sm->ctas--;
    c.sm->threads -= l.threads();
    c.sm->smem -= l.smem + 1024;
    for (Thread& done : c.threads) spare_stacks.push_back(std::move(done.stack));
    ctas.remove_if([&](const Cta& x) { return &x == &c; });
    dispatch(time);
}
inline void Machine::report_deadlock() {
    std::string text = "deadlock: no warp can go on";
    const Thread* first = nullptr;
    for (const Cta& c : ctas)
        for (const Warp& w : c.warps) {
            const Thread* t = w.threads;
            while (t < w.threads + 32 && t->state == State::done) ++t;
            if (t == w.threads + 32) continue;
            if (!first) first = t;
            text += "\n  CTA " + std::to_string(c.number) + " warp " + std::to_string(w.id) + " at " + t->at.text();
        }
    fault(text, first->at, first);
}

// ---------------------------------------------------------------- the start of a kernel
// Launches inside the scope run together at its end.
class Concurrent {
    static Concurrent*& open() {
        static Concurrent* scope = nullptr;
        return scope;
    }
    // A fork waits until the machine is free. In the child nobody has it, and unlocking is for the thread that locked:
    // the child's has another number, so the child gets a new lock.
    static std::recursive_mutex& lock() {
        static std::recursive_mutex m;
        [[maybe_unused]] static const int told =
            pthread_atfork([] { m.lock(); }, [] { m.unlock(); }, [] { new (&m) std::recursive_mutex; });
        return m;
    }
    std::unique_lock<std::recursive_mutex> hold{lock()};  // one machine, so one user at a time
    std::vector<Launch> launches;

public:
    Concurrent() { open() = this; }
    ~Concurrent() { open() = nullptr; }
    void run() { machine().run(launches); launches.clear(); }
    static void submit(Launch&& l) {
        std::unique_lock<std::recursive_mutex> hold{lock()};
        if (open()) return open()->launches.push_back(std::move(l));
        std::vector<Launch> alone;
        alone.push_back(std::move(l));
        machine().run(alone);
    }
};

using Stream = int;

// "my_kernel<float, 64>", from the compiler's name of this function.
template <auto Kernel> std::string kernel_name() {
    const std::string name = __PRETTY_FUNCTION__;
    const size_t equals = name.find("Kernel = ") + 9, from = equals + (name[equals] == '&');
    return name.substr(from, name.find_first_of(";]", from) - from);
}
template <auto Kernel, class... Args>
void launch(Stream stream, dim3 grid, dim3 block, size_t smem, const Args&... args) {
    Concurrent::submit({kernel_name<Kernel>(), stream, grid, block, smem, [=] { Kernel(args...); }});
}

}  // namespace emulate
