"""What ``dlctl test-signal`` makes of what it saw, without processes: facts, files, order."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_dl.job.run_files import (
    LISTENING_FILE,
    PROGRESS_FILE,
    REQUEST_FILE,
    STATE_FILE,
    write_whole,
)
from slurm_dl.model.contract import Contract
from slurm_dl.model.errors import ClusterError
from slurm_dl.signal_test.local_trial import disposition
from slurm_dl.signal_test.run_directory import RunFiles, Traces
from slurm_dl.signal_test.slurm_trial import exit_code
from slurm_dl.signal_test.trial import Trial
from slurm_dl.signal_test.verdict import (
    Look,
    Observations,
    ObservedProcess,
    Return,
    SavedCheckpoint,
    judge,
)
from slurm_dl.slurm.tool_runner import TOOLS, Slurm
from slurm_dl.slurm.write.actions import SignalDelivery

CONTRACT = Contract(grace_s=30)
BY_JOB = Contract(signal="USR2", requeued_by="job")
NOTHING = Traces({}, ())
NO_FILE = SavedCheckpoint()
SAVED = SavedCheckpoint(recorded="/runs/1/step-7.pt", step=7)
BACK = Return(trained=True, first_step=8)
GOOD = Observations(
    contract=CONTRACT,
    ready="it reported step 5",
    last_step=7,
    dlrun_took_it=True,
    script_listens=True,
    acked_s=0.5,
    checkpoint=SAVED,
    back=BACK,
)
BASH = ObservedProcess(pid=1, name="bash", signal="catches", is_first=True)
DLRUN = ObservedProcess(pid=1, name="dlrun", signal="blocks", is_first=True)
PYTHON = ObservedProcess(pid=2, name="python3", signal="dies of")
UNSEEN = replace(GOOD, dlrun_took_it=False, script_listens=False)
DIED = replace(UNSEEN, acked_s=None, ended_s=0.1, end="it died of USR1", killed_by="USR1")
ENDED = replace(GOOD, acked_s=None, ended_s=1.0, back=None)
DEAF = replace(GOOD, acked_s=None, checkpoint=NO_FILE, script_listens=False)
SHELL = replace(DEAF, dlrun_took_it=False)
ITSELF = replace(UNSEEN, acked_s=None, requeued_itself=True, ended_s=2.0)


def under(
    facts: Observations, first: ObservedProcess, worker: ObservedProcess = PYTHON
) -> Observations:
    return replace(facts, processes=(first, worker))


@pytest.mark.parametrize(
    ("facts", "to_do"),
    [
        (GOOD, None),
        (replace(GOOD, back=replace(BACK, first_step=7)), None),
        (replace(GOOD, acked_s=None), None),
        (replace(GOOD, checkpoint=NO_FILE), None),
        (replace(GOOD, acked_s=None, checkpoint=SavedCheckpoint(file="/c/a.pt")), None),
        (replace(ITSELF, contract=BY_JOB), None),
        (replace(ITSELF, acked_s=0.5), None),
        (Observations(contract=CONTRACT, end="it ended with status 2"), "run by itself first"),
        (Observations(contract=CONTRACT), "--within"),
        (DIED, "exec dlrun -- COMMAND"),
        (under(DIED, replace(BASH, signal="dies of")), "exec dlrun -- COMMAND"),
        (
            replace(DIED, processes=(replace(PYTHON, is_first=True),)),
            "handler for USR1 in python3",
        ),
        (replace(ENDED, end="it ended with status 0"), "--stops-with 0"),
        (
            under(replace(ENDED, script_listens=False, end="it ended with status 0"), DLRUN),
            "install a handler for USR1",
        ),
        (replace(ENDED, end="it ended with status 93"), "--never-requeue"),
        (replace(ENDED, end="it ended with status 3"), "job.exit_for_requeue()"),
        (replace(ENDED, end="it ended with status 3", dlrun_took_it=False), "exec dlrun"),
        (replace(ENDED, end="it died of KILL"), "job.exit_for_requeue()"),
        (ITSELF, "--requeued-by job"),
        (replace(DEAF, script_listens=True), "should_checkpoint() at every step, or give"),
        (under(SHELL, replace(BASH, signal="ignores")), "in place of what ignores USR1"),
        (under(SHELL, BASH), "'wait' for it"),
        (under(DEAF, DLRUN, replace(PYTHON, signal="catches")), "--requeued-by job"),
        (replace(SHELL, processes=(replace(PYTHON, signal="catches", is_first=True),)), "job.exit"),
        (under(DEAF, DLRUN, replace(PYTHON, others=("USR2",))), "--signal USR2"),
        (under(DEAF, DLRUN, replace(PYTHON, signal="ignores")), "install a handler for USR1"),
        (under(DEAF, DLRUN), "install a handler for USR1"),
        (replace(under(DEAF, DLRUN), is_unsent=True), "--start S"),
        (replace(ITSELF, contract=BY_JOB, checkpoint=NO_FILE), "--watch"),
        (replace(GOOD, back=Return(trained=False, end="it ended with status 1")), "see its log"),
        (replace(GOOD, back=Return(trained=False)), "see its log"),
        (replace(GOOD, back=replace(BACK, first_step=None)), "job.report(step)"),
        (replace(GOOD, back=replace(BACK, first_step=6)), "job.resume_from()"),
        (replace(GOOD, checkpoint=NO_FILE, back=replace(BACK, first_step=1)), "job.resume_from()"),
    ],
)
def test_each_fault_has_its_advice(facts: Observations, to_do: str | None) -> None:
    """It works, with status 0 and nothing to do, or one thing is to be done."""
    verdict = judge(facts)

    assert verdict.exit_status == (to_do is not None)
    assert (verdict.advice == "") if to_do is None else (to_do in verdict.advice)


def test_what_was_seen_is_told_in_order() -> None:
    assert judge(GOOD).sentences == (
        "The job trained: it reported step 5.",
        "dlrun took USR1 and asked the script to stop.",
        "The checkpoint was acknowledged 0.5 s after the signal.",
        "A checkpoint was written and recorded at step 7: /runs/1/step-7.pt.",
        "After the requeue it trained again at step 8 (it had reached step 7).",
        "It works.",
    )


# --- files


def test_a_checkpoint_is_a_newer_regular_file_in_a_watched_directory(tmp_path: Path) -> None:
    """No link, no FIFO, nothing empty, nothing that a link leads to, and no older file."""
    run, watched, outside = (tmp_path / name for name in ("run", "watched", "outside"))
    for place in (run, watched, outside):
        place.mkdir()
    (watched / "old").write_text("1")
    files = RunFiles(run, (tmp_path / "absent", watched))
    before = files.traces(0)
    for place in (run, outside):
        (place / "new").write_text("1")
    (watched / "link").symlink_to(outside / "new")
    (watched / "way out").symlink_to(outside)
    (watched / "empty").touch()
    os.mkfifo(watched / "fifo")
    (watched / "moved here").write_text("1")
    os.utime(watched / "moved here", (1, 1))
    assert files.written(before, 0) == NO_FILE

    deep = watched / "step-3" / "rank-0"
    deep.parent.mkdir()
    deep.write_text("1")
    assert files.written(before, 0).file == str(deep)


def test_a_recorded_checkpoint_counts_for_its_own_run(tmp_path: Path) -> None:
    """One of an earlier run, or from before the signal, is not the answer to the signal."""
    files = RunFiles(tmp_path)
    entry = {"path": "/x/step-3.pt", "step": 3, "time_s": 100.0, "restart": 1}
    write_whole(tmp_path / STATE_FILE, {"v": 1, "checkpoints": [entry]})

    assert files.written(NOTHING, 1) == SavedCheckpoint(recorded="/x/step-3.pt", step=3)
    assert files.written(NOTHING, 0) == NO_FILE
    before = files.traces(1)
    assert files.written(before, 1) == NO_FILE

    write_whole(tmp_path / STATE_FILE, {"v": 1, "checkpoints": [{**entry, "time_s": 101.0}]})
    assert files.written(before, 1).recorded == "/x/step-3.pt"


@given(st.binary(max_size=200) | st.sampled_from([b'{"step": "x", "restart": [0]}', b"[" * 9999]))
def test_files_of_the_job_may_hold_anything(content: bytes) -> None:
    """They are the user's: no error, and nothing is believed."""
    with tempfile.TemporaryDirectory() as place:
        files = RunFiles(Path(place))
        for name in (PROGRESS_FILE, LISTENING_FILE, REQUEST_FILE, STATE_FILE):
            Path(place, name).write_bytes(content)

        assert (files.step(0), files.listens(0), files.is_asked(0)) == (None, False, False)
        assert files.written(NOTHING, 0) == NO_FILE


