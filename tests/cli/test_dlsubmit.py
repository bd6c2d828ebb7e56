"""dlsubmit as a real process; scripts in place of sinfo and sbatch write down what they get."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from light import HEAVY, loaded, times_as_long
from patience import PATIENCE

from slurm_dl import __version__
from slurm_dl.config import load
from slurm_dl.config.derived_files import client_config_of

DLSUBMIT = Path(sys.executable).parent / "dlsubmit"

SINFO = """#!/bin/sh
printf '%s\\0' "$@" > {base}/sinfo.argv
env -0 > {base}/sinfo.env
[ -e {base}/down ] && {{ echo 'slurm_load_partitions: Unable to contact' >&2; exit 1; }}
cat {base}/sinfo.out
"""

SCONTROL = """#!/bin/sh
printf '%s\\0' "$@" >> {base}/scontrol.argv
case "$*" in
*"show node"*) cat {base}/node.out;;
*topology) cat {base}/topology.out;;
*config) cat {base}/config.out;;
*partition) cat {base}/partition.out 2> {base}/nothing || :;;
esac
"""

REFUSAL = "Batch job submission failed: Invalid account or account/partition combination"

SBATCH = """#!/bin/sh
printf '%s\\0' "$0" "$@" > {base}/sbatch.argv
env -0 > {base}/sbatch.env
cat > {base}/sbatch.stdin
[ -e {base}/refuse ] && {{ echo 'sbatch: error: {refusal}' >&2; exit 1; }}
echo 'sbatch: lua: thank you' >&2
cat {base}/answer
"""

KNOWN = "".join(
    f"gpu*|idle|gpu:a100:4,shard:a100:8|n{i}|16|64000|UNLIMITED|1\n" for i in range(1, 9)
)
NODE = "NodeName=n1 CPUAlloc=0 CPUEfctv=14 CPUTot=16 OS=a b RealMemory=64000 MemSpecLimit=4000 X=\n"
TREE = (
    "SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n[1-4]\n"
    "SwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=n[5-8]\n"
    "SwitchName=core Level=1 LinkSpeed=1 Nodes=n[1-8] Switches=leaf[1-2]\n"
)
BLOCKS = "BlockName=b1 BlockIndex=0 Nodes=n[1-8] BlockSize=8\n"

FOUR_BY_FOUR = "gpu*|idle|gpu:a100:4(S:0,1)\n" * 4 + "cpu|idle|(null)\n"


@dataclass(frozen=True, slots=True)
class Site:
    """A directory with a fake Slurm in it."""

    base: Path

    def run(
        self, *args: str, before: Sequence[str] = (), **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Run dlsubmit there, by the command *before*, *env* added to a small environment."""
        return subprocess.run(
            [*before, str(DLSUBMIT), *args],
            cwd=self.base,
            env={"PATH": f"{self.base}/bin:/usr/bin:/bin", "HOME": str(self.base), **env},
            capture_output=True,
            encoding="utf-8",
            timeout=60 * PATIENCE,
            check=False,
        )

    def words(self, name: str) -> list[str]:
        """What a fake command wrote down, word by word."""
        return (self.base / name).read_text().split("\0")[:-1]

    @property
    def submitted(self) -> bool:
        """Somebody called sbatch."""
        return (self.base / "sbatch.argv").exists()

    def script(self) -> str:
        """The script that sbatch got last."""
        return (self.base / "sbatch.stdin").read_text()


@pytest.fixture
def site(short_directory: Path) -> Site:
    bin_dir = short_directory / "bin"
    bin_dir.mkdir()
    for name, text in (("sinfo", SINFO), ("sbatch", SBATCH), ("scontrol", SCONTROL)):
        (bin_dir / name).write_text(
            text.format(base=shlex.quote(str(short_directory)), refusal=REFUSAL)
        )
        (bin_dir / name).chmod(0o755)
    (bin_dir / "python").symlink_to(sys.executable)
    for script in ("train.py", HOSTILE[0]):
        (short_directory / script).touch()
    (short_directory / "sinfo.out").write_text(FOUR_BY_FOUR)
    (short_directory / "answer").write_text("123\n")
    return Site(short_directory)


def test_a_job_is_submitted(site: Site) -> None:
    """The script goes to sbatch's standard input, the user gets sbatch's own sentence."""
    done = site.run("--gpus", "4", "-A", "vision", "--", "python", "train.py")

    assert (done.returncode, done.stdout) == (0, "Submitted batch job 123\n")
    assert done.stderr == "sbatch: lua: thank you\n"
    argv = site.words("sbatch.argv")
    assert argv[:2] == [str(site.base / "bin" / "sbatch"), "--parsable"]
    assert {"--job-name=train", "--output=slurm-%j.out", "--account=vision"} < set(argv)
    assert "#SBATCH --gpus-per-node=4\n" in site.script()


