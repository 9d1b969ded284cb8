"""Your turn in chapter "POD on Hopper": a maximum that may be late, and a queue for the tensor cores."""

import torch

from pod.learn.exercises.functions import Call, call, gives
from pod.learn.exercises.kernels import Case, launch, random
from pod.learn.judge import Exercise, Hint, Outcome
from pod.learn.questions import Question

CHAPTER = "pod_on_hopper"

# ---------------------------------------------------------------- the late maximum

LATE = """
__global__ void late(float* y, int* raised, const float* x, int n) {
    int r = blockIdx.x * blockDim.x + threadIdx.x;  // a row a thread; a row has n numbers
    float m = x[r * n], l = 0;                      // what is left out of all exponents, and the sum of exp(x - m)
    for (int j = 0; j < n; ++j) {
        float v = x[r * n + j];
        // one number more; m becomes v only if v is more than 8 above it, and ++raised[r] counts how often
    }
    for (int j = 0; j < n; ++j) y[r * n + j] = expf(x[r * n + j] - m) / l;
}
"""
SLACK = 8.0


def counts(x: torch.Tensor, raises, to=lambda m, v: v) -> torch.Tensor:
    """How often each row's m is raised, when raises(m, v) decides, and to where."""
    found = []
    for row in x.tolist():
        m, count = row[0], 0
        for v in row:
            if raises(m, v):
                m, count = to(m, v), count + 1
        found.append(count)
    return torch.tensor(found, dtype=torch.int32)


def _wanted(y, raised, x, n):
    return [counts(x, lambda m, v: v > m + SLACK), x.softmax(1)]


def _rows(said: str, x: torch.Tensor) -> Case:
    rows, n = x.shape
    return Case(f"64 rows of {n}: {said}", 2, 32,
                lambda: (torch.full((rows, n), -1.0), torch.zeros(rows, dtype=torch.int32), x.clone(), n),
                _wanted, {"raised": 1, "y": 0})  # fmt: skip


def _rising(n: int, top: float) -> torch.Tensor:
    return random(64, n, seed=n) + torch.linspace(0, top, n)


def _raised(raises, **more):
    """Whether m was raised as often as by this rule."""
    return lambda o: torch.equal(o.values[1], counts(o.case.arguments()[2], raises, **more))


def _right_but(o: Outcome, raised) -> bool:
    """Whether y is as it should be, and every row's count is this."""
    y, _, x, n = o.arguments
    return torch.allclose(y, x.softmax(1), rtol=1e-4, atol=1e-5) and bool((o.values[1] == raised(n)).all())


def _never(o: Outcome) -> bool:
    return o.values[1].dtype == torch.int32 and not o.values[1].any()


def _without_fade(o: Outcome) -> bool:
    """y as if l had kept its old terms when m was raised."""
    return _first_row(o, lambda l, m, v: l)


def _wrong_way(o: Outcome) -> bool:
    return _first_row(o, lambda l, m, v: l * (v - m).exp())


def _first_row(o: Outcome, fade) -> bool:
    row = o.case.arguments()[2][0].double()
    m, l = row[0], torch.tensor(0.0).double()
    for v in row:
        if v > m + SLACK:
            m, l = v, fade(l, m, v)
        l = l + (v - m).exp()
    return torch.allclose((row - m).exp() / l, o.values[1][0].double(), rtol=1e-3)


