"""Your turn in chapter "chunked prefill": the token budget, and the holes in a pipeline."""

from pod.learn.exercises.functions import Call, call, fewer, gives, shorter, smaller
from pod.learn.judge import Exercise, Hint

# ---------------------------------------------------------------- the budget

FILL = '''
def fill(budget, decodes, prompts):
    """How many tokens of each prompt the iteration takes. It has room for `budget` tokens, of which each of so many
    decodes takes one; the rest goes to the prompts, oldest first. `prompts`: how much of each is still to do."""
    ...
'''


def _fill(budget: int, decodes: int, prompts: list) -> list:
    left, taken = max(0, budget - decodes), []
    for prompt in prompts:
        taken.append(min(prompt, left))
        left -= taken[-1]
    return taken


def _whole(budget: int, decodes: int, prompts: list) -> list:
    left, taken = budget - decodes, []
    for prompt in prompts:
        taken.append(prompt if prompt <= left else 0)
        left -= taken[-1]
    return taken


def _in_debt(budget: int, decodes: int, prompts: list) -> list:
    left, taken = budget - decodes, []
    for prompt in prompts:
        taken.append(min(prompt, left))
        left -= taken[-1]
    return taken


def _past_the_end(budget: int, decodes: int, prompts: list) -> list:
    """Every prompt is taken off what is left, also the part of it for which there was no room."""
    left, taken = budget - decodes, []
    for prompt in prompts:
        taken.append(min(prompt, left))
        left -= prompt
    return taken


def _rest_twice(budget: int, decodes: int, prompts: list) -> list:
    left, taken = max(0, budget - decodes), []
    for prompt in prompts:
        taken.append(min(prompt, left))
        left -= prompt if prompt <= left else 0
    return taken


def _in_another_order(key):
    def taken(budget: int, decodes: int, prompts: list) -> list:
        order, found = sorted(range(len(prompts)), key=lambda i: key(i, prompts[i])), [0] * len(prompts)
        for i, n in zip(order, _fill(budget, decodes, [prompts[i] for i in order]), strict=True):
            found[i] = n
        return found

    return taken


def _cut_short(budget: int, decodes: int, prompts: list) -> list:
    return [n for n in _fill(budget, decodes, prompts) if n]


def _iteration(budget: int, decodes: int, prompts: list) -> Call:
    said = f"budget={budget}, decodes={decodes}, prompts={prompts}"
    return Call(said, (budget, decodes, prompts), _fill(budget, decodes, prompts))


def _draw_iteration(random) -> Call:
    prompts = [random.randint(1, 900) for _ in range(random.randint(0, 6))]
    return _iteration(random.choice((256, 512, 1024)), random.randint(0, 300), prompts)


ITERATIONS = (
    (1024, 40, [12288]),
    (1024, 40, [300, 5000]),
    (512, 100, [200, 100, 300, 50]),
    (1024, 24, [1000, 50]),
    (256, 300, [1000, 20]),
    (512, 7, []),
)

