"""A picture is the same whether matplotlib asks for its ticks and words once or a dozen times, and asks anew when they
move."""

from matplotlib import text
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import RendererAgg

from pod.lab import gallery
from pod.lab.show import still, style


def picture():
    left, right = style.axes(6, 3, columns=2)
    left.plot([1, 20, 3000])
    left.set(yscale="log", xlabel="x", ylabel="y", title="t")
    right.barh(["a", "a longer name"], [1, 2])
    right.twiny().plot([0, 1e5], [0, 1], "--")
    return left.figure


def test_what_stays_changes_no_picture():
    alone = gallery._pixels(picture())
    with still.stays():
        assert gallery._pixels(picture()) == alone


def test_an_axis_is_asked_anew_at_each_look(monkeypatch):
    asked, find = [], Axis._update_ticks
    monkeypatch.setattr(Axis, "_update_ticks", lambda axis: asked.append(axis) or find(axis))
    figure = picture()
    figure.set_layout_engine(None)
    ax, renderer = figure.axes[0], figure.canvas.get_renderer()
    with still.stays():
        before = ax.get_tightbbox(renderer)
        assert len(asked) == len(set(asked)) == 2  # x and y, once each
        ax.set_xlim(0, 1e9)
        ax.set_ylabel("")
        assert ax.get_tightbbox(renderer).x0 > before.x0 and len(asked) == 4


def test_words_are_as_large_on_any_canvas(monkeypatch):
    asked, size = [], RendererAgg.get_text_width_height_descent
    monkeypatch.setattr(RendererAgg, "get_text_width_height_descent",
                        lambda canvas, words, *how: asked.append(words) or size(canvas, words, *how))  # fmt: skip
    monkeypatch.setattr(still, "SIZES", {})
    with still.stays():
        gallery._pixels(picture())
        assert "a longer name" in asked and len(asked) == len(still.SIZES)
        gallery._pixels(picture())
    assert len(asked) == len(still.SIZES)


def test_matplotlib_is_left_as_it_was():
    were = patched()
    with still.stays():
        gallery._pixels(picture())
    assert were == patched()


def patched():
    return (Axes.get_tightbbox, Axes.draw, Axis._update_ticks, Axis._get_ticklabel_bboxes, text.Text._get_layout,
            text._get_text_metrics_with_cache)  # fmt: skip
