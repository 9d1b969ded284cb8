"""Pictures. Every function returns the Figure or the Axes that it drew, and draws into `ax` when it gets one."""

from pod.show.band import band, overlap
from pod.show.explore import explore
from pod.show.gantt import gantt, idle_share
from pod.show.lanes import lanes
from pod.show.roofline import roofline
from pod.show.tiles import causal_cells, tiles
from pod.show.violins import violins

__all__ = ["band", "causal_cells", "explore", "gantt", "idle_share", "lanes", "overlap", "roofline", "tiles", "violins"]