BIG = "gpu*|idle|gpu:a100:4|n1|16|64000|UNLIMITED|1\n"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--", "./none.sh"], ["'./none.sh'", "does not exist"]),
        (["--", "./train.py"], ["'./train.py'", "not executable", "chmod +x"]),
        (["--", "./logs"], ["'./logs'", "is a directory"]),
        (["--", "python", "-u", "-W", "error", "none.py"], ["'none.py'", "does not exist"]),
        (["--launcher=torchrun", "--", "none.py"], ["'none.py'", "does not exist"]),
        (["--chdir=logs", "--", "python", "train.py"], ["'train.py'", "/logs'", "does not exist"]),
        (["--chdir=/none", "--", "python"], ["--chdir", "'/none'", "does not exist"]),
        (["--output=none/%j.out", "--", "python"], ["--output", "/none'", "does not exist"]),
        (["--error=none/err", "--", "python"], ["--error", "/none'", "does not exist"]),
        (["--run-dir=train.py/runs", "--", "python"], ["--run-dir", "train.py'"]),
        (["-c", "99", "--", "python"], ["--cpus-per-task=99", "gpu", "no", "16"]),
        (["--launcher=srun", "-c", "9", "--", "python"], ["--cpus-per-task=9", "18 CPUs", "16"]),
        (["--cpus=9", "--", "python"], ["18 CPUs", "16"]),
        (["--mincpus=17", "--", "python"], ["--mincpus=17", "16"]),
    ],
)
def test_a_job_that_cannot_start_is_refused_before_sbatch(
    site: Site, args: list[str], words: list[str]
) -> None:
    """What, where, what to do; the user can insist, and a dry run says it beside the script."""
    (site.base / "sinfo.out").write_text(BIG)
    (site.base / "node.out").write_text(NODE.replace("CPUEfctv=14", "CPUEfctv=16"))
    (site.base / "config.out").touch()
    (site.base / "logs").mkdir()
    refused = site.run("--gpus=2", *args)

    assert (refused.returncode, refused.stdout, site.submitted) == (2, "", False)
    assert all(word in refused.stderr for word in [*words, "--no-check"]), refused.stderr
    dry = site.run("--gpus=2", "--dry-run", *args)
    assert dry.returncode == 0
    assert "note: would be refused: " in dry.stderr
    assert site.run("--gpus=2", "--no-check", *args).returncode == 0
    assert site.submitted


@pytest.mark.parametrize(
    "args",
    [
        ["--", "python", "-c", "none.py"],
        ["--", "python", "-m", "none"],
        ["--launcher=torchrun", "--", "-m", "none"],
        ["--", "env", "none.py"],
        ["--chdir=logs", "--", "python", "deep.py"],
        ["--output=/dev/null", "--", "python"],
        ["--output=none-%j/out", "--", "python"],
        ["-c", "16", "--", "python", "train.py", "none.py"],
    ],
)
def test_what_may_be_right_is_submitted_without_a_word(site: Site, args: list[str]) -> None:
    """An argument need not be a file, and a directory of a pattern is not known yet."""
    (site.base / "sinfo.out").write_text(BIG)
    (site.base / "node.out").write_text(NODE)
    (site.base / "config.out").touch()
    (site.base / "logs").mkdir()
    (site.base / "logs" / "deep.py").touch()
    done = site.run("--gpus=2", *args)

    assert (done.returncode, done.stderr) == (0, "sbatch: lua: thank you\n")


def test_a_command_that_is_not_on_path_is_submitted_with_a_note(site: Site) -> None:
    """The nodes may have what the submit host has not; a file here is a likely mistake."""
    done = site.run("--gpus=1", "--", "nccl-tests")
    assert (done.returncode, "'nccl-tests' is not on PATH here" in done.stderr) == (0, True)

    assert "write ./train.py" in site.run("--gpus=1", "--", "train.py").stderr


HOSTILE = ["a b", "it's", "$(id) `id` $HOME", "x\n#SBATCH --exclusive", "{{ 7 * 7 }}", "", "é"]


@pytest.mark.parametrize("launcher", ["plain", "torchrun", "srun"])
def test_a_dry_run_prints_what_is_submitted(site: Site, launcher: str) -> None:
    """Its comment line is the argv, the rest the script, byte for byte; nothing is submitted."""
    args = [
        "--gpus=8", f"--launcher={launcher}", "--name=my job; rm", "--comment=it's | $HOME é",
        "--time=1:0:0", "--array=0-3", "-c", "4", "--mail-user=a b", "--", "python", *HOSTILE,
    ]  # fmt: skip
    dry = site.run("--dry-run", *args)
    assert not site.submitted

    assert site.run(*args).returncode == 0

    assert dry.returncode == 0
    comment, script = dry.stdout.split("\n", 1)
    assert comment.startswith("# ")
    assert shlex.split(comment.removeprefix("# ")) == site.words("sbatch.argv")
    assert script == site.script()


