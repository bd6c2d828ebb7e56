"""The order of a trial: start, train, signal, save and stop, requeue, train again.

It follows what the daemon does with a job that gives way: the signal of the contract, then the
requeue at the acknowledgement (only if the daemon is to requeue), or at the end of the grace.
The script is started here as a command, or submitted to Slurm as dlsubmit does it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from slurm_dl.job.handler_watch import NO_TRAINING, SHELLS
from slurm_dl.job.run_files import IMPORTED_FILE
from slurm_dl.model.contract import Contract
from slurm_dl.model.errors import ClusterError, ConfigError
from slurm_dl.model.ids import JobId
from slurm_dl.own_python import own_python
from slurm_dl.signal_test.local_trial import LocalJob
from slurm_dl.signal_test.slurm_trial import SlurmJob
from slurm_dl.signal_test.verdict import Look, Observations, ObservedProcess, Return
from slurm_dl.slurm.tool_runner import Slurm
from slurm_dl.submit import job_environment
from slurm_dl.submit.job_comment import comment
from slurm_dl.text import safe

LEAD_S = 60
_FIRST_LINE = 200
_ARRAY_LINE = re.compile(r"^#SBATCH\s+(?:.*\s)?(?:--ar|-a)", re.MULTILINE)
_ARRAY_OPTION = re.compile(r"--ar|-a")
_SUBMIT = "import sys; from slurm_dl.cli.dlsubmit.command import main; sys.exit(main(sys.argv[1:]))"


def local_argv(
    script: Path, arguments: Sequence[str], *, launcher: str, gpus: str
) -> tuple[str, ...]:
    """The command of a trial without Slurm: what stands for the batch script's process.

    Raises:
        ConfigError: There is no such script, or it cannot be run here.
    """
    dlrun = own_python("-m", "slurm_dl.job.run", "--launcher", launcher, "--")
    if not script.is_file() and script.name == str(script) and shutil.which(script.name):
        return (*dlrun, _program(script.name), *arguments)
    path = _readable(script)
    if path.suffix != ".py":
        return (_shell(path), str(path), *arguments)
    if launcher == "torchrun":
        if not gpus.isascii() or not gpus.isdigit():
            msg = f"--gpus: {gpus!r} is no number of workers"
            raise ConfigError(msg)
        workers = ("--standalone", "--nnodes=1", f"--nproc-per-node={gpus}")
        return (*dlrun, _program("torchrun"), *workers, str(path), *arguments)
    return (*dlrun, _program("python", "python3"), str(path), *arguments)


def submit(
    script: Path,
    arguments: Sequence[str],
    *,
    contract: Contract,
    place: Path,
    gpus: str,
    launcher: str,
    more: Sequence[str],
) -> JobId:
    """Submit the script as a job of its own: a Python script by dlsubmit, another one by sbatch.

    Args:
        place: A new directory; run directory and log come there.
        more: Further options of dlsubmit or sbatch.

    Raises:
        ConfigError: The script or an option is wrong.
        ClusterError: Slurm refused it.
    """
    path = _readable(script)
    _check_single(path, more)
    if path.suffix != ".py":
        return _sbatch(path, arguments, contract=contract, place=place, more=more)
    argv = (
        *("--json", f"--gpus={gpus}", f"--launcher={launcher}", f"--grace={contract.grace_s:g}"),
        *(f"--signal={contract.signal}@{LEAD_S}", f"--requeued-by={contract.requeued_by}"),
        *(f"--run-dir={place / 'runs'}", f"--output={place / 'output.log'}", *more, "--"),
        *(() if launcher == "torchrun" else (_program("python", "python3"),)),
        *(str(path), *arguments),
    )
    done = subprocess.run(own_python("-c", _SUBMIT, *argv), capture_output=True, check=False)
    said = done.stderr.decode(errors="replace").strip()
    if done.returncode:
        error = ConfigError if done.returncode == 2 else ClusterError  # noqa: PLR2004 - dlsubmit's
        raise error(said or f"dlsubmit failed with status {done.returncode}")
    return JobId(int(json.loads(done.stdout)["job_id"]))


def _sbatch(
    path: Path,
    arguments: Sequence[str],
    *,
    contract: Contract,
    place: Path,
    more: Sequence[str],
) -> JobId:
    environ = job_environment.clean(dict(os.environ), keep_sbatch=False).environ
    run_dir = place / "runs"
    run_dir.mkdir()
    lines = path.read_text(encoding="utf-8", errors="surrogateescape").splitlines(keepends=True)
    if Path(_shell(path)).name in SHELLS:
        # What the script itself sets comes later and wins; then --watch is needed.
        commands = (i for i, x in enumerate(lines) if x.strip() and not x.startswith("#"))
        after = next(commands, len(lines))
        lines.insert(
            after, f'export SLURM_DL_RUN_DIR={shlex.quote(str(run_dir))}/"$SLURM_JOB_ID"\n'
        )
    script = place / path.name
    script.write_text("".join(lines), encoding="utf-8", errors="surrogateescape")
    answer = Slurm(environ=environ).submit(
        *("--parsable", "--requeue", "--open-mode=append"),
        f"--comment={comment(None, contract=contract, model=None)}",
        *(f"--output={place / 'output.log'}", *more, str(script), *arguments),
        environ=environ,
    )
    if answer.job_id is None:
        raise ClusterError(safe(answer.text.decode(errors="replace"), 500))
    return JobId(answer.job_id)


def _check_single(path: Path, more: Sequence[str]) -> None:
    """Refuse an array: all of its tasks would begin."""
    text = path.read_text(encoding="utf-8", errors="replace")
    if _ARRAY_LINE.search(text) or any(_ARRAY_OPTION.match(word) for word in more):
        msg = f"{path}: an array; test one task of it, in a copy without --array"
        raise ConfigError(msg)


def _readable(script: Path) -> Path:
    if not script.is_file():
        msg = f"{script}: no such file; a JOB is a number, as in 123 or 123_4"
        raise ConfigError(msg)
    return script.absolute()


def _shell(path: Path) -> str:
    with path.open("rb") as text:
        first = text.readline(_FIRST_LINE).decode("utf-8", "replace")
    words = first.removeprefix("#!").split()
    if not first.startswith("#!") or not words:
        msg = f"{path}: a batch script begins with #! and its shell, a Python script ends in .py"
        raise ConfigError(msg)
    return words[-1] if Path(words[0]).name != "env" else _program(words[-1])


def _program(*names: str) -> str:
    for name in names:
        found = shutil.which(name)
        if found is not None:
            return os.path.abspath(found)  # noqa: PTH100 -- a link of a virtual environment stays
    msg = f"{' or '.join(names)} is not on PATH"
    raise ConfigError(msg)


SETTLE_S = 5.0
"""Between the first sign that a script can take the signal and the signal, where it reports no
steps: a handler is often there before the first step."""

SILENT_S = 30.0  # A job that reports nothing, and shows no handler, is taken to train after so long

QUIET, START_S = "its programs had loaded nothing for", 10.0
"""A program that has loaded no library for so long is taken to be past its start."""


Job = LocalJob | SlurmJob


@dataclass(frozen=True, slots=True)
class Trial:
    """One trial of *job*.

    Attributes:
        sleep: Waits for so many seconds; what it raises ends the trial.
    """

    job: Job
    after_s: float | None  # Send the signal so long after the start; None: once it trains
    within_s: float  # Longest wait until it trains, before and after the requeue
    say: Callable[[str], None]  # Is told what is waited for
    sleep: Callable[[float], None] = time.sleep
    start_s: float = START_S  # Programs that have loaded nothing for so long are past their start

    def run(self) -> Observations:
        """Do it; what was seen.

        Raises:
            ClusterError: Slurm refused something or was silent.
        """
        job = self.job
        self.say("waiting until the job trains")
        ready, look = self._until_it_trains(None, reports=False)
        facts = Observations(contract=job.contract, ready=ready, processes=job.processes())
        if not ready:
            return replace(
                facts, end=look.end, killed_by=look.killed_by, last_words=job.last_words()
            )
        run, listened = look.run, job.files.listens(look.run)
        before = job.files.traces(run)
        self.say(f"sending {job.contract.signal}, and waiting for the checkpoint")
        job.signal()
        facts = self._watch(facts, run)
        facts = replace(
            facts,
            dlrun_took_it=job.files.is_asked(run),
            last_step=job.files.step(run),
            script_listens=listened or job.files.listens(run),
            checkpoint=job.files.written(before, run),
        )
        if facts.is_unsent or (facts.ended_s is not None and not facts.requeued_itself):
            return replace(facts, last_words=job.last_words())
        self.say("the job is put back; waiting until it trains again")
        job.requeue()
        ready, end = self._until_it_trains(look, reports=facts.last_step is not None)
        step = job.files.step(run + 1)
        facts = replace(facts, back=Return(trained=bool(ready), first_step=step, end=end.end))
        return facts if ready else replace(facts, last_words=job.last_words())

    def _until_it_trains(self, last: Look | None, *, reports: bool) -> tuple[str, Look]:
        """Wait until the job trains, in a later run than *last*, or ends, or the time is over.

        Args:
            reports: Only a report counts, because the run before made some.

        Returns:
            By what it was seen to train, empty if it was not; and the last look at it.
        """
        job = self.job
        deadline_s = time.monotonic() + self.within_s
        since_s = able_since_s = first_step = None
        loaded: dict[tuple[int, str], float] = {}
        """Since when each program has had its libraries."""
        while True:
            look, now_s = job.look(), time.monotonic()
            if look.state == "running" and (last is None or look.run > last.run):
                since_s = since_s or now_s
                step = job.files.step(look.run)
                first_step = step if first_step is None else first_step
                # Before the signal it has to get somewhere; after the requeue the first report
                # tells where it goes on.
                if step is not None and (last or (self.after_s is None and step != first_step)):
                    return f"it reported step {step}", look
                processes = job.processes()
                if not able_since_s and _is_able(job, look.run, processes):
                    able_since_s = now_s
                by_time = not reports and (step is None or self.after_s is not None)
                codes = [(p.pid, p.code) for p in processes if p.code and p.name not in NO_TRAINING]
                loaded = {code: loaded.get(code, now_s) for code in codes}
                if by_time and (ready := self._by_time(now_s, since_s, able_since_s)):
                    return ready, look
                quiet_s = now_s - max(loaded.values(), default=now_s)
                may_ask = self.after_s is not None or job.files.listens(look.run, IMPORTED_FILE)
                is_quiet = quiet_s >= self.start_s and not (may_ask or able_since_s)
                if by_time and is_quiet:
                    return f"{QUIET} {self.start_s:g} s", look
            if look.state == "over" or now_s > deadline_s:
                return "", look
            self.sleep(job.every_s)

    def _by_time(self, now_s: float, since_s: float, able_since_s: float | None) -> str:
        """The sign that a run trains which has reported nothing; empty if there is none yet."""
        if self.after_s is None and able_since_s and now_s - able_since_s >= SETTLE_S:
            return f"it could take {self.job.contract.signal} since {SETTLE_S:g} s"
        least_s = SILENT_S if self.after_s is None else self.after_s
        return f"it had run for {least_s:g} s" if now_s - since_s >= least_s else ""

    def _is_unsent(self, facts: Observations, run: int) -> bool:
        """Dlrun has been asked, and no process of a program past its start has a handler."""
        return (
            facts.ready.startswith(QUIET)
            and self.job.files.is_asked(run)
            and not _is_able(self.job, run, (*facts.processes, *self.job.processes()))
        )

    def _watch(self, facts: Observations, run: int) -> Observations:
        """Until the job has acknowledged, ended or put itself back, or its grace is over."""
        contract = self.job.contract
        began_s = time.monotonic()
        while True:
            look, waited_s = self.job.look(), time.monotonic() - began_s
            if look.run > run or look.state == "waiting":
                return replace(facts, requeued_itself=True, ended_s=waited_s)
            if look.state == "over":
                return replace(facts, ended_s=waited_s, end=look.end, killed_by=look.killed_by)
            if self._is_unsent(facts, run):
                return replace(facts, is_unsent=True)
            if look.acked and facts.acked_s is None:
                facts = replace(facts, acked_s=waited_s)
            is_acked = facts.acked_s is not None and contract.requeued_by == "daemon"
            if is_acked or waited_s >= contract.grace_s:
                return facts
            self.sleep(self.job.every_s)


def _is_able(job: Job, run: int, processes: Sequence[ObservedProcess]) -> bool:
    """A process has a handler of its own; one that listens by slurm_dl.job will report steps."""
    return not job.files.listens(run) and any(
        p.signal == "catches" and not p.is_first for p in processes
    )
