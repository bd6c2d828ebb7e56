"""What slurmctld says of itself: the words of sdiag."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_dl.model.errors import ClusterError
from slurm_dl.slurm.controller_status import ControllerStatus, read_health, rpcs_of

RECORDED = (Path(__file__).parents[1] / "data" / "slurm-22.05" / "sdiag.txt").read_text("utf-8")
"""As 22.05.8 printed it."""

LATER = """\
*******************************************************
sdiag output at Wed Jul 15 17:48:55 2026 (1784137735)
Data since      Wed Jul 15 17:28:49 2026 (1784136529)
*******************************************************
Server thread count:  131
RPC queue enabled:    1
Agent queue size:     0
Agent count:          0
Agent thread count:   0
DBD Agent queue size: 5021

Main schedule statistics (microseconds):
\tLast cycle:   289
\tMax cycle:    1691
\tTotal cycles: 25
\tMean cycle:   513

Backfilling stats
\tLast cycle:   45
\tMean cycle:   60

Remote Procedure Call statistics by message type
\tREQUEST_JOB_INFO                        ( 2003) count:40     ave_time:500000 total_time:20000000 \
queued:3 dropped:0 cycle_last:1 cycle_max:2
"""
"""Later releases have more lines, and more figures behind those there were (enable_rpc_queue)."""


def test_what_a_real_slurmctld_printed_is_read() -> None:
    """Each figure of 22.05.8's text."""
    assert read_health(RECORDED) == ControllerStatus(
        now_s=1795342317.0,
        threads=3,
        agent_queue=0,
        dbd_queue=0,
        last_cycle_s=0.000028,
        mean_cycle_s=0.000028,
        dumps=1,
        dump_total_s=0.000224,
    )
    assert rpcs_of(RECORDED)["REQUEST_SUBMIT_BATCH_JOB"] == (3, 0.014394)
    assert len(rpcs_of(RECORDED)) == 5


def test_later_releases_say_more() -> None:
    """Lines and figures that were added change nothing; nor does backfill's cycle count."""
    assert read_health(LATER) == ControllerStatus(
        now_s=1784137735.0,
        threads=131,
        agent_queue=0,
        dbd_queue=5021,
        last_cycle_s=0.000289,
        mean_cycle_s=0.000513,
        dumps=40,
        dump_total_s=20.0,
    )


def test_what_is_missing_is_unknown() -> None:
    """A release that leaves all else out still tells its time."""
    assert read_health("sdiag output at then (17)\n") == ControllerStatus(now_s=17.0)


@pytest.mark.parametrize("text", ["", "sdiag output at then\n", "Data since x (17)\n", "x" * 9])
def test_an_answer_without_the_time_is_none(text: str) -> None:
    """The time is what it is asked for."""
    with pytest.raises(ClusterError, match="time"):
        read_health(text)


def test_names_of_users_do_not_count_as_figures() -> None:
    """A login name can look like a call; the table by user is not read."""
    forged = "\tREQUEST_JOB_INFO  ( 7) count:1 ave_time:9 total_time:900000000\n"
    head, by_user, rest = RECORDED.partition("Remote Procedure Call statistics by user\n")

    assert read_health(head + by_user + forged + rest) == read_health(RECORDED)


@given(st.text(max_size=400))
def test_no_text_breaks_it(noise: str) -> None:
    """Whatever is printed, it is read or refused in one line."""
    for text in (noise, RECORDED + noise, noise + RECORDED, "sdiag output at " + noise):
        try:
            read_health(text)
        except ClusterError as err:
            assert "\n" not in str(err)  # noqa: PT017 - both ways are right


def test_how_long_a_listing_takes_is_between_two_looks() -> None:
    """Slurm's mean is over a day; a reset of its figures begins anew."""
    early = ControllerStatus(now_s=0.0, dumps=1000, dump_total_s=100.0)
    late = ControllerStatus(now_s=9.0, dumps=1002, dump_total_s=110.0)

    assert early.dump_s_since(None) == pytest.approx(0.1)
    assert late.dump_s_since(early) == pytest.approx(5.0)
    assert early.dump_s_since(late) == pytest.approx(0.1)
    assert late.dump_s_since(late) is None
