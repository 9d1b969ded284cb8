"""The same batches as Sarathi-Serve and vLLM 0.2.7 made: schedules that no author of these schedulers has written."""

import csv
from itertools import groupby

import pytest

from pod.files import ROOT
from pod.serving.blocks import PagedPool, ReservedPool
from pod.serving.loop import serve
from pod.serving.request import Request
from pod.serving.schedulers import SCHEDULERS, VLLM, Sarathi
from pod.serving.schedulers.published import PUBLISHED, PaddedVLLM, PublishedPool, SarathiServe, published
from pod.simulate.run import Setup

FOLDER = ROOT / "tests" / "golden"
TICKS = 2**20  # in a second


def read(name: str) -> list[dict[str, str]]:
    with (FOLDER / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


RUNS = {row["run"]: row for row in read("runs.csv")}
BATCHES = {run: [(row["start"], row["batch"], row["preempted"]) for row in rows]
           for run, rows in groupby(read("batches.csv"), lambda row: row["run"])}  # fmt: skip


class Known:
    """The executor that the other systems' schedulers were given."""

    def submit(self, batch, event):
        seconds = 0.006 + 25e-6 * batch.tokens + 60e-6 * (len(batch.prefills) + len(batch.decodes))
        return event.scheduled + round(seconds * TICKS) / TICKS


def scheduler(row: dict, kind=None, pool=PublishedPool):
    """As pod.simulate.run.Setup puts one together, but for the host memory and with a pool of one's own."""
    blocks, size = int(row["blocks"]), int(row["block_size"])
    kind = kind or published(row["like"], row["scheduler"])
    if kind.pool_type is ReservedPool:
        return kind(ReservedPool(blocks, int(row["max_tokens"]), size), int(row["max_batch"]))
    rest = {"chunk": int(row["chunk"])} if row["chunk"] else {"max_tokens": int(row["max_tokens"])}
    pages = pool(blocks, size, swap_blocks=int(row["swap_blocks"]))
    return kind(pages, int(row["max_batch"]), preemption=row["preemption"], **rest)


def batches(lane) -> list[tuple[str, str, str]]:
    """What batches.csv would say of a run of ours."""
    requests = [Request(int(r["id"]), int(r["prompt"]), int(r["output"]), int(r["arrival"]) / TICKS)
                for r in read("requests.csv")]  # fmt: skip
    log, rows = serve(requests, [lane], Known()), []
    for event in log.iterations:
        tokens = dict(sorted([(chunk[0], chunk[1]) for chunk in event.prefills] + [(i, 1) for i in event.decodes]))
        batch = " ".join(f"{i}:{n}" if n > 1 else str(i) for i, n in tokens.items())
        preempted = " ".join(map(str, sorted(i for i, _ in event.preempted)))
        rows.append((f"{event.scheduled * TICKS:.0f}", batch, preempted))
    return rows


@pytest.mark.parametrize("run", RUNS)
def test_the_batches_are_theirs(run):
    assert batches(scheduler(RUNS[run])) == BATCHES[run]


def test_the_schedules_put_the_schedulers_to_the_test():
    sent_away = {run: sum(len(row[2].split()) for row in rows) for run, rows in BATCHES.items()}
    assert list(sent_away.values()) == [40, 45, 0, 0, 45, 9] and sum(map(len, BATCHES.values())) == 1737
    assert {(row["like"], row["scheduler"]) for row in RUNS.values()} == {
        (system, name) for system, kinds in PUBLISHED.items() for name in kinds
    }


class Needy(PublishedPool):
    grow = PagedPool.grow


class RoundedUp(PublishedPool):
    def __init__(self, *args, **rest):
        super().__init__(*args, **rest)
        self.kept_free = PagedPool(self.num_blocks).kept_free


class Trusting(PublishedPool):
    can_swap_in = PagedPool.can_swap_in


@pytest.mark.parametrize(("run", "ours"), [
    *((run, {"pool": pool}) for run in RUNS if RUNS[run]["blocks"] == "37" for pool in (Needy, RoundedUp)),
    ("vllm-0.2.7/swap", {"pool": Trusting}),
    ("vllm-0.2.7/swap", {"kind": VLLM}),
    ("vllm-0.2.7/recompute", {"kind": VLLM}),
])  # fmt: skip
def test_each_difference_shows(run, ours):
    """With any one of them taken back the batches are others, so none is there for nothing."""
    assert batches(scheduler(RUNS[run], **ours)) != BATCHES[run]


def test_a_victim_that_returns_at_once_is_sent_away_at_once(monkeypatch):
    """Sarathi-Serve computes the same 127 tokens of a prompt fourteen times more; with our rule the prompt waits."""
    row = RUNS["sarathi-serve/sarathi"]
    again = [row for row in BATCHES[row["run"]] if row[2] and row[2] + ":" in row[1]]
    assert len(again) == 14 and {batch for _, batch, _ in again} == {"13 14:127"}
    monkeypatch.setattr(SarathiServe, "schedule", Sarathi.schedule)
    monkeypatch.setattr(SarathiServe, "_preempt", Sarathi._preempt)
    assert not [r for r in batches(scheduler(row)) if r[2] and r[2] + ":" in r[1]]


def test_setup_and_command_line_know_the_published_systems():
    for system, kinds in PUBLISHED.items():
        for name, kind in kinds.items():
            (lane,) = Setup(scheduler=name, like=system, blocks=3000, max_tokens=4096).lanes()
            assert type(lane) is kind and isinstance(lane.pool, (PublishedPool, ReservedPool))
            assert kind.name == name and name in SCHEDULERS
    with pytest.raises(ValueError, match="^like: got 'tgi', allowed are sarathi-serve, vllm-0.2.7$"):
        Setup(like="tgi").lanes()
    with pytest.raises(ValueError, match="^scheduler: got 'sarathi', vllm-0.2.7 has vllm$"):
        Setup(like="vllm-0.2.7").lanes()
    with pytest.raises(ValueError, match="^max_prefills: got 2, Sarathi-Serve takes all that fit, leave it out$"):
        Setup(like="sarathi-serve", max_prefills=2).lanes()


def test_who_fills_the_pool_alone_is_refused_where_it_could_not_end():
    pool, request = PublishedPool(10, 2, watermark=0.0), Request(0, 15, 5)
    assert PagedPool(10, 2, watermark=0.0).refusal(request) is None
    assert pool.refusal(request) == "20 tokens and the watermark need 11 blocks, the pool has 10"


def test_padding_counts_in_the_budget_and_has_a_limit_of_its_own():
    def joins(kind, waiting: int, *running: int) -> bool:
        lane = kind(PagedPool(100, 16), 8, max_tokens=1000)
        lane.add(Request(9, waiting, 1))
        return lane._joins([type("Chunk", (), {"tokens": n}) for n in running])

    assert joins(VLLM, 500, 500) and not joins(VLLM, 501, 500)
    assert joins(PaddedVLLM, 500, 500) and joins(PaddedVLLM, 244, 500) and not joins(PaddedVLLM, 243, 500)
    assert joins(PaddedVLLM, 333, 333, 333) and not joins(PaddedVLLM, 334, 333, 333)
