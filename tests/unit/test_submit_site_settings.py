"""The site's QOS for preemptible jobs: who gets it, who does not, and who is told."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slurm_dl import config
from slurm_dl.cli.dlsubmit import command
from slurm_dl.config.preemption_section import PreemptionSection
from slurm_dl.config.tree import PathsSection
from slurm_dl.placement.consolidate import Consolidate
from slurm_dl.submit import site_settings
from slurm_dl.submit.job_environment import Cleaned
from slurm_dl.submit.job_request import JobRequest, SubmitOptions, check
from slurm_dl.submit.site_settings import SiteSettings
from slurm_dl.submit.user_notes import grace_note, qos_notes

NATIVE = SiteSettings(qos="dl", native=True)


def request(*sbatch: str, typed: SubmitOptions | None = None, qos: str | None = "dl") -> JobRequest:
    """What is asked for."""
    return check(
        typed or SubmitOptions(gpus="4"),
        sbatch=sbatch,
        command=("train.py",),
        cwd="/w",
        dlrun="/d",
        qos=qos,
    )


def notes(
    wanted: JobRequest, typed: SubmitOptions | None = None, at_site: SiteSettings = NATIVE
) -> list[str]:
    """What the user is told about the QOS."""
    return qos_notes(wanted, at_site, typed or SubmitOptions(gpus="4"))


def test_the_places_are_those_of_the_configuration() -> None:
    """They are written down twice because to import the one takes long."""
    assert Path(site_settings.DEFAULT_PATH) == config.DEFAULT_PATH
    assert site_settings.ENVIRONMENT == config.ENVIRONMENT
    assert PathsSection().profile_dir == Path(site_settings.DEFAULT_PROFILE_DIR)
    assert Consolidate().skew_threshold == site_settings.DEFAULT_SKEW_THRESHOLD


def test_a_site_without_a_file_has_nothing_to_say(tmp_path: Path) -> None:
    """Nor one whose file users may not read."""
    assert (
        site_settings.read_site({"SLURM_DL_CONFIG": str(tmp_path / "none.yaml")}) == SiteSettings()
    )


@pytest.mark.parametrize(
    ("section", "found"),
    [
        ("", SiteSettings()),
        ("preemption: {qos: dl}", SiteSettings(qos="dl", native=False)),
        ("preemption: {max_grace_s: 60}", SiteSettings(max_grace_s=60)),
        ("preemption: {mode: native, qos: dl}", NATIVE),
    ],
)
def test_the_key_is_read(tmp_path: Path, section: str, found: SiteSettings) -> None:
    """Also where the daemon still preempts itself: jobs may be in the QOS before Slurm does."""
    path = tmp_path / "dl.yaml"
    path.write_text(f"manage: {{partitions: [gpu]}}\n{section}\n", "utf-8")

    read = site_settings.read_site({"SLURM_DL_CONFIG": str(path)})
    limit_s = min(found.max_grace_s, PreemptionSection().max_grace_s)
    assert read == replace(found, partitions=frozenset({"gpu"}), max_grace_s=limit_s)


@pytest.mark.parametrize(
    ("typed", "limit_s", "grace_s", "told"),
    [
        ({}, 60, 60, "from 120 s to 60 s"),
        ({"grace": "5000"}, 600, 600, "from 5000 s to 600 s"),
        ({"grace": "60"}, 60, 60, ""),
        ({"grace": "5000"}, math.inf, 5000, ""),
        ({"grace": "5000", "no_preempt": True}, 600, 5000, ""),
    ],
)
def test_a_grace_is_cut_to_the_sites_limit_and_that_is_told(
    typed: dict[str, Any], limit_s: float, grace_s: float, told: str
) -> None:
    """In the contract, for the script, and in a note; not where the job is never preempted."""
    asked = SubmitOptions(gpus="4", **typed)
    wanted = check(
        asked, sbatch=(), command=("train.py",), cwd="/w", dlrun="/d", max_grace_s=limit_s
    )

    contract = json.loads(wanted.comment)["slurm_dl"] if not asked.no_preempt else {}
    assert wanted.grace_s == contract.get("grace_s", grace_s) == grace_s
    note = grace_note(wanted, asked)
    assert told in note
    assert bool(note) == bool(told)


def test_a_broken_file_keeps_nobody_from_submitting(tmp_path: Path) -> None:
    """It is said, in one line."""
    path = tmp_path / "dl.yaml"
    path.write_text("manage: {partitions: [gpu]}\nx: 1\ny: 2\n", "utf-8")

    found = site_settings.read_site({"SLURM_DL_CONFIG": str(path)})

    assert found.qos is None
    assert "is not used" in found.trouble
    assert "\n" not in found.trouble
    assert notes(request(qos=None), at_site=found) == [found.trouble]


def test_a_job_that_agrees_to_give_way_goes_into_the_site_s_qos() -> None:
    """And nothing more is to be said."""
    assert request().qos == "dl"
    assert notes(request()) == []


def test_one_that_does_not_stays_out() -> None:
    """Slurm preempts whoever is in it."""
    typed = SubmitOptions(gpus="4", no_preempt=True)

    assert request(typed=typed).qos is None
    assert notes(request(typed=typed), typed) == []


def test_the_user_s_own_qos_wins_and_the_price_is_told() -> None:
    """The job will neither give way nor displace anybody."""
    own = request("--qos=high")

    assert own.qos is None
    assert "will not give way" in notes(own)[0]
    assert notes(own, at_site=SiteSettings(qos="dl")) == []
    assert notes(request("--qos=DL")) == []


def test_no_preempt_inside_the_qos_is_an_empty_word() -> None:
    """Slurm does not ask for a contract."""
    typed = SubmitOptions(gpus="4", no_preempt=True)

    assert "has no effect" in notes(request("--qos=dl", typed=typed), typed)[0]


def test_a_qos_that_was_kept_from_the_environment_is_the_user_s_own() -> None:
    """On the command line it beats SBATCH_QOS, so it must be known."""
    kept = Cleaned(environ={"SBATCH_QOS": "high"}, ignored=())

    assert command._with_kept_qos(("--hold",), kept) == ("--hold", "--qos=high")
    assert command._with_kept_qos(("--qos=a",), kept) == ("--qos=a",)


def test_profiles_that_nobody_lets_us_see_are_none() -> None:
    """Sites close /etc/slurm_dl to users; here the system refuses even to look."""
    closed = Path("/", "x" * 300)
    with pytest.raises(OSError, match="too long"):
        closed.is_dir()

    profile, note = site_settings.find_profile("resnet50", SiteSettings(profile_dir=closed))

    assert profile is not None
    assert not note
