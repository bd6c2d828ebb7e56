from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_dl.model.errors import ClusterError, ConfigError
from slurm_dl.sandbox import SandboxNodes, SandboxSpec, accounting_database, layout, manifest
from slurm_dl.sandbox.daemons import Daemons
from slurm_dl.sandbox.layout import Layout
from slurm_dl.sandbox.manifest import Record
from slurm_dl.sandbox.process_control import DeadlinePassedError, eventually

SPEC = SandboxSpec()


@pytest.fixture
def masked() -> Iterator[None]:
    """A umask that would close everything to other users."""
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.fixture
def made(short_directory: Path) -> Layout:
    """A sandbox's directory with its record, without daemons."""
    made = Layout(short_directory)
    layout.write_file(made.record, manifest._RECORD_JSON.dump_json(Record(SPEC, 18_900)).decode())
    return made


@pytest.mark.parametrize("name", ["a b", "a%n", "a[1]", "a#b", "a,b", "a\nb", 'a"b', "a=b"])
def test_a_name_slurm_conf_cannot_hold_is_refused(short_directory: Path, name: str) -> None:
    """slurm.conf has no quoting, so such directories cannot work."""
    with pytest.raises(ConfigError, match="cannot hold this name"):
        layout.check_directory(Layout(short_directory / name), SPEC)


def test_a_path_too_long_for_unix_sockets_is_refused(short_directory: Path) -> None:
    """The longest name that passes is the longest whose sockets fit into 107 bytes."""
    room = 107 - len(f"{short_directory}//spool/n4/n4_67043328.4294967291")
    layout.check_directory(Layout(short_directory / ("x" * room)), SPEC)

    with pytest.raises(ConfigError, match="1 characters too long"):
        layout.check_directory(Layout(short_directory / ("x" * (room + 1))), SPEC)
    with pytest.raises(ConfigError, match="6 characters too long"):
        layout.check_directory(
            Layout(short_directory / ("x" * room)), SandboxSpec(groups=(SandboxNodes(nodes=1_000),))
        )


def test_a_directory_with_foreign_things_is_refused(short_directory: Path) -> None:
    """Nothing is ever written beside files that are not the sandbox's."""
    layout.check_directory(Layout(short_directory), SPEC)
    (short_directory / ".lock").touch()
    layout.check_directory(Layout(short_directory), SPEC)
    (short_directory / "thesis.tex").touch()

    with pytest.raises(ConfigError, match="not empty and not a sandbox"):
        layout.check_directory(Layout(short_directory), SPEC)
    with pytest.raises(ConfigError, match="is not a directory"):
        layout.check_directory(Layout(short_directory / "thesis.tex"), SPEC)


def test_a_directory_others_cannot_reach_is_refused(short_directory: Path) -> None:
    """Jobs of other users run in the sandbox, so every directory above must let them pass."""
    closed = short_directory / "closed"
    closed.mkdir(mode=0o700)

    with pytest.raises(
        ConfigError, match=f"other users cannot enter {closed}.*chmod o\\+x {closed}"
    ):
        layout.check_directory(Layout(closed / "a" / "b"), SPEC)


def test_a_directory_others_can_replace_is_refused(
    short_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root ends processes by the records in the directory, so nobody else may put them there."""
    shared = short_directory / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(ConfigError, match=f"{shared} can be written by group or others"):
        layout.check_directory(Layout(shared / "box"), SPEC)
    shared.chmod(0o1777)
    layout.check_directory(Layout(shared / "box"), SPEC)

    box = shared / "box"
    box.mkdir(mode=0o755)
    seen = Path.lstat

    def of_alice(path: Path) -> os.stat_result:
        status = seen(path)
        values = list(status)
        values[stat.ST_UID] = 1234 if path == box else status.st_uid
        return os.stat_result(values)

    monkeypatch.setattr(Path, "lstat", of_alice)
    with pytest.raises(ConfigError, match=f"{box} belongs to uid 1234"):
        layout.check_path(box)
    with pytest.raises(ConfigError, match="belongs to"), manifest.locked(Layout(box)):
        pass


def test_a_host_that_cannot_run_slurm_is_refused(
    short_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Missing packages and missing privileges are each one line that says what to do."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", str(short_directory))
    monkeypatch.setattr(layout, "_ADMIN_DIRECTORIES", ())
    with pytest.raises(ConfigError, match=r"not installed: munged, slurmctld, .*apt-get install"):
        layout.check_host()

    with pytest.raises(ConfigError, match=r"not installed: slurmdbd, .*apt-get install"):
        accounting_database.check_host()

    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ConfigError, match="needs root"):
        layout.check_host()


@pytest.mark.usefixtures("masked")
def test_modes_do_not_depend_on_the_umask(short_directory: Path) -> None:
    """Users can read what they need, and the controller's state and the key are root's alone."""
    made = Layout(short_directory / "new" / "box")
    layout.make_directory(made.directory, 0o755)
    layout.make_tree(made, SandboxSpec(groups=(SandboxNodes(gpus=0),)))
    layout.write_file(made.slurm_conf, "x")

    modes = {
        path: stat.S_IMODE(path.stat().st_mode)
        for path in (
            made.directory.parent,
            made.directory,
            made.state,
            made.jobs,
            made.munge_key,
            made.slurm_conf,
            made.spool / "n1",
        )
    }
    assert list(modes.values()) == [0o755, 0o755, 0o700, 0o1777, 0o400, 0o644, 0o755]
    assert made.munge_key.stat().st_size == 1024


def test_a_host_without_mknod_is_told_so(
    short_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a container without the capability, the message names it."""

    def refuse(*_args: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "mknod", refuse)

    with pytest.raises(ConfigError, match="capability MKNOD"):
        layout.make_tree(Layout(short_directory), SPEC)


def test_a_directory_without_record_is_no_sandbox(short_directory: Path) -> None:
    """The message says how to make one."""
    with pytest.raises(ConfigError, match=r"no sandbox in .* make one with 'dlctl sandbox up"):
        manifest.load(Layout(short_directory / "none"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "sandbox.json"),
        ('{"spec": {}, "first_port": "x"}', "first_port"),
        ("[]", "sandbox.json"),
    ],
)
def test_a_damaged_record_is_named(short_directory: Path, text: str, words: str) -> None:
    """A record that cannot be read stops everything, and the message names file and place."""
    (short_directory / "sandbox.json").write_text(text)

    with pytest.raises(ConfigError, match=words):
        manifest.load(Layout(short_directory))


