"""dlsubmit on a real Slurm: what was asked for is what Slurm allots."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_dl.config import load
from slurm_dl.config.derived_files import client_config_of
from slurm_dl.sandbox import Sandbox, SandboxNodes, SandboxSpec
from slurm_dl.submit.sbatch_options import SBATCH_22_05, Takes

pytestmark = pytest.mark.slurm

DLSUBMIT = str(Path(sys.executable).parent / "dlsubmit")
Eventually = Callable[..., object]

STAND_IN = """#!/bin/sh
# Says what it was given, then runs what stands after --.
[ "$1" != --env ] || exit 0
{
    printf '%s\\0' "$@" > "$SLURM_DL_RUN_DIR/argv"
    env -0 > "$SLURM_DL_RUN_DIR/env"
}
while [ "$1" != -- ]; do shift; done
shift
exec "$@"
"""

TORCHRUN = """#!/bin/sh
printf '%s\\n' "$@" > "$SLURM_DL_RUN_DIR/torchrun.$SLURM_NODEID"
"""

TASK = """#!/bin/sh
echo "$CUDA_VISIBLE_DEVICES" > "$SLURM_DL_RUN_DIR/task.$SLURM_PROCID"
"""


@pytest.fixture
def desk_in(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Sandbox], Path]:
    """Makes a user's directory with a stand-in for dlrun and one for torchrun."""

    def make(box: Sandbox) -> Path:
        desk: Path = box.jobs_directory / tmp_path_factory.mktemp("desk").name
        (desk / "bin").mkdir(parents=True)
        for name, text in (("dlrun", STAND_IN), ("torchrun", TORCHRUN), ("task", TASK)):
            (desk / "bin" / name).write_text(text)
            (desk / "bin" / name).chmod(0o755)
        (desk / "train.py").touch()
        return desk

    return make


@pytest.fixture
def desk(sandbox: Sandbox, desk_in: Callable[[Sandbox], Path]) -> Path:
    """That directory in the shared sandbox."""
    return desk_in(sandbox)


class User:
    """Somebody at that desk, with sbatch and squeue at hand."""

    def __init__(self, box: Sandbox, desk: Path, eventually: Eventually) -> None:
        self.box = box
        self.desk = desk
        self.eventually = eventually
        self.env = {"PATH": f"{desk}/bin:/usr/bin:/bin"}

    def dlsubmit(self, *args: str, **env: str) -> str:
        """Run dlsubmit with the stand-in dlrun; what it prints."""
        argv = [DLSUBMIT, f"--dlrun={self.desk}/bin/dlrun", *args]
        return self.box.run(argv, cwd=self.desk, env={**self.env, **env}).stdout

    def submit(self, *args: str, **env: str) -> str:
        """Submit; the job id."""
        return self.dlsubmit("--parsable", *args, **env).strip()

    def field(self, job_id: str, letter: str) -> str:
        """One field of squeue."""
        return self.box.run(["squeue", "-ah", "-j", job_id, "-o", f"%{letter}"]).stdout.strip()

    def record(self, job_id: str) -> dict[str, str]:
        """The job's record, as far as its values have no blanks."""
        text = self.box.run(["scontrol", "-o", "show", "job", job_id]).stdout
        return dict(word.split("=", 1) for word in text.split() if "=" in word)

    def finished(self, job_id: str) -> None:
        """Wait until the job has ended well."""
        self.eventually(
            lambda: self.record(job_id)["JobState"] in {"COMPLETED", "FAILED"},
            90.0,
            what=f"job {job_id} to end",
        )
        assert self.record(job_id)["JobState"] == "COMPLETED", self.logs()

    def logs(self) -> str:
        """All logs of the desk's jobs."""
        return "\n".join(path.read_text() for path in self.desk.glob("slurm-*.out"))

    def words(self, job: str, name: str) -> list[str]:
        """What the stand-in wrote down, word by word."""
        raw = (self.desk / "slurm_dl_runs" / job / name).read_bytes()
        return [os.fsdecode(word) for word in raw.split(b"\0")[:-1]]

    def variables(self, job: str) -> dict[str, str]:
        """The environment of the stand-in."""
        return dict(word.split("=", 1) for word in self.words(job, "env"))


@pytest.fixture
def user(sandbox: Sandbox, desk: Path, eventually: Eventually) -> User:
    return User(sandbox, desk, eventually)