late = Exercise(
    "late",
    CHAPTER,
    LATE.strip("\n"),
    [_rows("random", random(64, 33, seed=1)), _rows("rising by 60", _rising(48, 60.0)),
     _rows("random, up to a hundred", random(64, 40, seed=2, scale=30.0)), _rows("one number", random(64, 1, seed=5)),
     _rows("falling by 90", _rising(40, -90.0)), _rows("in steps of 4", torch.arange(0.0, 80.0, 4.0).repeat(64, 1))],
    launch,
    [
        Hint(
            "always exact",
            "m was raised by every new maximum. That is right and needs no slack, but each time the whole output is "
            "multiplied: raise it only when v is more than 8 above it.",
            _raised(lambda m, v: v > m),
        ),
        Hint(
            "all counted",
            "y is right. But raised[r] has counted every number of the row, not those that raised m.",
            lambda o: _right_but(o, lambda n: n),
        ),
        Hint(
            "at 8 as well",
            "m was raised by a number that is just 8 above it. It may stay until one is more than 8 above.",
            _raised(lambda m, v: v >= m + SLACK),
        ),
        Hint(
            "never raised",
            "Nobody counted, or m is still the row's first number. When another is more than 8 above it, exp(x - m) "
            "grows beyond what 16 bits hold, and in the end beyond fp32.",
            _never,
        ),
        Hint(
            "raised by 8",
            "m went up by 8, not to v. v may be further above it, and the next ones need another raise.",
            _raised(lambda m, v: v > m + SLACK, to=lambda m, v: m + SLACK),
        ),
        Hint(
            "any distance",
            "m was raised or lowered for every v that is more than 8 away. Below m nothing overflows: m never falls.",
            _raised(lambda m, v: abs(v - m) > SLACK),
        ),
        Hint(
            "once",
            "raised[r] is 1 in a row that raised m several times: it counts.",
            lambda o: torch.equal(o.values[1], o.values[0].clamp(max=1)),
        ),
        Hint(
            "above 8",
            "m was raised when v itself is above 8. It is the distance to m that counts, v - m.",
            _raised(lambda m, v: v > SLACK),
        ),
        Hint(
            "one for all rows",
            "All rows count in raised[0]. Row r has raised[r].",
            lambda o: o.error is not None and o.error.element == ("raised", 0),
        ),
        Hint(
            "l begins anew",
            "When m is raised, l keeps what it has, only smaller: l * exp(m_old - m_new). Here it begins anew.",
            lambda o: _first_row(o, lambda l, m, v: 0 * l),
        ),
        Hint(
            "l not rescaled",
            "m is raised when it must be, and l keeps terms that were made with the old one: l = l * exp(m_old - "
            "m_new).",
            _without_fade,
        ),
        Hint(
            "the wrong way round",
            "l grew where it should shrink: it is exp(m_old - m_new), less than exp(-8).",
            _wrong_way,
        ),
        Hint(
            "not its own term",
            "The number that raises m has a term in l as well: exp(v - m) with the new m, which is 1.",
            lambda o: _first_row(o, lambda l, m, v: l * (m - v).exp() - 1),
        ),
    ],
    "On Hopper four warps vote on this `if`, at a barrier that they need anyway.",
)  # fmt: skip

# ---------------------------------------------------------------- in turn

KV_RATE = '''
def kv_rate(queued, clock, sms):
    """Bytes a second that decode uses up on all SMs, beside so many warpgroups of prefill that queue for the tensor
    cores, at `clock` cycles a second. One product each, in turn: prefill's takes 64 cycles. Decode's uses up 2 KB of
    keys, and takes 4 cycles of arithmetic or as long as shared memory brings the keys at 128 bytes a cycle."""
    ...
'''
KEYS = 2048
QUEUES = ((2, 1.4e9, 132), (1, 1.97e9, 132), (3, 1.7e9, 114), (0, 1e9, 4))


def _rate(cycles) -> object:
    return lambda queued, clock, sms: KEYS / cycles(queued) * clock * sms


def _queue(queued: int, clock: float, sms: int) -> Call:
    case = queued, clock, sms
    return Call(f"queued={queued}, clock={clock:g}, sms={sms}", case, _rate(lambda n: 64 * n + 16)(*case))


def _draw(random) -> Call:
    return _queue(random.randint(0, 5), random.randint(10, 20) * 1e8, random.randint(1, 160))


kv_rate = Exercise(
    "kv_rate",
    CHAPTER,
    KV_RATE.strip("\n"),
    [_queue(*queue) for queue in QUEUES],
    call,
    [
        Hint(
            "arithmetic only",
            "4 cycles would be enough to multiply. But the keys come from shared memory, 128 bytes a cycle: the longer "
            "of the two counts.",
            gives(_rate(lambda n: 64 * n + 4)),
        ),
        Hint(
            "one, then the other",
            "Keys are read while the product before them is multiplied: of 4 and 16 cycles the longer counts, not the "
            "sum.",
            gives(_rate(lambda n: 64 * n + 20)),
        ),
        Hint(
            "no turn of its own",
            "A round has decode's own product in it, too.",
            lambda o: isinstance(o.error, ZeroDivisionError) or gives(_rate(lambda n: 64 * n))(o),
        ),
        Hint(
            "first come",
            "Decode was served as often as all of prefill's warpgroups together. They are served one by one, each as "
            "often as decode.",
            gives(_rate(lambda n: 64 * min(n, 1) + 16)),
        ),
        Hint(
            "as long as prefill's",
            "A product of decode was taken for as long as one of prefill. It has 4 cycles of arithmetic, and 16 of "
            "reading keys.",
            gives(_rate(lambda n: 64 * (n + 1))),
        ),
        Hint(
            "thousands",
            "A KB of memory has 1,024 bytes: 2,048 of keys.",
            gives(lambda queued, clock, sms: 2000 / (64 * queued + 16) * clock * sms),
        ),
        Hint(
            "one SM",
            "That is what one SM uses up.",
            gives(lambda queued, clock, sms: KEYS / (64 * queued + 16) * clock),
        ),
    ],
    "Two queued at 1.4 GHz: 2.6 TB/s, where DRAM has more than 4. That is why prefill yields.",
    _draw,
)  # fmt: skip

