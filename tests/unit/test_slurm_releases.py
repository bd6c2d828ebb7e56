"""The table of releases: what each can do, which are known, and what it says of any other."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_dl.model.errors import ClusterError
from slurm_dl.slurm.releases import (
    FAULTS,
    NEWEST,
    OLDEST,
    SERIES,
    Release,
    Series,
    faults,
    no_preemption,
    parse_release,
    series_of,
    unsupported,
)

ROOT = Path(__file__).parents[2]
RELEASES = st.builds(Release, st.integers(10, 99), st.integers(0, 12), st.integers(0, 99))


def test_the_series_are_those_of_slurm_in_their_order() -> None:
    """Every series from 22.05 to 26.05, none twice, oldest first."""
    assert [str(s) for s in SERIES] == [
        *("22.05", "23.02", "23.11", "24.05", "24.11", "25.05", "25.11", "26.05"),
    ]
    assert all(a.number < b.number for a, b in pairwise(SERIES))
    assert SERIES[0].number == OLDEST
    assert SERIES[-1].number == NEWEST


@pytest.mark.parametrize("series", [s for s in SERIES if s.tried], ids=str)
def test_what_was_run_belongs_to_its_series(series: Series) -> None:
    """A release that was run is one of the series it stands for."""
    assert series.tried is not None
    assert series_of(series.tried) is series
    assert unsupported(series.tried) == ""


@pytest.mark.parametrize(
    ("release", "signal", "limits_calls", "requeue_delay", "pyslurm"),
    [
        (Release(22, 5, 8), "SlurmctldParameters=preempt_send_user_signal", False, False, ""),
        (Release(23, 2, 0), "PreemptParameters=send_user_signal", True, False, ""),
        (Release(24, 11, 5), "PreemptParameters=send_user_signal", True, False, ""),
        (Release(25, 5, 1), "PreemptParameters=send_user_signal", True, False, ""),
        (Release(25, 11, 0), "PreemptParameters=send_user_signal", True, True, "25.11.2"),
        (Release(26, 5, 5), "PreemptParameters=send_user_signal", True, True, "25.11.2"),
    ],
)
def test_what_a_release_can_do(
    release: Release,
    signal: str,
    limits_calls: bool,  # noqa: FBT001 - a case
    requeue_delay: bool,  # noqa: FBT001
    pyslurm: str,
) -> None:
    """As Slurm's manual pages and change logs have it."""
    series = series_of(release)

    assert str(series.warn_signal) == signal
    assert series.limits_calls is limits_calls
    assert series.requeue_delay is requeue_delay
    assert series.pyslurm == pyslurm


@given(RELEASES)
def test_every_release_has_a_series(release: Release) -> None:
    """The newest one that is not newer; the oldest for what is older than all."""
    series = series_of(release)

    number = (release.major, release.minor)
    assert series.number <= number or series is SERIES[0]
    assert not any(series.number < s.number <= number for s in SERIES)


@given(RELEASES)
def test_outside_the_range_is_told_and_inside_is_not(release: Release) -> None:
    """Inside is from the oldest series to the newest one, whatever the patch level."""
    inside = (22, 5) <= (release.major, release.minor) <= (26, 5)

    assert (unsupported(release) == "") is inside
    if not inside:
        assert str(release) in unsupported(release)
        assert "22.05 to 26.05" in unsupported(release)


@given(RELEASES)
def test_a_release_is_read_back_from_what_is_printed(release: Release) -> None:
    """In any text around it."""
    assert parse_release(f"slurm-wlm {release}") == release
    assert parse_release(f"{release}-0rc1") == release


@pytest.mark.parametrize(
    "text", ["", "(null)", "22", "slurm", "1.2.3", "\uff12\uff12.\uff10\uff15.\uff18"]
)
def test_what_is_no_release_is_refused(text: str) -> None:
    """With what was there instead."""
    with pytest.raises(ClusterError, match="no Slurm version"):
        parse_release(text)


@pytest.mark.parametrize(
    ("release", "known"),
    [
        (Release(22, 5, 4), []),
        (Release(22, 5, 5), ["--ntasks-per-node"]),
        (Release(22, 5, 8), ["--ntasks-per-node"]),
        (Release(22, 5, 9), []),
        (Release(23, 2, 0), ["loses its GPUs"]),
        (Release(23, 2, 1), ["loses its GPUs"]),
        (Release(23, 2, 2), []),
    ],
)
def test_faults_begin_and_end_with_their_releases(release: Release, known: list[str]) -> None:
    """From the first release that has it to the last."""
    told = [fault.text for fault in faults(release)]

    assert len(told) == len(known)
    assert all(word in text for word, text in zip(known, told, strict=True))
    forbidden = any(fault.forbids_preemption for fault in faults(release))
    assert bool(no_preemption(release)) is forbidden
    assert all(fault.first <= fault.last for fault in FAULTS)


def test_the_page_of_releases_has_the_same_table() -> None:
    """Release by release: how far it was tried, where the signal is set, pyslurm."""
    text = (ROOT / "docs" / "operate" / "slurm-releases.md").read_text("utf-8")
    section = text.partition("## Releases")[2].partition("\n## ")[0]
    rows = [line.strip("| \n").split("|") for line in section.splitlines() if "|" in line]
    table = {row[0].strip(): [cell.strip() for cell in row[1:]] for row in rows}

    for series in SERIES:
        tried, signal, limit, delay, pyslurm = table[str(series)][:5]
        assert tried == (f"run: {series.tried}" if series.tried else "by documentation")
        assert signal == f"`{series.warn_signal}`"
        assert limit == ("yes" if series.limits_calls else "no")
        assert delay == ("`requeue_delay`" if series.requeue_delay else "`cred_expire`")
        assert pyslurm == (series.pyslurm or "no")
    assert set(re.findall(r"^\| (\d\d\.\d\d) ", section, re.MULTILINE)) == set(map(str, SERIES))