# --- processes


@pytest.mark.parametrize(
    ("masks", "word"),
    [
        ({}, "dies of"),
        ({"SigCgt": 10}, "catches"),
        ({"SigIgn": 10}, "ignores"),
        ({"SigBlk": 10, "SigCgt": 10}, "blocks"),
        ({"SigCgt": 12}, "dies of"),
    ],
)
def test_what_a_process_does_with_a_signal(masks: dict[str, int], word: str) -> None:
    """The masks of /proc/PID/status, bit n-1 for signal n."""
    names = ("SigBlk", "SigIgn", "SigCgt")
    bits = {name: 1 << (masks[name] - 1) if name in masks else 0 for name in names}
    status = "Name:\tx\n" + "".join(f"{name}:\t{bits[name]:016x}\n" for name in names)

    assert disposition(status, "USR1") == word


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("10", ("0", 10)),
        ("0", ("0", 0)),
        ("768", ("3", 0)),
        ("0:12", ("0", 12)),
        ("3:0", ("3", 0)),
        ("N/A", ("N/A", 0)),
        ("", ("unknown", 0)),
        (":10", ("unknown", 10)),
        ("1:²", ("1", 0)),
    ],
)
def test_squeues_exit_code(text: str, told: tuple[str, int]) -> None:
    """A status of wait(2), or the two numbers that other tools write."""
    assert exit_code(text) == told


