"""What ``dlctl test-signal`` makes of what it saw, without processes: facts, files, order."""

from __future__ import annotations

import os
import pwd
import signal
import tempfile
from collections.abc import Callable, Iterator
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
from slurm_dl.model.errors import ConfigError
from slurm_dl.signal_test import run_directory, trial_commands
from slurm_dl.signal_test.interrupts import SIGNALS, stoppable, stops_are_held, unstopped
from slurm_dl.signal_test.local_trial import disposition
from slurm_dl.signal_test.observations import (
    Look,
    Observations,
    ObservedProcess,
    Return,
    SavedCheckpoint,
)
from slurm_dl.signal_test.owner_rights import rights_of
from slurm_dl.signal_test.run_directory import FileReads, RunFiles, Stamps
from slurm_dl.signal_test.slurm_trial import exit_code
from slurm_dl.signal_test.trial import Limits, run_trial
from slurm_dl.signal_test.verdict import judge

CONTRACT = Contract(grace_s=30)
NOTHING = Stamps({})
SAVED = SavedCheckpoint(recorded="/runs/1/step-7.pt", step=7)
GOOD = Observations(
    contract=CONTRACT,
    ready="it reported step 5",
    last_step=7,
    dlrun_took_it=True,
    script_listens=True,
    acked_s=0.5,
    checkpoint=SAVED,
    back=Return(trained=True, first_step=8, read=True),
)
BASH = ObservedProcess(pid=1, name="bash", signal="catches", is_first=True)
DLRUN = ObservedProcess(pid=1, name="dlrun", signal="blocks", is_first=True)
DEAF = ObservedProcess(pid=2, name="python3", signal="dies of")


def test_a_job_that_saves_and_goes_on_works() -> None:
    """Each step of it is a sentence, and there is nothing to do."""
    verdict = judge(GOOD)

    assert verdict.works
    assert verdict.advice == ()
    assert verdict.sentences == (
        "The job trained: it reported step 5.",
        "dlrun took USR1 and asked the script to stop.",
        "The checkpoint was acknowledged 0.5 s after the signal.",
        "A checkpoint was written and recorded at step 7: /runs/1/step-7.pt.",
        "After the requeue it went on at step 8 (it had reached step 7).",
    )


SILENT = replace(GOOD, acked_s=None, checkpoint=SavedCheckpoint(), script_listens=False)
BY_JOB = Contract(signal="USR2", requeued_by="job")


@pytest.mark.parametrize(
    ("facts", "said", "to_do"),
    [
        (
            Observations(contract=CONTRACT, end="it ended with status 2"),
            "It ended with status 2 before it trained; no signal was sent",
            "make it run by itself first",
        ),
        (Observations(contract=CONTRACT), "It was not seen to train in time", "--within"),
        (
            Observations(
                contract=CONTRACT,
                ready="x",
                processes=(replace(BASH, signal="dies of"),),
                ended_s=0.1,
                end="it died of USR1",
                killed_by="USR1",
            ),
            "The batch shell got USR1 and died of it",
            "exec dlrun -- COMMAND",
        ),
        (
            Observations(contract=CONTRACT, ready="x", ended_s=0.1, killed_by="USR1"),
            "The batch shell got USR1 and died of it",
            "exec dlrun -- COMMAND",
        ),
        (
            Observations(
                contract=CONTRACT,
                ready="x",
                processes=(replace(DEAF, is_first=True),),
                ended_s=0.1,
                killed_by="USR1",
            ),
            "python3 got USR1 and died of it",
            "install a handler for USR1 in python3",
        ),
        (
            replace(SILENT, dlrun_took_it=False, processes=(BASH, DEAF)),
            "It went on for the whole grace of 30 s and was then requeued by force",
            "a shell runs its trap only when the command before it has ended",
        ),
        (
            replace(SILENT, processes=(DLRUN, replace(DEAF, others=("USR2",)))),
            "by force",
            "python3 catches USR2 and not USR1: submit it with --signal USR2",
        ),
        (
            replace(SILENT, processes=(DLRUN, replace(DEAF, signal="ignores"))),
            "by force",
            "python3 ignored USR1",
        ),
        (
            replace(SILENT, processes=(DLRUN, replace(DEAF, signal="catches"))),
            "by force",
            "nothing acknowledged it",
        ),
        (replace(SILENT, script_listens=True), "by force", "ask should_checkpoint() at every step"),
        (
            replace(GOOD, acked_s=None, ended_s=1.0, end="it ended with status 0", back=None),
            "It ended with status 0 1.0 s after the signal",
            "--stops-with 0",
        ),
        (
            replace(GOOD, acked_s=None, ended_s=1.0, end="it ended with status 93", back=None),
            "It ended with status 93",
            "status 93 is final",
        ),
        (
            replace(GOOD, acked_s=None, ended_s=1.0, end="it ended with status 3", back=None),
            "It ended with status 3",
            "dlrun takes only status 75",
        ),
        (
            replace(GOOD, acked_s=None, ended_s=2.0, requeued_itself=True, dlrun_took_it=False),
            "It put itself back 2.0 s after the signal",
            "--requeued-by job",
        ),
        (replace(GOOD, checkpoint=SavedCheckpoint()), "No checkpoint was written", "--watch DIR"),
        (
            replace(GOOD, checkpoint=SavedCheckpoint(incomplete=True)),
            "No checkpoint was seen: only the first 5000 files there were compared",
            "one with fewer files",
        ),
        (
            replace(GOOD, back=Return(trained=True, first_step=1, read=False)),
            "it started over at step 1 and read no checkpoint",
            "job.resume_from()",
        ),
        (
            replace(GOOD, back=Return(trained=True, read=False)),
            "read no checkpoint: it started over",
            "job.resume_from()",
        ),
        (
            replace(GOOD, back=Return(trained=True)),
            "whether from the checkpoint cannot be seen here",
            "job.report(step)",
        ),
        (
            replace(GOOD, back=Return(trained=False, end="it ended with status 1")),
            "After the requeue it ended with status 1",
            "second run must start like the first",
        ),
    ],
)
def test_what_is_wrong_is_named_with_what_to_do(facts: Observations, said: str, to_do: str) -> None:
    """One cause each: it does not work, and the advice fits the cause."""
    verdict = judge(facts)

    assert not verdict.works
    assert said in " ".join(verdict.sentences)
    assert to_do in " ".join(verdict.advice)


