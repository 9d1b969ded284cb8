"""Your turn in chapter "attention results": a bound."""

from pod.learn.exercises.functions import Call, call, gives, same
from pod.learn.judge import Exercise, Hint
from pod.learn.questions import Question

CHAPTER = "attention_results"
BOUND = '''
def bound(prefill, decode, flops, rate):
    """Seconds that no kernel can beat for both parts, each (FLOPs, bytes). The GPU: FLOPs and bytes per second."""
    ...
'''

Part = tuple[float, float]


def _alone(part: Part, flops: float, rate: float) -> float:
    return max(part[0] / flops, part[1] / rate)


def _bound(prefill: Part, decode: Part, flops: float, rate: float) -> float:
    return _alone((prefill[0] + decode[0], prefill[1] + decode[1]), flops, rate)


def _mixed(prefill: Part, decode: Part, flops: float, rate: float) -> float:
    return max(prefill[0] / flops, decode[1] / rate)


def _case(p: Part, d: Part, flops: float, rate: float) -> Call:
    return Call(
        f"prefill={p}, decode={d}, flops={flops:g}, rate={rate:g}", (p, d, flops, rate), _bound(p, d, flops, rate)
    )


def _draw(random) -> Call:
    parts = ((10 ** random.uniform(9, 12), 10 ** random.uniform(7, 10)) for _ in range(2))
    return _case(*parts, random.uniform(1e14, 2e15), random.uniform(1e12, 8e12))


CASES = (
    ((1e9, 3e9), (1e9, 2e9)),  # both wait for memory
    ((4e11, 3e8), (4e9, 2e9)),  # one for each
    ((9e11, 4e8), (1e9, 1e9)),
    ((4e11, 1e8), (5e11, 2e8)),  # both wait for arithmetic
    ((0.0, 0.0), (2e9, 1e9)),
)
H200 = (989e12, 4.8e12)

bound = Exercise(
    "bound",
    CHAPTER,
    BOUND.strip("\n"),
    [_case(p, d, *H200) for p, d in CASES],
    call,
    [
        Hint(
            "one after the other",
            "This is the time of both parts in turn, the upper edge of the band. A kernel may do them at once.",
            gives(lambda p, d, f, r: _alone(p, f, r) + _alone(d, f, r)),
        ),
        Hint(
            "the longer part",
            "No kernel beats this, but a higher time can be promised: prefill's bytes come through the same DRAM as "
            "decode's, and decode's FLOPs through the same tensor cores. Add what they share before you take the "
            "longer.",
            gives(lambda p, d, f, r: max(_alone(p, f, r), _alone(d, f, r))),
        ),
        Hint(
            "one resource each",
            "Prefill's FLOPs beside decode's bytes: most of the work, but each part needs both, and here both may wait "
            "for the same.",
            gives(_mixed),
        ),
        Hint(
            "FLOPs, then bytes",
            "Arithmetic and memory are different machines and can work at the same time, also within a part: it is the "
            "longer of the two, not the sum.",
            gives(lambda p, d, f, r: (p[0] + d[0]) / f + (p[1] + d[1]) / r),
        ),
        Hint(
            "bytes forgotten",
            "Right where arithmetic is the limit. Both parts also have bytes to move, and here that takes longer.",
            gives(lambda p, d, f, r: (p[0] + d[0]) / f),
        ),
        Hint(
            "FLOPs forgotten",
            "Right where memory is the limit. Both parts also have FLOPs, and here these take longer.",
            gives(lambda p, d, f, r: (p[1] + d[1]) / r),
        ),
        Hint(
            "the shorter time",
            "Both machines must be done: the kernel is no faster than the one that takes longer, and this is the "
            "other one's time.",
            gives(lambda p, d, f, r: min((p[0] + d[0]) / f, (p[1] + d[1]) / r)),
        ),
        Hint(
            "the other's limit",
            "FLOPs were divided by bytes per second, and bytes by FLOPs per second. A part is (FLOPs, bytes).",
            gives(lambda p, d, f, r: max((p[0] + d[0]) / r, (p[1] + d[1]) / f)),
        ),
        Hint(
            "both times",
            "The times of both machines. One number is asked for: they work at the same time, so which of them counts?",
            lambda o: same(o.values[1], tuple((p + d) / most for p, d, most in zip(*o.case.arguments[:2],
                                                                                  o.case.arguments[2:], strict=True))),
        ),
        Hint(
            "milliseconds",
            "Right, but not in seconds.",
            gives(*(lambda *case, x=x: x * _bound(*case) for x in (1e3, 1e6))),
        ),
    ],
    "A bound says how much is left to win before anybody has built anything.",
    _draw,
)  # fmt: skip