# --- the order of a trial


@dataclass
class FakeJob:
    """A job that follows a script: what it looks like before and after the signal."""

    contract: Contract
    files: RunFiles
    after_signal: Callable[[FakeJob], None] = lambda _: None
    every_s: float = 0.0
    now: Look = field(default_factory=lambda: Look(state="running"))
    done: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Begin at step 1."""
        self.step(1)

    def step(self, step: int) -> None:
        """Report a step of this run."""
        content = {"step": step, "restart": self.now.run}
        write_whole(self.files.directory / PROGRESS_FILE, content, durable=False)

    def look(self) -> Look:
        """It makes one step at each look."""
        if self.now.state == "running" and (step := self.files.step(self.now.run)):
            self.step(step + 1)
        return self.now

    def processes(self) -> tuple[ObservedProcess, ...]:
        """None."""
        return ()

    def signal(self) -> None:
        """Do what the script says."""
        self.done.append("signal")
        self.after_signal(self)

    def requeue(self) -> None:
        """Start again at step 5."""
        self.done.append("requeue")
        self.now = Look(state="running", run=1)
        self.step(5)

    def last_words(self) -> str:
        """A word."""
        return "ouch"


def ack(job: FakeJob) -> None:
    """Save and acknowledge."""
    (job.files.watched[0] / "a.pt").write_text("x")
    job.now = replace(job.now, acked=True)


def end(job: FakeJob) -> None:
    """End by itself."""
    job.now = Look(state="over", end="it ended with status 0")


QUICK = replace(CONTRACT, grace_s=0.05)
OVER = Look(state="over", end="it ended with status 9")
RUNS = Look(state="running")


@pytest.mark.parametrize(
    ("contract", "now", "answer", "done"),
    [
        (CONTRACT, RUNS, ack, ["signal", "requeue"]),
        (CONTRACT, RUNS, end, ["signal"]),
        (QUICK, RUNS, lambda _: None, ["signal", "requeue"]),
        (CONTRACT, OVER, ack, []),
    ],
    ids=["acknowledges", "ends", "does nothing", "never trains"],
)
def test_the_order_of_a_trial(
    tmp_path: Path,
    contract: Contract,
    now: Look,
    answer: Callable[[FakeJob], None],
    done: list[str],
) -> None:
    """As the daemon does it: requeued at the acknowledgement or at the end of the grace."""
    (tmp_path / "w").mkdir()
    job = FakeJob(contract, RunFiles(tmp_path, (tmp_path / "w",)), answer, now=now)
    facts = Trial(job, None, 5, lambda _: None).run()

    is_saved = answer is ack and "signal" in done
    is_back = "requeue" in done
    assert job.done == done
    assert (facts.acked_s is not None, facts.checkpoint.file is not None) == (is_saved, is_saved)
    assert facts.back == (Return(trained=True, first_step=6) if is_back else None)
    assert facts.last_words == ("" if is_back else "ouch")


def test_a_job_that_requeues_itself_is_not_requeued_at_its_acknowledgement(tmp_path: Path) -> None:
    """With requeued_by job the daemon waits; so does the trial."""
    waits: list[float] = []
    job = FakeJob(replace(QUICK, requeued_by="job"), RunFiles(tmp_path, (tmp_path,)), ack)
    facts = Trial(job, None, 5, lambda _: None, waits.append).run()

    assert facts.acked_s is not None
    assert len(waits) > 5


SENDS = 'echo sent >>"$(dirname "$0")/sent"; echo "scancel: Signal 10 to batch job 1_3" >&2\n'
RETRIES = 'echo "scancel: Job is in transitional state, retrying" >&2\n'
REFUSED = 'echo "scancel: error: Kill job error on job id 1_3: Invalid job id specified" >&2\n'


def delivery(directory: Path, does: str, *, timeout_s: float = 30.0) -> SignalDelivery:
    """A delivery by a scancel that *does* so."""
    for tool in TOOLS:
        path = directory / tool
        path.write_text(f"#!/bin/sh\n{does}", encoding="utf-8")
        path.chmod(0o755)
    slurm = Slurm(bin_dir=directory, timeout_s=timeout_s)
    return SignalDelivery(slurm, ["--signal=USR1", "--batch", "1_3"])


@pytest.mark.parametrize(
    ("does", "error"),
    [
        (SENDS, ""),
        ('echo "slurmctld does not answer, retrying" >&2; exit 1\n', "exit 1.*retrying"),
        (SENDS + RETRIES + "exec sleep 600\n", ""),
        (REFUSED + "exit 1\n", "exit 1.*Invalid job id"),
        ("exit 3\n", "exit 3.*no message"),
    ],
    ids=["answered", "other trouble", "retries", "refused", "silent failure"],
)
def test_it_ends_with_the_answer(tmp_path: Path, does: str, error: str) -> None:
    """A scancel that is to send the signal again is ended; slurmctld has delivered it."""
    under_way = delivery(tmp_path, does)

    if error:
        with pytest.raises(ClusterError, match=error):
            under_way.finish(30.0)
    else:
        assert under_way.finish(30.0)
        assert (tmp_path / "sent").read_text(encoding="utf-8") == "sent\n"


def test_it_is_given_up_at_its_own_deadline(tmp_path: Path) -> None:
    """Until then it can be asked about without waiting."""
    under_way = delivery(tmp_path, SENDS + "exec sleep 600\n", timeout_s=1.0)

    assert not under_way.finish(0.0)
    time.sleep(1.0)
    with pytest.raises(ClusterError, match="slurmctld did not answer in 1 s"):
        under_way.finish(0.0)