@pytest.mark.parametrize(
    ("args", "nodes", "tres", "tasks_and_cpus"),
    [
        (["--gpus=4"], "1", "gres:gpu:4", ("1", "16")),
        (["--gpus=a100:6", "--launcher=srun"], "2", "gres:gpu:a100:3", ("6", "24")),
        (["--gpus=16", "--launcher=srun"], "4", "gres:gpu:4", ("16", "64")),
        (["--gpus=8", "--nodes=4", "--launcher=torchrun"], "4", "gres:gpu:2", ("4", "32")),
        (
            ["--gpus=8", "--launcher=srun", "--ntasks-per-node=1", "-c", "4"],
            "2", "gres:gpu:4", ("2", "8"),
        ),
        (["--gpus=1", "--cpus=none"], "1", "gres:gpu:1", ("1", "1")),
        (["--gpus=2", "--cpus=3"], "1", "gres:gpu:2", ("1", "6")),
    ],
)  # fmt: skip
def test_slurm_holds_what_was_asked_for(
    user: User, args: list[str], nodes: str, tres: str, tasks_and_cpus: tuple[str, str]
) -> None:
    """Nodes, GPUs for each node, tasks and CPUs are fixed in the record, and it is requeueable."""
    job_id = user.submit("--hold", *args, "--", "true")

    record = user.record(job_id)
    assert record["NumNodes"] in {nodes, f"{nodes}-{nodes}"}
    assert record["TresPerNode"] == tres
    assert (record["NumTasks"], record["NumCPUs"]) == tasks_and_cpus
    assert record["Requeue"] == "1"
    assert record["StdOut"] == f"{user.desk}/slurm-{job_id}.out"


def test_the_comment_is_readable_by_squeue(user: User) -> None:
    """What the scheduler reads comes back from squeue as it was written."""
    theirs = {"other tool": "a|b 'c'"}

    job_id = user.submit(
        "--hold", "--gpus=1", "--model=resnet50", f"--comment={json.dumps(theirs)}", "--", "true"
    )

    read = json.loads(user.field(job_id, "k"))
    assert len(read["slurm_dl"].pop("tag")) == 12
    assert read.pop("slurm_dl") == {
        "v": 1, "sig": "USR1", "to": "batch", "grace_s": 120, "by": "daemon", "model": "resnet50",
    }  # fmt: skip
    assert read == theirs


def test_a_plain_job(user: User) -> None:
    """The batch step's process is dlrun; it has its GPUs, the run directory and the count 0."""
    job_id = user.submit("--gpus=4", "--", "sh", "-c", 'echo "pid $$ $CUDA_VISIBLE_DEVICES"')

    user.finished(job_id)

    assert user.words(job_id, "argv")[:4] == ["--launcher", "plain", "--grace", "120"]
    env = user.variables(job_id)
    assert env["SLURM_DL_RUN_DIR"] == f"{user.desk}/slurm_dl_runs/{job_id}"
    assert (env["SLURM_DL_SIGNAL"], env["SLURM_DL_GRACE_S"]) == ("USR1", "120")
    assert env["SLURM_RESTART_COUNT"] == "0"
    assert user.logs() == f"pid {env['SLURM_TASK_PID']} 0,1,2,3\n"


def test_an_srun_job(user: User) -> None:
    """One task for each GPU, and each task sees all GPUs of its node."""
    job_id = user.submit("--gpus=8", "--launcher=srun", "-c", "2", "--", "task")

    user.finished(job_id)

    tasks = sorted((user.desk / "slurm_dl_runs" / job_id).glob("task.*"))
    assert [path.name for path in tasks] == [f"task.{n}" for n in range(8)]
    assert {path.read_text() for path in tasks} == {"0,1,2,3\n"}


