"""``python -m demo``: play both arms, compare them, end with 0 only if no work was lost."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click
from rich.console import Console
from rich.text import Text

from demo import comparison, evidence
from demo.arm import Arm
from demo.comparison import Numbers
from demo.evidence import Evidence
from demo.screen import OURS, PLAIN, Lines, Picture, Screen
from demo.site import CRED_EXPIRE_S, Daemon, Site
from demo.workload import GPUS, GPUS_PER_NODE, NODES, Workload, mixed, quick
from slurm_dl.cli.commandline import run as run_command
from slurm_dl.model.errors import ConfigError, SlurmDlError

NOTE = f"seconds stand for hours; cred_expire is {CRED_EXPIRE_S} s (Slurm's default: 120 s)"

_DIRECTORIES = {PLAIN: "plain", OURS: "slurm_dl"}


class _Stopped(BaseException):
    """Somebody wants the demo to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.status = 128 + number


@click.command(context_settings={"help_option_names": ["--help", "-h"]})
@click.option("--seed", type=int, default=1, show_default=True, help="Draws arrivals and lengths.")
@click.option(
    "--speed",
    type=click.FloatRange(0.1, 4),
    default=1.0,
    show_default=True,
    help="2 halves lengths and gaps of the workload; preempting takes as long as ever.",
)
@click.option("--quick", "is_quick", is_flag=True, help="A small workload: does it work at all?")
@click.option("--keep", is_flag=True, help="Keep the directory with all logs.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("demo-result.json"),
    show_default=True,
    help="The result goes there as JSON, too.",
)
def demo(
    *, seed: int, speed: float, is_quick: bool, keep: bool, as_json: bool, output: Path
) -> None:
    """Play one deep-learning workload twice on a private Slurm, and compare.

    First plain Slurm alone (FIFO and backfill), then the same Slurm with dlschedd beside it. All is
    real but the GPUs, and time is compressed: jobs of hours last seconds. Needs root and Debian's
    Slurm packages; takes about three minutes. Exit status 0: every job finished in both arms, and
    preempted jobs went on from their checkpoints.

    \b
    Examples:
      make demo
      .venv/bin/python -m demo --seed 7 --keep
      .venv/bin/python -m demo --quick --json | jq .slurm_dl
    """  # noqa: D301 - \b is click's mark
    if is_quick and speed != 1:
        msg = "--quick has its own pace: leave --speed out"
        raise click.UsageError(msg)
    workload = quick(seed) if is_quick else mixed(seed, speed)
    _check_writable(output)
    console = Console(stderr=as_json, highlight=False, emoji=False, markup=False)
    with _signals():
        result = _Play(console, workload).play(keep=keep)
    numbers = result.numbers
    text = comparison.as_json(
        numbers.get(PLAIN), numbers.get(OURS), seed=seed, speed=speed, problems=result.problems
    )
    output.write_text(text)
    if len(numbers) == len(_DIRECTORIES) and not as_json:
        comparison.show(console, numbers[PLAIN], numbers[OURS])
    if as_json:
        click.echo(text, nl=False)
    console.print(Text(f"\nResult: {output.absolute()}"), soft_wrap=True)
    for problem in result.problems:
        click.echo(f"demo: {problem}", err=True)
    raise SystemExit(result.status)


class _Play:
    """One performance: both arms, what was found, and what is left behind.

    Attributes:
        numbers: By arm, those that were played to the end.
        problems: Why it failed; empty if it did not.
        status: For the shell.
    """

    def __init__(self, console: Console, workload: Workload) -> None:
        self.numbers: dict[str, Numbers] = {}
        self.problems: list[str] = []
        self.status = 0
        self._console = console
        self._workload = workload

    def play(self, *, keep: bool) -> _Play:
        """Play it; whatever happens, all that was started is ended.

        Raises:
            ConfigError: The machine is not fit for it.
        """
        began_s = time.monotonic()
        site, failed = Site(), True
        try:
            self._say(f"A private Slurm of {NODES} nodes x {GPUS_PER_NODE} GPUs (fake ones) ...")
            site.start()
            self._both_arms(site)
            failed = bool(self.problems)
        except ConfigError:
            failed = False
            raise
        except SlurmDlError as err:
            self.problems.append(str(err))
        except _Stopped as stopped:
            failed = False
            self.status = stopped.status
            self.problems.append("stopped before its end")
            self._say("Stopped: ending everything that was started ...")
        finally:
            _ignore_signals()
            site.close(keep=keep or failed)
            if keep or failed:
                self._say(f"Logs: {site.directory}")
        self.status = self.status or int(failed)
        self._say(f"Took {time.monotonic() - began_s:.0f} s in all.")
        return self

    def _both_arms(self, site: Site) -> None:
        jobs = len(self._workload.jobs)
        self._say(f"{jobs} jobs, the same in both arms. Time is compressed: {NOTE}.")
        plain = self._arm(PLAIN, site)
        ours = self._arm_with_daemon(site)
        self.problems += evidence.same_training(plain, ours)
        if not self.numbers[OURS].all_jobs.preemptions:
            self.problems.append("no job was preempted: nothing was shown; try another --seed")

    def _arm_with_daemon(self, site: Site) -> list[Evidence]:
        site.wait_idle()
        self._say("Starting dlschedd beside the same Slurm ...")
        daemon = Daemon(site, self._workload)
        try:
            return self._arm(OURS, site, daemon)
        finally:
            daemon.stop()

    def _arm(self, name: str, site: Site, daemon: Daemon | None = None) -> list[Evidence]:
        with self._screen() as screen:
            arm = Arm(
                name, _DIRECTORIES[name], site, self._workload, daemon=daemon, show=screen.show
            )
            watched = arm.run()
        if daemon is None:
            lives = evidence.lives_by_slurm(watched)
        else:
            # It writes everything down as it goes; stopped, it does not change it any more.
            daemon.stop()
            lives = evidence.lives_by_ledger(daemon.ledger, [*watched.submitted.values()])
        runs = site.runs(_DIRECTORIES[name])
        found, problems = evidence.gather(self._workload, watched, lives, runs)
        for job in found:
            problems += evidence.problems_of(job)
        self.problems += [f"{name}: {problem}" for problem in problems]
        self.numbers[name] = numbers = comparison.numbers_of(found)
        self._say(
            f"{name}: {numbers.all_jobs.completed} of {len(self._workload.jobs)} jobs finished in"
            f" {comparison.seconds(numbers.all_jobs.makespan_s)}, short jobs after"
            f" {comparison.seconds(numbers.short_jobs.mean_jct_s)} on average,"
            f" {numbers.all_jobs.preemptions} preemptions."
        )
        return found

    def _screen(self) -> Screen:
        if self._console.is_terminal:
            return Picture(self._console, f"{GPUS} GPUs; {NOTE}")
        return Lines(self._console)

    def _say(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=not self._console.is_terminal)


def _check_writable(output: Path) -> None:
    """Raise ConfigError now rather than after three minutes."""
    try:
        with output.open("a"):
            pass
    except OSError as err:
        msg = f"--output {output}: {err.strerror or err}"
        raise ConfigError(msg) from None


_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    def stop(number: int, _: FrameType | None) -> None:
        raise _Stopped(number)

    before = {number: signal.signal(number, stop) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ignore_signals() -> None:
    """A second Ctrl-C must not leave daemons behind."""
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)


def main() -> NoReturn:
    """Entry point."""
    run_command(demo, "demo")


if __name__ == "__main__":
    main()
