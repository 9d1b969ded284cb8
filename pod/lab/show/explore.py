"""A picture at a few telling settings side by side, and sliders for all the others when somebody can move them."""

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pod.lab.show import style
from pod.lab.show.says import says

PAUSE = 0.05  # seconds in which more moves of a slider are waited for


def explore(
    fn: Callable[..., object],
    show: Sequence[Mapping],
    height: float = 3.0,
    sharey: bool = False,
    takeaway: str = "",
    **ranges,
) -> Figure:
    """Draw fn(ax, **setting) for each setting of `show`, side by side; add sliders in a live notebook.

    `ranges` has one entry a slider: (low, high), (low, high, step) or a list of values. The static strip always comes,
    so the page shows the point without a kernel. A notebook that is executed by a program gets the strip alone.
    """
    _check(show, ranges)
    figure = strip(fn, show, height, sharey)
    if takeaway:  # here and not by whoever calls: a live notebook has the strip on its page before this returns
        says(figure, takeaway)
    if is_live():
        _add_sliders(fn, dict(show[-1]), ranges, figure)
    return figure


def strip(fn: Callable[..., object], show: Sequence[Mapping], height: float = 3.0, sharey: bool = False) -> Figure:
    """One panel a setting, titled with it unless fn titles it."""
    made = style.axes(9.5, height, len(show), sharey=sharey)
    panels: Sequence[Axes] = [made] if len(show) == 1 else list(made)
    for ax, setting in zip(panels, show, strict=True):
        _panel(fn, ax, setting)
        if sharey and ax is not panels[0]:
            ax.set_ylabel("")
    return panels[0].figure


def _panel(fn: Callable[..., object], ax: Axes, setting: Mapping) -> None:
    fn(ax, **setting)
    if not ax.get_title():
        ax.set_title(", ".join(f"{name.replace('_', ' ')} {value}" for name, value in setting.items()), fontsize=10)


def is_live() -> bool:
    """Whether a person can answer. A front end offers to type input; nbclient and nbval do not."""
    try:
        from IPython import get_ipython
    except ImportError:
        return False
    kernel = getattr(get_ipython(), "kernel", None)
    if kernel is None:
        return False
    return bool(kernel.get_parent("shell").get("content", {}).get("allow_stdin"))


def _add_sliders(fn: Callable[..., object], start: dict, ranges: Mapping, figure: Figure) -> None:
    import ipywidgets
    from IPython.display import display

    display(figure)
    plt.close(figure)  # it is on the page already
    sliders = {name: _slider(ipywidgets, name, values, start.get(name)) for name, values in ranges.items()}
    picture = ipywidgets.Output()

    def redraw() -> None:
        picture.outputs = (_output(fn, start | {name: slider.value for name, slider in sliders.items()}),)

    _draw_in_one_thread()
    redraw()
    moved = soon(redraw)
    for slider in sliders.values():
        slider.observe(lambda change: moved(), "value")
        _hear_in_order(slider.comm)
    display(ipywidgets.VBox([*sliders.values(), picture]))


def _hear_in_order(comm) -> None:
    """Let the thread that JupyterLab asked take every move of a slider.

    ipykernel 7.4 hands a move to whoever sent from this slider last: at first that is the thread of the cells, where it
    waits for all that run. The moves after it go by, and it undoes them.
    """
    comm._reply_subshell_for = lambda data, asked: asked


def _output(fn: Callable[..., object], setting: Mapping) -> dict:
    """The picture as a notebook keeps it, or what went wrong."""
    from IPython.core.formatters import format_display_data

    ax = style.axes(7, 3.4)
    try:
        _panel(fn, ax, setting)
        data, metadata = format_display_data(ax.figure)
        return {"output_type": "display_data", "data": data, "metadata": metadata}
    except Exception as error:
        return {"output_type": "stream", "name": "stderr", "text": f"{type(error).__name__}: {error}\n"}
    finally:
        plt.close(ax.figure)


def _draw_in_one_thread() -> None:
    """Keep matplotlib from drawing what a running cell has begun in the thread that gets the messages of widgets.

    It draws all open figures after a cell, and after each message of a widget as well.
    """
    from IPython import get_ipython

    events = getattr(get_ipython(), "events", None)
    for function in [*events.callbacks["post_execute"]] if events else ():
        if function.__module__.startswith("matplotlib"):
            events.unregister("post_execute", function)
            events.register("post_execute", _for_cells(function))


def _for_cells(function: Callable[[], None]) -> Callable[[], None]:
    def call() -> None:
        if threading.current_thread() is threading.main_thread():
            function()

    return call


def soon(draw: Callable[[], None]) -> Callable[[], None]:
    """A function that has `draw` called once for all of its calls of a moment, by the thread that runs the cells.

    JupyterLab hands the moves of a slider to another thread than the one of the cells. matplotlib, whose parser of
    formulas is shared, must not draw in two threads at a time.
    """
    try:
        cells = asyncio.get_running_loop()
    except RuntimeError:  # not in a notebook: nothing runs beside
        return draw
    asked = []

    def run() -> None:
        asked.clear()  # who moves a slider from now on is not too late
        draw()

    def begin() -> None:
        rest = asked[0] + PAUSE - cells.time()
        if rest > 0:
            cells.call_later(rest, run)
        else:
            run()  # a cell took that long; the next one, which is due, waits for the picture

    def ask() -> None:
        if not asked:
            asked.append(cells.time())
            cells.call_soon_threadsafe(begin)

    return ask


def _slider(ipywidgets, name: str, values, start):
    about = {"description": name.replace("_", " "), "continuous_update": False}
    about["style"] = {"description_width": "initial"}
    if isinstance(values, list):
        return ipywidgets.SelectionSlider(options=values, value=start if start in values else values[0], **about)
    low, high, *step = values
    kind = ipywidgets.IntSlider if all(isinstance(v, int) for v in values) else ipywidgets.FloatSlider
    steps = {"step": step[0]} if step else {}
    return kind(value=low if start is None else start, min=low, max=high, **steps, **about)


def _check(show: Sequence[Mapping], ranges: Mapping) -> None:
    if not show:
        raise ValueError("show: got no setting, allowed is at least one, e.g. show=[{'x': 1}]")
    for name, values in ranges.items():
        if not isinstance(values, list | tuple) or len(values) < 2 or (isinstance(values, tuple) and len(values) > 3):
            raise ValueError(f"{name}: got {values!r}, allowed are (low, high), (low, high, step) or a list of values")
        if any(name not in setting for setting in show):
            raise ValueError(f"show: got a setting without {name!r}, allowed are settings of every slider")
