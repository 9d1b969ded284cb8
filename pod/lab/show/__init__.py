"""Pictures. Every function returns the Figure or the Axes that it drew, and draws into `ax` when it gets one."""

from pod.lab.show.band import band, overlap
from pod.lab.show.explore import explore
from pod.lab.show.gantt import gantt, idle_share
from pod.lab.show.lanes import lanes
from pod.lab.show.roofline import roofline
from pod.lab.show.says import says
from pod.lab.show.tiles import causal_cells, tiles
from pod.lab.show.violins import violins

__all__ = [
    "band", "causal_cells", "explore", "gantt", "idle_share", "lanes", "overlap", "roofline", "says", "tiles",
    "violins",
]  # fmt: skip