@pytest.mark.parametrize(
    ("gpus", "nodes", "command", "tail"),
    [
        ("4", 1, ["train.py", "--lr", "1"], ["train.py", "--lr", "1"]),
        ("8", 2, ["python", "train.py"], ["--no-python", "python", "train.py"]),
        ("8", 2, ["-m", "train"], ["-m", "train"]),
    ],
)
def test_a_torchrun_job(
    user: User, gpus: str, nodes: int, command: list[str], tail: list[str]
) -> None:
    """One torchrun for each node, all with the same meeting point on the first node."""
    job_id = user.submit(f"--gpus={gpus}", "--launcher=torchrun", "--", *command)

    user.finished(job_id)

    run_dir = user.desk / "slurm_dl_runs" / job_id
    calls = [path.read_text().splitlines() for path in sorted(run_dir.glob("torchrun.*"))]
    assert len(calls) == nodes
    for rank, call in enumerate(calls):
        assert call[-len(tail) :] == tail
        assert (f"--node-rank={rank}" in call) == (nodes > 1)
        assert {f"--nnodes={nodes}", "--nproc-per-node=4"} < set(call)
        assert ("--standalone" in call) == (nodes == 1)
    if nodes > 1:
        host = user.box.run(["uname", "-n"]).stdout.strip()
        port = 15000 + int(job_id) % 15000
        assert f"--rdzv-endpoint={host}:{port}" in calls[0]
        assert f"--rdzv-id={job_id}.0" in calls[0]
        assert [w for w in calls[0] if w != "--node-rank=0"] == [
            w for w in calls[1] if w != "--node-rank=1"
        ]


def test_an_array(user: User) -> None:
    """Each task has its own run directory and log, named by array and task."""
    job_id = user.submit("--gpus=1", "--array=1-3:2", "--", "sh", "-c", "echo task")

    user.finished(f"{job_id}_1")
    user.finished(f"{job_id}_3")

    for task in ("1", "3"):
        assert user.variables(f"{job_id}_{task}")["SLURM_ARRAY_TASK_ID"] == task
        assert (user.desk / f"slurm-{job_id}_{task}.out").read_text() == "task\n"


def test_a_range_of_nodes_takes_left_overs(user: User) -> None:
    """GPUs lie as they are free, and on each node the job has their part of CPUs."""
    for name, gpus in (("n1", 1), ("n2", 1), ("n3", 2), ("n4", 4)):
        user.box.run(
            ["sbatch", "-w", name, f"--gpus-per-node={gpus}", "--wrap", "exec sleep 300"],
            cwd=user.desk,
        )
    user.eventually(
        lambda: len(user.box.run(["squeue", "-ht", "R", "-o", "%A"]).stdout.split()) == 4,
        what="the nodes to be taken",
    )

    job_id = user.submit(
        "--gpus=8", "--nodes=1-4", "--", "sh", "-c", "scontrol -d show job $SLURM_JOB_ID"
    )

    user.finished(job_id)
    log = (user.desk / f"slurm-{job_id}.out").read_text()
    assert re.findall(r" Nodes=(\S+) .*GRES=gpu:a100:(\d)", log) == [("n[1-2]", "3"), ("n3", "2")]
    assert user.variables(job_id)["SLURM_JOB_CPUS_PER_NODE"] == "12(x2),8"
    assert json.loads(user.record(job_id)["Comment"])["slurm_dl"]["nodes"] == 4


def test_half_a_gpu(
    make_sandbox: Callable[..., Sandbox], desk_in: Callable[[Sandbox], Path], eventually: Eventually
) -> None:
    """Two jobs fill a GPU and a third waits; dlrun tells how fast the one is."""
    box = make_sandbox(SandboxSpec(groups=(SandboxNodes(nodes=1, gpus=1, shards=4),)))
    user = User(box, desk_in(box), eventually)
    templates = user.desk / "templates"
    templates.mkdir()
    (templates / "plain.sbatch.j2").write_text(
        '{% include "_header" %}\nexport SLURM_DL_RATE_EVERY_S=2\n'
        "exec {{ dlrun | quote }} -- {{ command | quote }}\n"
    )
    program = (
        "import time\nfrom slurm_dl import job\nfor step in range(1000):\n"
        "    job.report(step)\n    time.sleep(0.1)\n    if job.should_checkpoint(): break\n"
    )
    dlrun = str(Path(sys.executable).parent / "dlrun")
    jobs = [
        user.submit(
            "--share", "--model=resnet18", f"--dlrun={dlrun}", "--", sys.executable, "-c", program,
            SLURM_DL_TEMPLATES=str(templates),
        )
        for _ in range(3)
    ]  # fmt: skip

    def rate(job_id: str) -> float:
        ours = json.loads(user.field(job_id, "k"))["slurm_dl"]
        return float(ours.get("rate", 0.0))

    eventually(lambda: 0 < rate(jobs[0]) <= 11, 60.0, what="the rate of the first job")
    assert [user.record(job)["JobState"] for job in jobs] == ["RUNNING", "RUNNING", "PENDING"]
    assert user.record(jobs[0])["NumCPUs"] == "8"
    assert json.loads(user.field(jobs[0], "k"))["slurm_dl"]["model"] == "resnet18"
    for job_id in jobs[:2]:
        held = box.run(["scontrol", "show", "job", "-d", job_id]).stdout
        assert re.search(r"Nodes=n1 .*GRES=shard:(a100:)?2\b", held), held


