"""The same iteration when all tokens are drawn together."""

from __future__ import annotations

from dataclasses import replace

from pod.figures import plus34_05

FIGURE = replace(
    plus34_05.FIGURE, id="plus34-06", source="+34 % post, Figure 6", title="Timeline after batched sampling"
)
SHOWN = ("one multinomial", "one copy")
draw = plus34_05.draw


def table():
    from pod.figures import _plus34

    return _plus34.profile(*SHOWN)
