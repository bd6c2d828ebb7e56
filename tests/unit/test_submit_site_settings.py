"""The site's QOS for preemptible jobs: who gets it, who does not, and who is told."""

from __future__ import annotations

import json
import math
import os
import pwd
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from slurm_dl import client_config, config
from slurm_dl.cli.dlsubmit import command_job
from slurm_dl.client_config import SOCKET_NAME, ClientConfig, read_client_config
from slurm_dl.config.derived_files import client_config_of
from slurm_dl.config.preemption_section import PreemptionSection
from slurm_dl.config.tree import PathsSection, PolicySection
from slurm_dl.placement.consolidate import Consolidate
from slurm_dl.policies.base import Policy
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.policies.elastic.afs import Afs
from slurm_dl.submit import job_extras
from slurm_dl.submit.job_environment import Cleaned
from slurm_dl.submit.job_request import JobRequest, SubmitOptions, check
from slurm_dl.submit.submit_checks import grace_note, qos_notes
from slurm_dl.text import user_name

NATIVE = ClientConfig(qos="dl", native=True)


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
    wanted: JobRequest, typed: SubmitOptions | None = None, at_site: ClientConfig = NATIVE
) -> list[str]:
    """What the user is told about the QOS."""
    return qos_notes(wanted, at_site, typed or SubmitOptions(gpus="4"))


def test_what_is_usual_is_as_in_the_configuration() -> None:
    """It is written down twice because to import the one takes long."""
    usual = ClientConfig()
    assert PathsSection().profile_dir == Path(usual.profile_dir)
    assert Consolidate().skew_threshold == usual.skew_threshold
    assert PathsSection().run_dir / SOCKET_NAME == Path(usual.socket)


def test_a_host_without_a_file_has_the_usual(tmp_path: Path) -> None:
    """One that is named and cannot be read is told."""
    assert not read_client_config({}).trouble
    found = read_client_config({"SLURM_DL_CLIENT": str(tmp_path / "none.yaml")})
    assert found.trouble
    assert replace(found, trouble="") == ClientConfig()


@pytest.mark.parametrize(
    ("section", "found"),
    [
        ("", ClientConfig()),
        ("preemption: {qos: dl}", ClientConfig(qos="dl", native=False)),
        ("preemption: {max_grace_s: 60}", ClientConfig(max_grace_s=60)),
        ("preemption: {mode: native, qos: dl}", NATIVE),
    ],
)
def test_the_key_is_read(tmp_path: Path, section: str, found: ClientConfig) -> None:
    """Also where the daemon still preempts itself: jobs may be in the QOS before Slurm does."""
    path = tmp_path / "dl.yaml"
    path.write_text(f"manage: {{partitions: [gpu]}}\n{section}\n", "utf-8")

    limit_s = min(found.max_grace_s, PreemptionSection().max_grace_s)
    expected = replace(found, partitions=("gpu",), max_grace_s=limit_s)
    written = client_config_of(config.load(path))
    told = replace(expected, settle_s=written.settle_s, sizes_settle_s=written.sizes_settle_s)
    assert written == told
    (tmp_path / "client.yaml").write_text(written.text(), "utf-8")
    assert read_client_config({"SLURM_DL_CLIENT": str(tmp_path / "client.yaml")}) == told


@pytest.mark.parametrize(
    ("policy", "section", "told_s"),
    [
        (Afs(), "steer: false}\nresizing: {expand: false", (0.0, 9.5)),
        (DiscreteLas(), "steer: false}\nresizing: {expand: false", (0.0, 0.0)),
        (DiscreteLas(), "steer: false", (0.0, 9.5)),
        (DiscreteLas(), "steer: true}\nresizing: {expand: false", (9.5, 9.5)),
    ],
)
def test_who_is_put_off(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    policy: Policy,
    section: str,
    told_s: tuple[float, float],
) -> None:
    """Jobs where nodes are chosen; where sizes alone are, those that have several."""
    path = tmp_path / "dl.yaml"
    placement = f"daemon: {{poll_s: 5}}\nplacement: {{settle_s: 9.5, scheme: best_fit, {section}}}"
    path.write_text(f"manage: {{partitions: [gpu]}}\n{placement}\n", "utf-8")
    site = config.load(path)
    monkeypatch.setattr(PolicySection, "make", lambda _: policy)

    told = client_config_of(site)

    assert (told.settle_s, told.sizes_settle_s) == told_s


