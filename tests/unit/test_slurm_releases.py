"""The table of releases, and whether our account may do its work."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from bad_inputs import row
from hypothesis import given
from hypothesis import strategies as st

from slurm_dl.model.errors import ClusterError
from slurm_dl.slurm.controller import SiteConfig, read_config, settings_in, site_factor_plugin
from slurm_dl.slurm.preflight import check_sight, lacks_rights
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
from slurm_dl.slurm.tool_runner import Slurm

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


NOBODY, SLURM = 65534, 64030
SITE = SiteConfig(release=Release(22, 5, 8), tracks_memory=False, slurm_uid=SLURM, accounting=True)


class Dbd(Slurm):
    """A slurmdbd that knows one level; None: it is silent."""

    def __init__(self, level: str | None) -> None:
        self.calls = Counter()
        self.level = level

    def run(self, tool: str, *args: str, **_: float) -> str:
        """What it says to sacctmgr."""
        self.calls[tool] += 1
        assert (tool, args) == (
            "sacctmgr",
            ("-nP", "show", "user", "nobody", "format=AdminLevel"),
        )
        if self.level is None:
            msg = "sacctmgr -nP show: no answer in 30 s; is slurmdbd overloaded or down?"
            raise ClusterError(msg)
        return self.level


@pytest.mark.parametrize("level", ["Operator\n", "Administrator\n"])
def test_an_operator_may(level: str) -> None:
    """Both levels are enough."""
    assert lacks_rights(Dbd(level), SITE, uid=NOBODY) == ""


@pytest.mark.parametrize("uid", [0, SLURM])
def test_root_and_slurm_user_may_without_asking(uid: int) -> None:
    """With a slurmdbd or without."""
    for accounting in (True, False):
        dbd = Dbd("None")
        assert lacks_rights(dbd, replace(SITE, accounting=accounting), uid=uid) == ""
        assert not dbd.calls


@pytest.mark.parametrize(
    ("level", "accounting", "situation"),
    [
        ("None\n", True, "the account lacks the right"),
        ("", True, "the account is not in slurmdbd"),
        ("", False, "there is no slurmdbd"),
    ],
)
def test_others_may_not(level: str, accounting: bool, situation: str) -> None:  # noqa: FBT001
    """With what to do about it."""
    told = lacks_rights(Dbd(level), replace(SITE, accounting=accounting), uid=NOBODY)

    assert told is not None
    row(situation).check(told)


def test_what_slurmdbd_does_not_tell_is_not_known() -> None:
    """Slurmctld has its own copy and goes on without it, and so do we."""
    assert lacks_rights(Dbd(None), SITE, uid=NOBODY) is None


@pytest.mark.parametrize(
    ("private", "lacks", "blind"),
    [
        (frozenset({"jobs"}), "the right", True),
        (frozenset({"jobs"}), "", False),
        (frozenset({"jobs"}), None, False),
        (frozenset({"usage", "users"}), "the right", False),
        (frozenset(), "the right", False),
    ],
)
def test_a_hidden_queue_is_no_queue(
    private: frozenset[str],
    lacks: str | None,
    blind: bool,  # noqa: FBT001
) -> None:
    """Only where Slurm hides jobs, and from us."""
    config = replace(SITE, private=private)
    if not blind:
        check_sight(config, lacks)
        return
    with pytest.raises(ClusterError) as refused:
        check_sight(config, lacks)
    row("Slurm hides the queue from it").check(str(refused.value))


UNFIT = """\
PriorityType            = {kind}
PrioritySiteFactorPlugin = {plugin}
SLURM_VERSION           = 22.05.8
"""


@pytest.mark.parametrize(
    ("kind", "plugin", "situation"),
    [
        ("priority/multifactor", "(null)", ""),
        ("priority/multifactor", "", ""),
        ("priority/multifactor", "site_factor/none", ""),
        ("priority/basic", "(null)", "priority/basic"),
        ("priority/multifactor", "site_factor/lab", "a site factor plug-in"),
    ],
)
def test_a_slurm_that_would_not_be_ordered(kind: str, plugin: str, situation: str) -> None:
    """Slurm would say nothing; a site's plug-in may have any name."""
    unfit = read_config(UNFIT.format(kind=kind, plugin=plugin)).unfit

    assert bool(unfit) is bool(situation)
    if situation:
        row(situation).check(unfit)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("slurm.conf", "PrioritySiteFactorPlugin=site_factor/lab # ours"),
        ("slurm.conf", "  prioritysitefactorplugin = site_factor/lab"),
        ("priority.conf", "PrioritySiteFactorPlugin=site_factor/lab"),
    ],
)
@pytest.mark.parametrize("named", [True, False])
def test_a_plug_in_that_scontrol_does_not_show(
    tmp_path: Path,
    name: str,
    line: str,
    named: bool,  # noqa: FBT001
) -> None:
    """22.05.8 shows (null) for one that it has loaded; slurm.conf and what it includes tell."""
    conf = tmp_path / "slurm.conf"
    conf.write_text("Include priority.conf\nClusterName=lab\n", "utf-8")
    (tmp_path / "priority.conf").touch()
    with (tmp_path / name).open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")
    shown = UNFIT.format(kind="priority/multifactor", plugin="(null)")
    shown += "" if named else f"SLURM_CONF              = {conf}\n"

    row("a site factor plug-in").check(read_config(shown, str(conf) if named else "").unfit)


def test_a_slurm_conf_without_a_plug_in_is_well(tmp_path: Path) -> None:
    """Also one that includes itself, or cannot be read."""
    conf = tmp_path / "slurm.conf"
    conf.write_text(f"Include {conf}\n# PrioritySiteFactorPlugin=x\nClusterName=lab\n", "utf-8")

    assert site_factor_plugin({}, str(conf)) == ""
    assert settings_in(conf)["clustername"] == "lab"
    assert site_factor_plugin({}, str(tmp_path)) == ""


def test_what_is_not_told_is_taken_to_be_well() -> None:
    """Releases differ in what they print."""
    assert read_config("SLURM_VERSION = 26.05.5\n").unfit == ""
