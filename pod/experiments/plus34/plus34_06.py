"""The same iteration when all tokens are drawn together."""

from dataclasses import replace

from pod.experiments.plus34 import plus34_05, shared

FIGURE = replace(plus34_05.FIGURE, title="Timeline after batched sampling")
SHOWN = ("one multinomial", "one copy")
draw = plus34_05.draw


def table():
    return shared.profile(*SHOWN)
