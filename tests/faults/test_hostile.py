"""Jobs of a real Slurm whose names, comments, directories and accounts are made to deceive.

Each test has its own cluster: Slurm lists ended jobs for a while, and other tests read such lists.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from patience import PATIENCE, eventually
from schedd import BIN, Schedd, schedd_in

from slurm_dl.model.contract import Contract
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import JobState
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.recording.snapshot_file import decode
from slurm_dl.sandbox import Sandbox
from slurm_dl.slurm.read.gpu_holdings import splits_in

pytestmark = pytest.mark.slurm

ESCAPES = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202egnp.sh\u2028\r"
OPTED_IN = '{"slurm_dl":{"v":1,"sig":"USR1","grace_s":99}}'


@pytest.fixture
def place(make_sandbox: Callable[[], Sandbox], short_directory: Path) -> Iterator[Schedd]:
    """A daemon that only looks, not started yet."""
    with schedd_in(make_sandbox(), short_directory) as daemon:
        yield daemon


def submit(place: Schedd, *options: str) -> JobId:
    """A job of no GPUs that waits, unless *options* say otherwise."""
    argv = ["sbatch", "--parsable", "--output=/dev/null", "--mem=100", "--wrap=sleep 600", *options]
    return JobId(int(place.box.run(argv).stdout))


def snapshot(place: Schedd) -> Snapshot:
    """What the daemon saw last."""
    path = place.home / "snapshot.json"
    place.ask("dlctl", "snapshot", str(path))
    text = path.read_text(encoding="utf-8")
    path.unlink()
    return decode(json.loads(text))


def there(place: Schedd, job_id: JobId) -> dict[str, float]:
    """GPUs by node of a job, as the daemon has them."""
    snap = snapshot(place)
    seen, row = snap.seen, snap.jobs.row_of()[job_id]
    mine = seen.held.job == row
    names = [seen.nodes.name[node] for node in seen.held.node[mine]]
    return dict(zip(names, seen.held.gpus[mine].tolist(), strict=True))


def is_harmless(said: str) -> bool:
    """It cannot move a cursor, set a title or turn what follows around."""
    return all(c.isprintable() or c == "\n" for c in said)


def test_no_record_becomes_another_jobs(place: Schedd) -> None:
    """Everything seen of each job is its own, and nothing that is printed acts on a terminal."""
    odd = place.home / "a\nb \x1b[2J"
    odd.mkdir()
    first = submit(place, "--hold", "--job-name=first")
    # Whoever counts knows the ids that come next.
    others = range(first + 1, first + 9)
    forged = "".join(
        f"\nJobId={n} JobName=x JobState=RUNNING Nodes=n[1-4] CPU_IDs=0 Mem=0 GRES=gpu:1(IDX:0) "
        for n in others
    )
    uneven = ("--nodes=2", "--ntasks=2", "--gpus=3")
    told = {
        "split": submit(place, *uneven, f"--job-name={forged[:900]}", f"--chdir={odd}"),
        "bomb": submit(
            place,
            *uneven,
            "--job-name=a Nodes=n[0-999999999] CPU_IDs=0 Mem=0 GRES=gpu:9 ",
            f"--comment={forged[:900]}",
        ),
        "honest": submit(place, *uneven, "--job-name=honest", "--time=77"),
        "escapes": submit(
            place, "--hold", f"--job-name={ESCAPES}", f"--comment={ESCAPES}", f"--account={ESCAPES}"
        ),
        "bytes": submit(place, "--hold", "--job-name=\udcff\udcc3(", "--comment=" + "\udcfe" * 300),
        "opted": submit(place, "--hold", f"--comment={OPTED_IN}", "--job-name=opted"),
        "deep": submit(place, "--hold", "--comment=" + '{"slurm_dl":' * 80, "--job-name=deep"),
        "fields": submit(
            place, "--hold", f"--job-name=xabcdefghif{first}xabcdefghir\n", f"--comment=|{OPTED_IN}"
        ),
    }
    for name in ("split", "bomb", "honest"):
        place.until_state(str(told[name]), "RUNNING")

    place.start(mode="--shadow")

    snap = snapshot(place)
    seen, row_of = snap.seen, snap.jobs.row_of()
    assert seen.unreadable == 0
    live = snap.jobs.job_id[snap.jobs.state <= JobState.RUNNING].tolist()
    assert sorted(live) == sorted([first, *told.values()])
    assert {j for j, claim in seen.claims.items() if claim.contract} == {told["opted"]}
    assert seen.claims[told["opted"]].contract == Contract(grace_s=99)
    for name, job_id in told.items():
        runs = name in {"split", "bomb", "honest"}
        row = row_of[job_id]
        assert snap.jobs.state[row] == (JobState.RUNNING if runs else JobState.PENDING), name
        assert snap.jobs.gpus[row] == (3 if runs else 0), name
        assert snap.jobs.limit_s[row] == (4620 if name == "honest" else snap.jobs.limit_s[row])
        text = seen.texts[job_id]
        assert text.label == str(job_id)
        assert all(map(is_harmless, (text.name, text.account, text.user, text.reason))), name
    assert seen.texts[told["honest"]].name == "honest"
    assert seen.texts[told["opted"]].account == ""

    # Lines of the others double the honest one in the dump; its split is its own all the same.
    detail = place.box.run(["scontrol", "-o", "-d", "show", "job", str(told["honest"])]).stdout
    split = splits_in(detail, {told["honest"]})[told["honest"]]
    true = {node: gres.gpus for node, gres in split.items()}
    for name in ("split", "bomb", "honest"):
        assert seen.held.gpus[seen.held.job == row_of[told[name]]].sum() == 3, name
    eventually(lambda: there(place, told["honest"]) == true, 30, what="the honest job's split")

    said = [place.ask("dlqueue").stdout, place.ask("dlctl", "status").stdout]
    said += [place.ask("dlqueue", "why", str(job)).stdout for job in told.values()]
    said.append((place.home / "schedd.log").read_text(encoding="utf-8"))
    assert all(map(is_harmless, said))


ARGUMENTS = (
    ["dlsubmit", "--gpus", "1", "--name", f"a\n{ESCAPES}", "--", "true"],
    ["dlsubmit", "--gpus", "1", "--comment", ESCAPES, "--", "true"],
    ["dlsubmit", "--gpus", "1", "--comment", '{"a":' * 900, "--", "true"],
    ["dlsubmit", "--gpus", "1", f"--account={ESCAPES}", "--", "true"],
    ["dlsubmit", "--gpus", "1", f"--wckey={ESCAPES}", "--", "true"],
    ["dlsubmit", "--gpus", "1", "--run-dir", "/nowhere/\x1b[2J", "--", "true"],
    ["dlsubmit", "--gpus", "9" * 5000, "--", "true"],
    ["dlsubmit", f"--{ESCAPES}", "--", "true"],
    ["dlqueue", "why", f"1{ESCAPES}"],
    ["dlqueue", "why", "9" * 5000],
    ["dlqueue", "--user", ESCAPES, "--socket", f"/nowhere/{ESCAPES}"],
    ["dlctl", "show-config", "--config", f"/nowhere/{ESCAPES}"],
)


def test_hostile_arguments_get_an_error_of_ours(place: Schedd) -> None:
    """One that says what is wrong, without a traceback, and without saying it to the terminal."""
    for argv in ARGUMENTS:
        done = subprocess.run(
            [str(BIN / argv[0]), *argv[1:]],
            env=place.env,
            cwd=place.home,
            capture_output=True,
            timeout=60 * PATIENCE,
            check=False,
        )
        said = (done.stdout + done.stderr).decode("utf-8", errors="replace")

        assert done.returncode in {1, 2}, (argv, said)
        assert said.strip(), argv
        assert "Traceback" not in said, argv
        assert is_harmless(said), argv
