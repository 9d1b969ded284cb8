"""The seven puzzles of chapter "first kernels"."""

import re
from dataclasses import replace
from itertools import combinations

import torch

from pod.learn.exercises.kernels import Case, launch, random
from pod.learn.judge import Exercise, Hint, Outcome


def _kind(kind: str):
    return lambda o: o.error is not None and o.error.kind == kind


# ---------------------------------------------------------------- 1. scale

SCALE = """
__global__ void scale(float* y, const float* x, float a) {
    // y = a x; there is one thread for each element
}
"""


def _scaling(grid: int, block: int, a: float) -> Case:
    n = grid * block
    return Case(
        f"{n} elements, a = {a:g}",
        grid,
        block,
        lambda: (torch.full((n,), -1.0), random(n, seed=n), a),
        lambda y, x, a: [a * x],
        {"y": 0},
    )


def _one_apart(o: Outcome) -> bool:
    """Whether the element's number is the CTA's and the thread's added up."""
    return o.error.element[1] == o.error.ctas[0] + o.error.threads[0]


def _from_before(o: Outcome) -> bool:
    """Whether what stood there at first, -1, is in the sum."""
    return bool(torch.allclose(o.values[1] - o.values[0], torch.tensor(-1.0), atol=1e-4))


def _same_thread_of_two_ctas(o: Outcome) -> bool:
    return o.error.ctas[0] != o.error.ctas[1] and o.error.threads[0] == o.error.threads[1]


def _by_all(kernel, case: Case) -> Outcome:
    """As `launch`; and each thread has its part in it."""
    tried, n = launch(kernel, case), case.grid * case.block
    if not tried.right:
        return tried
    writers = {(e.cta, e.thread) for e in tried.watched.report.events if e.kind == "w"}
    if len(writers) == n:
        return tried
    return replace(tried, expected=f"as many threads at work as elements, {n}", got=f"{len(writers)}", right=False)


scale = Exercise(
    SCALE,
    [_scaling(1, 32, 2.0), _scaling(4, 64, -0.5), _scaling(3, 128, 3.0)],
    _by_all,
    {
        "every CTA counts from 0": Hint(
            "threadIdx.x begins at 0 in every CTA, so two CTAs claim the same element. How many threads "
            "stand before this CTA? blockIdx.x * blockDim.x.",
            lambda o: _kind("race")(o) and _same_thread_of_two_ctas(o),
        ),
        "CTAs one apart": Hint(
            "CTA 1 begins one element after CTA 0, not one CTA after it: blockIdx.x counts CTAs, and each"
            " has blockDim.x threads.",
            lambda o: _kind("race")(o) and o.error.ctas[0] != o.error.ctas[1] and _one_apart(o),
        ),
        "CTAs overlap": Hint(
            "Two CTAs claim the same element. CTA b begins behind the threads of all CTAs before it, and each of these "
            "has blockDim.x.",
            lambda o: _kind("race")(o) and o.error.ctas[0] != o.error.ctas[1],
        ),
        "every thread does all": Hint(
            "Two threads of one CTA write the same element. The loop over elements is gone: the launch "
            "has made a thread for each, and a thread does its own.",
            _kind("race"),
        ),
        "some do all": Hint(
            "The numbers are right, and most threads did nothing: a GPU is as fast as it is idle then. A thread does "
            "one element, its own.",
            lambda o: o.expected.startswith("as many threads"),
        ),
        "only copied": Hint(
            "This is x as it was. Scaling multiplies.",
            lambda o: torch.equal(o.values[1], o.values[0] / o.case.arguments()[2]),
        ),
        "added": Hint(
            "This is x + a. Scaling multiplies.",
            lambda o: torch.allclose(
                o.values[1], (o.values[0] / o.case.arguments()[2]) + o.case.arguments()[2], atol=1e-4
            ),
        ),
        "y scaled": Hint(
            "What y held before was scaled. It is x that is read, and y that is written.",
            lambda o: bool((o.values[1] == -o.case.arguments()[2]).all()),
        ),
        "twice": Hint(
            "This is a a x: a is a factor once.",
            lambda o: torch.allclose(o.values[1], o.values[0] * o.case.arguments()[2], atol=1e-4),
        ),
        "added to what was there": Hint(
            "y has what it held before, and your product on top. It is to be overwritten.", _from_before
        ),
        "the first CTA only": Hint(
            "The elements behind the first CTA's are as they were. Every CTA has elements of its own.",
            lambda o: o.case.grid > 1 and bool((o.values[1][o.case.block :] == -1).all() and o.values[1][0] != -1),
        ),
        "outside": Hint(
            "An index ran past the end. There are gridDim.x * blockDim.x threads, numbered blockIdx.x * "
            "blockDim.x + threadIdx.x.",
            _kind("out of bounds"),
        ),
    },
    "The loop over elements has become the launch.",
)