def test_the_argv_of_a_dry_run_is_for_bash(site: Site) -> None:
    """The comment line, pasted into bash, gives the same words."""
    dry = site.run("--dry-run", "--gpus=1", "--comment=it's $HOME", "--output=a\\b c", "--", "x")

    line = dry.stdout.partition("\n")[0].removeprefix("# ")
    shown = subprocess.run(
        ["/bin/bash", "-c", f"printf '%s\\0' {line}"], capture_output=True, check=True
    )
    site.run("--gpus=1", "--comment=it's $HOME", "--output=a\\b c", "--", "x")
    assert shown.stdout == (site.base / "sbatch.argv").read_bytes()


def test_json(site: Site) -> None:
    """--json has the id, the script and the shape; in a dry run there is no id."""
    done = json.loads(site.run("--json", "--gpus=a100:8", "--launcher=srun", "--", "x").stdout)
    dry = json.loads(
        site.run("--json", "--dry-run", "--gpus=8", "--launcher=srun", "--", "x").stdout
    )

    assert done["job_id"] == 123
    assert done["script"] == site.script()
    assert done["shape"] == {
        "nodes": 2,
        "most_nodes": 2,
        "gpus_per_node": 4,
        "gpus": 8,
        "gpu_type": "a100",
        "shared": False,
        "sizes": [],
    }
    assert done["argv"] == site.words("sbatch.argv")
    assert dry["job_id"] is None
    assert dry["shape"]["gpu_type"] is None


def test_parsable_and_quiet(site: Site) -> None:
    """--parsable prints the id alone, also of a federation's answer; --quiet prints nothing."""
    (site.base / "answer").write_text("124;cluster1\n")

    assert site.run("--parsable", "--gpus=1", "--", "x").stdout == "124\n"
    assert site.run("-Q", "--gpus=8", "--", "x").stdout == ""


def test_sbatch_variables_do_not_reach_the_job(site: Site) -> None:
    """SBATCH_* is taken out and named; with --keep-sbatch-env what is harmless stays."""
    env = {"SBATCH_QOS": "high", "SBATCH_NO_REQUEUE": "1", "SINFO_FORMAT": "%N"}
    env["SLURM_CONF"] = "/site/slurm.conf"

    done = site.run("--gpus=1", "--", "x", **env)
    got = {word.partition("=")[0] for word in site.words("sbatch.env")}
    asked = dict(word.split("=", 1) for word in site.words("sinfo.env"))
    kept = site.run("--gpus=1", "--keep-sbatch-env", "--", "x", **env)
    got_kept = {word.partition("=")[0] for word in site.words("sbatch.env")}

    assert "ignored from the environment: SBATCH_NO_REQUEUE, SBATCH_QOS" in done.stderr
    assert not got & {"SBATCH_QOS", "SBATCH_NO_REQUEUE"}
    assert "SINFO_FORMAT" not in asked
    assert asked["SLURM_CONF"] == env["SLURM_CONF"]
    assert "ignored from the environment: SBATCH_NO_REQUEUE (" in kept.stderr
    assert got_kept & {"SBATCH_QOS", "SBATCH_NO_REQUEUE"} == {"SBATCH_QOS"}


