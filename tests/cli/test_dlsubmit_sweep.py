"""dlsubmit --sweep and --again, dlqueue sweep; each task of the script that sbatch got is run."""

from __future__ import annotations

import itertools
import json
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from patience import PATIENCE

BIN = Path(sys.executable).parent

TOOLS = {
    "sinfo": "cat {base}/sinfo.out",
    "scontrol": "cat {base}/config.out",
    "sbatch": "printf '%s\\0' \"$@\" > {base}/argv\ncat > {base}/script\ncat {base}/answer",
    "squeue": "cat {base}/queue",
    "sacct": "cat {base}/past",
    "dlrun": '[ "$1" = --env ] || {{ while [ "$1" != -- ]; do shift; done; shift\n'
    'printf \'%s\\0\' "$SLURM_DL_SWEEP_A" "$@"; }}',
}
HOSTILE = [
    *("a b", "it's", "$(touch pwned) `touch pwned` $HOME", "x\n#SBATCH --exclusive\n", "-x", "é"),
    *("{b}", "{{ 7 * 7 }}", '"; touch pwned; "', "*", "a;;\nesac", "back\\slash", "\x1b[2J", "~"),
]


@dataclass(frozen=True, slots=True)
class Site:
    """A user's directory and a Slurm of shell scripts."""

    base: Path

    def run(self, tool: str, *args: str, at: str = ".") -> subprocess.CompletedProcess[str]:
        """Run a command of ours there, or in the directory *at* below."""
        env = {"PATH": f"{self.base}/bin:/usr/bin:/bin", "HOME": str(self.base)}
        return subprocess.run(
            [BIN / tool, *args], cwd=self.base / at, env=env, capture_output=True, encoding="utf-8",
            timeout=60 * PATIENCE, check=False,
        )  # fmt: skip

    def submit(self, *args: str) -> subprocess.CompletedProcess[str]:
        """Run dlsubmit with the stand-in for dlrun."""
        return self.run("dlsubmit", f"--dlrun={self.base}/bin/dlrun", *args)

    def argv(self) -> list[str]:
        """The last script that sbatch got."""
        return (self.base / "argv").read_text().split("\0")[:-1]

    def task(self, task: int) -> list[str]:
        """One variable of that task, and its command."""
        env = {"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": str(task)}
        done = subprocess.run(
            ["/bin/bash", self.base / "script"], env={"PATH": "/usr/bin:/bin", **env},
            cwd=self.base, stdout=subprocess.PIPE, check=True,
        )  # fmt: skip
        return done.stdout.decode().split("\0")[:-1]

    @property
    def records(self) -> list[Path]:
        """Submissions that are remembered."""
        return sorted((self.base / ".local/state/slurm_dl/submissions").iterdir())


@pytest.fixture
def site(short_directory: Path) -> Site:
    (short_directory / "bin").mkdir()
    for name, text in TOOLS.items():
        path = short_directory / "bin" / name
        path.write_text("#!/bin/sh\n" + text.format(base=shlex.quote(str(short_directory))) + "\n")
        path.chmod(0o755)
    (short_directory / "sinfo.out").write_text("gpu*|idle|gpu:a100:4\n")
    (short_directory / "config.out").write_text("MaxArraySize            = 1001\n")
    (short_directory / "answer").write_text("7\n")
    (short_directory / "train.py").write_text("os.environ['SLURM_DL_SWEEP_READ']\n")
    return Site(short_directory)


