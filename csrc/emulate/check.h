// Who may see whose writes. Each thread knows up to which moment every other thread's work happened before its own; a
// barrier makes its members know what any of them knew. An access that meets another thread's write of which its own
// thread does not know is a race, in whatever order the emulator happened to run the two.
#pragma once
#include "machine.h"

namespace emulate {

// ---------------------------------------------------------------- what threads know
inline void merge(Knowledge& into, const Knowledge& from) {
    for (const auto& [cta, clock] : from) {
        Clock& c = into[cta];
        if (c.size() < clock.size()) c.resize(clock.size());
        for (size_t i = 0; i < clock.size(); ++i) c[i] = std::max(c[i], clock[i]);
    }
}
// Add what `t` knows, and all it did up to now.
inline void publish(Knowledge& into, const Thread& t) {
    merge(into, *t.known);
    into[t.cta->number][t.id] = t.cta->now;
}
inline void learn(Thread& t, const Knowledge& news) {
    auto more = std::make_shared<Knowledge>(*t.known);
    merge(*more, news);
    t.known = std::move(more);
}
// Afterwards each of these threads of one CTA knows what all did. The CTA's clock ticks: what they do next is later.
template <class Each> void exchange(Cta& c, const Knowledge& also, Each&& each_thread) {
    auto all = std::make_shared<Knowledge>(also);
    const Knowledge* merged = nullptr;
    each_thread([&](Thread& t) {
        if (t.known.get() != merged) merge(*all, *t.known), merged = t.known.get();
    });
    Clock& own = (*all)[c.number];
    each_thread([&](Thread& t) { own[t.id] = c.now, t.known = all; });
    c.now++;
}

// ---------------------------------------------------------------- fences and atomics on global memory
// As in C++: a release publishes what its thread did; a relaxed atomic publishes what its thread had done at its last
// fence. What an acquire finds published is known at once; what a relaxed atomic finds, at the next fence.
enum Order { kRelaxed, kRelease, kAcqRel };

inline void fence(Where at) {
    Thread& t = *self;
    t.at = at;
    if (!t.heard.empty()) {
        learn(t, t.heard);
        t.heard.clear();
    }
    t.fenced.clear();
    publish(t.fenced, t);
    t.cta->now++;
}
inline void order_atomic(const void* address, Order order) {
    Thread& t = *self;
    Knowledge& there = machine().released[reinterpret_cast<uintptr_t>(address)];
    if (order == kAcqRel) learn(t, there);
    else merge(t.heard, there);
    if (order == kRelaxed) merge(there, t.fenced);
    else {
        publish(there, t);
        t.cta->now++;
    }
}

// ---------------------------------------------------------------- races
// The bytes of an access, named for a report.
constexpr const char* kShared = "shared memory";
struct Span {
    const char* memory;
    int64_t offset;
    int bytes;
    std::string text() const {
        return std::to_string(bytes) + " bytes of " + memory + " at byte " + std::to_string(offset);
    }
};

inline bool known_to(const Thread& t, const Access& a) {
    if (a.cta < 0 || (a.cta == t.cta->number && int(a.thread) == t.id)) return true;
    const Launch &theirs = *machine().launch_of_cta[a.cta], &mine = *t.cta->launch;
    if (theirs.stream == mine.stream && theirs.order < mine.order) return true;
    const auto clock = t.known->find(a.cta);
    return clock != t.known->end() && a.thread < clock->second.size() && clock->second[a.thread] >= a.when;
}
inline std::string who(const Thread& t, const Access& a) {
    const uint32_t threads = t.cta->threads.size(), warps = threads / 32;
    const std::string cta = a.cta == t.cta->number ? "" : "CTA " + std::to_string(a.cta) + " ";
    if (cta.empty() && a.thread >= threads + warps) return "a TMA copy";
    if (cta.empty() && a.thread >= threads) return "a wgmma of warp " + std::to_string(a.thread - threads);
    return cta + "warp " + std::to_string(a.thread / 32) + " lane " + std::to_string(a.thread % 32);
}
[[noreturn]] inline void race(const Thread& t, const std::string& does, const Access& other, const std::string& did,
                              bool in_flight, const Span& span) {
    const std::string what = does + span.text(), by = who(t, other), there = " at " + other.at.text();
    const std::string missing = span.memory == kShared ? "barrier" : "release and acquire";
    if (in_flight)
        fault("un-awaited copy: " + what + ", where that of " + by + there + " may not have arrived", t.at, &t);
    fault("race: " + what + " that " + by + did + there + " with no " + missing + " between", t.at, &t);
}
inline void note_read(const Thread& t, Cell& c, const Span& span, bool remember, int engine = -1) {
    if (c.in_flight || !known_to(t, c.write)) race(t, "reads ", c.write, " wrote", c.in_flight, span);
    if (!remember) return;
    const auto implied = [&](const Access& r) { return known_to(t, r); };
    c.reads.erase(std::remove_if(c.reads.begin(), c.reads.end(), implied), c.reads.end());
    c.reads.push_back({t.cta->number, uint32_t(engine < 0 ? t.id : engine), t.cta->now, t.at});
}
// How a write reaches memory: at once, atomically, or some time later, when it is waited for.
enum class How { plain, atomic, cp_async, tma };
inline void note_write(const Thread& t, Cell& c, const Span& span, How how = How::plain, int engine = -1) {
    const bool both_atomic = how == How::atomic && c.atomic;
    if (c.in_flight || !(both_atomic || known_to(t, c.write))) race(t, "writes ", c.write, " wrote", c.in_flight, span);
    for (const Access& r : c.reads)
        if (!known_to(t, r)) race(t, "overwrites ", r, " read", false, span);
    c.reads.clear();
    c.write = {t.cta->number, uint32_t(engine < 0 ? t.id : engine), t.cta->now, t.at};
    c.atomic = how == How::atomic;
    c.async = how == How::tma;
    c.in_flight = how == How::cp_async || how == How::tma;
}

}  // namespace emulate
