"""Batch scripts of users on a real Slurm: read as sbatch reads them, run as they are."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from schedd import BIN, ROOT, Schedd, schedd_in

from slurm_dl.sandbox import PartitionSpec, Sandbox, SandboxNodes, SandboxSpec
from slurm_dl.submit.user_script import read_script

pytestmark = [pytest.mark.slurm, pytest.mark.full("a database of slurmdbd")]

HEADS = (
    '#SBATCH -J "my job" --time=1:00 # all night',
    "#SBATCH --job-name='it\"s' --comment=a\\#c#d -t 7",
    "#SBATCH --comment=a\\ -t 7",
    "#SBATCH -t 5 \\\n#SBATCH --nice=7",
    '#SBATCH --comment="" -t 9\n#SBATCH -t 4',
    '#SBATCH --comment x "" -t 9\n#SBATCH --nice=3',
    "#SBATCH --gpus-per-nod=2 -N1 --comm=x",
    "# a comment\n\n  # another\n#SBATCH -t 5\necho x\n#SBATCH -t 9",
    " #SBATCH -t 5\n##SBATCH -t 6\n#sbatch -t 7\n#SBATCH\t-t\t8",
    "#SBATCH --nice=5 --comment\n#SBATCH two -N 2 --gres=gpu:a100:1",
    "#SBATCH --comment='a\\'b' --no-requeue --requeue -t1-2",
    "#SBATCHES -t 3\n#SBATCH-t 3",
)
_SEEN = re.compile(
    r"\b(JobName|TimeLimit|Comment|Nice|NumNodes|TresPerNode|Requeue)=(.*?)(?=\s+\w[\w:/]*=|\n|$)"
)


def job_of(box: Sandbox, argv: list[str], script: str) -> dict[str, str] | str:
    """Slurm's record of a held job; the word for a refusal."""
    done = box.run(["sbatch", "--parsable", "--hold", *argv], stdin=script, check=False)
    if done.returncode:
        return "refused"
    shown = box.run(["scontrol", "show", "job", done.stdout.strip()]).stdout
    box.run(["scancel", done.stdout.strip()])
    return dict(_SEEN.findall(shown))


@pytest.mark.parametrize("head", HEADS)
def test_lines_mean_what_they_mean_to_sbatch(sandbox: Sandbox, tmp_path: Path, head: str) -> None:
    """The options that were read, on the command line, makes the same job as the script itself."""
    path = tmp_path / "job.sh"
    path.write_text(f"#!/bin/bash\n{head}\ntrue\n")
    read = read_script(path)
    ours = [
        f"--{option.name}" if option.value is None else f"--{option.name}={option.value}"
        for option in read.options
    ]

    by_line = job_of(sandbox, [*ours, *read.unread], "#!/bin/bash\ntrue\n")
    by_script = job_of(sandbox, [], path.read_text())

    if by_script == "refused" and read.unread:
        return
    assert by_line == by_script != {}


PYTHON = "/usr/bin/python3"
"""Debian's own: the interpreter of the tests may lie where other users cannot go."""

STEPS, EVERY = 240, 40
TRAIN = f"""#!{PYTHON}
#SBATCH --job-name=in-python --gres=gpu:1 --time=20
import os, pathlib, signal, sys, time
asked = []
if "--deaf" not in sys.argv:
    signal.signal(signal.SIGUSR1, lambda *_: asked.append(1))
name = os.environ["SLURM_JOB_NAME"] + os.environ.get("SLURM_ARRAY_TASK_ID", "")
saved = pathlib.Path(name + ".saved")
step = int(saved.read_text()) if saved.exists() else 0
run = os.environ.get("SLURM_RESTART_COUNT", "0")
with open(name + ".log", "a") as log:
    while step < {STEPS}:
        time.sleep(0.1)
        step += 1
        print(run, step, file=log, flush=True)
        if asked or step % {EVERY} == 0 or step == {STEPS}:
            saved.with_suffix(".new").write_text(str(step))
            saved.with_suffix(".new").rename(saved)
        if asked:
            sys.exit()
"""