@pytest.mark.parametrize("launcher", ["plain", "torchrun", "srun"])
def test_each_task_has_its_own_words(site: Site, launcher: str) -> None:
    """All combinations, the last fastest; text of users stays text."""
    commas = "=" + ",".join([*HOSTILE, r"a\,b"])
    command = ["env", "--a={a}", "{a}{b}{a}", "{other}", "{{a}}", "", "{A}", "$HOME {b}"]
    done = site.submit(
        "--gpus=1", f"--launcher={launcher}", "--sweep", f"a{commas}", "--sweep=b=-1..3..2,x",
        "--array=%4", "--", *command,
    )  # fmt: skip

    assert (done.returncode, done.stdout) == (0, "Submitted batch job 7\n"), done.stderr
    wanted = list(itertools.product([*HOSTILE, "a,b"], ["-1", "1", "3", "x"]))
    assert f"--array=0-{len(wanted) - 1}%4" in site.argv()
    for task, (a, b) in enumerate(wanted):
        words = [f"--a={a}", f"{a}{b}{a}", "{other}", f"{{{a}}}", "", "{A}", f"$HOME {b}"]
        variable, *found = site.task(task)
        assert (variable, found[-8:]) == (a, ["env", *words])
    lines = (site.base / "script").read_text().split("\n")
    assert all(line.isprintable() for line in lines)
    assert not any("exclusive" in line for line in lines if line.startswith("#"))
    assert not (site.base / "pwned").exists()
    kept = json.loads((site.base / "slurm_dl_runs/7.sweep.json").read_text())
    assert (kept["names"], kept["tasks"]) == (["a", "b"], [list(w) for w in wanted])


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--sweep=a"], "'' is no value"),
        (["--sweep=a b=1"], "is not NAME=VALUE"),
        (["--sweep=a=1", "--sweep=A=2"], "of a new name"),
        (["--sweep=a=1,,2"], "'' is no value"),
        (["--sweep=a=3..1"], "'3..1' is no value"),
        (["--sweep=a=0..1001"], "1,002 combinations; an array may have 1,001"),
        (["--sweep=a=0..99999999999999999"], "combinations"),
        (["--sweep=a=0..99", "--sweep=b=0..99"], "10,000 combinations"),
        (["--sweep=a=1", "--sweep=lost=1"], "{lost} is nowhere in the command"),
        (["--sweep=a=1", "--array=0-3"], "--array: '0-3' cannot go with --sweep"),
        (["--sweep=a=1", "--sizes=2"], "--sweep"),
        (["--sweep=a=1,:", "--launcher=srun"], "a lone ':'"),
    ],
)
def test_what_is_refused(site: Site, args: list[str], words: str) -> None:
    """With one line, before sbatch."""
    done = site.submit("--gpus=1", *args, "--", "env", "{a}", "{b}")

    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert words in done.stderr
    assert not (site.base / "argv").exists()


def test_a_command_may_read_the_variables(site: Site) -> None:
    """In its words, or in a file that it names; what is not swept counts for nothing."""
    words = ["--", "bash", "-c", "python train.py $SLURM_DL_SWEEP_A"]
    assert site.submit("--gpus=1", "--sweep=a=0..2", *words).returncode == 0
    assert site.task(2) == ["2", *words[1:]]
    assert site.submit("--gpus=1", "--sweep=read=1", "--", "bash", "train.py").returncode == 0


def test_a_batch_script_is_swept(site: Site) -> None:
    """Its arguments and its variables; not with an array of its own, or where it stays as it is."""
    (site.base / "job.sh").write_text("#!/bin/bash\n#SBATCH -G1\necho $SLURM_DL_SWEEP_A\n")
    assert (
        site.submit("--sweep=a=1,it's", "--sweep=b=2", "job.sh", "--b={b}", "{c}").returncode == 0
    )
    assert site.task(1)[0] == "it's"
    assert site.task(1)[-2:] == ["--b=2", "{c}"]
    assert "--array=0-1" in site.argv()
    assert (site.base / "slurm_dl_runs/7.sweep.json").exists()

    templates = site.base / ".config/slurm_dl/templates"
    templates.mkdir(parents=True)
    (templates / "_script.sbatch.j2").write_text("#!/bin/bash\n")
    assert "is older than" in site.submit("--sweep=a=1", "job.sh").stderr
    (templates / "_script.sbatch.j2").unlink()
    assert "as it is" in site.submit("--no-preempt", "--sweep=a=1", "job.sh").stderr
    (site.base / "job.sh").write_text("#!/bin/bash\n#SBATCH -a 1-3\necho $SLURM_DL_SWEEP_A\n")
    assert "'1-3' cannot go" in site.submit("--sweep=a=1", "job.sh").stderr