EXERCISES = (late, kv_rate)

QUESTIONS = {
    "ctas-of-fa3-on-an-sm": Question(
        CHAPTER,
        "An H200 has 228 KB of shared memory on an SM, an A100 164, and both have 65,536 registers. How many CTAs with "
        "FlashAttention-3's tile fit on one SM of an H200?",
        {
            "1": "Its shared memory alone forbids a second, and its registers too.",
            "2": "That was so on the A100, with smaller tiles and Ampere's instructions.",
            "4": "128 rows take more than half of the registers, even with few keys at a time.",
        },
        "1",
    ),
    "tma-or-roles": Question(
        CHAPTER,
        "The first rung copies with all threads, the second with TMA, the third gives the copying a warpgroup of its "
        "own. Which of these two steps brings more?",
        {
            "TMA": "It brings 1.41 times, roles 1.03. Presumably it counts that all threads no longer stop to copy.",
            "roles": "They bring 1.03 times, and TMA 1.41. Presumably it leaves a copying thread little to do.",
            "the same": "TMA brings 1.41 times and roles 1.03.",
        },
        "TMA",
    ),
    "shortest-or-longest-first": Question(
        CHAPTER,
        "26 units, 56 blocks in all, 14 for each SM. How long does the slowest SM work when units are drawn as they "
        "come, shortest first? And longest first?",
        {
            "14 and 14": "A long unit that is drawn last leaves the others waiting.",
            "16 and 14": "Shortest first, a unit of 4 begins when the others are about to end. Longest first, units of "
            "1 fill the gaps.",
            "16 and 16": "Longest first, there are units of 1 left to fill the gaps.",
        },
        "16 and 14",
    ),
    "padded-to-64-rows": Question(
        CHAPTER,
        "Decode reads KV at 4.25 TB/s. How many TFLOP/s does the padded version do meanwhile, of the 989 that prefill "
        "wants for itself?",
        {
            "about 30": "So much it is when the product is turned around.",
            "about 270": "64 rows of two FLOPs for each number of two bytes: 64 FLOPs a byte.",
            "all of them": "DRAM is too slow for that: 64 FLOPs a byte at 4.25 TB/s.",
        },
        "about 270",
    ),
    "how-often-raised": Question(
        CHAPTER,
        "256 tiles of 64 random scores. In how many is the maximum raised when it must be exact, and in how many with "
        "a slack of 8?",
        {
            "about 128 and 64": "A new tile holds the largest score of all so far ever more seldom: after k tiles in "
            "one of k.",
            "about 6 and 1": "1 + 1/2 + 1/3 + ... + 1/256 is about 6. With the slack the first tile's is good enough.",
            "256 and 256": "Then every tile would have a larger score than all before it.",
        },
        "about 6 and 1",
    ),
    "enough-beside-two": Question(
        CHAPTER,
        "At 1.4 GHz and on 132 SMs: does decode get enough turns for DRAM's 4.25 TB/s beside two queued warpgroups of "
        "prefill? And beside one?",
        {
            "beside both": "2 KB every 144 cycles are 2.6 TB/s.",
            "only beside one": "2 KB every 80 cycles are 4.7 TB/s; beside two it is 2 KB every 144.",
            "not even beside one": "2 KB every 80 cycles are 4.7 TB/s.",
        },
        "only beside one",
    ),
    "one-more-chat": Question(
        CHAPTER,
        "Once decode is the longer side, what does one more chat cost in the fused kernel?",
        {
            "more than alone": "Prefill is through by then, and takes nothing from decode any more.",
            "as much": "The side that is left has the whole DRAM to itself, as alone.",
            "less": "DRAM has no more to give than alone.",
        },
        "as much",
    ),
    "fusing-when-hot": Question(
        CHAPTER,
        "Over our halves in turn, fusing gains 1.30 times in single calls (eleven batches). What does it gain when the "
        "same calls follow each other without a rest, at the power limit?",
        {
            "more, about 1.4": "So much is gained over two calls of FlashAttention-3, better halves included.",
            "the same, 1.30": "Halves in turn leave parts of the chip idle. At the power limit that may be no loss.",
            "less, about 1.2": "Our guess: an idle part leaves its watts to the others, so there is less to win.",
        },
        "less, about 1.2",
    ),
    "cut-in-two-parts": Question(
        CHAPTER,
        "Four SMs. Which chat is computed in two parts, and where is it cut?",
        {
            "B, in the middle": "SM 0 begins two units, which costs as much as some tiles, so it gets fewer.",
            "B, not in the middle": "SM 0 gets 23 tiles and SM 2 25, since the one begins two units and the other one.",
            "each of them": "Two cuts do, one through B for each KV head: six units are one and a half for each SM.",
        },
        "B, not in the middle",
    ),
    "what-yielding-gains": Question(
        CHAPTER,
        "Of eleven batches, each with and without yielding: by how much does a whole batch end sooner at most, when "
        "prefill yields?",
        {
            "about 5 %": "Most of the time decode waits for DRAM, not for its turn; and prefill gets slower.",
            "about 25 %": "So much it could be if decode waited for its turn half of the time.",
            "about 45 %": "That takes decode to wait for nothing but its turn, and prefill to lose nothing.",
        },
        "about 5 %",
    ),
    "without-which-idea": Question(
        CHAPTER,
        "Without which of these, beside the one launch, does its batch take longest?",
        {
            "splitting prefill's keys": "Half of the SMs would have nothing to do for a short chunk at a long "
            "context. An equal share of decode for each SM comes second.",
            "yielding": "Some percent, on either side.",
            "sections that fit L2": "Beside decode they bring a sixth, and alone nothing.",
        },
        "splitting prefill's keys",
    ),
    "each-side-fused": Question(
        CHAPTER,
        "Fused, will each side take as long as it takes alone?",
        {
            "yes": "They share DRAM, L2, shared memory and the tensor cores. 17d asks which of these is at its limit.",
            "both take longer": "Prefill pays more than decode. Together they still end long before the sum.",
            "only decode takes longer": "Prefill takes longer, too, and pays more than decode.",
        },
        "both take longer",
    ),
    "mean-over-two-calls": Question(
        CHAPTER,
        "The mean speed-up over two calls of FlashAttention-3: with the filter, and over all batches?",
        {
            "1.4, and 1.2": "Most batches have little to overlap; the filter leaves those out.",
            "1.4, and 1.4": "Without the filter many batches are nearly all prefill or all decode.",
            "1.2, and 1.4": "The filter keeps those with something to overlap, so its mean is the higher one.",
        },
        "1.4, and 1.2",
    ),
    "least-of-all-kinds": Question(
        CHAPTER,
        "On which kind of batch does our kernel gain least? And is there one on which it loses?",
        {
            "decodes or drafts alone, and yes": "There is nothing to overlap, and where a request or a few "
            "are all there is, it loses some.",
            "decodes alone, and no": "Decodes alone lose 1 % at most, but some drafts alone lose more.",
            "chunks beside decodes, and yes": "These are what it was made for, and they gain nearly a third.",
        },
        "decodes or drafts alone, and yes",
    ),
    "near-the-roof": Question(
        CHAPTER,
        "Decodes alone are nothing but reading. Of 50 such batches, how near to their roof is the median one?",
        {
            "95 %": "Only the best of the long ones come so near.",
            "70 %": "Many batches are short. Presumably starting 132 SMs, fetching lists and adding up parts weigh "
            "much there.",
            "40 %": "Only the shortest are that far off.",
        },
        "70 %",
    ),
    "window-of-4096": Question(
        CHAPTER,
        "The last 512 tokens of a prompt of 32K, and a chat of 32K. With a window of 4,096, where does the kernel "
        "have to *mask* keys?",
        {
            "in every block": "Most blocks are seen by all rows of a tile, or by none.",
            "at both ends of a piece": "There some rows see a key and others do not. Blocks before the window "
            "are not in the plan at all.",
            "nowhere": "A tile has many rows, and their windows do not begin at one key.",
        },
        "at both ends of a piece",
    ),
    "plan-on-the-gpu": Question(
        CHAPTER,
        "The plan of 1,024 sequences is some 8,000 records of 48 bytes. How long does the GPU take to make it?",
        {
            "about 10 µs": "Less than a layer of attention takes, and once for all layers.",
            "about 100 µs": "400 KB are written by many threads at once.",
            "about 1 ms": "That would be late for the iteration that it is made for.",
        },
        "about 10 µs",
    ),
    "which-limit": Question(
        CHAPTER,
        "In a single call of a balanced batch: which limit is reached?",
        {
            "FLOP/s": "The tensor cores reach about half of the data sheet's rate.",
            "bytes from DRAM": "A half to three quarters of its rate.",
            "bytes from L2": "70 % of what the fastest copies get.",
            "none": "Four things are between two fifths and three quarters busy at once, and each side needs all four.",
        },
        "none",
    ),
    "where-their-pod-is-good": Question(
        CHAPTER,
        "FlashInfer has a POD kernel, too. It overlaps like ours, but with Ampere's instructions. Where is it good?",
        {
            "where prefill is short": "Decode is reading, and Ampere's instructions read as well as others. "
            "Where prefill matters, they multiply at half the rate.",
            "where prefill is long": "There the tensor cores count, and Ampere's instructions reach about half "
            "of them.",
            "everywhere": "Where prefill takes two thirds of decode's time or more, it is behind two calls of "
            "FlashAttention-3.",
        },
        "where prefill is short",
    ),
}
