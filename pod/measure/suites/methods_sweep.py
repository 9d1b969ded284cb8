"""Figure 11: the five methods of csrc/hybrid.cu, both configurations of POD, and peers, on the paper's batches."""

from __future__ import annotations

from random import Random

from pod.hardware import H200
from pod.measure import peers
from pod.measure.suites import hopper_sweep, table_row

DOC = "the paper's hybrid batches (Figure 11), our five methods, POD's configurations and the peers side by side."
KEYS = hopper_sweep.KEYS
UNITS = ("hybrid",)
ROUNDS, LEAST, REPEATS = 3, 2, 6
EVEN = 300  # the first rows: a fair sample of the whole sweep, for the view without a filter
PREFILL_RATE, DECODE_RATE = 0.35, 0.85  # of the peaks, roughly; they decide the order of rows and nothing else
LEAST_SHARE = 0.15  # below the paper's 20 %, so that no batch near its filter is lost

WAYS = peers.HALVES | peers.FAMILY | peers.CONFIGURATIONS
WAYS |= {name: peers.TORCH_PEERS[name] for name in ("fa2_serial", "fa2_streams")}
WAYS |= {name: peers.PEERS[name] for name in ("fa3_serial", "fi_fa2_serial", "fi_fa2_batched", "fi_pod")}
WAYS["hopper"] = peers.ours


def cases() -> list[dict]:
    """The rows of hopper-sweep in an order that serves whoever stops early: a fair sample (`even`), then in random
    order the batches that may pass the paper's filter, then the rest."""
    rows = hopper_sweep.cases()
    rows = [case | {"even": int(i < EVEN)} for i, case in enumerate(Random(0).sample(rows, len(rows)))]
    return rows[:EVEN] + sorted(rows[EVEN:], key=lambda case: not _is_balanced(case))


def _is_balanced(case: dict) -> bool:
    prefill, decode = hopper_sweep.batch_of(case).times(H200)
    prefill, decode = prefill / PREFILL_RATE, decode / DECODE_RATE
    return min(prefill, decode) >= LEAST_SHARE * (prefill + decode)


def measure(case: dict) -> dict:
    return table_row(peers.Setting(hopper_sweep.batch_of(case)), WAYS, ROUNDS, ms=1.0, least=LEAST)
