"""The energy meter against a made-up GPU: a counter in ticks, a queue of calls, a clock of its own."""

import sys

import pytest

from pod.lab.measure import meter


class Machine:
    """A GPU of constant watts while calls run and when they do not; a look costs the host time, too."""

    def __init__(self, seconds=0.0013, busy=700.0, idle=80.0, tick=0.1, look=0.0004, frozen=False, wraps=None):
        self.time, self.free_at, self.spent, self.counted_to = 0.0, 0.0, 0.0, 0.0
        self.seconds, self.busy, self.idle, self.tick, self.look = seconds, busy, idle, tick, look
        self.frozen, self.wraps = frozen, wraps
        self.shown, self.shown_at = 1_000_000, 0.0

    def call(self):
        self._advance(0.00002)
        self.free_at = max(self.free_at, self.time) + self.seconds

    def _advance(self, seconds):
        until = self.time + seconds
        while self.shown_at + self.tick <= until:
            self._spend(self.shown_at + self.tick)
            self.shown_at += self.tick
            if not self.frozen:
                self.shown = 1_000_000 + int(self.spent)
        self.time = until

    def _spend(self, until):
        """Millijoules up to a moment before which all that runs was launched."""
        busy = max(0.0, min(self.free_at, until) - self.counted_to)
        self.spent += 1e3 * (busy * self.busy + (until - self.counted_to - busy) * self.idle)
        self.counted_to = until

    def now(self):
        self._advance(1e-6)
        return self.time

    def energy(self):
        self._advance(self.look)
        return self.shown % self.wraps if self.wraps else self.shown

    def mark(self):
        done_at = self.free_at
        return lambda: self.now() >= done_at

    def gauge(self):
        return meter.Gauge(self.energy, lambda: (1500, 60), self.mark, self.now)


@pytest.mark.parametrize("tick", [0.02, 0.1])
@pytest.mark.parametrize("seconds", [0.0003, 0.0013, 0.03])
def test_a_call_costs_its_watts_times_its_time(seconds, tick):
    machine = Machine(seconds=seconds, tick=tick)
    spent = meter.summed([meter.visit(machine.call, g=machine.gauge()) for _ in range(3)])
    assert spent.ms == pytest.approx(1e3 * seconds, rel=0.01)
    assert spent.millijoules == pytest.approx(700e3 * seconds, rel=0.01)
    assert spent.watts == pytest.approx(700, rel=0.01) and spent.sm_clock_mhz == 1500
    assert spent.least <= spent.millijoules <= spent.most


def test_the_gpu_never_waits_for_the_host():
    machine = Machine()
    window = meter.visit(machine.call, g=machine.gauge())
    assert window.watts == pytest.approx(700, rel=0.005), "idle watts are in it"


@pytest.mark.parametrize("seconds", [0.0003, 0.0013])
def test_a_counter_that_takes_long_to_read_leaves_no_gap(seconds):
    """A look of 3.4 ms, as on a driver under load: several calls long."""
    machine = Machine(seconds=seconds, look=0.0034)
    spent = meter.summed([meter.visit(machine.call, g=machine.gauge()) for _ in range(3)])
    assert spent.watts == pytest.approx(700, rel=0.01), "idle watts are in it"
    assert spent.millijoules == pytest.approx(700e3 * seconds, rel=0.02)


def test_a_look_longer_than_the_queue_is_bridged_by_a_longer_one():
    """A tenth of a second, as with several processes that ask one driver: as long as a tick, so that is told late."""
    machine = Machine(seconds=0.0013, look=0.1)
    window = meter.visit(machine.call, seconds=2, g=machine.gauge())
    assert window.watts == pytest.approx(700, rel=0.03)
    assert window.millijoules / window.calls == pytest.approx(910, rel=0.03)


def test_calls_shorter_than_their_launch_are_an_error():
    machine = Machine(seconds=0.00001)
    with pytest.raises(ValueError, match="^energy: got calls that end before the next are launched, allowed are "):
        meter.visit(machine.call, g=machine.gauge())


def test_a_window_is_whole_ticks():
    window = meter.visit((machine := Machine()).call, seconds=0.35, g=machine.gauge())
    assert window.seconds / 0.1 == pytest.approx(round(window.seconds / 0.1), abs=0.02) and window.seconds > 0.35 - 0.1


def test_without_calls_the_gpu_idles():
    assert meter.visit(None, g=Machine().gauge()).watts == pytest.approx(80, rel=0.01)


def test_a_counter_that_wraps_loses_a_tick_and_nothing_else():
    machine = Machine(wraps=1_300_000)
    window = meter.visit(machine.call, seconds=0.6, g=machine.gauge())
    assert machine.shown > 1_300_000, "it did not wrap"
    assert window.watts == pytest.approx(700, rel=0.02)
    assert window.millijoules / window.calls == pytest.approx(700 * 1.3, rel=0.02)


def test_a_frozen_counter_is_an_error():
    machine = Machine(frozen=True)
    with pytest.raises(ValueError, match="^energy: got a counter still for 2 s, allowed is one that ticks$"):
        meter.visit(machine.call, g=machine.gauge())


def test_ways_take_turns_and_idle_is_seen_before_and_after():
    machine, seen = Machine(), []

    def way(name, times):
        def call():
            seen.append(name)
            for _ in range(times):
                machine.call()

        return call

    found = meter.metered({"one": way("one", 1), "three": way("three", 3)}, rounds=4, g=machine.gauge())
    one, three = found.ways["one"], found.ways["three"]
    assert three.millijoules == pytest.approx(3 * one.millijoules, rel=0.01)
    turns = [a for a, b in zip(seen, [*seen[1:], ""], strict=True) if a != b]
    assert turns.count("one") > 1 and turns.count("three") > 1, "one after the other"
    assert found.columns() == {"idle_before": pytest.approx(80, rel=0.02), "idle_after": pytest.approx(80, rel=0.05)}


def test_a_block_is_metered_from_tick_to_tick():
    machine = Machine()
    with meter.spent(machine.gauge()) as found:
        for _ in range(2000):
            machine.call()
    assert found.millijoules == pytest.approx(2000 * 0.0013 * 700e3, rel=0.02)
    assert found.watts == pytest.approx(700, rel=0.05)


def test_columns_are_a_median_within_its_spread():
    columns = meter.Energy(1.5, 20.0, 19.0, 22.0, 690.04, 1400, 61).columns("ours")
    assert columns["ours_mj_p10"] <= columns["ours_mj"] <= columns["ours_mj_p90"]
    assert columns["ours_watts"] == 690.0 and columns["ours_mhz"] == 1400 and columns["ours_celsius"] == 61


def test_without_nvml_there_is_one_clear_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(ValueError, match="^energy: got no NVML here, allowed is a GPU with its driver"):
        meter.gauge()