fill = Exercise(
    FILL,
    [_iteration(*iteration) for iteration in ITERATIONS],
    call,
    {
        "decodes ride free": Hint(
            "A decode is a row of the matrix products like any other. The budget counts all rows, or 1,024 of a prompt "
            "and 40 decodes open another tile.",
            gives(lambda budget, decodes, prompts: _fill(budget, 0, prompts)),
        ),
        "a budget each": Hint(
            "Each prompt took as much as if it were alone. What the first takes is gone for the second.",
            gives(lambda budget, decodes, prompts: [min(p, max(0, budget - decodes)) for p in prompts]),
        ),
        "one prompt only": Hint(
            "The oldest prompt does not fill the budget, and the next one waits. It may have the rest.",
            gives(lambda budget, decodes, prompts: [*_fill(budget, decodes, prompts[:1]), *[0] * (len(prompts) - 1)]),
        ),
        "whole prompts": Hint(
            "A prompt that does not fit the budget waits here, and a long one for ever. That is what chunks are for: "
            "take as much of it as there is room.",
            gives(_whole),
        ),
        "equal parts": Hint(
            "All prompts got an equal part. Then all of them end late; oldest first, the first ends soon and the "
            "others no later.",
            gives(lambda b, d, prompts: [min(p, max(0, b - d) // max(1, len(prompts))) for p in prompts]),
        ),
        "less than nothing": Hint(
            "More decodes than budget: nobody waits for a token, so all of them run, and nothing is left for prompts. "
            "Nothing is 0.",
            gives(_in_debt),
        ),
        "taken off in full": Hint(
            "A prompt for which there was too little room was taken off in full, so less than nothing is left for the "
            "next. Take off what it got.",
            gives(_past_the_end, lambda *it: [max(0, n) for n in _past_the_end(*it)]),
        ),
        "what remains": Hint(
            "That is what remains of each prompt after the iteration. Asked for is what the iteration takes.",
            gives(lambda b, d, prompts: [p - n for p, n in zip(prompts, _fill(b, d, prompts), strict=True)]),
        ),
        "the rest twice": Hint(
            "The first prompt that does not fit took the rest, and the next one took it again. What is taken is gone.",
            gives(_rest_twice),
        ),
        "another order": Hint(
            "Here the latest or the shortest go first. Prompts are listed oldest first, and the oldest goes first.",
            gives(_in_another_order(lambda i, _: -i), _in_another_order(lambda _, n: n)),
        ),
        "a number each": Hint(
            "The list has one number for each prompt, 0 for those that get nothing.",
            gives(_cut_short, lambda b, d, prompts: sum(_fill(b, d, prompts))),
        ),
    },
    "That is Sarathi's whole idea. Who adds a limit on how many prompts, has POD's: its published kernel takes one.",
    _draw_iteration,
    smaller(_iteration, fewer(1), fewer(0), shorter(0, fewer(1))),
)

# ---------------------------------------------------------------- a pipeline

LAST_OUT = '''
def last_out(times, stages):
    """When the last micro-batch leaves the last stage. Each goes through all stages, in order, and takes as long in
    each of them: `times`. A stage has one at a time, and nobody overtakes."""
    ...
'''


def _last_out(times: list, stages: int) -> float:
    ends = [0.0] * stages
    for time in times:
        now = 0.0
        for stage in range(stages):
            now = ends[stage] = max(now, ends[stage]) + time
    return ends[-1]


def _line(times: list, stages: int) -> Call:
    return Call(f"times={times}, stages={stages}", (times, stages), _last_out(times, stages))


LINES = (([1, 1, 1, 1], 2), ([4, 1, 1], 2), ([1, 4, 2], 3), ([1, 2, 5], 4), ([2, 2, 7, 1, 1, 3], 3), ([6], 8))

last_out = Exercise(
    LAST_OUT,
    [_line(*line) for line in LINES],
    call,
    {
        "one after the other": Hint(
            "Here a micro-batch enters when the one before has left the last stage. It may follow as soon as the first "
            "stage is free.",
            gives(lambda times, stages: stages * sum(times)),
        ),
        "one stage": Hint(
            "This is when the last one leaves the *first* stage.",
            gives(lambda times, stages: sum(times)),
        ),
        "equal times": Hint(
            "So many steps of the mean time: right when all are alike. A long one holds up everybody behind it, in "
            "every stage.",
            gives(lambda times, stages: (len(times) + stages - 1) * sum(times) / len(times)),
        ),
        "all as long as the longest": Hint(
            "As many steps as there are, each as long as the longest micro-batch. While a short one is under way "
            "nothing takes so long.",
            gives(lambda times, stages: (len(times) + stages - 1) * max(times)),
        ),
        "only the last one": Hint(
            "All go through the first stage, then the last one alone through the others, as if nobody were in its way. "
            "A long one ahead of it still is.",
            gives(lambda times, stages: sum(times) + (stages - 1) * times[-1]),
        ),
        "only the first one": Hint(
            "The first one opens the way, and from then on the last stage is never empty, you say. Behind a short one "
            "it waits for a longer one.",
            gives(lambda times, stages: sum(times) + (stages - 1) * times[0]),
        ),
        "shared out": Hint(
            "As if all stages worked on one micro-batch together. Each goes through all of them, one after the other.",
            gives(lambda times, stages: sum(times) / stages),
        ),
        "in step": Hint(
            "Here all stages move on together, each step as long as its longest. A stage that is free may begin while "
            "another is still busy.",
            gives(lambda times, stages: sum(max(times[max(0, i - stages + 1) : i + 1])
                                            for i in range(len(times) + stages - 1))),
        ),
    },
    "Look closer: it is always the sum, and the longest once more for each other stage. So a prompt cut in chunks "
    "saves holes even if its work stays the same.",
    lambda random: _line([random.randint(1, 9) for _ in range(random.randint(1, 8))], random.randint(1, 6)),
    smaller(_line, shorter(1, fewer(1)), fewer(1)),
)  # fmt: skip