# Environment Modules, conda and a wrapper of the group's, as far as scripts see them.
MODULES = """module() { [ "$1 $2" = "load cuda/12" ] && export CUDA_HOME=/opt/cuda; }
conda() { [ "$1 $2" = "activate torch" ] && export PATH="$PWD/env/bin:$PATH"; }
"""
WRAPPER = """#!/bin/bash
set -eu
echo "on $(hostname) with $CUDA_HOME"
trainer "$@"
echo "ended"
"""

SCRIPTS = {
    "loop": f"""#!/bin/bash
#SBATCH --gres=gpu:1
#SBATCH -t 20   # minutes
#SBATCH --output="%x-%j.out"
echo "begins"
srun {PYTHON} train.py
echo "ended with $?"
""",
    "conda": """#!/bin/bash -l
#SBATCH --job-name=conda --gpus=1 --time=20
cd "$SLURM_SUBMIT_DIR"
source modules.sh
module load cuda/12
conda activate torch
./wrapper.sh --lr 1
""",
    "sweep": f"""#!/bin/sh
#SBATCH --job-name=sweep --array=0-1 --gpus-per-node=1 --time=20
set -- 1e-3 1e-4
shift "$SLURM_ARRAY_TASK_ID"
{PYTHON} train.py --lr "$1" | tee -a "lr-$1.out"
""",
    "partitions": f"""#!/bin/bash
#SBATCH -J partitions
#SBATCH -p spare,gpu -N1 --gres=gpu:1 --signal=USR1@90 -t 20
# It cannot save when it is asked, and has checkpoints of its own.
{PYTHON} train.py --deaf && echo "complete"
""",
    "own-trap": f"""#!/bin/bash
#SBATCH -J own-trap --gres=gpu:1 -t 20 --signal=B:USR1@60
comes_back() {{
    kill -USR1 "$training"
    wait "$training"
    scontrol requeue "$SLURM_JOB_ID"
    sleep 60
}}
trap comes_back USR1
{PYTHON} train.py &
training=$!
wait "$training"
""",
    "in-python": TRAIN,
}
NAMES = [*(name for name in SCRIPTS if name != "sweep"), "sweep0", "sweep1"]
CAPABILITY = ["--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search"]
"""dlsubmit runs by the interpreter of the tests, which may lie in a home directory."""


def as_user(box: Sandbox, desk: Path, *args: str) -> str:
    """The output of dlsubmit, run by an ordinary user in *desk*."""
    user = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", *CAPABILITY]
    argv = [*user, str(BIN / "dlsubmit"), f"--dlrun={desk}/dlrun", *args]
    return box.run(argv, cwd=desk, env={"HOME": str(desk), "PATH": os.environ["PATH"]}).stdout


@pytest.fixture(scope="module")
def place(module_directory: Path) -> Iterator[Schedd]:
    """Two nodes of four GPUs in two partitions, slurmdbd, and a daemon in a hurry."""
    spec = SandboxSpec(
        groups=(SandboxNodes(nodes=2),),
        partitions=(PartitionSpec("gpu"), PartitionSpec("spare")),
        accounting=True,
    )
    box = Sandbox.up(module_directory / "box", spec)
    try:
        with schedd_in(box, module_directory) as daemon:
            daemon.configure(
                manage={"partitions": ["gpu", "spare"]},
                policy={"parameters": {"thresholds_gpu_s": [3, 100_000]}},
                preemption={"min_quantum_s": 1},
            )
            daemon.start()
            yield daemon
    finally:
        box.down(remove=True)


