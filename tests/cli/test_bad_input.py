"""Bad input gets the message of docs/operate/troubleshooting.md, and its exit status."""

from __future__ import annotations

import fcntl
import gzip
import json
import os
import pwd
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from bad_inputs import row, rows
from patience import PATIENCE

from slurm_dl.cli.dlsim.command import main
from slurm_dl.daemon.control.client import Client, DaemonError
from slurm_dl.traces.format_registry import FORMATS

BIN = Path(sys.executable).parent
ROOT = Path(__file__).parents[2]
NOBODY = "nobody"
UNREACHABLE = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
CONFINING = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("systemd-analyze") is None,
    reason="needs root and systemd's lists of system calls",
)

Eventually = Callable[..., object]
Schedd = Any
"""The class of that name in conftest.py, which cannot be imported."""


@dataclass(frozen=True)
class Site:
    """A host with Slurm's commands, of which all say that slurmctld is not there."""

    home: Path

    @property
    def config(self) -> Path:
        """The configuration file."""
        return self.home / "dl.yaml"

    @property
    def state(self) -> Path:
        """The state directory."""
        return self.home / "state"

    def configure(self, more: str = "") -> None:
        """Write the configuration, with *more* at its end."""
        paths = {
            "state_dir": self.state,
            "run_dir": self.home / "run",
            "audit_log": self.state / "audit.jsonl",
            "profile_dir": self.home / "profiles",
        }
        text = (
            f"cluster: {{slurm_conf: {self.home}/slurm.conf, bin_dir: {self.home}/bin}}\n"
            "manage: {partitions: [gpu]}\n"
            f"paths: {json.dumps({key: str(path) for key, path in paths.items()})}\n"
        )
        self.config.write_text(text + more, "utf-8")
        self.config.chmod(0o644)

    def run(self, *options: str, by: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        """``dlschedd`` with *options*, under the command *by*."""
        argv = [*by, str(BIN / "dlschedd"), "--config", str(self.config), *options]
        return subprocess.run(
            argv, capture_output=True, text=True, timeout=60 * PATIENCE, check=False
        )


@pytest.fixture
def site(short_directory: Path) -> Site:
    """Such a host, well configured."""
    made = Site(short_directory)
    made.state.mkdir()
    (short_directory / "bin").mkdir()
    for tool in ("squeue", "sinfo", "scontrol", "scancel", "sprio"):
        path = short_directory / "bin" / tool
        path.write_text(f'#!/bin/sh\necho "{UNREACHABLE}" >&2\nexit 1\n', "utf-8")
        path.chmod(0o755)
    (short_directory / "slurm.conf").write_text("SlurmUser=root\nClusterName=lab\n", "utf-8")
    made.configure()
    return made


def refused(done: subprocess.CompletedProcess[str], situation: str, *, message: int = 0) -> None:
    """It ended as the page says, with the page's words and no traceback."""
    wanted = row(situation)
    wanted.check(done.stderr, message=message)
    assert str(done.returncode) == wanted.status.rpartition(": ")[2]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("more", "situation"),
    [
        ("daemon: [5\n", "it is not YAML"),
        ("daemon: {pol_s: 5}\n", "a key that does not exist"),
        ("daemon: {poll_s: -5}\n", "a value out of bounds"),
        ("policy: {order: lass}\n", "an unknown policy"),
        ("policy: {parameters: {nope: 3}}\n", "a parameter the policy does not have"),
        (
            "replicas: {services: {a: {user: a, rate: /, sla_s: 1,service_s: 2,most_replicas: 4}}}",
            "a service that cannot keep its agreement",
        ),
        (
            "replicas: {services: {chat: {rate: /r, service_s: 1, sla_s: 9, most_replicas: 4}}}\n",
            "a service of nobody",
        ),
    ],
)
def test_a_wrong_configuration(site: Site, more: str, situation: str) -> None:
    """File and line of the mistake, which is in line 4."""
    site.configure(more)

    done = site.run("--once")

    refused(done, situation)
    # An open bracket is noticed where the file ends.
    assert done.stderr.startswith(f"dlschedd: {site.config}:{5 if '[' in more else 4}: ")