def test_a_kept_partition_decides_the_shape(site: Site) -> None:
    """The shape is looked for in the partition where sbatch will put the job."""
    done = site.run("--gpus=1", "--keep-sbatch-env", "--", "x", SBATCH_PARTITION="cpu")

    assert done.returncode == 2
    assert "partition cpu has no GPUs" in done.stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "how many GPUs? give --gpus=N"),
        (["--gpus=4"], "what should the job run? give -- COMMAND at the end"),
        (["--gpus=4", "python", "train.py"], "dlsubmit [OPTIONS] -- COMMAND"),
        (["--gpus=17", "--", "x"], "17 GPUs do not fit evenly: partition gpu has 4 nodes x 4 a100"),
        (["--gpus=1", "--gpu-type=h100", "--", "x"], "there are no GPUs of type h100"),
        (["--gpus=1", "--gpu-type=A100", "--", "x"], "; did you mean a100?"),
        (["--gpus=A100:1", "--", "x"], "; did you mean a100?"),
        (["--gpus=1", "-p", "nope", "--", "x"], "no partition 'nope'; there are: cpu, gpu"),
        (["--gpus=1", "--name", "x\n#SBATCH --uid=0", "--", "x"], "control character"),
        (["--gpus=1", "--dry-run=1", "--", "x"], "does not take a value"),
        (["--gpus=1", "--qos", os.fsdecode(b"\xff"), "--", "x"], "not valid UTF-8"),
        (["--gpus=1", "--wrap=x", "--", "x"], "--wrap cannot be used: the command goes after --"),
        (["--gpus=1", "--template=nope", "--", "x"], "there are: plain, srun, torchrun"),
        (["--show-template=../x"], "is not a name"),
    ],
)
def test_a_wrong_command_line_gets_one_line(site: Site, args: Sequence[str], message: str) -> None:
    """One line on stderr, exit status 2, nothing submitted."""
    done = site.run(*args)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("dlsubmit: error: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not site.submitted


def test_a_refusal_of_sbatch_is_passed_on(site: Site) -> None:
    """The user sees sbatch's own words, and the exit status is 1."""
    (site.base / "refuse").touch()

    done = site.run("--gpus=1", "--", "python")

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"sbatch: error: {REFUSAL}\n"


def test_an_answer_without_a_job_id_is_an_error(site: Site) -> None:
    """A site's wrapper that prints something else is not taken for a job id."""
    (site.base / "answer").write_text("hello\n")

    done = site.run("--gpus=1", "--", "x")

    assert done.returncode == 1
    assert "sbatch answered 'hello' instead of a job id" in done.stderr


def test_slurm_that_does_not_answer(site: Site) -> None:
    """Without sinfo's answer no shape is guessed: one line, exit status 1."""
    (site.base / "down").touch()

    done = site.run("--gpus=1", "--", "x")

    assert done.returncode == 1
    assert re.fullmatch("dlsubmit: error: sinfo .*Unable to contact\n", done.stderr)
    assert not site.submitted


def test_slurm_that_is_not_installed(site: Site) -> None:
    """A host without Slurm's commands gets one line, exit status 1."""
    done = site.run("--gpus=1", "--", "x", PATH=str(site.base))

    assert done.returncode == 1
    assert re.fullmatch("dlsubmit: error: sinfo .*not in PATH\n", done.stderr)


@pytest.mark.parametrize(
    ("sinfo", "args", "note"),
    [
        (FOUR_BY_FOUR, ["--gpus=8"], "COMMAND runs on the first of 2 nodes only"),
        (
            "gpu*|idle|gpu:a100:4\n" * 2 + "gpu*|idle|gpu:v100:4\n" * 2,
            ["--gpus=8", "--launcher=srun"],
            "the nodes may have different GPUs (a100, v100); give --gpu-type",
        ),
        (
            "gpu*|idle|gpu:4\n" + "gpu*|down*|gpu:4\n",
            ["--gpus=8", "--launcher=srun"],
            "not enough of the nodes are up",
        ),
        (
            FOUR_BY_FOUR,
            ["--gpus=1", "--array=0-1", "-o", "x.log"],
            "all tasks of the array write to",
        ),
    ],
)
def test_surprises_are_told(site: Site, sinfo: str, args: list[str], note: str) -> None:
    """What the user may not expect is said on stderr, and the job is submitted all the same."""
    (site.base / "sinfo.out").write_text(sinfo)

    done = site.run(*args, "--", "x")

    assert done.stdout == "Submitted batch job 123\n"
    assert f"dlsubmit: note: {note}" in done.stderr
    assert "note:" not in site.run("-Q", *args, "--", "x").stderr


# --- ranges, CPUs, halves, switches: on nodes of which more is known


@pytest.fixture
def known(site: Site) -> Site:
    """Eight nodes on two leaf switches, whose CPUs and memory are known."""
    (site.base / "sinfo.out").write_text(KNOWN)
    (site.base / "node.out").write_text(NODE)
    (site.base / "topology.out").write_text(TREE)
    (site.base / "config.out").write_text("SchedulerParameters = bf_interval=2\nX = y\n")
    return site


def directives(site: Site) -> list[str]:
    lines = site.script().splitlines()
    return [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH")][3:]


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (
            ["--gpus=2"],
            ["--nodes=1", "--ntasks-per-node=1", "--gpus-per-node=2", "--cpus-per-task=7",
             "--mem=30000M"],
        ),
        (
            ["--gpus=8", "--launcher=srun"],
            ["--nodes=2", "--ntasks-per-node=4", "--gpus-per-node=4", "--cpus-per-task=3",
             "--mem=60000M"],
        ),
        (
            ["--gpus=2", "--cpus=none"],
            ["--nodes=1", "--ntasks-per-node=1", "--gpus-per-node=2"],
        ),
        (
            ["--gpus=2", "--cpus=2", "--mem=1G"],
            ["--nodes=1", "--ntasks-per-node=1", "--gpus-per-node=2", "--cpus-per-task=4"],
        ),
        (
            ["--gpus=8", "--nodes=1-4", "--launcher=srun"],
            ["--nodes=1-4", "--gpus=8", "--cpus-per-gpu=3", "--mem-per-gpu=15000M"],
        ),
        (
            ["--gpus=a100:8", "--nodes=1-4", "--cpus=2", "--launcher=torchrun"],
            ["--nodes=1-4", "--gpus=a100:8", "--cpus-per-gpu=2", "--mem-per-gpu=15000M"],
        ),
        (
            ["--share", "--model=resnet18"],
            ["--nodes=1", "--ntasks-per-node=1", "--gres=shard:1", "--cpus-per-task=1",
             "--mem=7500M"],
        ),
    ],
)  # fmt: skip
def test_what_is_asked_for(known: Site, args: list[str], expected: list[str]) -> None:
    """GPUs, and the part of the node that goes with them; 2 CPUs and 4000 MB are the node's own."""
    assert known.run(*args, "--", "x").returncode == 0

    assert directives(known) == expected


