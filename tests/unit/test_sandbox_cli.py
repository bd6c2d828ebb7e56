from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from slurm_dl.cli.dlctl.sandbox import sandbox as group
from slurm_dl.sandbox import (
    PartitionSpec,
    Sandbox,
    SandboxNodes,
    SandboxSpec,
    accounting_database,
    layout,
    manifest,
)
from slurm_dl.sandbox.layout import Layout
from slurm_dl.sandbox.manifest import Record


def invoke(*args: str) -> Result:
    return CliRunner().invoke(group, args, prog_name="dlctl sandbox")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[SandboxSpec | None, int | None]]:
    """What ``up`` would start; nothing is started."""
    found: list[tuple[SandboxSpec | None, int | None]] = []

    def up(
        directory: str | os.PathLike[str],
        spec: SandboxSpec | None = None,
        *,
        port: int | None = None,
    ) -> Sandbox:
        found.append((spec, port))
        return Sandbox(Layout(Path(directory)), Record(spec or SandboxSpec(), 18_900))

    monkeypatch.setattr(Sandbox, "up", up)
    monkeypatch.setattr(layout, "check_host", lambda: None)
    monkeypatch.setattr(accounting_database, "check_host", lambda: None)
    return found


@pytest.fixture
def there(short_directory: Path) -> Path:
    """The directory of a sandbox whose daemons do not run."""
    spec = SandboxSpec(
        groups=(SandboxNodes(nodes=2), SandboxNodes(nodes=1, gpus=8, gpu_type="v100"))
    )
    text = manifest._RECORD_JSON.dump_json(Record(spec, 18_900)).decode()
    (short_directory / "sandbox.json").write_text(text)
    return short_directory


@pytest.mark.parametrize("command", [(), ("up",), ("down",), ("status",), ("env",)])
def test_every_command_has_help_with_an_example(command: tuple[str, ...]) -> None:
    """A reader of --help sees a line to copy."""
    result = invoke(*command, "--help")

    assert result.exit_code == 0
    assert "Example:\n" in result.output
    assert "  dlctl sandbox " in result.output.partition("Example:\n")[2].replace('eval "$(', "  ")


def test_options_become_a_spec(
    asked: list[tuple[SandboxSpec | None, int | None]], short_directory: Path
) -> None:
    """Every option of up has its place in the spec."""
    options = (
        "--nodes 3 --gpus 2 --type h100 --cpus 8 --mem-mb 900 --nodes-per-leaf 3 --partition a"
        " --partition b=n[1-2] --scheduler production --cred-expire-s 70 --kill-wait-s 30"
        " --conf MaxJobCount=9 --no-slurmd --accounting --port 18900"
    )

    result = invoke("up", str(short_directory / "new"), *options.split())

    assert result.exit_code == 0
    assert asked == [
        (
            SandboxSpec(
                groups=(SandboxNodes(3, 2, "h100", 8, 900),),
                nodes_per_leaf=3,
                cred_expire_s=70,
                kill_wait_s=30,
                partitions=(PartitionSpec("a"), PartitionSpec("b", "n[1-2]")),
                start_slurmd=False,
                scheduler_parameters="",
                slurm_conf_extra=("MaxJobCount=9",),
                accounting=True,
            ),
            18_900,
        )
    ]
    assert f'eval "$(dlctl sandbox env {short_directory / "new"})"' in result.output


def test_groups_may_be_repeated(
    asked: list[tuple[SandboxSpec | None, int | None]], short_directory: Path
) -> None:
    """Several kinds of nodes share CPUs and memory as given once."""
    target = str(short_directory / "new")
    result = invoke("up", target, "--group", "4x4:a100", "--group", "2x0", "--cpus", "8")

    assert result.exit_code == 0
    assert asked[0][0] == SandboxSpec(
        groups=(SandboxNodes(4, 4, "a100", cpus=8), SandboxNodes(2, 0, "", cpus=8))
    )


