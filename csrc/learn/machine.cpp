// The program around the kernels of one notebook cell: takes a launch from its command line and the tensors from a file,
// runs it on the emulated machine, and writes back the tensors and what happened. Compiled once; each cell is linked to it.
#include "../include/launch.cuh"
#include "boundary.h"
#include <fcntl.h>
#include <fstream>
#include <set>
#include <sys/mman.h>
#include <unistd.h>

using emulate::self;

namespace cell {

// ---------------------------------------------------------------- memories
struct Tensor {
    std::string name;
    int64_t bytes;
    int element;
    bool written;  // it may be: some parameter that it is handed over as is not const
    std::vector<uint4> data;  // aligned as a GPU's
    emulate::Range range() const {
        const char* begin = reinterpret_cast<const char*>(data.data());
        return {begin, begin + bytes, name.c_str()};
    }
};
struct Variable {
    int number, bytes, element, inner, innermost;
    uint32_t offset;
};
static std::vector<Tensor> tensors;
static std::vector<Variable>& variables() {
    static std::vector<Variable> all;  // first asked for before main
    return all;
}
static Variable& variable(int memory) { return variables()[-memory - 1]; }
bool add_shared(int number, int bytes, int element, int inner, int innermost) {
    if (int(variables().size()) <= number) variables().resize(number + 1);
    variables()[number] = {number, bytes, element, inner, innermost, 0};
    return true;
}
// Where each variable lies, 16 bytes aligned, behind the others all that are as large as the launch says, in one place, as in
// CUDA; returns how many bytes all of them take. Of a template that nobody asks for
// there is none, and its element has no size.
static uint32_t lay_out(int dynamic_bytes) {
    uint32_t end = 0;
    for (Variable& v : variables()) v.offset = end, end += (v.bytes + 15) / 16 * 16;
    for (Variable& v : variables())
        if (!v.bytes && v.element) v.offset = end, v.bytes = dynamic_bytes;
    return end + dynamic_bytes;
}

// ---------------------------------------------------------------- what happened
struct Event {
    int cta, thread, phase, line, memory;
    char kind;  // r, w, a
    int64_t element;
};
struct Live {
    emulate::Cta* cta;
    int threads;  // that have not ended
    std::vector<int> phases;  // how many barriers each has passed
    int votes[3] = {};  // of the barriers to come, by their number
};
constexpr size_t kMostEvents = 200000;
constexpr int64_t kMostSteps = 5000000;
constexpr size_t kMostReaders = 64;  // of an element of a tensor, two of a CTA: any of them is enough to tell a race
static std::vector<Event> events;
static std::map<int, Live> lives;     // by CTA number
static std::map<int, uint32_t> sm_of;  // likewise
static int64_t steps = 0;

static emulate::Where at(int line) { return {"cell", line}; }
// The last line that was heard of, in a file that outlives a crash.
static int* last_line = nullptr;
static void keep_last(const std::string& path) {
    const int file = open(path.c_str(), O_RDWR | O_CREAT, 0600);
    if (ftruncate(file, sizeof(int))) throw std::runtime_error("emulator: " + path + " cannot be written");
    last_line = static_cast<int*>(mmap(nullptr, sizeof(int), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
}
static void hear(int line) {
    self->at = at(line);
    *last_line = line;
}
static Live& alive() { return lives[self->cta->number]; }
[[noreturn]] static void fault(const std::string& what, int line) { emulate::fault(what, at(line)); }

// ---------------------------------------------------------------- accesses
static std::string element(Place p, int bytes) {
    const int64_t size = p.memory < 0 ? variable(p.memory).element : tensors[p.memory].element;
    const std::string name = p.memory < 0 ? "@" + std::to_string(variable(p.memory).number) : tensors[p.memory].name;
    const int64_t index = p.byte >= 0 ? p.byte / size : -((-p.byte + size - 1) / size);
    return name + "[" + std::to_string(index) + "]" + (bytes > size ? " to [" + std::to_string(index + bytes / size - 1) + "]" : "");
}
static void check(Place p, int bytes, int alignment, int line, char kind) {
    hear(line);
    const std::string does = kind == 'r' ? "reads " : "writes ";
    if (p.memory == kNull) fault("null: " + does + "through a pointer that points nowhere", line);
    const bool shared = p.memory < 0;
    const int64_t size = shared ? variable(p.memory).bytes : tensors[p.memory].bytes;
    const int64_t each = shared ? variable(p.memory).element : tensors[p.memory].element;
    if (p.byte < 0 || p.byte + bytes > size)
        fault("outside: " + does + element(p, bytes) + ", which has " + std::to_string(size / each) + " elements", line);
    if (p.byte % alignment)
        fault("misaligned: " + does + element(p, alignment) + " as one value of " + std::to_string(alignment) + " bytes", line);
    if (events.size() < kMostEvents)
        events.push_back({self->cta->number, self->id, alive().phases[self->id], line, p.memory, kind, p.byte / each});
}
static char* own(Place p, int bytes, int line) {
    if (p.own_bytes && (p.byte < 0 || p.byte + bytes > p.own_bytes))
        outside_own("", -1, p.byte / bytes - (p.byte < 0), p.own_bytes / bytes, line);
    return p.own + p.byte;
}
void outside_own(const char* name, int64_t outer, int64_t index, int64_t size, int line) {
    const std::string row = outer < 0 ? "" : "[" + std::to_string(outer) + "]";
    fault("own: uses " + (name + row) + "[" + std::to_string(index) + "], of " + std::to_string(size), line);
}
void unset_own(const char* name, int line) { fault(std::string("unset: uses ") + name, line); }
void outside_row(Place row, int64_t index, int64_t size, int line) {
    hear(line);
    const Variable& v = variable(row.memory);
    fault("row: uses " + std::to_string(v.number) + " " + std::to_string(row.byte / v.element) + " " +
              std::to_string(index) + " " + std::to_string(size), line);
}
// A value that is still as its thread's variable was before anybody set it: the compiler fills those with 0xfe.
static void check_set(Place p, int bytes, int line, const void* value) {
    const char* const first = static_cast<const char*>(value);
    if (bytes >= 4 && std::all_of(first, first + bytes, [](char c) { return c == -2; }))
        fault("unset: writes " + element(p, bytes), line);
}
[[noreturn]] static void read_unwritten(Place p, const emulate::Access& r, const char* when) {
    emulate::fault("unwritten: reads " + element(p, variable(p.memory).element) + when, r.at, &self->cta->threads[r.thread]);
}
static char* global(Place p) { return reinterpret_cast<char*>(tensors[p.memory].data.data()) + p.byte; }
static uint32_t shared(Place p) { return emulate::kSharedStart + variable(p.memory).offset + uint32_t(p.byte); }

// Whoever writes shared memory for the first time ends the time in which to tell of one who has read it, and may know it.
static void check_read(Place p, int bytes) {
    for (int byte = 0; byte < bytes; byte += emulate::kCell) {
        const emulate::Cell& cell = self->cta->cells[(shared(p) - emulate::kSharedStart + byte) / emulate::kCell];
        const auto known = [](const emulate::Access& r) { return emulate::known_to(*self, r); };
        if (cell.write.cta < 0 && !cell.reads.empty() && std::all_of(cell.reads.begin(), cell.reads.end(), known))
            read_unwritten(p, cell.reads.front(), " before");
    }
}
// So that whoever writes it later without having waited is told.
static void remember_read(Place p, int bytes) {
    const emulate::Span span = emulate::global_span(global(p), bytes, tensors[p.memory].range());
    const auto ours = [](const emulate::Access& r) { return r.cta == self->cta->number; };
    emulate::each_global_cell(global(p), bytes, true, [&](emulate::Cell& c) {
        const auto count = std::count_if(c.reads.begin(), c.reads.end(), ours);
        emulate::note_read(*self, c, span, count < 2 && c.reads.size() < kMostReaders);
    });
}
template <class F> static void as_word(int bytes, F&& f) {
    if (bytes == 2) f(uint16_t());
    else if (bytes == 4) f(uint32_t());
    else if (bytes == 8) f(uint64_t());
    else if (bytes == 16) f(uint4());
    else throw std::runtime_error("emulator: a value of " + std::to_string(bytes) + " bytes; allowed are 2, 4, 8 and 16");
}
// A plain read that another thread's atomicCAS meets is no race if its own thread's atomicCAS of the same place follows: that
// finds out whether the value still holds. Until then it is in doubt.
struct Doubt {
    Place place;
    int bytes, line;
    emulate::Access other;  // an atomicCAS that nothing orders with it
    bool is_of(Place p) const { return place.memory == p.memory && place.byte == p.byte; }
};
using Who = std::pair<int, int>;  // CTA and thread
static std::map<Who, std::vector<Doubt>> doubts;
static std::set<std::tuple<int, int, int64_t>> swapped;  // places of an atomicCAS: CTA of shared memory, memory, byte
static auto as_swapped(Place p) { return std::make_tuple(p.memory < 0 ? self->cta->number : -1, p.memory, p.byte); }
static const char* as_it_is(Place p) {
    return p.memory < 0 ? self->cta->smem + (shared(p) - emulate::kSharedStart) : global(p);
}
template <class F> static void each_cell(Place p, int bytes, F&& f) {
    if (p.memory < 0) emulate::each_cell(*self->cta, shared(p), bytes, f);
    else emulate::each_global_cell(global(p), bytes, false, f);
}
static bool is_doubtful(Place p, int bytes, int line) {
    if (swapped.empty() || !swapped.count(as_swapped(p))) return false;
    const emulate::Access* other = nullptr;
    each_cell(p, bytes, [&](emulate::Cell& c) { if (c.atomic && !emulate::known_to(*self, c.write)) other = &c.write; });
    if (other) doubts[{self->cta->number, self->id}].push_back({p, bytes, line, *other});
    return other;
}
static void doubt_reads_of_others(Place p, int bytes, int line) {
    const emulate::Access mine{self->cta->number, uint32_t(self->id), self->cta->now, at(line)};
    each_cell(p, bytes, [&](emulate::Cell& c) {
        const auto moves = [&](const emulate::Access& r) {
            const auto live = lives.find(r.cta);
            if (emulate::known_to(*self, r) || live == lives.end()) return false;
            if (live->second.cta->threads[r.thread].state == emulate::State::done) return false;
            doubts[{r.cta, int(r.thread)}].push_back({p, bytes, r.at.line, mine});
            return true;
        };
        c.reads.erase(std::remove_if(c.reads.begin(), c.reads.end(), moves), c.reads.end());
    });
}
static void end_doubts(Place p) {
    const auto mine = doubts.find({self->cta->number, self->id});
    if (mine == doubts.end()) return;
    auto& all = mine->second;
    all.erase(std::remove_if(all.begin(), all.end(), [&](const Doubt& d) { return d.is_of(p); }), all.end());
}
// Of a thread that has ended.
static void check_doubts() {
    const auto mine = doubts.find({self->cta->number, self->id});
    if (mine == doubts.end() || mine->second.empty()) return;
    const Doubt& d = mine->second.front();
    self->at = at(d.line);
    const auto tell = [&](const emulate::Span& span) { emulate::race(*self, "reads ", d.other, " wrote", false, span); };
    if (d.place.memory < 0) tell(emulate::shared_span(shared(d.place), d.bytes));
    tell(emulate::global_span(global(d.place), d.bytes, tensors[d.place.memory].range()));
}
template <class F> static void each_part(Place p, int bytes, int alignment, F&& f) {
    for (int done = 0; done < bytes; done += alignment)
        as_word(alignment, [&](auto word) { f(p.moved(done), word, done); });
}
// Whether somebody of the CTA has learned of a write by an atomic, but not yet passed a fence.
static bool was_heard(const emulate::Access& write) {
    const auto has = [&](const emulate::Thread& t) {
        const auto clock = t.heard.find(write.cta);
        return clock != t.heard.end() && write.thread < clock->second.size() && clock->second[write.thread] >= write.when;
    };
    const auto& all = self->cta->threads;
    return write.cta >= 0 && std::any_of(all.begin(), all.end(), has);
}
template <class V> static V load_global(Place p, int line) {
    try {
        if (tensors[p.memory].written) remember_read(p, sizeof(V));
        return emulate::load_global<V>(global(p), tensors[p.memory].range(), at(line));
    } catch (const std::exception& e) {
        bool heard = false;
        each_cell(p, sizeof(V), [&](const emulate::Cell& c) { heard |= was_heard(c.write); });
        throw std::runtime_error(std::string(e.what()) + (heard ? " heard" : ""));
    }
}
void load(Place p, int bytes, int alignment, int line, void* to) {
    if (p.memory == kOwn) return void(memcpy(to, own(p, bytes, line), bytes));
    check(p, bytes, alignment, line, 'r');
    each_part(p, bytes, alignment, [&](Place part, auto word, int done) {
        using V = decltype(word);
        const bool doubtful = is_doubtful(part, sizeof(V), line);
        if (doubtful) memcpy(&word, as_it_is(part), sizeof(V));
        else if (part.memory < 0) word = emulate::load_shared<V>(shared(part), at(line));
        else word = load_global<V>(part, line);
        memcpy(static_cast<char*>(to) + done, &word, sizeof(V));
    });
}
void store(Place p, int bytes, int alignment, int line, const void* from) {
    if (p.memory == kOwn) return void(memcpy(own(p, bytes, line), from, bytes));
    check(p, bytes, alignment, line, 'w');
    check_set(p, bytes, line, from);
    each_part(p, bytes, alignment, [&](Place part, auto word, int done) {
        memcpy(&word, static_cast<const char*>(from) + done, sizeof word);
        if (part.memory < 0) check_read(part, sizeof word), emulate::store_shared(shared(part), word, at(line));
        else emulate::store_global(global(part), tensors[part.memory].range(), word, at(line));
    });
}
using Change = void (*)(void*, const void*);
static void change_there(Place p, int bytes, int line, bool fresh, Change change, const void* operands, void* old);
void atomic(Place p, int bytes, int line, bool fresh, Change change, const void* operands, void* old) {
    if (p.memory == kOwn) fault("atomic: of a thread's own", line);
    check(p, bytes, bytes, line, 'a');
    change_there(p, bytes, line, fresh, change, operands, old);
}
static void change_there(Place p, int bytes, int line, bool fresh, Change change, const void* operands, void* old) {
    if (p.memory < 0 && !fresh && self->cta->cells[(shared(p) - emulate::kSharedStart) / emulate::kCell].write.cta < 0)
        fault("unwritten: reads " + element(p, bytes) + " before", line);
    const auto with = [=](auto there) { return change(&there, operands), there; };
    const auto run = [&](auto word) {
        using V = decltype(word);
        if (p.memory < 0) word = emulate::atomic(sptr<V>{shared(p)}, emulate::kRelaxed, at(line), with);
        else word = emulate::atomic(gptr<V>(reinterpret_cast<V*>(global(p)), tensors[p.memory].range()), emulate::kRelaxed, at(line), with);
        memcpy(old, &word, sizeof(V));
    };
    bytes == 8 ? run(uint64_t()) : run(uint32_t());
}

void compare_and_swap(Place p, int bytes, int line, const void* compare, const void* with, void* old) {
    struct Operands {
        int bytes;
        const void *compare, *with;
    } const operands{bytes, compare, with};
    if (p.memory == kOwn) fault("atomic: of a thread's own", line);
    check(p, bytes, bytes, line, 'a');
    swapped.insert(as_swapped(p));
    end_doubts(p);
    doubt_reads_of_others(p, bytes, line);
    change_there(p, bytes, line, false, [](void* there, const void* all) {
        const Operands& o = *static_cast<const Operands*>(all);
        if (!memcmp(there, o.compare, o.bytes)) memcpy(there, o.with, o.bytes);
    }, &operands, old);
}

// ---------------------------------------------------------------- meetings, place and time
void barrier(int line) {
    emulate::barrier(0, int(self->cta->threads.size()), true, at(line));
    alive().phases[self->id]++;
}
int barrier_count(bool vote, int line) {
    Live& live = alive();
    const int phase = live.phases[self->id];
    live.votes[phase % 3] += vote;
    live.votes[(phase + 1) % 3] = 0;  // all have read it
    barrier(line);
    return live.votes[phase % 3];
}
void syncwarp(unsigned mask, int line) { emulate::need_full(mask, at(line)), emulate::syncwarp(at(line)); }
void fence(int line) { emulate::fence(at(line)); }
uint64_t shuffle(const char* word, unsigned mask, uint64_t bits, int from, int line) {
    emulate::need_full(mask, at(line));
    return emulate::shuffle(word, bits, at(line), [=](int) { return from; });
}
unsigned ballot(const char* word, unsigned mask, bool vote, int line) {
    emulate::need_full(mask, at(line));
    return emulate::ballot(word, vote, at(line));
}
bool step(int line) {
    hear(line);
    if (++steps > kMostSteps) fault("steps: still in this loop after " + std::to_string(kMostSteps) + " rounds of all threads", line);
    return true;
}
const uint3& thread_index() { return ::threadIdx; }
const uint3& block_index() { return ::blockIdx; }
const dim3& block_size() { return ::blockDim; }
const dim3& grid_size() { return ::gridDim; }
unsigned special_register(const char* name) {
    const std::string which = name;
    if (which == "smid") return emulate::smid();
    if (which == "nsmid") return emulate::nsmid();
    return which == "laneid" ? self->lane : self->warp->id;
}

// ---------------------------------------------------------------- one launch
// A value that is read and that nobody has written by the end was never meant.
static void check_written(const emulate::Cta& c) {
    for (const Variable& v : variables())
        for (int byte = 0; byte < v.bytes; byte += emulate::kCell) {
            const emulate::Cell& cell = c.cells[(v.offset + byte) / emulate::kCell];
            if (cell.write.cta < 0 && !cell.reads.empty())
                read_unwritten({shared_memory(v.number), byte}, cell.reads.front(), "");
        }
}
static void run_thread(const Kernel& kernel, const std::vector<Argument>& arguments) {
    emulate::Cta& c = *self->cta;
    const int number = c.number;
    const auto live = lives.try_emplace(number, Live{&c, int(c.threads.size()), std::vector<int>(c.threads.size())}).first;
    sm_of[number] = c.sm->id;
    kernel.run(arguments.data());
    check_doubts();
    if (--live->second.threads == 0) check_written(c), lives.erase(number);
}
static void tell_threads(std::ostream& out) {
    const char* const words[] = {"ready", "meeting", "waiting", "done"};
    for (const auto& [number, live] : lives)
        for (const emulate::Thread& t : live.cta->threads)
            out << "thread " << number << " " << t.id << " " << words[int(t.state)] << " " << t.at.line << "\n";
}
static void tell(std::ostream& out, const std::string& fault) {
    for (const Variable& v : variables())
        if (v.element) out << "variable " << v.number << " " << v.offset << " " << v.bytes << " " << v.element << " " << v.inner << " "
            << v.innermost << "\n";
    for (const auto& [cta, sm] : sm_of) out << "place " << cta << " " << sm << "\n";
    for (const Event& e : events)
        out << "event " << e.cta << " " << e.thread << " " << e.phase << " " << e.line << " " << e.kind << " "
            << e.memory << " " << e.element << "\n";
    if (fault.empty()) return;
    tell_threads(out);
    out << "fault\n" << fault;
}
static std::string report;
// Tells the end and ends: through frames of a cell that the compiler takes for such as never throw, nothing is thrown.
[[noreturn]] static void end_with(const std::string& what, int line) {
    try {
        fault(what, line);
    } catch (const std::exception& e) {
        std::ofstream out(report);
        tell(out, e.what());
    }
    fflush(stdout);
    _exit(1);
}

}  // namespace cell

// ---------------------------------------------------------------- what the compiler's -fsanitize has found
namespace {
struct Place {
    const char* file;
    uint32_t line, column;
    int in_cell() const { return strcmp(file, "cell") ? *cell::last_line : int(line); }
};
struct Type {
    uint16_t kind, info;  // of a whole number: bit 0, whether it has a sign; above, the logarithm of its bits
    char name[1];         // in quotes
    std::string said(uintptr_t value) const {
        const int unused = 64 - (1 << (info >> 1));
        return info & 1 ? std::to_string(int64_t(value << unused) >> unused) : std::to_string(value << unused >> unused);
    }
};
struct Numbers {
    Place place;
    const Type* type;
};
struct TwoTypes {
    Place place;
    const Type *first, *second;
};
[[noreturn]] void overflow(const Numbers* d, const std::string& what) {
    cell::end_with("overflow: " + what + " in " + d->type->name, d->place.in_cell());
}
}  // namespace
extern "C" {
void __ubsan_handle_divrem_overflow(const Numbers* d, uintptr_t a, uintptr_t b) {
    if (d->type->said(b) == "0") cell::end_with("zero: divides " + d->type->said(a), d->place.in_cell());
    overflow(d, d->type->said(a) + " / " + d->type->said(b));
}
void __ubsan_handle_add_overflow(const Numbers* d, uintptr_t a, uintptr_t b) { overflow(d, d->type->said(a) + " + " + d->type->said(b)); }
void __ubsan_handle_sub_overflow(const Numbers* d, uintptr_t a, uintptr_t b) { overflow(d, d->type->said(a) + " - " + d->type->said(b)); }
void __ubsan_handle_mul_overflow(const Numbers* d, uintptr_t a, uintptr_t b) { overflow(d, d->type->said(a) + " * " + d->type->said(b)); }
void __ubsan_handle_negate_overflow(const Numbers* d, uintptr_t a) { overflow(d, "-(" + d->type->said(a) + ")"); }
void __ubsan_handle_shift_out_of_bounds(const TwoTypes* d, uintptr_t, uintptr_t by) {
    cell::end_with("shift: by " + d->second->said(by) + " of " + std::to_string(1 << (d->first->info >> 1)), d->place.in_cell());
}
void __ubsan_handle_out_of_bounds(const TwoTypes* d, uintptr_t index) {
    cell::end_with("own: uses [" + d->second->said(index) + "], of " + d->first->name, d->place.in_cell());
}
}

// FILE REPORT KERNEL GRID(3) BLOCK(3) SMEM, then an argument each: `tensor NAME BYTES ELEMENT WRITTEN`, `again TENSOR WRITTEN`,
// `number HEX`.
int main(int, char** words) {
    using namespace cell;
    const std::string file = *++words;
    report = *++words;
    const std::string name = *++words;
    keep_last(report + ".last");
    const auto number = [&] { return uint32_t(strtoull(*++words, nullptr, 10)); };
    const auto three = [&] { const uint32_t x = number(), y = number(); return dim3(x, y, number()); };
    const dim3 grid = three(), block = three();
    const uint32_t smem = lay_out(int(number()));
    std::ifstream in(file, std::ios::binary);
    std::vector<Argument> arguments;
    while (*++words) {
        Argument a{};
        if (!strcmp(*words, "tensor")) {
            const std::string of = *++words;
            const int64_t bytes = strtoll(*++words, nullptr, 10);
            const int element = int(number());
            Tensor& t = tensors.emplace_back(Tensor{of, bytes, element, bool(number()), std::vector<uint4>(bytes / 16 + 1)});
            in.read(reinterpret_cast<char*>(t.data.data()), bytes);
            if (bytes) a.tensor = {int(tensors.size()) - 1, 0};
        } else if (!strcmp(*words, "again")) {
            a.tensor = {int(number()), 0};
            tensors[a.tensor.memory].written |= bool(number());
        } else {
            const uint64_t bits = strtoull(*++words, nullptr, 16);
            memcpy(a.scalar, &bits, 8);
        }
        arguments.push_back(a);
    }
    in.close();
    const Kernel& kernel = *std::find_if(kernels, kernels + kernel_count, [&](const Kernel& k) { return name == k.name; });
    std::string fault;
    try {
        emulate::Concurrent::submit({name, 0, grid, block, smem, [&] { run_thread(kernel, arguments); }});
    } catch (const std::exception& e) {
        fault = e.what();
    }
    std::ofstream out(report);
    tell(out, fault);
    if (!fault.empty()) return 1;
    std::ofstream results(file, std::ios::binary);
    for (const Tensor& t : tensors) results.write(reinterpret_cast<const char*>(t.data.data()), t.bytes);
}