@pytest.mark.parametrize(
    "facts",
    [
        replace(
            GOOD,
            contract=BY_JOB,
            acked_s=None,
            dlrun_took_it=False,
            requeued_itself=True,
            ended_s=1.0,
        ),
        replace(GOOD, acked_s=None),
        replace(
            GOOD, checkpoint=SavedCheckpoint(files=("a.pt",)), back=Return(trained=True, read=True)
        ),
        replace(GOOD, back=Return(trained=True, first_step=7)),
    ],
    ids=["requeues itself", "saves without acknowledging", "files alone", "repeats one step"],
)
def test_other_ways_that_work(facts: Observations) -> None:
    """A contract has more than one way to be kept."""
    assert judge(facts).works


@given(
    saved=st.integers(2, 1000),
    first=st.integers(1, 2000),
)
def test_going_on_means_not_before_the_checkpoint(saved: int, first: int) -> None:
    """Whatever the numbers: it resumed exactly if its first step is not before the saved one."""
    facts = replace(
        GOOD,
        checkpoint=replace(SAVED, step=saved),
        back=Return(trained=True, first_step=first),
    )

    assert judge(facts).works == (first >= saved)


# --- files


def test_a_checkpoint_is_a_new_file_and_a_log_is_not(tmp_path: Path) -> None:
    """Made, replaced and rewritten files count; what only grew, and what is ours, does not."""
    for name in ("same", "log", "replaced", "rewritten"):
        (tmp_path / name).write_text("1234")
    files = RunFiles(tmp_path)
    before = files.stamps()
    with (tmp_path / "log").open("a") as log:
        log.write("more")
    (tmp_path / "new").write_text("1")
    (tmp_path / "empty").touch()
    (tmp_path / "link").symlink_to("same")
    (tmp_path / "scratch").write_text("12345")
    (tmp_path / "scratch").replace(tmp_path / "replaced")
    (tmp_path / "rewritten").write_text("4321")
    os.utime(tmp_path / "rewritten", ns=(1, 1))
    write_whole(tmp_path / REQUEST_FILE, {"v": 1})

    assert files.written(before, 0, 0).files == ("new", "replaced", "rewritten")


