"""No command imports what others planted: where root stands, in PYTHONPATH, at home.

Every command and subcommand is run twice, the second time among modules that leave a mark when they
are imported, and under all variables that Python heeds. What it prints must be the same.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path

import click
import pytest
from commands import CLICK
from in_process import in_process
from patience import PATIENCE

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
TRACE = ROOT / "traces/tiresias/60_job.csv"
FILES = {
    "trace.csv": "".join(TRACE.read_text("utf-8").splitlines(keepends=True)[:12]),
    "job.sh": "#!/bin/bash\nexec python train.py\n",
    "train.py": "",
    # The user's program is not ours to isolate: this one only says what it was given.
    "bin/python": '#!/bin/bash\ntrap "exit 0" USR1\nsleep 9 & wait\n',
    # Slurm, for the sweep: both tasks of the array run at once, where the caller stands.
    "bin/sbatch": (
        "#!/bin/bash\nfor t in 0 1; do\n"
        'SLURM_ARRAY_TASK_ID=$t PATH=/usr/bin:/bin bash "${@: -3}" >&2\ndone\necho 7\n'
    ),
    "bin/squeue": "#!/bin/bash\n",
}
MARK = "import posix\nposix.close(posix.open({!r} + __name__, posix.O_CREAT | posix.O_WRONLY))\n"
PLANTED = (
    *("slurm_dl/__init__", "multiprocessing/__init__", "click", "json", "numpy", "yaml", "re"),
    *("sitecustomize", "usercustomize", "encodings/__init__", "subprocess", "pyslurm", "runpy"),
)
SIMULATION = ("--cluster", "2x4", "--policies", "fifo_skip", "--seeds", "2", "-q")
MORE = {
    "dlctl sandbox up": ("--nodes", "0"),
    "dlctl sandbox down": ("nowhere",),
    "dlctl test-signal": ("--local", "--after", "2", "--grace", "5", "train.py"),
    "dlsim compare": ("trace.csv", *SIMULATION, "-j", "2"),
    "dlsim study default": ("--dir", "study", "--trace", "gone", "-j", "2"),
    "dlsim whatif": ("trace.csv", *SIMULATION[:2], "-j", "2"),
    "dlsim tune": ("trace.csv", *SIMULATION[:2], "-j", "2"),
    "dlschedd": ("--once", "--config", "gone.yaml"),
    "dlsubmit": ("--dry-run", "--gpus", "1", "--", "python", "train.py"),
}
"""Arguments of commands that get further with them than with one word for each that is required."""
LINES = (
    ("dlctl", "test-signal", "--local", "--after", "2", "--grace", "5", "job.sh"),
    ("dlsim", "compare", "trace.csv", *SIMULATION, "--on", "slurm", "--dir", "sweep"),
)
"""And such as start other processes than those."""


def lines_of(command: click.Command, *words: str) -> Iterator[tuple[str, ...]]:
    """A command line for *command*, and one for each of its subcommands."""
    context = click.Context(command)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from lines_of(child, *words, name)
        if not command.invoke_without_command:
            return
    if " ".join(words) in MORE:
        yield (*words, *MORE[" ".join(words)])
        return
    required = [param for param in command.params if param.required]
    given = {click.Path: "trace.csv", click.Choice: "gpus_per_hour"}
    for param in required:
        word = given.get(type(param.type), "1")
        words += (word,) if isinstance(param, click.Argument) else (param.opts[-1], word)
    yield words


def make(place: Path) -> Path:
    """A directory with what the command lines name."""
    (place / "bin").mkdir(parents=True)
    for name, text in FILES.items():
        (place / name).write_text(text, "utf-8")
        (place / name).chmod(0o755)
    return place


@pytest.fixture
def traps(tmp_path: Path) -> Iterator[Path]:
    """The same, with modules that leave ``marks/NAME`` where they are imported; none may."""
    place = make(tmp_path / "traps")
    (place / "marks").mkdir()
    home = f".local/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    for name in (*PLANTED, f"{home}/usercustomize"):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / f"{name}.py").write_text(MARK.format(f"{place}/marks/"), "utf-8")
    (place / home / "planted.pth").write_text(f"import sys; open('{place}/marks/pth', 'w')\n")
    # Another Python, by variables that count in spite of -I.
    packages = place / home.replace(".local", "venv")
    packages.mkdir(parents=True)
    (packages / "planted.pth").write_text(f"import sys; open('{place}/marks/venv', 'w')\n")
    (place / "venv/bin").mkdir()
    real = Path(sys.executable).resolve()
    (place / "venv/bin/python3").symlink_to(real)
    (place / "venv/pyvenv.cfg").write_text(f"home = {real.parent}\n", "utf-8")
    yield place
    assert [path.name for path in (place / "marks").iterdir()] == []


def hostile(place: Path) -> dict[str, str]:
    """Variables that make Python import from *place*, or do what else was not asked for."""
    at_place = {"PATH": ":", "USERBASE": "/.local", "STARTUP": "/click.py", "HOME": ""}
    python = {f"PYTHON{name}": f"{place}{rest}" for name, rest in at_place.items()}
    python |= {"PYTHONINSPECT": "1", "PYTHONWARNINGS": "error", "PYTHONPROFILEIMPORTTIME": "1"}
    return {**python, "BASH_ENV": f"{place}/planted"}


def environment(place: Path) -> dict[str, str]:
    return {"HOME": str(place), "PATH": f"{place}/bin:/usr/bin:/bin", "COLUMNS": "80"}


def run(place: Path, *argv: object, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """A command that is started in *place*."""
    return subprocess.run(
        [*map(str, argv)],
        cwd=place,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60 * PATIENCE,
        check=False,
    )


def end_of(place: Path, *argv: object, **env: str) -> tuple[int, str]:
    """Its exit status and its output, without paths and numbers."""
    done = run(place, *argv, env={**environment(place), **env})
    return done.returncode, shown(done.stdout + done.stderr, place)


def shown(text: str, place: Path) -> str:
    """*text* without what differs from run to run."""
    return re.sub(r"[0-9.]+", "N", text.replace(str(place), "PLACE"))


def here(line: Sequence[str]) -> tuple[int, str]:
    """The same of a command in this process, whose modules are ours."""
    module = f"slurm_dl.cli.{line[0]}.command"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [*line])
        done = in_process(lambda _: sys.exit(import_module(module).main()))
    return done.exit_code, shown(done.stdout + done.stderr, Path.cwd())


@pytest.mark.full("runs each command twice, which takes a core for a minute")
def test_no_command_imports_what_was_planted(
    traps: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor the processes that it starts; and it does what it does elsewhere."""
    plain = make(tmp_path / "plain")
    lines = [*(x for name, command in CLICK.items() for x in lines_of(command, name)), *LINES]
    with ThreadPoolExecutor(2) as pool:
        # They count in spite of -I.
        other = str(traps / "venv/bin/python3")
        named = {"PYTHONEXECUTABLE": other, "__PYVENV_LAUNCHER__": other, **hostile(traps)}
        found = pool.map(lambda x: end_of(traps, BIN / x[0], *x[1:], **named), lines)
        monkeypatch.chdir(plain)
        for name, value in environment(plain).items():
            monkeypatch.setenv(name, value)
        expected = [here(line) for line in lines]
    told = zip(lines, expected, found, strict=True)
    other = {line: (left, right) for line, left, right in told if left != right}

    assert len(lines) > 40
    assert other == {}


