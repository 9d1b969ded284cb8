"""What a picture says, in a line above it."""

from __future__ import annotations

from matplotlib.figure import Figure

LINE = 0.3  # inches
HEADING = {"size": 12, "weight": "bold"}


def says(figure: Figure, words: str) -> Figure:
    """The takeaway above a picture, which grows by that line. Where a legend lies above the panels it heads the legend:
    constrained layout would put a title and such a legend into the same place."""
    figure.set_figheight(figure.get_figheight() + LINE)
    above = [legend for legend in figure.legends if legend._outside_loc == "upper"]
    if above:
        above[0].set_title(words, HEADING)
    else:
        figure.suptitle(words, fontproperties=HEADING)
    return figure