def test_a_recorded_checkpoint_counts_for_its_own_run(tmp_path: Path) -> None:
    """One of an earlier run, or from before the signal, is not the answer to the signal."""
    files = RunFiles(tmp_path)
    entry = {"path": "/x/step-3.pt", "step": 3, "time_s": 100.0, "restart": 1}
    write_whole(tmp_path / STATE_FILE, {"v": 1, "checkpoints": [entry]})

    assert files.written(NOTHING, 1, 99.0) == SavedCheckpoint(recorded="/x/step-3.pt", step=3)
    assert not files.written(NOTHING, 0, 99.0)
    assert not files.written(NOTHING, 1, 200.0)


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"step": "x", "restart": [0]}', "\x00\xff", "[" * 9999]
)
def test_files_of_the_job_may_hold_anything(tmp_path: Path, text: str) -> None:
    """They are the user's: no error, and nothing is believed."""
    files = RunFiles(tmp_path)
    for name in (PROGRESS_FILE, LISTENING_FILE, REQUEST_FILE, STATE_FILE):
        (tmp_path / name).write_text(text)

    assert files.step(0) is None
    assert not files.listens(0)
    assert not files.is_asked(0)
    assert not files.written(NOTHING, 0, 0)


def test_a_fifo_in_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    """To open one would wait for its writer for ever."""
    os.mkfifo(tmp_path / PROGRESS_FILE)

    assert RunFiles(tmp_path).step(0) is None


def test_reading_is_seen_and_not_invented(tmp_path: Path) -> None:
    """The access time tells, where the file system keeps it."""
    path = tmp_path / "a"
    path.write_text("x")
    quiet, read = FileReads([path]), FileReads([path])
    assert quiet.happened() in {False, None}
    path.read_text()
    if os.statvfs(path).f_flag & os.ST_NOATIME:
        pytest.skip("this file system keeps no access times")

    assert read.happened() is True


def test_files_beyond_the_bound_are_said_to_be_unseen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are neither new because they were not looked at before, nor silently left out."""
    monkeypatch.setattr(run_directory, "MOST_FILES", 4)
    run, other = tmp_path / "run", tmp_path / "other"
    for place in (run, other):
        place.mkdir()
    for name in ("b", "c", "d", "e"):
        (run / name).write_text("old")
        os.utime(run / name, (1, 1))
    files = RunFiles(run, (other,))
    before = files.stamps()
    assert [path.name for path in before.files] == ["b", "c", "d"]
    (run / "b").unlink()  # "e" comes into sight
    assert files.written(before, 0, 1000.0) == SavedCheckpoint(incomplete=True)

    (run / "a").write_text("new")
    (other / "f").write_text("new")

    assert files.written(before, 0, 1000.0) == SavedCheckpoint(files=("f", "a"), incomplete=True)


def test_as_many_files_as_are_looked_at_are_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory itself counts as one; in a recorded checkpoint too no more are looked at."""
    monkeypatch.setattr(run_directory, "MOST_FILES", 3)
    for name in ("a", "b"):
        (tmp_path / name).write_text("x")
    files = RunFiles(tmp_path)
    assert not files.stamps().incomplete
    (tmp_path / "c").mkdir()
    assert files.stamps().incomplete

    for name in ("d", "e"):
        (tmp_path / name).write_text("x")

    assert len(files.paths(SavedCheckpoint(recorded=str(tmp_path)))) == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_root_looks_with_the_rights_of_the_jobs_owner(short_directory: Path) -> None:
    """Links of his lead to nothing that he could not read or change himself."""
    owner, groups = pwd.getpwnam("nobody").pw_uid, os.getgroups()
    private, run = short_directory / "private", short_directory / "run"
    for place in (private, run):
        place.mkdir()
    (run / "mine").write_text("x")
    progress = {"step": 7, "restart": 0}
    write_whole(private / PROGRESS_FILE, progress, durable=False)
    open_to_all = short_directory / "passwd"
    for path in (open_to_all, private / "key", private / "his"):
        path.write_text("root's")
        os.utime(path, ns=(1, 2 * 10**9))
    (run / "linked").symlink_to(short_directory)
    (run / "way").symlink_to(private)
    entry = {"path": str(run / "linked"), "step": 1, "time_s": 100.0, "restart": 0}
    write_whole(run / STATE_FILE, {"v": 1, "checkpoints": [entry]}, durable=False)
    for path in (run, *run.iterdir(), private / "his"):
        os.chown(path, owner, -1, follow_symlinks=False)
    private.chmod(0o700)
    files = RunFiles(run, (private,), owner=owner)

    assert [RunFiles(run / "way", owner=who).step(0) for who in (None, owner)] == [7, None]
    assert list(files.stamps().files) == [run / "mine"]
    found = files.paths(files.written(NOTHING, 0, 0))
    assert run / "linked" / "passwd" in found
    assert run / "linked" / "private" / "key" not in found
    FileReads([*found, private / "key", private / "his"], owner)
    assert open_to_all.stat().st_atime_ns == 1
    assert [(private / name).stat().st_atime_ns for name in ("key", "his")] == [1, 1]
    assert (run / "mine").stat().st_atime_ns == (run / "mine").stat().st_mtime_ns - 10**9
    assert (os.geteuid(), os.getegid(), os.getgroups()) == (0, os.getgid(), groups)


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_root_is_the_owner_only_for_so_long() -> None:
    """Groups too, and also if something goes wrong meanwhile."""
    account = pwd.getpwnam("nobody")
    before = (os.geteuid(), os.getegid(), os.getgroups())
    seen = []

    def look() -> None:
        with rights_of(account.pw_uid):
            seen.append((os.geteuid(), os.getegid(), sorted(os.getgroups())))
            Path("/etc/shadow").read_bytes()

    with pytest.raises(PermissionError):
        look()
    theirs = sorted(os.getgrouplist("nobody", account.pw_gid))
    assert seen == [(account.pw_uid, account.pw_gid, theirs)]
    assert (os.geteuid(), os.getegid(), os.getgroups()) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_root_does_not_touch_the_files_of_an_owner_who_is_not_known_here(tmp_path: Path) -> None:
    """With whose rights?"""
    with pytest.raises(ConfigError, match=r"no account here .uid 3999999999.*let him run it"):
        RunFiles(tmp_path, owner=3_999_999_999).stamps()


