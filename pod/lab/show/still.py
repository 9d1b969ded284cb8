"""A picture is measured three times before it is drawn, and nothing in it moves while one of its axes is looked at."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps

from matplotlib import text
from matplotlib.axes import Axes
from matplotlib.axis import Axis

SIZES: dict[tuple, tuple[float, float, float]] = {}  # of words: width, height and descent


@contextmanager
def stays() -> Iterator[None]:
    """Inside, ticks and words are measured as often as they can change. The pixels are the same."""
    with _ticks_stay(), _words_stay():
        yield


@contextmanager
def _ticks_stay() -> Iterator[None]:
    """matplotlib asks an axis a dozen times for the same ticks and the boxes of their labels, each time it measures or
    draws the Axes around it, and sets the lines of a text anew. Here it asks once: what it was told is forgotten when
    that one look ends."""
    find, boxes, lines = Axis._update_ticks, Axis._get_ticklabel_bboxes, text.Text._get_layout
    looks = Axes.get_tightbbox, Axes.draw

    def still(look: Callable) -> Callable:
        @wraps(look)
        def around(*args, **options):
            known = {}

            def boxes_once(axis, ticks, renderer=None):
                if axis not in known:
                    known[axis] = boxes(axis, ticks, renderer)
                return known[axis]

            Axis._update_ticks, Axis._get_ticklabel_bboxes = cache(find), boxes_once
            text.Text._get_layout = cache(lines)
            try:
                return look(*args, **options)
            finally:
                Axis._update_ticks, Axis._get_ticklabel_bboxes, text.Text._get_layout = find, boxes, lines

        return around

    Axes.get_tightbbox, Axes.draw = map(still, looks)
    try:
        yield
    finally:
        Axes.get_tightbbox, Axes.draw = looks


@contextmanager
def _words_stay() -> Iterator[None]:
    """matplotlib remembers how large words are for one canvas, and a picture has two: that on which it is measured, and
    that which is cut to what it holds. Pixels know nothing of canvases, so here all pictures share what is known."""
    measure, text._get_text_metrics_with_cache = text._get_text_metrics_with_cache, _size
    try:
        yield
    finally:
        text._get_text_metrics_with_cache = measure


def _size(renderer, words: str, font, ismath, dpi: float) -> tuple[float, float, float]:
    key = words, hash(font), ismath, dpi
    if key not in SIZES:
        SIZES[key] = renderer.get_text_width_height_descent(words, font, ismath)
    return SIZES[key]
