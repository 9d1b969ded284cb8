"""Your turn in chapter "POD on Hopper": the barriers of a ring, and the parity that each side waits for."""

from pod.learn.exercises.functions import Call, call, gives
from pod.learn.judge import Exercise, Hint

RING = '''
def ring(copy, stages):
    """Three numbers: the stage of a ring that this copy goes to (copies are counted from 0), the parity for which its
    readers wait at the stage's `filled`, and the parity for which the producer waits at `emptied` before it copies."""
    ...
'''


def _in_turns(copy, stages):
    turn = copy // stages
    return copy % stages, turn % 2, (turn + 1) % 2


def _by_copies(copy, stages):
    return copy % stages, copy % 2, (copy + 1) % 2


def _by_stages(copy, stages):
    stage = copy % stages
    return stage, stage % 2, (stage + 1) % 2


def _both_alike(copy, stages):
    stage, filled, _ = _in_turns(copy, stages)
    return stage, filled, filled


def _swapped(copy, stages):
    stage, filled, emptied = _in_turns(copy, stages)
    return stage, emptied, filled


def _a_turn_late(copy, stages):
    stage, _, emptied = _in_turns(copy, stages)
    return stage, emptied, emptied


def _case(copy: int, stages: int) -> Call:
    return Call(f"copy={copy}, stages={stages}", (copy, stages), _in_turns(copy, stages))


ring = Exercise(
    RING,
    [_case(*case) for case in ((0, 2), (1, 2), (2, 2), (3, 2), (4, 3), (8, 3), (11, 4))],
    call,
    {
        "another order": Hint(
            "The three are right, in another order: the stage, then the readers' parity, then the producer's.",
            gives(*(lambda copy, stages, order=order: tuple(_in_turns(copy, stages)[i] for i in order)
                    for order in ((1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)))),
        ),
        "the other way round": Hint(
            "Both parities are there, each at the other's barrier: readers go on before anything has come, and the "
            "producer waits for ever.",
            lambda o: o.case.arguments[0] == 0 and gives(_swapped)(o),
        ),
        "stages from 1 on": Hint(
            "Stages count from 0 here, as copies do.",
            gives(lambda copy, stages: (copy % stages + 1, *_in_turns(copy, stages)[1:])),
        ),
        "the first turn only": Hint(
            "That is right in the first turn of the ring. In the second, all of its mbarriers are in their next phase, "
            "and readers that still wait for parity 0 read what the first turn has left.",
            gives(lambda copy, stages: (copy % stages, 0, 1)),
        ),
        "phases by their number": Hint(
            "An mbarrier does not know how many phases it has had, only whether the number of the last one is odd.",
            gives(lambda copy, stages: (copy % stages, copy // stages, copy // stages - 1),
                  lambda copy, stages: (copy % stages, copy // stages, copy // stages + 1)),
        ),
        "the same for both": Hint(
            "Before the first copy nobody has read anything, so the producer waits for ever. It needs what the readers "
            "completed a turn before: the other parity.",
            gives(_both_alike),
        ),
        "a turn late": Hint(
            "The producer's parity is right. But the readers wait for the phase before theirs, which counts as "
            "complete: they read before anything has come.",
            gives(_a_turn_late),
        ),
        "not the turn's parity": Hint(
            "Every stage has mbarriers of its own, and their phase changes once in a turn of the ring. Neither the "
            "copy's number nor the stage's says by itself which turn that is.",
            gives(_by_copies, _by_stages),
        ),
        "stage and turn": Hint(
            "The stage is what is left over when all full turns of the ring are taken away.",
            lambda o: o.values[1][0] == o.case.arguments[0] // o.case.arguments[1] != o.values[0][0],
        ),
    },
    "`Ring` in csrc/include/ring.cuh does it so: no thread ever sets a barrier back.",
    lambda random: _case(random.randint(0, 60), random.randint(1, 9)),
)  # fmt: skip