def test_anybody_else_keeps_his_own_rights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """He has no others; but of a job that is not his he changes no file of his own."""
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    path = tmp_path / "mine"
    path.write_text("x")
    os.utime(path, ns=(5, 5))
    FileReads([path], owner=path.stat().st_uid + 1)

    assert path.stat().st_atime_ns == 5


# --- stops


@pytest.fixture
def _handlers() -> Iterator[None]:
    """Give the signals back to whoever had them, also where a test fails."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("_handlers")
@pytest.mark.parametrize("number", SIGNALS)
def test_a_stop_raises_where_it_may_and_once(number: signal.Signals) -> None:
    """What cleans up is not stopped by a second one."""
    signal.signal(number, signal.default_int_handler)  # Under nohup SIGHUP is ignored.
    before = signal.getsignal(number)
    seen = []

    def trial() -> None:
        with stops_are_held():
            try:
                with stoppable():
                    try:
                        signal.raise_signal(number)
                        seen.append("went on")
                    finally:
                        signal.raise_signal(number)
                        seen.append("closed")
            finally:
                signal.raise_signal(number)
                seen.append("cleaned up")

    with pytest.raises(KeyboardInterrupt):
        trial()
    assert seen == ["closed", "cleaned up"]
    assert signal.getsignal(number) is before


@pytest.mark.usefixtures("_handlers")
@pytest.mark.parametrize(
    ("stopped_at", "reached"),
    [
        ("before", ["before"]),
        ("open", ["before", "open"]),
        ("whole", ["before", "open", "whole", "kept whole"]),
        ("behind", ["before", "open", "whole", "kept whole", "between", "behind", "cleaned up"]),
    ],
)
def test_a_stop_is_held_back_where_it_would_do_harm(stopped_at: str, reached: list[str]) -> None:
    """It comes through at the end of what must be whole."""
    seen = []

    def pass_by(name: str) -> None:
        seen.append(name)
        if name == stopped_at:
            signal.raise_signal(signal.SIGTERM)

    def trial() -> None:
        with stops_are_held():
            pass_by("before")
            with stoppable():
                pass_by("open")
                with unstopped():
                    pass_by("whole")
                    seen.append("kept whole")
                seen.append("between")
            pass_by("behind")
            seen.append("cleaned up")

    with pytest.raises(KeyboardInterrupt):
        trial()
    assert seen == reached


@pytest.mark.usefixtures("_handlers")
def test_a_signal_that_was_ignored_still_is() -> None:
    """Nohup means it."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    seen = []
    with stops_are_held(), stoppable():
        signal.raise_signal(signal.SIGHUP)
        seen.append("went on")

    assert seen == ["went on"]


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
        ("10", ("0", "USR1")),
        ("0", ("0", "")),
        ("768", ("3", "")),
        ("0:12", ("0", "USR2")),
        ("3:0", ("3", "")),
        ("0:99", ("0", "99")),
        ("N/A", ("N/A", "")),
        ("", ("unknown", "")),
        (":10", ("unknown", "USR1")),
    ],
)
def test_squeues_exit_code(text: str, told: tuple[str, str]) -> None:
    """A status of wait(2), or the two numbers that other tools write."""
    assert exit_code(text) == told