WORKERS = """
from slurm_dl.forecast import worker
from slurm_dl.slurm.pyslurm.reader import PyslurmProcess
from slurm_dl.slurm.tool_runner import Slurm
for ask in (
    lambda: worker.run_worker(b"{}", 9.0),
    lambda: PyslurmProcess(Slurm(environ={"HOME": HOME})).ask(do="version"),
):
    try:
        ask()
    except Exception as err:
        print(err)
"""
POOL = """
from slurm_dl.experiments.process_pool import process_pool
if __name__ == "__main__":
    with process_pool(abs, 2) as run:
        print(sorted(run([-1, -2])))
"""


def test_processes_of_the_daemon_and_of_a_script_import_nothing_planted(
    traps: Path, tmp_path: Path
) -> None:
    """Workers under hostile variables; and a pool whose owner is not isolated itself."""
    script = tmp_path / "pool.py"
    script.write_text(POOL, "utf-8")
    code = WORKERS.replace("HOME}", f"{str(traps)!r}}}")

    status, told = end_of(traps, sys.executable, "-I", "-c", code, **hostile(traps))
    pool = end_of(traps, sys.executable, "-s", script)

    assert status == 0
    assert "No module named 'pyslurm'" in told
    assert pool == (0, "[(N, N), (N, N)]\n")


def test_the_users_program_has_the_users_environment(traps: Path) -> None:
    """All of it, also what sh would drop; and at the end of PYTHONPATH what is for jobs."""
    given = hostile(traps) | {"BASH_FUNC_module%%": "() {  echo hi; }", "a.b": "1", "python": "2"}
    done = run(traps, BIN / "dlrun", "--", "env", env={**environment(traps), **given})

    given["PYTHONPATH"] += f":{ROOT}/slurm_dl/job/pythonpath"
    assert {f"{k}={v}" for k, v in given.items()} <= set(done.stdout.splitlines())


def test_a_command_is_found_and_finds_its_python(tmp_path: Path) -> None:
    """By links, from paths with blanks and quotes, in PATH; and says so where there is none."""
    venv = tmp_path / """it's "a place" $HOME"""
    (venv / "bin").mkdir(parents=True)
    (tmp_path / "links").mkdir()
    command = Path(shutil.copy(BIN / "dlqueue", venv / "bin"))
    python = venv / "bin/python3"
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$0" "$@"\n', "utf-8")
    python.chmod(0o755)
    link = tmp_path / "links/dlq"
    (tmp_path / "links/between").symlink_to(os.path.relpath(command, link.parent))
    link.symlink_to("between")
    words = ["", "a  b", "'", '"$(x)', "*"]

    def told(program: object, **env: str) -> list[str]:
        done = run(venv / "bin", program, *words, env=env)
        return [str(done.returncode), *(done.stdout or done.stderr).splitlines()]

    for program in (command, link):
        assert told(program) == ["0", str(python), "-I", str(program), *words]
    assert told("./dlqueue", PATH="")[2:4] == ["-I", "./dlqueue"]
    python.unlink()
    status, said = told(link)
    assert status == "127"
    assert said.startswith(f"dlq: no Python at {python}: install slurm_dl")