@pytest.fixture(scope="module")
def desk(place: Schedd) -> Path:
    """A directory of the user's, in which the scripts were preempted once and have ended."""
    desk: Path = place.box.jobs_directory / "desk"
    shutil.copytree(ROOT / "slurm_dl" / "job", desk / "lib" / "slurm_dl" / "job")
    shutil.copy(ROOT / "slurm_dl" / "__init__.py", desk / "lib" / "slurm_dl")
    (desk / "env/bin").mkdir(parents=True)
    files = {"train.py": TRAIN, "modules.sh": MODULES, "wrapper.sh": WRAPPER} | SCRIPTS
    files["env/bin/trainer"] = f"#!/bin/sh\n{PYTHON} train.py\n"
    files["dlrun"] = f'#!/bin/sh\nPYTHONPATH={desk}/lib exec {PYTHON} -m slurm_dl.job.run "$@"\n'
    for name, text in files.items():
        (desk / name).write_text(text)
    for path in (desk, *desk.rglob("*")):
        path.chmod(0o755)
    shutil.chown(desk, "nobody", "nogroup")
    ours = ["--parsable", "--grace=5"]  # So long those are waited for that cannot save.
    jobs = {name: as_user(place.box, desk, *ours, name).strip() for name in SCRIPTS}
    (desk / "after").write_text("#!/bin/sh\ncp loop.log seen\n")
    as_user(place.box, desk, f"--dependency=afterok:{jobs['loop']}", "after")
    (desk / "jobs.json").write_text(json.dumps(jobs))

    def trained() -> bool:
        logs = [desk / f"{name}.log" for name in NAMES]
        return all(log.exists() and len(log.read_text().splitlines()) > EVERY for log in logs)

    place.until("all scripts to train", trained)
    place.toy(8, 4, options=["--nodes=2"])
    place.until(
        "all scripts to be over",
        lambda: not place.box.run(["squeue", "-hr", "-u", "nobody"]).stdout.strip(),
        within_s=150,
    )
    return desk


@pytest.mark.parametrize("name", NAMES)
def test_a_script_is_preempted_and_goes_on(place: Schedd, desk: Path, name: str) -> None:
    """Unchanged: each step once but for those since the last checkpoint of who cannot save."""
    log = [
        tuple(map(int, line.split())) for line in (desk / f"{name}.log").read_text().splitlines()
    ]
    runs = [[step for run, step in log if run == number] for number in (0, 1)]
    job = json.loads((desk / "jobs.json").read_text())[name.rstrip("01")]
    job = f"{job}_{name[-1]}" if name[-1] in "01" else job

    assert len(log) == len(runs[0]) + len(runs[1]), log
    assert runs[0][0] == 1
    assert runs[1][-1] == STEPS
    went_on = runs[0][-1] // EVERY * EVERY if name == "partitions" else runs[0][-1]
    assert runs[1][0] == went_on + 1
    ended = place.box.run(["sacct", "-nXPD", "-j", job, "-o", "User,State"]).stdout.split()
    assert ended[-1] == "nobody|COMPLETED", ended
    assert len(ended) == 2, ended


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_diff_of_a_script_takes_nothing_away(place: Schedd, desk: Path, name: str) -> None:
    """Each line of it is submitted; what is new is dlsubmit's."""
    diff = as_user(place.box, desk, "--diff", name).splitlines()

    assert not [line for line in diff[3:] if line.startswith("-")]
    assert any("dlrun --launcher plain" in line for line in diff)
    assert [line for line in diff if line.startswith(" ")]


def test_a_dependent_waits_for_the_last_run(desk: Path) -> None:
    """Afterok holds through the requeue."""
    assert (desk / "seen").read_text().split()[-1] == str(STEPS)


def test_a_script_that_is_submitted_as_it_is_gets_its_arguments(place: Schedd, desk: Path) -> None:
    """And the variables that sbatch gives it."""
    (desk / "as-it-is").write_text('#!/bin/sh\nprintf "%s|" "$SLURM_JOB_NAME" "$@" > arguments\n')

    as_user(place.box, desk, "--no-preempt", "as-it-is", "--lr", "a b", "$HOME")

    told = desk / "arguments"
    place.until("its arguments", lambda: told.exists() and told.read_text())
    assert told.read_text() == "as-it-is|--lr|a b|$HOME|"