def test_a_node_that_is_not_described_leaves_cpus_to_slurm(known: Site) -> None:
    (known.base / "bin" / "scontrol").write_text("#!/bin/sh\necho 'no node' >&2\nexit 1\n")

    done = known.run("--gpus=2", "--", "x")

    assert re.search("note: CPUs and memory are left to Slurm: scontrol .*no node", done.stderr)
    assert directives(known)[-1] == "--gpus-per-node=2"


@pytest.mark.parametrize(
    ("config", "partition", "args", "expected"),
    [
        ("", "MaxMemPerNode=20000", ["--gpus=2"], ["--cpus-per-task=7", "--mem=20000M"]),
        ("", "MaxMemPerCPU=3999", ["--gpus=2"], ["--cpus-per-task=7", "--mem=27993M"]),
        ("", "MaxMemPerCPU=9999", ["--gpus=2"], ["--cpus-per-task=7", "--mem=30000M"]),
        ("", "MaxMemPerCPU=3999", ["--gpus=2", "-c3"], []),
        ("", "MaxMemPerNode=2000", ["--gpus=2"], ["--cpus-per-task=7"]),
        ("", "MaxMemPerNode=20000", ["--gpus=8", "--nodes=1-4"], ["--cpus-per-gpu=3"]),
        ("MaxMemPerNode", "X=1", ["--gpus=2"], ["--cpus-per-task=7", "--mem=10000M"]),
        ("MaxMemPerCPU", "MaxMemPerNode=20000", ["--gpus=2"],
         ["--cpus-per-task=7", "--mem=20000M"]),
        ("MaxMemPerNode", "MaxMemPerCPU=2000", ["--gpus=2"],
         ["--cpus-per-task=7", "--mem=14000M"]),
    ],
)  # fmt: skip
def test_no_more_memory_than_slurm_allows(
    known: Site, config: str, partition: str, args: list[str], expected: list[str]
) -> None:
    """Slurm 22.05.8 takes a job that asks for more, and leaves it pending for ever."""
    (known.base / "config.out").write_text(f"{config} = 10000\nMaxMemPerNode  = UNLIMITED\n")
    (known.base / "partition.out").write_text(
        f"PartitionName=other MaxMemPerNode=1\nPartitionName=gpu DefMemPerCPU=7 {partition} Y=\n"
    )

    assert known.run(*args, "--", "x").returncode == 0

    assert [d for d in directives(known) if d.startswith(("--mem", "--cpus"))] == expected


def test_a_range_in_json(known: Site) -> None:
    done = json.loads(
        known.run("--json", "--gpus=8", "--nodes=1-4", "-Q", "--dry-run", "--", "x").stdout
    )

    assert done["shape"] == {
        "nodes": 1,
        "most_nodes": 4,
        "gpus_per_node": None,
        "gpus": 8,
        "gpu_type": None,
        "shared": False,
        "sizes": [],
    }


SIZES = ["--gpus=2", "--sizes=4,1,2x2,2", "--launcher=srun"]


@pytest.mark.parametrize(
    ("args", "cpus", "memory", "told"),
    [
        ([], "--cpus-per-task=6", "--mem=30000M", (3, 15000)),
        (["--cpus=2"], "--cpus-per-task=4", "--mem=30000M", (2, 15000)),
        (["--mem=8G"], "--cpus-per-task=6", None, (3, 4096)),
        (["--cpus=none"], None, None, (None, None)),
    ],
)
def test_a_job_of_several_sizes(
    known: Site,
    args: list[str],
    cpus: str | None,
    memory: str | None,
    told: tuple[int | None, int | None],
) -> None:
    """Its GPUs have as much in each size; the comment says all that the daemon has to know."""
    done = known.run("--json", *SIZES, *args, "--", "x")

    shape = json.loads(done.stdout)["shape"]
    assert shape["sizes"] == ["1x1", "1x2", "1x4", "2x2"]
    assert (shape["nodes"], shape["gpus_per_node"]) == (1, 2)
    found = [d for d in directives(known) if d.startswith(("--cpus", "--mem"))]
    assert found == [word for word in (cpus, memory) if word]
    (comment,) = (w for w in known.words("sbatch.argv") if w.startswith("--comment="))
    ours = json.loads(comment.partition("=")[2])["slurm_dl"]
    assert (ours["sizes"], ours["asked"]) == ("1x1,1x2,1x4,2x2", "1x2")
    assert (ours.get("cpus_per_gpu"), ours.get("mem_mb_per_gpu")) == told
    assert "it may run in any of 1x1, 1x2, 1x4, 2x2" in done.stderr
    assert "the whole time limit, which must do for 1x1" in done.stderr
    assert "its part of each node" in known.run(*SIZES, "--keep-sbatch-env", "--", "x",
                                                SBATCH_EXCLUSIVE="user").stderr  # fmt: skip