def test_options_left_out_mean_what_is_there(
    asked: list[tuple[SandboxSpec | None, int | None]], there: Path
) -> None:
    """Resuming a sandbox needs no options, and one that is given is compared with the rest."""
    assert invoke("up", str(there)).exit_code == 0
    assert invoke("up", str(there), "--kill-wait-s", "9").exit_code == 0

    spec = Sandbox.open(there).spec
    assert asked[0][0] == spec
    assert asked[1][0].groups == spec.groups
    assert asked[1][0].kill_wait_s == 9


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--group", "4by4"), "want NODESxGPUS:TYPE"),
        (("--group", "4x4:a100", "--nodes", "2"), "leave out --nodes"),
        (("--nodes", "0"), "is not between 1 and"),
        (("--conf", "SlurmUser=nobody"), "the sandbox sets it itself"),
        (("--partition", "a b"), "partition name 'a b'"),
    ],
)
def test_wrong_options_are_one_line(
    asked: list[tuple[SandboxSpec | None, int | None]],
    short_directory: Path,
    options: tuple[str, ...],
    words: str,
) -> None:
    """The user's error ends with status 2, one line and nothing started."""
    result = invoke("up", str(short_directory / "new"), *options)

    assert result.exit_code == 2
    assert words in result.output
    assert result.output.startswith("Error: ")
    assert result.output.count("\n") == 1
    assert asked == []


@pytest.mark.parametrize("command", ["down", "status", "env"])
def test_a_directory_without_sandbox_is_one_line(short_directory: Path, command: str) -> None:
    """Commands on nothing say how to make something."""
    result = invoke(command, str(short_directory))

    assert result.exit_code == 2
    assert result.output.startswith(f"Error: no sandbox in {short_directory}; make one with")
    assert result.output.count("\n") == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for other users' directories")
@pytest.mark.parametrize("command", ["up", "down", "down --remove", "status", "env", "env --json"])
@pytest.mark.parametrize(
    ("changed", "uid", "mode"),
    [
        pytest.param("a/box", 65534, 0o755, id="a stranger's"),
        pytest.param("a/box", 0, 0o775, id="a group writes"),
        pytest.param("a/box", 0, 0o1777, id="everybody writes, with the sticky bit"),
        pytest.param("a", 65534, 0o1777, id="in a stranger's"),
        pytest.param("a", 0, 0o777, id="in one where everybody replaces it"),
        pytest.param("link", 65534, None, id="behind a stranger's link"),
    ],
)
def test_a_directory_that_strangers_control_is_refused(
    there: Path, command: str, changed: str, uid: int, mode: int | None
) -> None:
    """A shell evaluates what env prints, and root ends what the record names."""
    (there / "a" / "box").mkdir(parents=True)
    (there / "sandbox.json").rename(there / "a" / "box" / "sandbox.json")
    (there / "link").symlink_to(there / "a")
    os.chown(there / changed, uid, uid, follow_symlinks=False)
    if mode is not None:
        (there / changed).chmod(mode)

    asked = there / ("link" if changed == "link" else "a") / "box"
    result = invoke(*command.split(), str(asked))

    assert result.exit_code == 2
    assert result.output.startswith(f"Error: {there / changed} ")
    assert "root's or your own" in result.output
    assert "export" not in result.output
    assert (there / "a" / "box" / "sandbox.json").exists()


def test_up_without_root_is_one_line(
    short_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unprivileged user is told before anything is made."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    result = invoke("up", str(short_directory / "new"))

    assert result.exit_code == 2
    assert "needs root" in result.output
    assert not (short_directory / "new").exists()


def test_env_is_what_a_shell_evaluates(there: Path) -> None:
    """SLURM_CONF and nothing else, as export lines or as JSON."""
    assert invoke("env", str(there)).output == f"export SLURM_CONF={there}/slurm.conf\n"
    assert invoke("env", "--json", str(there)).output == f'{{"SLURM_CONF": "{there}/slurm.conf"}}\n'
    odd = there / "it's $(touch x); y"
    odd.mkdir()
    (there / "sandbox.json").rename(odd / "sandbox.json")
    line = 'eval "$1"; printf %s "$SLURM_CONF"'
    text = invoke("env", str(odd)).output
    done = subprocess.run(["/bin/sh", "-c", line, "-", text], capture_output=True, check=True)
    assert done.stdout.decode() == f"{odd}/slurm.conf"


def test_status_of_a_sandbox_that_is_down(there: Path) -> None:
    """Daemons that do not run are named, and the exit status says so."""
    result = invoke("status", str(there))

    assert result.exit_code == 1
    assert "does not answer" in result.output
    assert "slurmctld  -    not running" in result.output