def test_few_switches_are_asked_for(user: User) -> None:
    """A skewed model on two nodes: Slurm holds the wish, and cuts the wait as was said."""
    profiles = user.desk / "profiles"
    profiles.mkdir()
    (profiles / "wide.yaml").write_text("name: wide\nsource: measured\nskew: 0.7\n")
    config = user.desk / "dl.yaml"
    config.write_text(
        "manage: {partitions: [gpu]}\nplacement: {scheme: consolidate}\n"
        f"paths: {{profile_dir: {profiles}}}\n"
    )

    client = user.desk / "client.yaml"
    client.write_text(client_config_of(load(config)).text())

    job_id = user.submit(
        "--hold", "--gpus=8", "--model=wide", "--launcher=srun", "--", "true",
        SLURM_DL_CLIENT=str(client),
    )  # fmt: skip

    assert user.record(job_id)["Switches"] == "1@00:05:00"


HOSTILE = [
    "x\n#SBATCH --exclusive\n#SBATCH --job-name=evil\n",
    "a\r\nb",
    "it's {{ 7*7 }} $(id)",
    "",
]


def test_no_argument_is_taken_for_a_directive(user: User) -> None:
    """Arguments with line breaks and #SBATCH reach the command, and Slurm does not see them."""
    job_id = user.submit("--gpus=1", "--name=mine", "--", "true", *HOSTILE)

    user.finished(job_id)

    assert user.words(job_id, "argv")[5:] == ["true", *HOSTILE]
    assert user.record(job_id)["JobName"] == "mine"
    assert user.record(job_id)["OverSubscribe"] == "OK"


def test_a_dry_run_shows_what_slurm_stores(user: User) -> None:
    """The dry run's script is, byte for byte, the one that slurmctld keeps."""
    args = ["--hold", "--gpus=8", "--no-check", "--launcher=torchrun", "--", "python", *HOSTILE]
    dry = user.dlsubmit("--dry-run", *args)

    job_id = user.submit(*args)

    stored = user.box.run(["scontrol", "write", "batch_script", job_id, "-"]).stdout
    comment, script = dry.split("\n", 1)
    assert stored.rstrip("\n") == script.rstrip("\n")
    assert shlex.split(comment.removeprefix("# "))[0] == "/usr/bin/sbatch"


def test_options_of_sbatch_take_effect(user: User) -> None:
    """What dlsubmit passes on, Slurm heeds, and the command line wins over SBATCH_*."""
    job_id = user.submit(
        "-H", "--gpus=1", "-c", "3", "--exclude", "n1", "--nice=7", "-t", "1:00:00", "--", "true",
        SBATCH_TIMELIMIT="5", SBATCH_NO_REQUEUE="1",
    )  # fmt: skip

    record = user.record(job_id)
    assert (record["CPUs/Task"], record["ExcNodeList"], record["Nice"]) == ("3", "n1", "7")
    assert (record["TimeLimit"], record["Requeue"]) == ("01:00:00", "1")


def test_a_job_submitted_from_a_job_starts_afresh(user: User) -> None:
    """The outer job's restart count and array do not reach the job it submits."""
    job_id = user.submit(
        "--gpus=1", "--", "true",
        SLURM_JOB_ID="1", SLURM_RESTART_COUNT="7", SLURM_ARRAY_JOB_ID="1", SLURM_DL_ATTEMPT="2",
    )  # fmt: skip

    user.finished(job_id)

    env = user.variables(job_id)
    assert env["SLURM_RESTART_COUNT"] == "0"
    assert not {"SLURM_ARRAY_JOB_ID", "SLURM_DL_ATTEMPT"} & set(env)