# ---------------------------------------------------------------- 2. the tail

TAIL = """
__global__ void tail(float* y, const float* x, float a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = a * x[i];  // but only the first n elements
}
"""


def _tailed(grid: int, block: int, n: int, room: int) -> Case:
    def wanted(y, x, a, n):
        y[:n] = a * x[:n]
        return [y]

    said = f"n = {n}" + (f", in tensors of {room} elements" if room != n else "")
    return Case(said, grid, block, lambda: (torch.full((room,), -1.0), random(room, seed=n), 2.0, n), wanted, {"y": 0})


def _written_past(o: Outcome) -> list[int]:
    """Which elements behind n were written."""
    n = o.case.arguments()[3]
    return [i for i in (o.values[1] != -1).nonzero()[:, 0].tolist() if i >= n]


tail = Exercise(
    TAIL,
    [
        _tailed(2, 32, 20, 64),
        _tailed(4, 32, 100, 128),
        _tailed(4, 32, 100, 100),
        _tailed(1, 64, 64, 64),
        _tailed(2, 32, 0, 8),
    ],
    launch,
    {
        "one too many": Hint(
            "One element behind the end was written, y[n]. n elements are y[0] to y[n - 1]: compare with <.",
            lambda o: _written_past(o) == [20],
        ),
        "the thread's own number": Hint(
            "Elements behind the end were written by the second CTA: its threadIdx.x is small again. What"
            " must be smaller than n is i.",
            lambda o: _written_past(o) == [*range(32, 52)],
        ),
        "no guard": Hint(
            "All threads write, also those behind the end. 2 CTAs of 32 are 64 threads for 20 elements: "
            "44 of them must do nothing.",
            lambda o: _written_past(o) == [*range(20, 64)],
        ),
        "whole CTAs": Hint(
            "The elements of the last, broken CTA are missing. Its first threads have work: the condition"
            " is each thread's own.",
            lambda o: bool((o.values[1][:20] == -1).all()),
        ),
        "a CTA's condition": Hint(
            "All threads of the last CTA write, since it has some elements. Its last threads have none: the condition "
            "is each thread's own.",
            lambda o: _written_past(o) == [*range(20, 32)],
        ),
        "one too few": Hint(
            "The last element is missing, y[n - 1].",
            lambda o: (o.values[0] != o.values[1]).nonzero().tolist() == [[o.case.arguments()[3] - 1]],
        ),
        "held back to the last": Hint(
            "The threads that are too many all write the last element. They should do nothing.",
            lambda o: _kind("race")(o) and o.error.element[1] == o.case.arguments()[3] - 1,
        ),
        "another's element": Hint(
            "Two threads write the same element. Thread i has element i and no other; the last threads have none.",
            _kind("race"),
        ),
        "outside": Hint(
            "An index ran past the end: a thread whose i is n or more must not touch memory, not even to read.",
            _kind("out of bounds"),
        ),
    },
    "A grid is nearly always a little too large; most kernels begin with this guard.",
)

# ---------------------------------------------------------------- 3. reverse

REVERSE = """
__global__ void reverse(float* x) {
    __shared__ float s[64];
    int t = threadIdx.x, i = blockIdx.x * 64 + t;
    // turn each CTA's 64 elements of x around, in place, through s
}
"""