def test_several_mistakes(site: Site) -> None:
    """All at once."""
    assert "several mistakes" in rows()
    site.configure("daemon: {poll_s: -5, pol_s: 5}\nnonsense: 1\n")

    done = site.run("--once")

    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 3


def test_no_configuration(site: Site) -> None:
    """The name of the file that was looked for."""
    site.config.unlink()

    refused(site.run("--once"), "there is no file")


def test_a_wrong_flag(site: Site) -> None:
    """The flag, as it was written."""
    refused(site.run("--once", "--set", "daemon.poll_s=x"), "a wrong `--set`")


def test_a_configuration_that_others_write(site: Site) -> None:
    """The command that mends it."""
    site.config.chmod(0o666)

    refused(site.run("--once"), "others can write the file")


@AS_ROOT
def test_a_configuration_of_somebody_else(site: Site) -> None:
    """Likewise."""
    os.chown(site.config, pwd.getpwnam(NOBODY).pw_uid, 0)

    refused(site.run("--once"), "it belongs to somebody else")


def test_an_unknown_admin(site: Site) -> None:
    """Before anything is listened to."""
    site.configure("control: {admins: [no-such-user]}\n")

    refused(site.run("--shadow"), "an admin nobody knows")


def test_a_long_socket_path(site: Site) -> None:
    """A unix socket's path has an end."""
    refused(site.run("--run-dir", f"{site.home}/{'x' * 99}"), "the socket's path is too long")


def test_something_in_the_sockets_place(site: Site) -> None:
    """It is not removed: it is not ours."""
    path = site.home / "run" / "dlschedd.sock"
    path.parent.mkdir()
    path.touch()

    refused(site.run("--shadow"), "a file is in the socket's place")
    assert path.exists()


def test_no_slurm_commands(site: Site) -> None:
    """The directory that was searched."""
    done = site.run("--once", "--set", "cluster.bin_dir=/nonexistent")

    refused(done, "Slurm's commands are not there")


def test_a_bad_profile(site: Site) -> None:
    """File and line."""
    (site.home / "profiles").mkdir()
    (site.home / "profiles" / "x.yaml").write_text("nope: 3\n", "utf-8")

    refused(site.run("--once"), "a bad profile of a model")


@AS_ROOT
def test_root(site: Site) -> None:
    """Unless SlurmUser is root, or somebody insists."""
    (site.home / "slurm.conf").write_text("SlurmUser=slurm\nClusterName=lab\n", "utf-8")

    refused(site.run("--once"), "started as root")
    assert UNREACHABLE in site.run("--once", "--allow-root").stderr


def confined(*writable: Path) -> tuple[str, ...]:
    """The command that runs another one as nobody, with only *writable* to write to."""
    options = [option for path in writable for option in ("--writable", str(path))]
    return (sys.executable, str(ROOT / "tests" / "confined.py"), "--user", NOBODY, *options, "--")


@CONFINING
def test_a_read_only_state_directory(site: Site) -> None:
    """As under ProtectSystem=strict, with a directory that systemd does not know of."""
    os.chown(site.state, pwd.getpwnam(NOBODY).pw_uid, -1)

    refused(site.run("--once", by=confined()), "a read-only state directory")


@CONFINING
def test_a_state_directory_of_somebody_else(site: Site) -> None:
    """It says so before it reads anything there."""
    done = site.run("--once", by=confined(site.state))

    refused(done, "a state directory of root, used by another account")


@AS_ROOT
@pytest.mark.parametrize("mode", ["--once", "--shadow"])
def test_root_leaves_nothing_in_the_state_directory_of_a_service(site: Site, mode: str) -> None:
    """The service could not open its own ledger afterwards."""
    os.chown(site.state, pwd.getpwnam(NOBODY).pw_uid, -1)

    refused(
        site.run(mode, "--allow-root"), "a state directory of another account than root and its own"
    )
    assert list(site.state.iterdir()) == []


def test_a_state_directory_that_others_write(site: Site) -> None:
    """What they put there would be believed."""
    site.state.chmod(0o770)

    refused(site.run("--once"), "others can write to the state directory, or to one above it")
    assert list(site.state.iterdir()) == []