def test_the_run_directory_survives_export_none(user: User) -> None:
    """With --export=NONE srun's tasks still find the run directory."""
    task = str(user.desk / "bin" / "task")

    job_id = user.submit("--gpus=2", "--launcher=srun", "--export=NONE", "--", task)

    user.finished(job_id)
    assert len(list((user.desk / "slurm_dl_runs" / job_id).glob("task.*"))) == 2


def test_a_requeued_job_keeps_its_run_directory_and_log(user: User) -> None:
    """After a requeue the restart count is 1, the directory the same, the log longer."""
    job_id = user.submit("--gpus=1", "--", "sh", "-c", "echo run; [ -e go ] || sleep 100")
    log = user.desk / f"slurm-{job_id}.out"
    user.eventually(lambda: log.exists() and log.read_text() == "run\n", 60.0, what="the first run")
    (user.desk / "go").touch()

    user.box.run(["scontrol", "requeue", "Incomplete", job_id])

    user.finished(job_id)
    assert user.variables(job_id)["SLURM_RESTART_COUNT"] == "1"
    assert [path.name for path in (user.desk / "slurm_dl_runs").iterdir()] == [job_id]
    assert log.read_text().count("run\n") == 2


def test_the_signal_before_the_limit_is_for_the_batch_process(user: User) -> None:
    """Slurm sends the lead signal to the batch process alone: to dlrun, after the exec."""
    # Not a shell: the script ignores the signal until dlrun is there, and a shell cannot trap a
    # signal that was ignored when it started. dlrun restores it; its stand-in here does not.
    program = (
        "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1});"
        " print('ready', flush=True);"
        " print('got' if signal.sigtimedwait({signal.SIGUSR1}, 100) else 'nothing')"
    )

    job_id = user.submit(
        "--gpus=1", "-t", "2", "--signal=USR1@110", "--", sys.executable, "-c", program
    )

    user.finished(job_id)
    said = [line for line in user.logs().splitlines() if not line.startswith("slurmstepd")]
    assert said == ["ready", "got"]


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("--array=1-", "Invalid job array"),
        ("--hold=1", "doesn't allow an argument"),
        ("--dependency=nonsense:1", "sbatch: error: "),
    ],
)
def test_sbatch_judges_what_is_passed_on(user: User, word: str, said: str) -> None:
    """Its own words, status 1, and no job."""
    done = user.box.run(
        [DLSUBMIT, f"--dlrun={user.desk}/bin/dlrun", "--gpus=1", word, "--", "python", "train.py"],
        cwd=user.desk,
        env=user.env,
        check=False,
    )

    assert (done.returncode, done.stdout) == (1, "")
    assert said in done.stderr


def test_the_table_of_options_is_sbatchs_own(user: User) -> None:
    """Every option that this sbatch knows is in the table, with its arity and its letter.

    getopt lists the possibilities of an ambiguous option, which gives hidden ones away, too.
    """

    def said(*words: str) -> str:
        done = user.box.run(["sbatch", *words], check=False)
        return done.stderr.partition("\n")[0]

    if not user.box.run(["sbatch", "--version"]).stdout.startswith("slurm-wlm 22.05"):
        pytest.skip("the table is that of 22.05")
    found: set[str] = set()
    for letter in "abcdefghijklmnopqrstuvwxyz":
        line = said(f"--{letter}")
        found |= {name for name in re.findall(r"'(--[a-z-]+)'", line) if len(name) > len("--x")}

    assert found == {name for name in SBATCH_22_05 if name.startswith("--")}
    for name in sorted(found - {"--help", "--usage", "--version"}):
        needs_value = "requires an argument" in said(name)
        takes_none = "doesn't allow an argument" in said(f"{name}=x", "--nodes=bad")
        expected = SBATCH_22_05[name].takes
        assert needs_value == (expected is Takes.VALUE), name
        assert takes_none == (expected is Takes.NOTHING), name
    for letter in "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ":
        line = said(f"-{letter}")
        option = SBATCH_22_05.get(f"-{letter}")
        assert ("invalid option" in line) == (option is None), letter
        if option is not None and f"-{letter}" not in {"-h", "-V"}:
            needs_value = "requires an argument" in line
            assert needs_value == (option.takes is Takes.VALUE), letter
