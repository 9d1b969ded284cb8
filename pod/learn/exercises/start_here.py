"""Your turn in chapter "start here": the place in the band."""

from __future__ import annotations

from pod.learn.exercises.functions import Call, call, gives
from pod.learn.judge import Exercise, Hint

PLACE = '''
def place(fused, prefill, decode):
    """Where in the band a fused kernel is: 0 at one part after the other, 1 at perfect overlap. Times in µs."""
    ...
'''


def _place(fused: float, prefill: float, decode: float) -> float:
    return (prefill + decode - fused) / min(prefill, decode)


def _case(fused: float, prefill: float, decode: float) -> Call:
    said = f"fused={fused}, prefill={prefill}, decode={decode}"
    return Call(said, (fused, prefill, decode), _place(fused, prefill, decode))


def _draw(random) -> Call:
    prefill, decode = random.randint(10, 999), random.randint(10, 999)
    return _case(random.randint(max(prefill, decode), prefill + decode + 50), prefill, decode)


CASES = ((350, 300, 100), (350, 100, 300), (700, 633, 659), (1292, 633, 659), (440, 300, 100), (300, 300, 100))

place = Exercise(
    PLACE,
    [_case(*case) for case in CASES],
    call,
    {
        "the other way up": Hint(
            "Here 0 is perfect overlap. Count from the upper edge: how much of the way down has the kernel come?",
            gives(lambda f, p, d: (f - max(p, d)) / min(p, d)),
        ),
        "a speed-up": Hint(
            "That is the speed-up over one after the other. With unequal parts even the best kernel gets little.",
            gives(lambda f, p, d: (p + d) / f, lambda f, p, d: (p + d) / f - 1),
        ),
        "of all the time": Hint(
            "That is what was saved, as a part of all the time. At most the shorter part can be saved: divide by that.",
            gives(lambda f, p, d: (p + d - f) / (p + d)),
        ),
        "of the best": Hint(
            "That compares with perfect overlap alone, and one after the other is not 0. A place needs both edges.",
            gives(lambda f, p, d: max(p, d) / f, lambda f, p, d: f / max(p, d)),
        ),
        "one part is the longer": Hint(
            "Right as long as prefill is the longer one. Either may be: the band is as high as the shorter part.",
            gives(lambda f, p, d: (p + d - f) / d),
        ),
        "the other is the longer": Hint(
            "Right as long as decode is the longer one. Either may be: the band is as high as the shorter part.",
            gives(lambda f, p, d: (p + d - f) / p),
        ),
        "the longer part": Hint(
            "That is what was saved, over the longer part. At most the shorter one can be saved: divide by that.",
            gives(lambda f, p, d: (p + d - f) / max(p, d)),
        ),
        "never below 0": Hint(
            "A bad fusion is slower than none, and its place is below 0. Do not hide that.",
            gives(lambda f, p, d: max(0, _place(f, p, d)), lambda f, p, d: abs(_place(f, p, d))),
        ),
        "below the wrong edge": Hint(
            "The sign is turned: a kernel that takes less than one after the other is above 0.",
            gives(lambda f, p, d: -_place(f, p, d)),
        ),
        "microseconds": Hint(
            "That is what was saved, in µs. Which part is it of what could be saved?", gives(lambda f, p, d: p + d - f)
        ),
        "in percent": Hint(
            "Right, in percent. From 0 to 1 is asked for.", gives(lambda f, p, d: 100 * _place(f, p, d))
        ),
    },
    "`pod.lab.show.overlap` is this line, and the last column of the table above.",
    _draw,
)