def test_the_table_has_a_row_for_each_task(site: Site) -> None:
    """Of squeue, else sacct, and of what the trainings reported; safe to print."""
    site.submit("--gpus=1", "--sweep=a=10,\x1b[2J,9,8", "--", "env", "{a}")
    for task, (step, loss) in {0: (5, 0.25), 2: (10, 1.0 / 3)}.items():
        (site.base / f"slurm_dl_runs/7_{task}").mkdir()
        content = {"v": 1, "step": step, "total": 10, "numbers": {"loss": loss}}
        (site.base / f"slurm_dl_runs/7_{task}/slurm_dl.progress.json").write_text(
            json.dumps(content)
        )
    (site.base / "queue").write_text("7_0|RUNNING\n70_1|PENDING\n")
    (site.base / "past").write_text("7_2|COMPLETED\n7_3|CANCELLED by 0\n")

    def table(*options: str) -> list[list[str]]:
        done = site.run("dlqueue", "sweep", "7", *options)
        assert done.returncode == 0, done.stderr
        return [line.split() for line in done.stdout.splitlines()]

    assert table() == [
        ["TASK", "a", "STATE", "STEP", "loss"],
        ["0", "10", "RUNNING", "5/10", "0.25"],
        ["1", "[2J", "not", "known", "-", "-"],
        ["2", "9", "COMPLETED", "10/10", "0.333333"],
        ["3", "8", "CANCELLED", "-", "-"],
    ]
    assert [row[0] for row in table("--sort=-loss")] == ["TASK", "2", "0", "1", "3"]
    assert [row[0] for row in table("--sort=a")] == ["TASK", "3", "2", "0", "1"]
    told = json.loads(site.run("dlqueue", "sweep", "7", "--json").stdout)["tasks"][1]
    assert (told["values"], told["state"], told["numbers"]) == ({"a": "\x1b[2J"}, None, {})
    assert "there are a, loss" in site.run("dlqueue", "sweep", "7", "--sort=x").stderr
    assert "no sweep of job '8' is known" in site.run("dlqueue", "sweep", "8").stderr


def test_a_job_is_submitted_again(site: Site) -> None:
    """From its directory, with what is added; one that is not known says where dlsubmit looked."""
    words = ["env", "it's $HOME {a}\n", "--", "é"]
    first = ["--gpus=1", "--sweep=a=0..3", "-A", "vision", "--parsable", "--", *words]
    assert site.submit(*first).stdout == "7\n"
    before = site.argv(), (site.base / "script").read_text()
    (site.base / "answer").write_text("8\n")
    done = site.run("dlsubmit", "--again", "7", at="bin")

    assert done.stdout == "Submitted batch job 8\n", done.stderr
    assert f"as job 7, in {site.base}; it begins anew" in done.stderr
    assert (site.argv(), (site.base / "script").read_text()) == before
    assert site.submit("--again=8", "--sweep=a=8,9", "-A", "own", "--time=60").returncode == 0
    assert site.task(1) == ["9", "env", "it's $HOME 9\n", "--", "é"]
    assert [w for w in site.argv() if w.startswith("--acc")][-1] == "--account=own"
    assert {"--array=0-1", "--time=60"} <= {*site.argv()}
    assert site.submit("--again=7", "--", "true", "{a}").returncode == 0
    assert site.task(2) == ["2", "true", "2"]
    assert [path.stat().st_mode & 0o777 for path in site.records] == [0o600] * len(site.records)

    unknown = site.submit("--again=99")
    assert (unknown.returncode, unknown.stderr.count("\n")) == (2, 1)
    assert str(site.records[0].parent) in unknown.stderr
    assert "'*' is known" in site.submit("--again=*").stderr
    site.records[0].chmod(0o666)
    assert "others may write to it" in site.submit("--again=7").stderr
    site.records[0].unlink()
    site.records[0].with_name("elsewhere-7.json").write_text("{")
    assert "it is damaged" in site.submit("--again=7").stderr


def test_the_newest_submissions_are_kept(site: Site) -> None:
    """A thousand; and a job is submitted though nothing can be written down."""
    site.submit("--gpus=1", "--", "true")
    for n in range(1001):
        old = site.records[0].parent / f"old-{n}.json" if n else site.records[0]
        old.touch()
        os.utime(old, (n, n))
    (site.base / "answer").write_text("2000\n")
    site.submit("--gpus=1", "--", "true")
    names = [path.name for path in site.records]
    assert len(names) == 1000
    assert "old-1.json" not in names
    assert any(name.endswith("-2000.json") for name in names)

    state = site.base / ".local"
    state.rename(site.base / "moved")
    state.touch()
    done = site.submit("--gpus=1", "--", "true")
    assert (done.returncode, "not written down for --again" in done.stderr) == (0, True)