LINES: Final[Mapping[str, tuple[dict[str, Any], bool]]] = {
    # A line of the file, what it sets, and whether it is told that it has no effect.
    "server: a:1, b:2": ({"server": ("a:1", "b:2")}, False),
    "server: [a:1]": ({"server": ("a:1",)}, False),
    "socket: '/x y'": ({"socket": "/x y"}, False),
    "native: true": ({"native": True}, False),
    "max_grace_s: 60": ({"max_grace_s": 60.0}, False),
    "# qos: x": ({}, False),
    "munge_socket: /pre  # a comment": ({"munge_socket": "/pre"}, False),
    "munge_socket: '/a # b'": ({"munge_socket": "/a # b"}, False),
    'partitions: "a", "b"': ({"partitions": ("a", "b")}, False),
    'partitions: ["a", b]': ({"partitions": ("a", "b")}, False),
    "server: [::1]:6822": ({"server": ("[::1]:6822",)}, False),
    "profile_dir: /x/'q'": ({"profile_dir": "/x/'q'"}, False),
    "socket:": ({}, True),
    "": ({}, False),
    "not_yet_known: 7": ({}, True),
    "native: perhaps": ({}, True),
    "settle_s: -1": ({}, True),
    "settle_s: nan": ({}, True),
    "qos": ({}, True),
    "trouble: x": ({}, True),
    "\x1b[31m: x": ({}, True),
}


@pytest.mark.parametrize("line", LINES)
def test_each_line_counts_by_itself(line: str) -> None:
    """One that is not understood breaks no other."""
    values, is_told = LINES[line]

    found = client_config.parse(f"daemon_user: me\n{line}\nqos: dl\n")

    assert replace(found, trouble="") == replace(ClientConfig(daemon_user="me", qos="dl"), **values)
    assert bool(found.trouble) == is_told
    assert found.trouble.isprintable()


@pytest.mark.parametrize(
    ("environ", "server", "socket"),
    [
        ({}, ("a:1",), "/s"),
        ({"SLURM_DL_SERVER": "b:2,c:3"}, ("b:2", "c:3"), "/s"),
        ({"SLURM_DL_SOCKET": "/t"}, (), "/t"),
        ({"SLURM_DL_SERVER": "b:2", "SLURM_DL_SOCKET": "/t"}, (), "/t"),
    ],
)
def test_the_environment_comes_before_the_file(
    environ: dict[str, str], server: tuple[str, ...], socket: str, tmp_path: Path
) -> None:
    (tmp_path / "client.yaml").write_text("server: a:1\nsocket: /s\n", "utf-8")

    found = read_client_config({"SLURM_DL_CLIENT": str(tmp_path / "client.yaml"), **environ})

    assert (found.server, found.socket) == (server, socket)


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


def test_a_file_that_is_none_holds_nobody_up(tmp_path: Path) -> None:
    """A FIFO, a directory, a mark of byte order."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "bom").write_text("\ufeffqos: dl\n", "utf-8")
    found = {
        name: read_client_config({"SLURM_DL_CLIENT": str(tmp_path / name)})
        for name in ("fifo", ".", "bom")
    }

    assert found["bom"] == ClientConfig(qos="dl")
    assert found["fifo"] == ClientConfig()
    assert found["."].trouble


def test_who_writes_it_does_not_become_the_daemon(tmp_path: Path) -> None:
    """Users' commands believe the owner of the state directory; root anyhow."""
    (tmp_path / "state").mkdir()
    path = tmp_path / "dl.yaml"
    path.write_text(f"manage: {{partitions: [gpu]}}\npaths: {{state_dir: {tmp_path}/state}}\n")

    assert client_config_of(config.load(path)).daemon_user == (
        "slurm_dl" if os.geteuid() == 0 else user_name(os.geteuid())
    )
    if os.geteuid() == 0:
        os.chown(tmp_path / "state", pwd.getpwnam("daemon").pw_uid, -1)
        assert client_config_of(config.load(path)).daemon_user == "daemon"


def test_a_broken_file_keeps_nobody_from_submitting() -> None:
    """It is said, in one line."""
    found = client_config.parse("x: 1\ny: 2\n")

    assert not found.qos
    assert "not understood" in found.trouble
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
    assert notes(own, at_site=ClientConfig(qos="dl")) == []
    assert notes(request("--qos=DL")) == []


def test_no_preempt_inside_the_qos_is_an_empty_word() -> None:
    """Slurm does not ask for a contract."""
    typed = SubmitOptions(gpus="4", no_preempt=True)

    assert "has no effect" in notes(request("--qos=dl", typed=typed), typed)[0]


def test_a_qos_that_was_kept_from_the_environment_is_the_user_s_own() -> None:
    """On the command line it beats SBATCH_QOS, so it must be known."""
    kept = Cleaned(environ={"SBATCH_QOS": "high"}, ignored=())

    assert command_job._with_kept_qos(("--hold",), kept) == ("--hold", "--qos=high")
    assert command_job._with_kept_qos(("--qos=a",), kept) == ("--qos=a",)


def test_profiles_that_nobody_lets_us_see_are_none() -> None:
    """Sites close /etc/slurm_dl to users; here the system refuses even to look."""
    closed = Path("/", "x" * 300)
    with pytest.raises(OSError, match="too long"):
        closed.is_dir()

    profile, note = job_extras.find_profile("resnet50", closed)

    assert profile is not None
    assert not note