@given(st.text(max_size=40))
def test_any_text_is_some_exit_code(text: str) -> None:
    """Nothing that Slurm may print is an error."""
    status, name = exit_code(text)

    assert status
    assert isinstance(name, str)


@given(st.binary(max_size=200))
def test_any_bytes_may_be_in_the_jobs_files(content: bytes) -> None:
    """Whatever the job wrote: a number, or nothing is known."""
    with tempfile.TemporaryDirectory() as place:
        files = RunFiles(Path(place))
        for name in (PROGRESS_FILE, LISTENING_FILE, REQUEST_FILE, STATE_FILE):
            Path(place, name).write_bytes(content)

        assert files.step(0) is None
        assert not files.written(NOTHING, 0, 0)


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

    def start(self) -> None:
        """Begin at step 1."""
        self.done.append("start")
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


LIMITS = Limits(after_s=None, within_s=5)


def ack(job: FakeJob) -> None:
    """Save and acknowledge."""
    (job.files.directory / "a.pt").write_text("x")
    job.now = replace(job.now, acked=True)


def test_the_requeue_comes_after_the_acknowledgement(tmp_path: Path) -> None:
    """As the daemon does it; and what was written in between is the checkpoint."""
    job = FakeJob(CONTRACT, RunFiles(tmp_path), ack)
    facts = run_trial(job, LIMITS, lambda _: None)

    assert job.done == ["start", "signal", "requeue"]
    assert facts.acked_s is not None
    assert facts.checkpoint.files == ("a.pt",)
    assert facts.back == Return(trained=True, first_step=6, read=facts.back and facts.back.read)


def test_a_job_that_ends_is_not_requeued(tmp_path: Path) -> None:
    """Nor would the daemon: there is nothing left to requeue."""

    def end(job: FakeJob) -> None:
        job.now = Look(state="over", end="it ended with status 0")

    job = FakeJob(CONTRACT, RunFiles(tmp_path), end)
    facts = run_trial(job, LIMITS, lambda _: None)

    assert job.done == ["start", "signal"]
    assert (facts.ended_s is not None, facts.end) == (True, "it ended with status 0")
    assert facts.last_words == "ouch"


def test_a_job_that_does_nothing_is_requeued_at_the_end_of_its_grace(tmp_path: Path) -> None:
    """With no acknowledgement to show for it."""
    job = FakeJob(Contract(grace_s=0.05), RunFiles(tmp_path))
    facts = run_trial(job, LIMITS, lambda _: None)

    assert job.done == ["start", "signal", "requeue"]
    assert facts.acked_s is None
    assert not facts.checkpoint


def test_a_job_that_requeues_itself_is_not_requeued_at_its_acknowledgement(tmp_path: Path) -> None:
    """With requeued_by job the daemon waits; so does the trial."""
    job = FakeJob(Contract(grace_s=0.05, requeued_by="job"), RunFiles(tmp_path), ack)
    looks = []
    plain = job.look

    def look() -> Look:
        looks.append(1)
        return plain()

    job.look = look  # type: ignore[method-assign]
    facts = run_trial(job, LIMITS, lambda _: None)

    assert facts.acked_s is not None
    assert len(looks) > 5


def test_no_signal_is_sent_to_a_job_that_ends_before_it_trains(tmp_path: Path) -> None:
    """There would be nobody to take it."""
    job = FakeJob(
        CONTRACT, RunFiles(tmp_path), now=Look(state="over", end="it ended with status 9")
    )
    facts = run_trial(job, LIMITS, lambda _: None)

    assert job.done == ["start"]
    assert (facts.ready, facts.end) == ("", "it ended with status 9")


@pytest.mark.parametrize(
    ("lines", "more"),
    [
        ("#SBATCH --array=0-99", []),
        ("#SBATCH -J x -a 0-9", []),
        ("", ["--array=0-9"]),
        ("", ["-a", "0-9"]),
    ],
)
def test_an_array_is_not_submitted(tmp_path: Path, lines: str, more: list[str]) -> None:
    """All of its tasks would begin, and train on."""
    script = tmp_path / "sweep.sbatch"
    script.write_text(f"#!/bin/bash\n{lines}\nsrun train\n")

    with pytest.raises(ConfigError, match="an array; test one task"):
        trial_commands._check_single(script, more)