PROFILE = """\
name: wide
source: measured on n1
skew: {skew}
nccl: {{NCCL_ALGO: Tree, NCCL_IB_HCA: "mlx5 'x'"}}
"""


def configured(site: Site, placement: str, skew: float = 0.7) -> dict[str, str]:
    """A site's configuration with a profile of its own; the environment that names it."""
    profiles = site.base / "profiles"
    profiles.mkdir(mode=0o755)
    (profiles / "wide.yaml").write_text(PROFILE.format(skew=skew))
    (profiles / "wide.yaml").chmod(0o644)
    config = site.base / "dl.yaml"
    config.write_text(
        "manage: {partitions: [gpu]}\ndaemon: {poll_s: 5}\n"
        f"paths: {{profile_dir: {profiles}}}\nplacement: {{{placement}}}\n"
    )
    client = site.base / "client.yaml"
    client.write_text(client_config_of(load(config)).text())
    return {"SLURM_DL_CLIENT": str(client)}


WAITS = "scheme: consolidate, parameters: {locality_wait_s: 200}"


@pytest.mark.parametrize(
    ("placement", "skew", "args", "expected"),
    [
        (WAITS, 0.7, ["--gpus=8"], "--switches=1@3:20"),
        (WAITS, 0.7, ["--gpus=20"], "--switches=2@3:20"),
        (WAITS, 0.3, ["--gpus=8"], None),
        (WAITS, 0.7, ["--gpus=4"], None),
        (WAITS, 0.7, ["--gpus=8", "--nodes=1-4"], None),
        (WAITS, 0.7, ["--gpus=8", "--switches=1@9"], "--switches=1@9"),
        ("scheme: best_fit", 0.7, ["--gpus=8"], None),
        ("", 0.7, ["--gpus=8"], None),
    ],
)
def test_few_switches(
    known: Site, placement: str, skew: float, args: list[str], expected: str | None
) -> None:
    """For skewed models on several nodes, where the site waits for locality; the user's wins."""
    environ = configured(known, placement, skew)

    done = known.run(*args, "--model=wide", "--launcher=srun", "--", "x", **environ)

    assert done.returncode == 0, done.stderr
    found = [word for word in known.words("sbatch.argv") if word.startswith("--switches")]
    assert found == ([] if expected is None else [expected])


@pytest.mark.parametrize(
    ("topology", "limit", "expected", "note"),
    [
        (TREE, "", "--switches=1@5:00", "it waits 300 s for nodes of one switch, not the site's"),
        (TREE, ",max_switch_wait=700", "--switches=1@10:00", "it waits up to 600 s"),
        (BLOCKS, "", None, None),
        ("", "", None, None),
    ],
)
def test_what_slurm_makes_of_switches(
    known: Site, topology: str, limit: str, expected: str | None, note: str | None
) -> None:
    """Slurm cuts the wait at max_switch_wait, and heeds no such wish without switches."""
    (known.base / "topology.out").write_text(topology)
    (known.base / "config.out").write_text(f"SchedulerParameters     = bf_interval=2{limit}\n")
    environ = configured(known, "scheme: consolidate")

    done = known.run("--gpus=8", "--model=wide", "--launcher=srun", "--", "x", **environ)

    found = [word for word in known.words("sbatch.argv") if word.startswith("--switches")]
    assert found == ([] if expected is None else [expected])
    assert note is None or note in done.stderr


@pytest.mark.parametrize(
    ("placement", "args", "expected"),
    [
        ("scheme: best_fit, steer: true, settle_s: 9.5", [], ["--begin=now+10"]),
        ("scheme: best_fit, steer: true, settle_s: 9.5", ["-b", "now+1"], ["--begin=now+1"]),
        ("scheme: best_fit, steer: false, settle_s: 9.5", [], []),
        (
            "scheme: best_fit, steer: false, settle_s: 9.5",
            ["--sizes=2"],
            ["--begin=now+10"],
        ),
        ("scheme: best_fit, steer: true", [], []),
    ],
)
def test_time_to_be_placed(
    known: Site, placement: str, args: list[str], expected: list[str]
) -> None:
    """Where jobs are steered a new one is put off, unless its owner says when it may start."""
    environ = configured(known, placement)

    done = known.run("--gpus=1", *args, "--", "x", **environ)

    found = [word for word in known.words("sbatch.argv") if word.startswith("--begin")]
    assert found == expected
    assert ("it may start in 10 s" in done.stderr) == (expected == ["--begin=now+10"])


