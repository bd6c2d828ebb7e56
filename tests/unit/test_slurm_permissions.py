"""Whether our account may do its work is known before it is tried; hidden jobs are no end."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from bad_inputs import row

from slurm_dl.model.errors import ClusterError
from slurm_dl.slurm.preflight import check_sight, lacks_rights
from slurm_dl.slurm.releases import Release
from slurm_dl.slurm.running_config import SiteConfig, read_config, settings_in, site_factor_plugin
from slurm_dl.slurm.tool_runner import Slurm

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