def _reversing(grid: int, seed: int) -> Case:
    return Case(
        f"{64 * grid} elements",
        grid,
        64,
        lambda: (random(64 * grid, seed=grid),),
        lambda x: [x.view(grid, 64).flip(1).reshape(-1)],
        {"x": 0},
        seed,
    )


def _of(o: Outcome, name: str) -> bool:
    return o.error.element is not None and o.error.element[0] == name


def _across_ctas(o: Outcome) -> bool:
    """Whether each CTA reads, or writes, the elements of the one that is as far from the other end."""
    of_x = [e for e in o.watched.report.events if e.memory == 0]
    return o.case.grid > 1 and any(
        all(e.element // 64 == o.case.grid - 1 - e.cta for e in of_x if e.kind == kind) for kind in "rw"
    )


reverse = Exercise(
    REVERSE,
    [_reversing(1, 0), _reversing(3, 1), _reversing(2, 2)],
    launch,
    {
        "no barrier": Hint(
            "Your 64 threads are two warps, and each goes at its own pace. A thread may read s only when "
            "all have written to it: __syncthreads() stands between.",
            lambda o: _kind("race")(o) and _of(o, "s"),
        ),
        "past shared memory": Hint(
            "64 elements have the numbers 0 to 63. The last one, for t = 0, is 63 - t.", _kind("out of bounds")
        ),
        "without shared memory": Hint(
            "Here a thread overwrites an element of x that another still has to read. That is what s is "
            "for: first all of x goes into s, then back in the other order.",
            lambda o: _kind("race")(o) and _of(o, "x") and o.error.ctas[0] == o.error.ctas[1],
        ),
        "only copied": Hint(
            "x is as it was: it went into s and came back in the same order.",
            lambda o: torch.equal(o.values[1], o.case.arguments()[0]),
        ),
        "the whole grid": Hint(
            "All elements were turned around, across CTAs. Each CTA turns its own 64.", _across_ctas
        ),
        "every CTA the same part": Hint(
            "CTA 1 did not work on elements of its own: x is indexed with i, s with t.", lambda o: o.case.grid > 1
        ),
    },
    "Write, barrier, read: the rhythm of everything that goes through shared memory.",
)

# ---------------------------------------------------------------- 4. a barrier in a branch

NEIGHBOUR = """
__global__ void neighbour(float* y, const float* x, int n) {
    __shared__ float s[64];
    int t = threadIdx.x;
    if (t < n) {
        s[t] = x[t];
        __syncthreads();
        y[t] = s[t] + s[(t + 1) % n];  // each of n elements and the next one, in a ring
    }
}
"""


def _ring(n: int, seed: int = 0) -> Case:
    return Case(
        f"n = {n}",
        1,
        64,
        lambda: (torch.full((n,), -1.0), random(n, seed=n), n),
        lambda y, x, n: [x + x.roll(-1)],
        {"y": 0},
        seed,
    )


def _text(o: Outcome) -> str:
    return o.watched.launch.kernel.text


def _last_alone(o: Outcome) -> bool:
    """Whether all is right but the last element."""
    return (o.values[0] - o.values[1]).abs().gt(1e-5).nonzero().tolist() == [[o.case.arguments()[2] - 1]]


neighbour = Exercise(
    NEIGHBOUR,
    [_ring(64), _ring(40), _ring(32, 1), _ring(7), _ring(50, 2)],
    launch,
    {
        "a barrier of one warp": Hint(
            "__syncwarp() waits for the 32 lanes of a warp. Thread 31 reads what thread 32 writes, and "
            "that one is in another warp.",
            lambda o: _kind("race")(o) and "__syncwarp" in _text(o),
        ),
        "no barrier": Hint(
            "Without a barrier, a thread reads its neighbour's element before it is there. It was not "
            "wrong to wait; it was wrong that some did not come.",
            lambda o: _kind("race")(o) and "__syncthreads" not in _text(o),
        ),
        "elsewhere": Hint(
            "There is a barrier, but not between what all threads write and what they read. All write, all wait, all "
            "read.",
            _kind("race"),
        ),
        "gone before": Hint(
            "The threads that return never reach the barrier. From Volta on that is allowed; older GPUs counted whole "
            "warps. Here we ask for a barrier that all reach: nobody leaves before it.",
            lambda o: _kind("barrier")(o) and "return" in _text(o),
        ),
        "two barriers": Hint(
            "A barrier in each branch is two barriers. All threads must come to the same one: put it "
            "behind the branch.",
            lambda o: _kind("barrier")(o) and _text(o).count("__syncthreads") > 1,
        ),
        "still in a branch": Hint(
            "Some threads never come to the barrier, since it stands in a branch that they do not take.",
            _kind("barrier"),
        ),
        "a ring of 64": Hint(
            "The ring has n elements, not 64: behind element n - 1 comes element 0.",
            lambda o: _last_alone(o) if o.error is None else _kind("unwritten")(o) or _of(o, "s"),
        ),
        "the one before": Hint(
            "That is each element and the one before it. The next one is asked for.",
            lambda o: torch.allclose(o.values[1], o.values[0].roll(1)),
        ),
        "no branch": Hint(
            "x and y have only n elements: threads from n on must not touch them.", _kind("out of bounds")
        ),
    },
    "Loads and stores may stand in a branch, a barrier may not.",
)

# ---------------------------------------------------------------- 5. a warp's sum

WARP_SUM = """
__global__ void warp_sum(float* sums, const float* x) {
    float v = x[blockIdx.x * blockDim.x + threadIdx.x];
    // sums[w] = the sum over the 32 lanes of warp w; warps are counted through all CTAs
}
"""


def _warps(grid: int, block: int) -> Case:
    n = grid * block
    return Case(
        f"{n // 32} warp{'s' * (n > 32)}",
        grid,
        block,
        lambda: (torch.full((n // 32,), -1.0), random(n, seed=n).round(decimals=2)),
        lambda sums, x: [x.view(-1, 32).sum(1)],
        {"sums": 0},
    )


def _lanes(o: Outcome) -> torch.Tensor:
    return o.case.arguments()[1].view(-1, 32)


warp_sum = Exercise(
    WARP_SUM,
    [_warps(1, 32), _warps(1, 128), _warps(3, 64)],
    launch,
    {
        "in a branch": Hint(
            "A shuffle is a meeting of all 32 lanes, as a barrier is. A lane that is not asked to add "
            "must come, too: let every lane add, and use only what is needed.",
            _kind("barrier"),
        ),
        "read too early": Hint(
            "A lane reads shared memory before another has written it. __syncwarp() in between would do; a shuffle "
            "needs neither.",
            lambda o: _kind("race")(o) and not _of(o, "sums"),
        ),
        "added to what was there": Hint(
            "sums has what it held before, and the sum on top. One lane has the whole sum, and overwrites.",
            _from_before,
        ),
        "all lanes write": Hint(
            "All 32 lanes write the warp's sum. One is enough: if (threadIdx.x % 32 == 0).",
            lambda o: (
                _kind("race")(o)
                and o.error.threads[0] // 32 == o.error.threads[1] // 32
                and o.error.ctas[0] == o.error.ctas[1]
            ),
        ),
        "all warps to one place": Hint(
            "Two warps write the same sum. Warp w of all is (blockIdx.x * blockDim.x + threadIdx.x) / 32.",
            _kind("race"),
        ),
        "not added": Hint(
            "What came is the value of one lane. __shfl_xor_sync fetches another lane's v; add it to your own.",
            lambda o: bool((o.values[1][0] == _lanes(o)[0]).any()) and "max" not in _text(o),
        ),
        "another lane's sum": Hint(
            "With __shfl_down_sync only lane 0 has the sum of all lanes; the others have a part of it.",
            lambda o: "__shfl_down_sync" in _text(o),
        ),
        "a step is missing": Hint(
            "Some lanes are missing from the sum. 32 lanes take five steps: 16, 8, 4, 2, 1.",
            lambda o: _some_lanes(_lanes(o)[0], o.values[1][0]),
        ),
        "a step for each lane": Hint(
            "After a step of 1 each lane has two numbers in its sum, and a lane 2 further on has two others: steps "
            "double, or lanes are added more than once.",
            lambda o: torch.isclose(_after(range(1, 32), _lanes(o)[0]), o.values[1][0]),
        ),
        "a step too many": Hint(
            "Every lane is in the sum twice. Lane i ^ 32 is in no warp: the first step is 16.",
            lambda o: torch.allclose(o.values[1], 2 * o.values[0], atol=1e-4),
        ),
        "one sum a CTA": Hint(
            "Only the first warp of a CTA has written. Lane 0 of every warp does: threadIdx.x % 32 == 0.",
            lambda o: (
                o.case.block > 32 and bool((o.values[1][1 : o.case.block // 32] == -1).all() and o.values[1][0] != -1)
            ),
        ),
        "upwards": Hint(
            "Lane 0 had only its own number, again and again: __shfl_up_sync brings what lower lanes have, and there "
            "is none below. __shfl_down_sync brings the others' numbers to lane 0.",
            lambda o: torch.allclose(o.values[1], 32 * o.case.arguments()[1].view(-1, 32)[:, 0], atol=1e-3),
        ),
    },
    "Five steps for 32 lanes, without shared memory or a barrier: so the production kernel sums its rows.",
)


def _some_lanes(lanes: torch.Tensor, got: torch.Tensor) -> bool:
    """Whether this is what a butterfly without some of its steps gives."""
    fewer = (steps for count in range(1, 5) for steps in combinations((16, 8, 4, 2, 1), count))
    return any(torch.isclose(_after(steps, lanes), got, atol=1e-3) for steps in fewer)


def _after(steps, lanes: torch.Tensor) -> torch.Tensor:
    """What lane 0 has when all have added what the lane a step away had."""
    v = lanes.clone()
    for step in steps:
        v = v + v[torch.arange(32) ^ step]
    return v[0]


# ---------------------------------------------------------------- 6. a counter, and where am I

WHERE = """
__global__ void where(int* ctas, int* sm_of) {
    unsigned sm;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    // sm_of[c] = the SM of CTA c; ctas[m] = how many CTAs ran on SM m
}
"""


def _places(grid: int, block: int, seed: int) -> Case:
    def found(watched):
        sm_of = torch.tensor([watched.report.sms[c] for c in range(grid)])
        return [sm_of.int(), torch.bincount(sm_of, minlength=4).int()]

    empty = lambda: (torch.zeros(4, dtype=torch.int32), torch.full((grid,), -1, dtype=torch.int32))  # noqa: E731
    return Case(f"{grid} CTAs on 4 SMs", grid, block, empty, lambda ctas, sm_of: found, {"sm_of": 1, "ctas": 0}, seed)


where = Exercise(
    WHERE,
    [_places(4, 32, 0), _places(40, 512, 1), _places(40, 512, 3)],
    launch,
    {
        "every thread speaks": Hint(
            "All threads of a CTA write its place. One speaks for all: if (threadIdx.x == 0).",
            lambda o: _kind("race")(o) and o.error.ctas[0] == o.error.ctas[1],
        ),
        "not atomic": Hint(
            "Two CTAs on one SM read the same old count, and one of them is lost. Reading, adding and "
            "writing must be one step: atomicAdd(&ctas[sm], 1).",
            lambda o: _kind("race")(o) and _of(o, "ctas"),
        ),
        "SMs for CTAs": Hint(
            "Two CTAs write the same element of sm_of. Its index is the CTA's number, and what is written is the SM's.",
            _kind("race"),
        ),
        "one count for all": Hint(
            "All CTAs were counted in one place, whatever their SM.",
            lambda o: o.expected.startswith("ctas") and int(o.values[1][0]) == o.case.grid,
        ),
        "counted by CTA": Hint(
            "ctas has one element an SM, 4 in all, and was asked for another. What is counted is sm.",
            lambda o: _kind("out of bounds")(o) and _of(o, "ctas"),
        ),
        "by thread": Hint(
            "sm_of has one element a CTA, and was asked for another. The number of the CTA is blockIdx.x.",
            lambda o: _kind("out of bounds")(o) and _of(o, "sm_of"),
        ),
        "nobody counted": Hint(
            "The places are right, and nobody was counted: ctas[sm] grows by one for each CTA.",
            lambda o: o.expected.startswith("ctas") and not o.values[1].any(),
        ),
        "every thread counts": Hint(
            "Every thread has added 1, and a CTA has many. It is CTAs that are counted: one thread speaks for all.",
            lambda o: torch.equal(o.values[1], o.values[0] * o.case.block),
        ),
        "guessed": Hint(
            "CTA c is not always on SM c % 4: when one ends, the next goes wherever there is room. %smid "
            "tells, and only once the CTA is there.",
            lambda o: torch.equal(o.values[1], torch.arange(o.case.grid, dtype=torch.int32) % 4),
        ),
    },
    "First the place, then the work: chapter 07 makes a scheduler of these two lines.",
)

# ---------------------------------------------------------------- 7. softmax, online

SOFTMAX = """
__global__ void softmax(float* y, const float* x, int n) {
    int r = blockIdx.x * blockDim.x + threadIdx.x;  // a row a thread; a row has n numbers
    float m = -INFINITY, l = 0;                     // the largest so far, and the sum of exp(x - m) so far
    for (int j = 0; j < n; ++j) {
        float v = x[r * n + j];
        // one number more: what become of m and l?
    }
    for (int j = 0; j < n; ++j) y[r * n + j] = expf(x[r * n + j] - m) / l;
}
"""


def _rows(n: int, scale: float, shift: float = 0.0) -> Case:
    x = scale * random(64, n, seed=n) + shift
    said = f"64 rows of {n} number{'s' * (n > 1)}, up to {x.max():.3g}"
    return Case(
        said, 2, 32, lambda: (torch.full((64, n), -1.0), x.clone(), n), lambda y, x, n: [x.softmax(1)], {"y": 0}
    )


def _by(o: Outcome, update) -> bool:
    """Whether y is what this update of (m, l) gives, in row 0."""
    row = o.case.arguments()[1][0].double()
    m, l = torch.tensor(-torch.inf).double(), torch.tensor(0.0).double()
    for v in row:
        m, l = update(m, l, v)
    return torch.allclose((row - m).exp() / l, o.values[1][0].double(), rtol=1e-3, equal_nan=True)


def _wrong_way(m, l, v):
    new = max(m, v)
    return new, (l * (new - m).exp() if l else 0) + (v - new).exp()


def _from_nothing(m, l, v):
    """The wrong way round from the first number on: 0 times infinity."""
    new = max(m, v)
    return new, l * (new - m).exp() + (v - new).exp()


def _keeps_m(o: Outcome) -> bool:
    """Whether m gets another value than its first."""
    return len(re.findall(r"\bm\s*=(?!=)", _text(o))) > 1


def _all_shrinks(m, l, v):
    new = max(m, v)
    return new, (l + (v - new).exp()) * (m - new).exp()


def _times_v(m, l, v):
    new = max(m, v)
    return new, l * (m - new).exp() + v * (v - new).exp()


def _old_m(m, l, v):
    new = max(m, v)
    return new, l * (m - new).exp() + (v - m).exp()


def _online(kernel, case: Case) -> Outcome:
    """As `launch`; and each thread goes along its row twice, once for m and l and once for y."""
    tried, walks = launch(kernel, case), 0
    if not tried.right:
        return tried
    visited = [e.element for e in tried.watched.report.events if e.kind == "r" and (e.cta, e.thread) == (0, 0)]
    walks = sum(new == visited[0] != old for old, new in zip([None, *visited], visited, strict=False))
    if walks <= 2:
        return tried
    return replace(tried, expected="two walks along a row: for m and l, and for y", got=f"{walks}", right=False)


def _first_row_alone(o: Outcome) -> bool:
    right = torch.isclose(o.values[0], o.values[1], rtol=1e-4, atol=1e-5).all(1)
    return bool(right[0] and not right[1:].all())


softmax = Exercise(
    SOFTMAX,
    [_rows(1, 1.0), _rows(40, 2.0), _rows(40, 30.0, 200.0), _rows(33, 30.0, -200.0)],
    _online,
    {
        "one more walk": Hint(
            "The numbers are right, and the row was read once more, for m alone. m and l can be had in one walk: when "
            "m grows, all of l shrinks by exp(m_old - m_new).",
            lambda o: str(o.expected).startswith("two walks"),
        ),
        "the first row for all": Hint(
            "Row 0 is right, the others are not. The row of thread r begins at x[r * n], in both loops.",
            _first_row_alone,
        ),
        "not divided": Hint(
            "y is exp(x - m), and so is not yet divided by l.",
            lambda o: _by(o, lambda m, l, v: (max(m, v), torch.tensor(1.0).double())),
        ),
        "no rescale": Hint(
            "l is a sum of exp(x - m) with the m of that time. When m grows, all of l must shrink: l = l "
            "* exp(m_old - m_new) + exp(v - m_new).",
            lambda o: _by(o, lambda m, l, v: (max(m, v), l + (v - max(m, v)).exp())),
        ),
        "the latest": Hint(
            "m is the latest number here, not the largest so far: a small one behind a large one lets l overflow.",
            lambda o: re.search(r"\bm = v;", _text(o)) and not re.search(r"v >=? m|m <=? v", _text(o)),
        ),
        "the smallest": Hint(
            "m is the smallest number here, so that exp(x - m) is above 1 and soon more than a float can hold. It is "
            "the largest that all exponents leave out.",
            lambda o: re.search(r"\bf?minf?\(", _text(o)),
        ),
        "all shrinks": Hint(
            "The new number's exp(v - m_new) has the new m already. Only what l held before shrinks, by "
            "exp(m_old - m_new).",
            lambda o: _by(o, _all_shrinks) and _keeps_m(o),
        ),
        "times v": Hint(
            "l is a sum of exp(x - m) alone; the numbers themselves are no factor of it.", lambda o: _by(o, _times_v)
        ),
        "the wrong way round": Hint(
            "l grew where it should shrink: it is exp(m_old - m_new), at most 1.",
            lambda o: _by(o, _wrong_way) or o.case.arguments()[1].abs().max() < 89 and _by(o, _from_nothing),
        ),
        "l begins anew": Hint(
            "When m grows, l begins anew. What is in it does not go, it shrinks: by exp(m_old - m_new).",
            lambda o: _by(o, lambda m, l, v: (max(m, v), (0 if v > m else l) + (v - max(m, v)).exp())),
        ),
        "the old m": Hint(
            "v came into l with the m of before, which is minus infinity at first: exp(v - m) wants the new one.",
            lambda o: _by(o, _old_m),
        ),
        "only new maxima": Hint(
            "Only numbers that raised m came into l. The others have a term as well, exp(v - m).",
            lambda o: _by(o, lambda m, l, v: (v, (l * (m - v).exp() if l else 0) + 1) if v > m else (m, l)),
        ),
        "l without m": Hint(
            "l is the sum of exp(x), y the quotient of exp(x - m): both must leave out the same m.",
            lambda o: _by(o, lambda m, l, v: (max(m, v), l + v.exp())),
        ),
        "m from 0": Hint(
            "m begins as something larger than these numbers, 0 for instance, and so is not their maximum. What is "
            "smaller than any number is -INFINITY.",
            lambda o: float(o.case.arguments()[1].max()) < 0,
        ),
        "no maximum": Hint(
            "exp(89) is more than a float can hold. It was right for small numbers; with the largest "
            "number left out of every exponent it is right for all.",
            lambda o: float(o.case.arguments()[1].abs().max()) > 89,
        ),
        "m not kept": Hint(
            "m is still minus infinity at the end: the new maximum was used and not kept.",
            lambda o: bool(o.values[1].isinf().any()),
        ),
    },
    "This loop over tiles instead of numbers, with tensor cores in its body, is FlashAttention.",
)
