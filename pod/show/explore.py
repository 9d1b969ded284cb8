"""A picture at a few telling settings side by side, and sliders for all the others when somebody can move them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pod.show import style


def explore(
    fn: Callable[..., object], show: Sequence[Mapping], height: float = 3.0, sharey: bool = False, **ranges
) -> Figure:
    """Draw fn(ax, **setting) for each setting of `show`, side by side; add sliders in a live notebook.

    `ranges` has one entry a slider: (low, high), (low, high, step) or a list of values. The static strip always comes,
    so the page shows the point without a kernel. A notebook that is executed by a program gets the strip alone.
    """
    _check(show, ranges)
    figure = strip(fn, show, height, sharey)
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

    def redraw(**setting):
        _panel(fn, style.axes(7, 3.4), start | setting)
        plt.show()

    display(figure)
    plt.close(figure)  # it is on the page already
    sliders = {name: _slider(ipywidgets, name, values, start.get(name)) for name, values in ranges.items()}
    picture = ipywidgets.interactive_output(redraw, sliders)
    display(ipywidgets.VBox([*sliders.values(), picture]))


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
