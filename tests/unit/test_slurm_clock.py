"""slurmctld's time, and what follows from a clock that jumps."""

from __future__ import annotations

import pytest

from slurm_dl.daemon.controller_health import DRIFT_S, SlurmClock

START_S = 1_700_000_000.25


class Clocks:
    """This host's two clocks and slurmctld's, which tests set."""

    def __init__(self, *, server_ahead_s: float = 0.0) -> None:
        self.passed_s = 500.0
        self.wall_ahead_s = 0.0
        self.server_ahead_s = server_ahead_s
        self.clock = SlurmClock(wall=self.wall, monotonic=lambda: self.passed_s)

    def wall(self) -> float:
        """Epoch seconds of this host."""
        return START_S + self.passed_s + self.wall_ahead_s

    def server(self) -> float:
        """Epoch seconds of slurmctld."""
        return START_S + self.passed_s + self.server_ahead_s

    def look(self, *, before_s: float = 0.1, after_s: float = 0.1) -> float:
        """Ask slurmctld, which answers with whole seconds; how far its clock has jumped."""
        began_s = self.passed_s
        self.passed_s += before_s
        told_s = float(int(self.server()))
        self.passed_s += after_s
        return self.clock.learn(told_s, began_s=began_s, ended_s=self.passed_s)

    def error_s(self) -> float:
        """How far the clock is ahead of slurmctld's."""
        return self.clock.now() - self.server()


@pytest.mark.parametrize("by_s", [3600.0, -3600.0, 40.0, -1.5])
def test_this_hosts_clock_changes_nothing(by_s: float) -> None:
    """Once slurmctld has told its time this host's may be set as anybody likes."""
    clocks = Clocks()
    clocks.look()

    clocks.wall_ahead_s = by_s
    assert clocks.clock.wall_moved == (abs(by_s) > 2)
    assert clocks.error_s() == pytest.approx(0.0)
    assert clocks.look() == 0.0

    assert clocks.error_s() == pytest.approx(0.0)
    assert not clocks.clock.wall_moved


@pytest.mark.parametrize("ahead_s", [3600.0, -3600.0, 7.5])
def test_a_host_whose_clock_is_wrong_goes_by_slurmctlds(ahead_s: float) -> None:
    """It is known to a second, and never ahead: no run looks older than it is."""
    clocks = Clocks(server_ahead_s=ahead_s)

    clocks.look()

    assert -1.2 <= clocks.error_s() <= 0.0
    assert clocks.clock.ahead_s == pytest.approx(ahead_s, abs=1.2)


def test_more_looks_make_it_more_exact() -> None:
    """Each answer bounds the second it falls into; together they bound it closely."""
    clocks = Clocks(server_ahead_s=100.0)
    errors = []
    for _ in range(20):
        assert clocks.look(before_s=0.01, after_s=0.01) == 0.0 or not errors
        errors.append(clocks.error_s())
        clocks.passed_s += 10.07

    assert errors == sorted(errors)
    assert -0.15 <= errors[-1] <= 0.0


@pytest.mark.parametrize("by_s", [3600.0, -3600.0, 20.0, -20.0])
def test_a_jump_of_slurmctlds_clock_is_told_and_followed(by_s: float) -> None:
    """By how much it jumped, and then its time is right again."""
    clocks = Clocks()
    clocks.look()
    clocks.server_ahead_s = by_s

    moved_s = clocks.look()

    assert moved_s == pytest.approx(by_s, abs=1.2)
    assert -1.2 <= clocks.error_s() <= 0.0


def test_clocks_that_drift_apart_are_set_right_without_a_word() -> None:
    """A second now and then is no jump."""
    clocks = Clocks()
    clocks.look()
    for _ in range(50):
        clocks.server_ahead_s += DRIFT_S / 2
        clocks.passed_s += 300.0
        assert clocks.look() == 0.0
        assert -2.0 <= clocks.error_s() <= 0.0


def test_a_slow_answer_is_no_jump() -> None:
    """An answer may have been true at any instant since it was asked for."""
    clocks = Clocks()
    clocks.look()

    assert clocks.look(before_s=25.0, after_s=0.1) == 0.0
    assert clocks.look(before_s=0.1, after_s=25.0) == 0.0

    assert clocks.error_s() == pytest.approx(0.0)


def test_without_a_word_of_slurmctld_this_hosts_clock_at_the_start_counts() -> None:
    """Set forward it is not followed, set back it is: either way no run looks older than it is."""
    clocks = Clocks()
    before = clocks.clock.now()
    clocks.wall_ahead_s = 3600.0
    clocks.clock.look_at_wall()
    assert clocks.clock.now() == before

    clocks.wall_ahead_s = -3600.0
    clocks.clock.look_at_wall()

    assert clocks.clock.now() == before - 3600.0
    assert not clocks.clock.follows_slurmctld


def test_once_told_silence_changes_nothing() -> None:
    """What slurmctld has told goes on to count, whatever happens to this host's clock."""
    clocks = Clocks()
    clocks.look()
    clocks.wall_ahead_s = -3600.0

    clocks.clock.look_at_wall()

    assert clocks.error_s() == pytest.approx(0.0)