def test_a_configuration_in_a_directory_that_others_write(site: Site) -> None:
    """They could replace it; where the sticky bit keeps them from that it is read."""
    site.home.chmod(0o777)
    refused(site.run("--once"), "others can write to a directory above it")

    site.home.chmod(0o1777)
    assert UNREACHABLE in site.run("--once").stderr


def test_a_lock_that_leads_elsewhere(site: Site) -> None:
    """The pid would be written over another file."""
    other = site.home / "other"
    other.write_text("content", "utf-8")
    (site.state / "lock").symlink_to(other)

    refused(site.run("--once"), "a link in place of the lock")
    assert other.read_text("utf-8") == "content"


def test_a_state_directory_that_is_a_file(site: Site) -> None:
    """Not a directory, and left as it is."""
    site.state.rmdir()
    site.state.touch()

    refused(site.run("--once"), "the state directory is a file")


def test_a_second_daemon(site: Site) -> None:
    """The pid of the first."""
    with (site.state / "lock").open("w", encoding="ascii") as file:
        file.write("4711\n")
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)

        refused(site.run("--once"), "a second daemon")


def ledger(site: Site) -> Path:
    """The ledger of a daemon that has run here."""
    site.run("--once")
    path = site.state / "ledger.sqlite"
    assert path.exists()
    return path


@pytest.mark.parametrize("how", ["cluster.name", "slurm.conf"])
def test_the_ledger_of_another_cluster(site: Site, how: str) -> None:
    """By the configured name, else by slurm.conf's; under its old name it goes on."""
    ledger(site)
    if how == "cluster.name":
        done = site.run("--once", "--set", "cluster.name=other")
    else:
        (site.home / "slurm.conf").write_text("SlurmUser=root\nclustername=Other # x\n", "utf-8")
        done = site.run("--once")

    refused(done, "the ledger of another cluster")
    assert "'lab', and this is 'other'" in done.stderr
    renamed = site.run("--once", "--set", "cluster.name=lab")
    assert UNREACHABLE in renamed.stderr


def test_a_renamed_cluster_by_the_command_of_the_page(site: Site) -> None:
    """What the page tells to do to the ledger does it."""
    path = ledger(site)
    page = (ROOT / "docs" / "operate" / "troubleshooting.md").read_text("utf-8")
    statement = page.partition('sqlite3 ledger.sqlite "')[2].partition('"')[0]
    with sqlite3.connect(path) as db:
        db.execute(statement.replace("NEW", "other"))
    db.close()

    done = site.run("--once", "--set", "cluster.name=other")

    assert UNREACHABLE in done.stderr


def test_a_newer_ledger(site: Site) -> None:
    """A program that was put back does not write into what it does not know."""
    path = ledger(site)
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version=99")
    db.close()

    refused(site.run("--once"), "a ledger of a newer slurm_dl")


def test_a_broken_ledger(site: Site) -> None:
    """It is not written over."""
    path = site.state / "ledger.sqlite"
    path.write_bytes(b"not a database " * 100)

    refused(site.run("--once"), "a ledger that is none")
    assert path.read_bytes().startswith(b"not a database")


NATIVE = """\
ClusterName             = lab
PreemptType             = preempt/none
PriorityType            = priority/multifactor
SLURM_VERSION           = 22.05.8
"""


def test_native_mode_without_native_preemption(site: Site) -> None:
    """A line for each thing that is missing."""
    tool = site.home / "bin" / "scontrol"
    tool.write_text(f"#!/bin/sh\ncat <<END\n{NATIVE}END\n", "utf-8")
    site.configure("preemption: {mode: native, qos: dl}\n")

    done = site.run("--once")

    refused(done, "native mode, and Slurm is not set up for it")
    assert len(done.stderr.splitlines()) > 1


# A daemon that goes on.


def status(schedd: Schedd) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(schedd.ask("status", "--json").stdout)
    return found


def test_an_audit_log_that_cannot_be_written(schedd: Schedd, eventually: Eventually) -> None:
    """It only looks, and says so once in the log."""
    schedd.audit.symlink_to("/dev/full")
    schedd.start("--live")
    eventually(lambda: status(schedd)["cycles"] >= 2, within_s=20)

    wanted = row("the audit log cannot be written")
    wanted.check_within(schedd.log)
    wanted.check(status(schedd)["doing"], message=1)