def test_settings_of_nccl_come_from_the_profile_alone(known: Site) -> None:
    """What the user has set stays; without a profile there is none."""
    environ = configured(known, "scheme: best_fit")
    show = 'echo "$NCCL_ALGO $NCCL_IB_HCA"'
    dlrun = known.base / "dlrun"
    dlrun.write_text(f"#!/bin/sh\n{show}\n")
    dlrun.chmod(0o755)
    common = ["--gpus=1", f"--dlrun={dlrun}"]

    known.run(*common, "--model=wide", "--", "x", **environ)
    script = known.script()
    known.run(*common, "--", "x", **environ)

    def printed(text: str, **more: str) -> str:
        return subprocess.run(
            ["/bin/bash"],
            input=text,
            env={"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "1", **more},
            cwd=known.base,
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    assert printed(script) == "Tree mlx5 'x'\n"
    assert printed(script, NCCL_ALGO="Ring", NCCL_IB_HCA="") == "Ring \n"
    assert "NCCL" not in known.script()


@pytest.mark.parametrize(
    ("model", "status", "words"),
    [
        ("widee", 2, "error: --model: there is no profile 'widee'; near it: wide"),
        ("nothing-like-it-0", 2, "dlctl profile list shows them"),
        ("resnet50", 0, ""),
    ],
)
def test_models_where_the_site_has_profiles(
    known: Site, model: str, status: int, words: str
) -> None:
    """A name that is no profile is a mistake; those that come with slurm_dl are known too."""
    done = known.run(
        "--gpus=1", f"--model={model}", "--", "x", **configured(known, "scheme: best_fit")
    )

    assert done.returncode == status
    assert words in done.stderr


def test_models_where_the_site_has_none(known: Site) -> None:
    """A name is then only a name, and near ones are told."""
    done = known.run("--gpus=1", "--model=resnet51", "--", "x")

    assert done.returncode == 0
    assert "note: there is no profile 'resnet51', so it only names the model; near it: resnet" in (
        done.stderr
    )


def test_profiles_that_cannot_be_read_stop_nobody(known: Site) -> None:
    environ = configured(known, "scheme: best_fit")
    (known.base / "profiles" / "wide.yaml").write_text("name: [")

    done = known.run("--gpus=1", "--model=wide", "--", "x", **environ)

    assert done.returncode == 0
    assert "note: profiles of models are not used: " in done.stderr


DRY_RUN = ("--dry-run", "--gpus=8", "--launcher=torchrun", "--", "python", "train.py")


@pytest.mark.parametrize("text", ["", "\0[: é", "unknown: 1\nmax_grace_s: nan\n"])
def test_it_waits_for_few_modules(known: Site, text: str) -> None:
    """Nothing heavy is imported, the daemon's file is not opened, and a bad one stops nobody."""
    env = {"PATH": f"{known.base}/bin:/usr/bin:/bin"}
    plain, _ = loaded("dlsubmit", *DRY_RUN, env=env, cwd=known.base)
    for variable, name in (("CONFIG", "slurm_dl.yaml"), ("CLIENT", "client.yaml")):
        (known.base / name).write_text(text, "latin-1")
        env[f"SLURM_DL_{variable}"] = str(known.base / name)

    script, modules = loaded("dlsubmit", *DRY_RUN, env=env, cwd=known.base)
    _, of_help = loaded("dlsubmit", "--help", env=env, cwd=known.base)

    assert script == plain
    assert not {name for name in modules if name in HEAVY or name.startswith("OPENED")}
    assert "jinja2" in modules - of_help


def test_it_waits_hardly_longer_than_for_python(known: Site) -> None:
    """15 times as long where this was written, 165 ms; 50 times with numpy and pydantic."""
    env = {"PATH": f"{known.base}/bin:/usr/bin:/bin"}

    assert times_as_long([str(DLSUBMIT), *DRY_RUN], env=env, cwd=known.base) < 25


@pytest.mark.skipif(Path("/etc/slurm_dl").exists(), reason="this host has a site's files")
def test_an_ordinary_user_needs_no_file_of_the_site(known: Site) -> None:
    """Where tests are root, another uid."""
    uid: list[str] = []
    if os.geteuid() == 0:
        shutil.chown(known.base, 65534, 65534)
        # The tests' Python may lie in root's home.
        read = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
        uid = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *read]

    done = known.run("--gpus=8", "--", "bash", "train.py", before=uid)

    assert (done.returncode, done.stdout) == (0, "Submitted batch job 123\n"), done.stderr
    assert "#SBATCH --gpus-per-node=4\n" in known.script()
    assert "/etc/slurm_dl" not in done.stderr


def test_which_template_wins(site: Site) -> None:
    """--show-template names the file that is used and those that it hides."""
    own = site.base / ".config" / "slurm_dl" / "templates"
    own.mkdir(parents=True)
    (own / "srun.sbatch.j2").write_text("#!/bin/bash\n# mine\n")

    shown = site.run("--show-template=srun").stdout
    as_json = json.loads(site.run("--show-template=srun", "--json").stdout)

    assert shown.startswith(f"{own}/srun.sbatch.j2 (user)\n  hides /")
    assert (as_json["owner"], as_json["path"]) == ("user", f"{own}/srun.sbatch.j2")
    assert as_json["hides"]
    assert "# mine" in site.run("--dry-run", "--gpus=1", "--launcher=srun", "--", "x").stdout


def test_dlrun_is_the_one_beside(site: Site) -> None:
    """The script names the dlrun of the same installation, absolutely."""
    site.run("--gpus=1", "--", "x")

    assert f"\nexec {shlex.quote(str(DLSUBMIT.parent / 'dlrun'))} --launcher" in site.script()


SCRIPT = "#!/bin/bash\n#SBATCH --gpus-per-node=4 -t 60\nsrun python train.py\n"


def test_a_batch_script_is_submitted_as_it_is(site: Site) -> None:
    """With the contract on the command line; --diff and --dry-run only show it."""
    (site.base / "job.sh").write_text(SCRIPT)

    diff = site.run("--diff", "job.sh")
    assert (diff.returncode, site.submitted) == (0, False)
    assert not [x for x in diff.stdout.splitlines() if x.startswith("-") and x != "--- job.sh"]
    done = site.run("--time", "5", "job.sh", "--lr", "1")

    assert (done.returncode, done.stdout) == (0, "Submitted batch job 123\n"), done.stderr
    assert SCRIPT in site.script()
    words = site.words("sbatch.argv")
    assert {"--requeue", "--time=5", "--job-name=job.sh"} <= set(words)
    assert '"slurm_dl"' in next(word for word in words if word.startswith("--comment="))
    noted = site.run("--gpus=4", "--dry-run", "--no-check", "--", "./job.sh").stderr
    assert "#SBATCH lines of ./job.sh have no effect" in noted


def test_defaults_come_from_the_users_own_files(site: Site) -> None:
    """The project's before the user's, the line before both; a stranger's file has no effect."""
    mine = site.base / ".config/slurm_dl/config.yaml"
    mine.parent.mkdir(parents=True)
    mine.write_text("grace: 33\naccount: vision\nno-preempt: false\n")
    project = site.base / ".slurm_dl.yaml"
    project.write_text("grace: 44\ngpus: 4\n")

    shown = json.loads(site.run("--show-defaults", "--json").stdout)["defaults"]
    assert (shown["grace"]["value"], shown["grace"]["path"]) == ("44", str(project))
    assert site.run("--time=60", "--", "true").returncode == 0
    assert "export SLURM_DL_GRACE_S=44\n" in site.script()
    assert "--account=vision" in site.words("sbatch.argv")
    site.run("--grace=55", "-A", "own", "--", "true")
    assert "export SLURM_DL_GRACE_S=55\n" in site.script()
    assert "--account=vision" not in site.words("sbatch.argv")

    for spoil in (lambda: project.chmod(0o666), lambda: _link(project), lambda: _fifo(project)):
        spoil()
        done = site.run("--gpus=4", "--", "true")
        assert f"{project} is not used" in done.stderr
        assert "export SLURM_DL_GRACE_S=33\n" in site.script()
    if os.geteuid() == 0:
        project.unlink()
        project.write_text("dlrun: /tmp/evil\nsetup: /tmp/evil\n")
        os.chown(project, 4242, -1)
        assert "/tmp/evil" not in site.run("--gpus=4", "--dry-run", "--", "true").stdout  # noqa: S108 - a name

    project.unlink()
    project.write_text("gpu: 4\n")
    wrong = site.run("--gpus=4", "--", "true")
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
    assert "'gpu' is no option" in wrong.stderr


def _link(path: Path) -> None:
    path.rename(path.with_name("theirs"))
    path.symlink_to("theirs")


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def test_help_names_every_option_and_the_page_names_them_too(site: Site) -> None:
    """The help has examples; the user's page describes every option of the help."""
    shown = site.run("--help").stdout
    page = (Path(__file__).parents[2] / "docs" / "use" / "submit.md").read_text()

    assert "Examples:\n  dlsubmit --gpus 8 -- python train.py" in re.sub(r"\n +", "\n  ", shown)
    for option in re.findall(r"--[a-z][a-z-]+", shown.partition("Examples:")[0]):
        assert f"`{option}" in page, option


def test_version(site: Site) -> None:
    """--version and -V say the version."""
    assert (
        site.run("-V").stdout
        == site.run("--version").stdout
        == f"dlsubmit, version {__version__}\n"
    )