def test_a_record_of_a_later_format_is_refused(made: Layout) -> None:
    """An older program does not guess at what a newer one wrote."""
    made.record.write_text(made.record.read_text().replace('"format":1', '"format":2'))

    with pytest.raises(ConfigError, match="is of format 2"):
        manifest.load(made)


def test_another_spec_or_port_is_refused(made: Layout) -> None:
    """Resuming with other options says what differs; with the same or none it passes."""
    there = manifest.load(made)
    manifest.check_same(made, there, None, None)
    manifest.check_same(made, there, SPEC, 18_900)

    with pytest.raises(ConfigError, match="kill_wait_s is 5, asked for 9; the first port is 18900"):
        manifest.check_same(made, there, SandboxSpec(kill_wait_s=9), 18_000)


def test_two_commands_do_not_work_on_one_sandbox(made: Layout) -> None:
    """The second one gives up with a line instead of starting the same daemons."""
    with (
        manifest.locked(made),
        pytest.raises(ClusterError, match="another command"),
        manifest.locked(made, within_s=0.0),
    ):
        pass

    with manifest.locked(made, within_s=0.0):
        pass


def test_eventually_returns_what_it_waited_for() -> None:
    """The first true answer is returned; errors on the way are only asked again."""
    answers = iter([0, 7])

    def ask() -> int:
        answer = next(answers)
        assert answer
        return answer

    assert eventually(ask, 5.0, 0.0) == 7


def test_eventually_says_what_did_not_come() -> None:
    """The deadline's message has the name, the time and the last answer or error."""
    with pytest.raises(DeadlinePassedError, match=r"waited 0 s for rain; last answer: \[\]"):
        eventually(list, 0.0, what="rain")

    def never() -> bool:
        message = "squeue is silent"
        raise ClusterError(message)

    with pytest.raises(DeadlinePassedError, match="never; last error: squeue is silent"):
        eventually(never, 0.0)


PMIX = """\
slurmctld: error:  mpi/pmix_v4: init: can not load PMIx library
slurmctld: error: MPI: Cannot create context for mpi/pmix_v4
slurmctld: error: Could not open node state file /srv/box/state/node_state: No such file
slurmctld: error: NOTE: Trying backup state save file. Information may be lost!
"""
NO_NAME = "slurmctld: error: get_addr_info: getaddrinfo() failed: Name or service not known"
NO_PORT = "slurmctld: fatal: slurm_init_msg_engine_port error Address family not supported"


@pytest.mark.parametrize(
    ("output", "said"),
    [
        (None, "it printed nothing"),
        (f"{PMIX}slurmctld: good-bye\n", "slurmctld: good-bye"),
        (f"{PMIX}{NO_NAME}\nslurmctld: error: no\n{NO_PORT}\n", f"{NO_NAME} ... {NO_PORT}"),
        (f"one\n{NO_PORT}\ntwo\n", NO_PORT),
    ],
)
def test_the_first_cause_in_a_daemons_output_is_told(
    output: str | None, said: str, tmp_path: Path
) -> None:
    """Not what follows from it, nor what every start complains of."""
    daemons = Daemons.of(Layout(tmp_path), Record(SPEC, 18_900))
    if output is not None:
        (tmp_path / "log").mkdir()
        daemons.output("slurmctld").write_text(output, "utf-8")

    assert daemons.why_out_of_service("slurmctld") == said