def test_a_pause_that_cannot_be_read(schedd: Schedd, eventually: Eventually) -> None:
    """Somebody meant to stop it."""
    (schedd.directory / "state").mkdir()
    (schedd.directory / "state" / "paused.json").write_text("{", "utf-8")
    schedd.start("--live")
    eventually(lambda: status(schedd)["cycles"] >= 2, within_s=20)

    row("a pause that cannot be read").check(status(schedd)["doing"])


def test_a_bad_configuration_at_a_reload(schedd: Schedd) -> None:
    """Refused, named and left: in the log and to whoever asked."""
    schedd.start()
    schedd.configure(poll_s=-5)

    done = schedd.ask("reload")

    for message in (0, 1):
        row("a bad configuration at a reload").check_within(done.stderr, message=message)
        row("a bad configuration at a reload").check_within(schedd.log, message=message)
    assert status(schedd)["cycles"] >= 1


def as_nobody(path: Path, request: str) -> str:
    """The error that nobody gets for a request."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        said = "no error"
        try:
            entry = pwd.getpwnam(NOBODY)
            os.setgroups([])
            os.setgid(entry.pw_gid)
            os.setuid(entry.pw_uid)
            Client(path).ask(request)
        except DaemonError as err:
            said = str(err)
        finally:
            os.write(write_end, said.encode())
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as stream:
        said = stream.read()
    os.waitpid(pid, 0)
    return said


@AS_ROOT
def test_who_may_not_ask_or_command(schedd: Schedd) -> None:
    """A user is told by whom it can be done, or that there is no way in at all."""
    schedd.start()
    row("a command for admins").check(f"dlctl: {as_nobody(schedd.socket, 'pause')}")

    schedd.socket.chmod(0o600)

    row("the socket is closed to the user").check(f"dlqueue: {as_nobody(schedd.socket, 'queue')}")


def test_no_such_job(schedd: Schedd) -> None:
    """The number, and why it may be unknown."""
    schedd.start()

    refused(
        schedd.ask("queue", "why", "99"),
        "no such job, or one that [PrivateData](operate.md#visibility-of-jobs-and-users) hides",
    )


# Commands.

Command = Callable[..., "subprocess.CompletedProcess[str]"]


def test_no_daemon(command: Command, short_directory: Path) -> None:
    """Where it was looked for."""
    done = command("queue", "--socket", str(short_directory / "none.sock"))

    refused(done, "no daemon")


def test_no_such_template() -> None:
    """Where it was looked for, and what there is."""
    argv = [str(BIN / "dlsubmit"), "--show-template", "nothere"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60 * PATIENCE, check=False)

    refused(done, "no such template")


TRACES = ROOT / "traces"
SAMPLES = ROOT / "tests" / "data" / "traces"
OF_FORMAT = {
    "slurm_dl": None,
    "tiresias": TRACES / "tiresias" / "60_job.csv",
    "muri": TRACES / "muri" / "trace3.csv",
    "itp": TRACES / "elasticflow" / "cluster10.csv",
    "philly": TRACES / "philly" / "philly.csv.gz",
    "helios": SAMPLES / "helios.csv",
    "chronus": SAMPLES / "chronus.csv",
    "gavel": TRACES / "gavel" / "max_min_fairness.trace",
    "synergy": TRACES / "synergy" / "srtf.log",
    "pollux": TRACES / "pollux" / "workload-1.csv",
    "sacct": SAMPLES / "sacct.txt",
    "pai": SAMPLES / "pai",
    "philly-json": SAMPLES / "philly_job_log.json",
}


Dlsim = Callable[..., tuple[int, str]]


@pytest.fixture
def dlsim(capsys: pytest.CaptureFixture[str]) -> Dlsim:
    """A function that runs dlsim: its exit status, and all that it says."""

    def run(*argv: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main(argv)
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out + said.err

    return run


OWN = "job_id,submit_s,duration_s,gpus,user,model,ending\n" + "".join(
    f"{i},{i},60,1,ann,,COMPLETED\n" for i in range(5)
)
WITH = {"pollux": ("--models", str(TRACES / "pollux" / "models"))}
BROKEN = {"philly-json": '{"status": "Pass", "jobid": 5, "attempts": 7},'}


def head_of(path: Path | None) -> list[str]:
    """The first lines of a sample; of our own format, which has none, a few of our own."""
    if path is None:
        return OWN.splitlines(keepends=True)
    if path.suffix == ".json":
        return path.read_text("utf-8").splitlines(keepends=True)
    opener: Any = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as stream:
        return [line for _, line in zip(range(30), stream, strict=False)]


def test_there_is_a_sample_of_every_format() -> None:
    """A new format comes with a bad line, too."""
    assert OF_FORMAT.keys() == FORMATS.keys()


def spoilt(name: str, directory: Path) -> tuple[Path, int]:
    """A trace with one bad line, and its number."""
    lines = head_of(OF_FORMAT[name])
    at = 1 if name == "philly-json" else 2
    lines.insert(at, f"{BROKEN.get(name, 'broken line')}\n")
    path = directory / "trace.txt"
    path.write_text("".join(lines), "utf-8")
    return path, at + 1


@pytest.mark.parametrize("name", [name for name in OF_FORMAT if name != "pai"])
def test_a_bad_line_of_a_trace(name: str, tmp_path: Path, dlsim: Dlsim) -> None:
    """File and line in every format; the other lines are read."""
    path, line = spoilt(name, tmp_path)

    exit_status, said = dlsim("traces", str(path), "--format", name, *WITH.get(name, ()))

    assert exit_status == 0, said
    told = [text.strip() for text in said.splitlines() if f"{path}:{line}: " in text]
    assert len(told) == 1, said
    row("a bad line in a trace").check(told[0])


def test_a_bad_line_of_a_trace_of_several_files(dlsim: Dlsim) -> None:
    """A directory of tables that belong together: its name, and the line in the table of jobs."""
    path = OF_FORMAT["pai"]

    exit_status, said = dlsim("traces", str(path))

    assert exit_status == 0
    told = [text.strip() for text in said.splitlines() if f"{path}:" in text]
    assert f"{path}:7: status is 'Strange'" in told
    for text in told:
        row("a bad line in a trace").check(text)


def test_traces_that_are_none(tmp_path: Path, dlsim: Dlsim) -> None:
    """Not there, of no format, or with nothing that can be read."""
    odd, bad = tmp_path / "odd.csv", tmp_path / "bad.csv"
    odd.write_text("a,b,c\n1,2,3\n", "utf-8")
    bad.write_text(OWN.splitlines()[0] + "\nx,y\n", "utf-8")
    for path, situation in (
        (tmp_path / "none.csv", "a trace that is not there"),
        (odd, "a trace of no known format"),
        (bad, "a trace with bad lines only"),
    ):
        exit_status, said = dlsim("traces", str(path))
        row(situation).check(said)
        assert exit_status == 2


def test_a_recording_that_is_none(tmp_path: Path, dlsim: Dlsim) -> None:
    """It is not replayed in part."""
    path = tmp_path / "recording"
    path.write_text("{}\n", "utf-8")

    exit_status, said = dlsim("replay", str(path))

    row("a recording that is none").check(said)
    assert exit_status == 2


def test_a_curve_of_values_that_is_none(tmp_path: Path, dlsim: Dlsim) -> None:
    (tmp_path / "t.csv").write_text("job_id,submission_time,duration,num_gpu\n1,0,9,1\n", "utf-8")
    (tmp_path / "c.txt").write_text("8 hours\n", "utf-8")
    words = ("--cluster", "1x1", "--gpus", "1", "--time", "1h", "--curve", str(tmp_path / "c.txt"))
    exit_status, said = dlsim("whatif", str(tmp_path / "t.csv"), *words)

    row("a curve of values that is none").check(said)
    assert exit_status == 2


TESTS = (
    "cli/test_bad_input.py",
    "contract/test_reader_recorded.py",
    "faults/test_bad_input.py",
    "faults/test_privilege.py",
    "unit/test_slurm_releases.py",
)


def test_every_row_of_the_page_is_tested() -> None:
    """A message that nobody provokes would become wrong one day."""
    source = "".join((ROOT / "tests" / name).read_text("utf-8") for name in TESTS)
    by_hand = {"several mistakes"}

    assert [name for name in rows() if f'"{name}"' not in source] == []
    assert {name for name, one in rows().items() if not one.messages} == by_hand
