"""Your turn in chapter "POD on Hopper": a maximum that may be late, and a queue for the tensor cores."""

import torch

from pod.learn.exercises.functions import Call, call, gives
from pod.learn.exercises.kernels import Case, launch, random
from pod.learn.judge import Exercise, Hint, Outcome

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


def _first_row(o: Outcome, fade) -> bool:
    row = o.case.arguments()[2][0].double()
    m, l = row[0], torch.tensor(0.0).double()
    for v in row:
        if v > m + SLACK:
            m, l = v, fade(l, m, v)
        l = l + (v - m).exp()
    return torch.allclose((row - m).exp() / l, o.values[1][0].double(), rtol=1e-3)


late = Exercise(
    LATE,
    [_rows("random", random(64, 33, seed=1)), _rows("rising by 60", _rising(48, 60.0)),
     _rows("random, up to a hundred", random(64, 40, seed=2, scale=30.0)), _rows("one number", random(64, 1, seed=5)),
     _rows("falling by 90", _rising(40, -90.0)), _rows("in steps of 4", torch.arange(0.0, 80.0, 4.0).repeat(64, 1))],
    launch,
    {
        "always exact": Hint(
            "m was raised by every new maximum. That is right and needs no slack, but each time the whole output is "
            "multiplied: raise it only when v is more than 8 above it.",
            _raised(lambda m, v: v > m),
        ),
        "all counted": Hint(
            "y is right. But raised[r] has counted every number of the row, not those that raised m.",
            lambda o: _right_but(o, lambda n: n),
        ),
        "at 8 as well": Hint(
            "m was raised by a number that is just 8 above it. It may stay until one is more than 8 above.",
            _raised(lambda m, v: v >= m + SLACK),
        ),
        "never raised": Hint(
            "Nobody counted, or m is still the row's first number. When another is more than 8 above it, exp(x - m) "
            "grows beyond what 16 bits hold, and in the end beyond fp32.",
            lambda o: o.values[1].dtype == torch.int32 and not o.values[1].any(),
        ),
        "raised by 8": Hint(
            "m went up by 8, not to v. v may be further above it, and the next ones need another raise.",
            _raised(lambda m, v: v > m + SLACK, to=lambda m, v: m + SLACK),
        ),
        "any distance": Hint(
            "m was raised or lowered for every v that is more than 8 away. Below m nothing overflows: m never falls.",
            _raised(lambda m, v: abs(v - m) > SLACK),
        ),
        "once": Hint(
            "raised[r] is 1 in a row that raised m several times: it counts.",
            lambda o: torch.equal(o.values[1], o.values[0].clamp(max=1)),
        ),
        "above 8": Hint(
            "m was raised when v itself is above 8. It is the distance to m that counts, v - m.",
            _raised(lambda m, v: v > SLACK),
        ),
        "one for all rows": Hint(
            "All rows count in raised[0]. Row r has raised[r].",
            lambda o: o.error is not None and o.error.element == ("raised", 0),
        ),
        "l begins anew": Hint(
            "When m is raised, l keeps what it has, only smaller: l * exp(m_old - m_new). Here it begins anew.",
            lambda o: _first_row(o, lambda l, m, v: 0 * l),
        ),
        "l not rescaled": Hint(
            "m is raised when it must be, and l keeps terms that were made with the old one: l = l * exp(m_old - "
            "m_new).",
            lambda o: _first_row(o, lambda l, m, v: l),
        ),
        "the wrong way round": Hint(
            "l grew where it should shrink: it is exp(m_old - m_new), less than exp(-8).",
            lambda o: _first_row(o, lambda l, m, v: l * (v - m).exp()),
        ),
        "not its own term": Hint(
            "The number that raises m has a term in l as well: exp(v - m) with the new m, which is 1.",
            lambda o: _first_row(o, lambda l, m, v: l * (m - v).exp() - 1),
        ),
    },
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


kv_rate = Exercise(
    KV_RATE,
    [_queue(*queue) for queue in QUEUES],
    call,
    {
        "arithmetic only": Hint(
            "4 cycles would be enough to multiply. But the keys come from shared memory, 128 bytes a cycle: the longer "
            "of the two counts.",
            gives(_rate(lambda n: 64 * n + 4)),
        ),
        "one, then the other": Hint(
            "Keys are read while the product before them is multiplied: of 4 and 16 cycles the longer counts, not the "
            "sum.",
            gives(_rate(lambda n: 64 * n + 20)),
        ),
        "no turn of its own": Hint(
            "A round has decode's own product in it, too.",
            lambda o: isinstance(o.error, ZeroDivisionError) or gives(_rate(lambda n: 64 * n))(o),
        ),
        "first come": Hint(
            "Decode was served as often as all of prefill's warpgroups together. They are served one by one, each as "
            "often as decode.",
            gives(_rate(lambda n: 64 * min(n, 1) + 16)),
        ),
        "as long as prefill's": Hint(
            "A product of decode was taken for as long as one of prefill. It has 4 cycles of arithmetic, and 16 of "
            "reading keys.",
            gives(_rate(lambda n: 64 * (n + 1))),
        ),
        "thousands": Hint(
            "A KB of memory has 1,024 bytes: 2,048 of keys.",
            gives(lambda queued, clock, sms: 2000 / (64 * queued + 16) * clock * sms),
        ),
        "one SM": Hint(
            "That is what one SM uses up.",
            gives(lambda queued, clock, sms: KEYS / (64 * queued + 16) * clock),
        ),
    },
    "Two queued at 1.4 GHz: 2.6 TB/s, where DRAM has more than 4. That is why prefill yields.",
    lambda random: _queue(random.randint(0, 5), random.randint(10, 20) * 1e8, random.randint(1, 160)),
)  # fmt: skip
