"""A picture is measured three times before it is drawn, and nothing in it moves while one of its axes is looked at."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps

from matplotlib.axes import Axes
from matplotlib.axis import Axis


@contextmanager
def ticks_stay() -> Iterator[None]:
    """matplotlib asks an axis a dozen times for the same ticks and the boxes of their labels, each time it measures or
    draws the Axes around it. Here it asks once: what it was told is forgotten when that one look ends."""
    find, boxes, looks = Axis._update_ticks, Axis._get_ticklabel_bboxes, (Axes.get_tightbbox, Axes.draw)

    def still(look: Callable) -> Callable:
        @wraps(look)
        def around(*args, **options):
            known = {}

            def boxes_once(axis, ticks, renderer=None):
                if axis not in known:
                    known[axis] = boxes(axis, ticks, renderer)
                return known[axis]

            Axis._update_ticks, Axis._get_ticklabel_bboxes = cache(find), boxes_once
            try:
                return look(*args, **options)
            finally:
                Axis._update_ticks, Axis._get_ticklabel_bboxes = find, boxes

        return around

    Axes.get_tightbbox, Axes.draw = map(still, looks)
    try:
        yield
    finally:
        Axes.get_tightbbox, Axes.draw = looks
