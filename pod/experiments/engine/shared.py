"""Tables that start from the engine's recorded runs: for runs that were measured here they are made now."""

import pandas as pd

from pod.data import read
from pod.lab.measure import compute
from pod.simulate import calibrate


def of_runs(name: str) -> pd.DataFrame:
    """Read, or made in some seconds."""
    return read(name) if calibrate.log() == compute.path_of("engine-runs") else _made_now(name)


@calibrate.kept
def _made_now(name: str) -> pd.DataFrame:
    return pd.DataFrame([row for case in compute.maker(name).cases() for row in compute.rows_of(name, case)])