EXERCISES = (bound,)

QUESTIONS = {
    "busy-while-decoding": Question(
        CHAPTER,
        "Decode's multiplications are a few percent of what the tensor cores could do. How busy is an SM, by the "
        "busiest of its units, while our kernel decodes?",
        {
            "about 5 %": "Of the tensor cores' time even the padding of its 16-row tile takes more, and an SM does "
            "more than multiply.",
            "about 20 %": "The counter reports the busiest pipe of an SM: loading, exponentials, addresses. The tensor "
            "cores alone are 11 % busy.",
            "about 60 %": "That is a kernel with 128 rows for a decode, all but a few of them padding.",
        },
        "about 20 %",
    ),
    "which-chat-costs": Question(
        CHAPTER,
        "On the paper's A100 with 108 SMs, the 55th chat was the expensive one. Which one is it for FlashAttention-2 "
        "on 132 SMs?",
        {
            "the 55th again": "54 chats of four KV heads fill 108 SMs twice, so there the 55th came too late. Here "
            "264 CTAs fit at once.",
            "the 67th": "66 chats of four KV heads are 264 CTAs, two on each of 132 SMs. The next four need a wave of "
            "their own.",
            "the 133rd": "A chat has a CTA for each of its four KV heads, and two fit on an SM.",
        },
        "the 67th",
    ),
    "lucky-placement": Question(
        CHAPTER,
        "In CTA-parallel's kernel, the CTAs with low numbers do prefill, and the GPU hands them out in order, one to "
        "each SM, then a second. On 132 SMs, with how many prefill CTAs does it overlap well?",
        {
            "128": "Nearly every SM gets one, and its second slot goes to decode: the perfect mixture, by accident.",
            "256": "Nearly every SM gets two, and decode waits outside until they end.",
            "both": "With 256 both slots of nearly all SMs are prefill's at first.",
        },
        "128",
    ),
    "wins-of-75": Question(
        CHAPTER,
        "Below, of all eleven ways that were timed: which wins most of the 75?",
        {
            "POD": "Its instructions are Ampere's, and overlap only hides the shorter part.",
            "two calls of FlashAttention-3": "They have Hopper's instructions, but run one after the other.",
            "our Hopper kernel": "Hopper's instructions make prefill about twice as fast, and it overlaps as well.",
        },
        "our Hopper kernel",
    ),
    "near-the-ceiling": Question(
        CHAPTER,
        "The ceiling's mean is 56 %, and the paper's POD gained 28 % on an A100. Guess the mean gain of each of the "
        "four concurrent methods here. And in how many of 100 batches will POD take at most 10 % longer than the "
        "longer part alone?",
        {
            "under 20": "So it was in the paper, with 18. Here halves and GPU are others.",
            "about 40": "Twice as often as in the paper. Its mean gain is 29 % here, that of CTA-parallel 18, "
            "of warp-parallel 11, and of two streams 4.",
            "about 80": "In most batches more than a tenth is lost. Both sides want the same L2 and the same SM, but "
            "which of them costs it was not tested.",
        },
        "about 40",
    ),
    "worst-batch-of-each": Question(
        CHAPTER,
        "And the *worst* of the filtered batches for each method: which method never loses there to one kernel after "
        "the other?",
        {
            "all of them": "Two streams and CTA-parallel lose some percent on their worst batch, and "
            "warp-parallel more.",
            "POD alone": "Its worst filtered batch still gains a tenth. By index or by halves it is fixed beforehand "
            "what a CTA does, and some batch does not suit that. Streams fix nothing and lose, too. Without the filter "
            "POD's worst is slightly slower than serial.",
            "none": "POD's worst filtered batch gains about a tenth.",
        },
        "POD alone",
    ),
}
