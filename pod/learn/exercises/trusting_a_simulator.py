"""Your turn in notebook "trusting a simulator": how far off it is about a run that it has not seen."""

from collections.abc import Callable, Iterable

from pod.learn.exercises.functions import Call, call, gives
from pod.learn.judge import Exercise, Hint

UNSEEN = '''
def unseen(runs, name):
    """How far off a simulator is about the run of this name, of which it has seen nothing: in % of the measured time,
    without a sign. runs: by name, (attention, seconds of its operators one by one, measured seconds).

    It simulates pace * seconds of the operators. The pace is what the other runs of the same attention measured, all
    together, over what their operators take, all together."""
    ...
'''


def _others(runs: dict, name: str) -> list[tuple]:
    return [run for other, run in runs.items() if other != name and run[0] == runs[name][0]]


def _same_attention(runs: dict, name: str) -> list[tuple]:
    """The judged run among them."""
    return [run for run in runs.values() if run[0] == runs[name][0]]


def _everything(runs: dict, name: str) -> list[tuple]:
    return list(runs.values())


def _all_together(seen: Iterable[tuple]) -> float:
    _, operators, measured = zip(*seen, strict=True)
    return sum(measured) / sum(operators)


def _each_alike(seen: Iterable[tuple]) -> float:
    ratios = [measured / operators for _, operators, measured in seen]
    return sum(ratios) / len(ratios)


def _error(simulated: float, measured: float) -> float:
    return 100 * abs(simulated / measured - 1)


def _judged(seen: Callable = _others, pace: Callable = _all_together, error: Callable = _error) -> Callable:
    """A way to judge, by what it learns from, how, and what it calls the error."""

    def rule(runs: dict, name: str) -> float:
        _, operators, measured = runs[name]
        return error(pace(seen(runs, name)) * operators, measured)

    return rule


def _case(name: str, runs: dict) -> Call:
    return Call(f"{runs}, {name!r}", (runs, name), _judged()(runs, name))


def _draw(random) -> Call:
    """Runs of two attentions, two to four of each, of unequal length."""
    runs = {}
    for attention, slower in (("fa3", 1.15), ("ours", 1.04)):
        for i in range(random.randint(2, 4)):
            operators = round(random.choice((1, 5)) * random.uniform(5, 12), 1)
            pace = slower + random.uniform(-0.04, 0.04)
            runs[f"{attention} {i + 1}"] = (attention, operators, round(pace * operators, 1))
    return _case(random.choice(list(runs)), runs)


OFFLINE = {  # of the recorded runs on one H200
    "llama-3-8b, fa3": ("fa3", 53.3, 62.7),
    "llama-3-8b, ours": ("ours", 49.1, 51.5),
    "yi-6b, fa3": ("fa3", 50.4, 59.2),
    "yi-6b, ours": ("ours", 45.9, 48.2),
    "llama-2-7b, fa3": ("fa3", 51.0, 58.4),
    "llama-2-7b, ours": ("ours", 49.4, 51.0),
}
SERVERS = {
    "calm, fa3": ("fa3", 56.9, 60.7),
    "full, fa3": ("fa3", 7.7, 9.1),
    "calm, ours": ("ours", 52.0, 53.8),
    "full, ours": ("ours", 7.3, 8.2),
}
CASES = (
    ("llama-3-8b, fa3", OFFLINE),
    ("llama-2-7b, ours", OFFLINE),
    ("calm, fa3", SERVERS),
    ("full, ours", SERVERS),
    ("calm, ours", {**OFFLINE, **SERVERS}),
)

unseen = Exercise(
    UNSEEN,
    [_case(*case) for case in CASES],
    call,
    {
        "only itself": Hint(
            "An error of 0, every time. So it comes out when the pace is the run's own, and then nothing is tested.",
            lambda o: abs(o.values[1]) < 1e-9,
        ),
        "it was taught by itself": Hint(
            "Among those that teach is the run that is judged. Whoever has seen a run knows it better than any other.",
            gives(_judged(_same_attention), _judged(_everything)),
        ),
        "any attention": Hint(
            "Runs of another attention teach here, too. They have another pace, as their kernels take other power.",
            gives(_judged(lambda runs, name: [run for other, run in runs.items() if other != name])),
        ),
        "nothing learned": Hint(
            "Here a run takes as long as its operators one by one. The other runs say how much longer it takes.",
            gives(_judged(pace=lambda seen: 1.0)),
        ),
        "each run alike": Hint(
            "That is the mean of the runs' own paces. A run of 8 seconds counts there as much as one of 60: add up "
            "first, then divide.",
            gives(_judged(pace=_each_alike)),
        ),
        "the pace upside down": Hint(
            "The pace is measured over operators, above 1 where a run takes longer than they do.",
            gives(_judged(pace=lambda seen: 1 / _all_together(seen))),
        ),
        "with a sign": Hint(
            "Right but for the sign. Simulated too short is as far off as too long.",
            gives(lambda *case: -_judged()(*case)),
        ),
        "a part of one": Hint("Right, as a part of one. In %: 0.03 is 3.", gives(lambda *case: _judged()(*case) / 100)),
        "of the simulated time": Hint(
            "That is the error in % of what was simulated. What was measured is the truth, and the error is a part of "
            "it.",
            gives(_judged(error=lambda simulated, measured: 100 * abs(measured / simulated - 1))),
        ),
        "seconds": Hint(
            "That is how many seconds it is off. In % of the measured time.",
            gives(_judged(error=lambda simulated, measured: abs(simulated - measured))),
        ),
        "the simulated time": Hint(
            "That is what the simulator says. How far is it from what was measured?",
            gives(_judged(error=lambda simulated, measured: simulated)),
        ),
    },
    "The gates below judge unseen runs so, batch by batch, and the time of the host with them.",
    _draw,
)
