"""Where the commands of the pages are typed: a cluster, its daemon, and a desk like a checkout."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from docs.typed import Shell, environment
from schedd import Schedd, schedd_in
from shown import ROOT

from slurm_dl.sandbox import Sandbox, SandboxNodes, SandboxSpec

SPEC: Final = SandboxSpec(
    groups=(SandboxNodes(nodes=2, gpus=8, cpus=64, mem_mb=256_000),), accounting=True
)
"""Large enough for every job that a page submits."""

TRAINING: Final = """\
import sys
import time
from pathlib import Path

from slurm_dl import job

job.install()
begun = job.resume_from()
first = int(begun.read_text()) if begun else 0
for step in range(first + 1, 101):
    time.sleep(0.1)
    job.report(step, 100)
    if job.should_checkpoint():
        saved = Path(job.run_dir()) / "saved"
        saved.write_text(str(step))
        job.checkpoint_saved(saved, step=step)
        job.exit_for_requeue()
"""
"""What stands for train.py: ten seconds long, and it can be stopped."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """All that the pages take for granted.

    Attributes:
        place: A live dlschedd and its cluster.
        shadow: Where another one can look on.
        home: Everything that is written lies below.
        job: A job of whose number the pages speak.
    """

    place: Schedd
    shadow: Schedd
    home: Path
    job: str

    @property
    def desk(self) -> Path:
        """Where the typing is done; its files are those of a checkout."""
        return self.home / "desk"

    def here(self, statement: str) -> str:
        """*statement* about this cluster and these directories, and on little work."""
        for shown, meant in (
            # The site's own.
            (r"\b4711\b", self.job),
            (r"/etc/(?=slurm_dl|sysusers\.d|systemd)", f"{self.home}/etc/"),
            (r"/opt/slurm_dl\b", f"{self.home}/opt"),
            (r"/usr/local/bin/", f"{self.home}/bin/"),
            (r"/var/tmp/try\b", f"{self.home}/try"),  # noqa: S108 - as the pages say
            (r"/root/pip\b", f"{self.home}/pip"),
            (r"~/\.config/fish/completions", f"{self.home}"),
            # What asks somebody, or changes the host.
            (r"\bsacctmgr ", "sacctmgr -i "),
            (r"\bsystemd-sysusers\b", f"systemd-sysusers --root={self.home}"),
            (r"\bdlschedd --shadow\b", "dlschedd --shadow --allow-root"),
            # Other shells: what is asked of our command is the same.
            (r'eval ("\$\(env _\$\{)\(U\)command\}(.*")', r"grep -q compdef <<<\1command^^}\2"),
            (r"\$?\(string upper \$command\)", "${command^^}"),
            (r"(for command in [a-z ]+)\n(.*)\nend$", r"\1; do\n\2\ndone"),
            # An `eval` of nothing would be as well.
            (r'^eval ("\$\(env [^"]*\)")', r'text=\1 && test -n "$text" && eval "$text"'),
            # Less work of the same kind.
            (r"--for 24h", "--cycles 1"),
            (r"--resamples 9\b", "--resamples 1"),
            (r"traces/tiresias-derived/itp10(?=\.csv[^#]*--costs slurm)", "traces/tiresias/60_job"),
            (r"--policies fifo,all\b", "--policies fifo,srtf,las"),
            (r"bench_sim\.py", "bench_sim.py --case itp06 --rounds 1"),
            (r"bench_gangs\.py", "bench_gangs.py --trace itp10 --seeds 1"),
            # All that is shown of these is that they start: they need minutes, or containers.
            (
                r"((bench_load|bench_preemption|bench_readers|bench_work_lost|measure_slurm_costs)\.py[^#]*)",
                r"\1 --help",
            ),
        ):
            statement = re.sub(shown, meant, statement)
        return statement

    @contextmanager
    def shell(self, place: Schedd | None = None) -> Iterator[Shell]:
        """A new shell at the desk, whose commands mean *place*."""
        (self.home / "user").mkdir(exist_ok=True)
        typed = Shell(
            cwd=self.desk,
            printed=self.home / "typed.out",
            env=environment((place or self.place).env | {"HOME": f"{self.home}/user"}),
        )
        try:
            yield typed
        finally:
            typed.close()

    def clear(self) -> None:
        """Cancel what a page has submitted."""
        listed = self.place.box.run(["squeue", "-ah", "-o", "%A"]).stdout.split()
        if others := sorted(set(listed) - {self.job}):
            self.place.box.run(["scancel", "--quiet", *others], check=False)


@contextmanager
def stage(box: Sandbox, home: Path) -> Iterator[Stage]:
    """The desk laid out, the daemon up, one job in the queue."""
    for name in ("schedd", "shadow", "bin", "shared"):
        (home / name).mkdir()
    _furnish(home)
    for account in ("vision", "language"):
        box.run(["sacctmgr", "-i", "add", "account", account])
        box.run(["sacctmgr", "-i", "add", "user", "root", f"account={account}"])
    with schedd_in(box, home / "shadow") as shadow, schedd_in(box, home / "schedd") as place:
        shadow.configure(daemon={"shadow": True})
        shutil.copy(place.config, home / "desk" / "new.yaml")
        place.start()
        _has_a_past(place)
        job = place.submit(16, "sleep", "3600", options=["--no-preempt", "--account=vision"])
        place.until_state(job, "RUNNING")
        place.until("it to be seen", lambda: job in place.ask("dlqueue", "--json").stdout)
        yield Stage(place=place, shadow=shadow, home=home, job=job)


def _has_a_past(place: Schedd) -> None:
    """One job with GPUs is over, and accounting knows it."""
    over = place.submit(8, "sleep", "2")
    argv = ["sacct", "-nXPj", over, "-oState"]
    place.until("the past", lambda: "COMPLETED" in place.box.run(argv).stdout, 120)


def _furnish(home: Path) -> None:
    """What may be written to is copied from the checkout, all else is that of the checkout."""
    desk = home / "desk"
    desk.mkdir()
    for path in ROOT.iterdir():
        if path.name not in {"traces", "docs", "tools"}:
            (desk / path.name).symlink_to(path)
    skip = shutil.ignore_patterns("results", "__pycache__")
    shutil.copytree(ROOT / "tools", desk / "tools", ignore=skip)
    (desk / "docs").mkdir()
    shutil.copytree(ROOT / "docs" / "img", desk / "docs" / "img")
    (desk / "traces").mkdir()
    for path in (ROOT / "traces").iterdir():
        if path.name != "fits":
            (desk / "traces" / path.name).symlink_to(path)
    shutil.copytree(ROOT / "traces" / "fits", desk / "traces" / "fits")
    for name in ("train.py", "sweep.py"):
        (desk / name).write_text(TRAINING, "utf-8")
    (desk / "train.sbatch").write_text("#!/bin/sh\n#SBATCH --gpus-per-node=1\npython train.py\n")
    # As if pip had installed it there, and the administrator the sample.
    inside = home / "opt" / "lib" / "python3.11" / "site-packages" / "slurm_dl" / "_data"
    inside.mkdir(parents=True)
    (inside / "etc").symlink_to(ROOT / "etc")
    (home / "opt" / "bin").symlink_to(ROOT / ".venv" / "bin")
    (home / "etc" / "slurm_dl").mkdir(parents=True)
    shutil.copy(ROOT / "etc" / "slurm_dl.yaml", home / "etc" / "slurm_dl" / "slurm_dl.yaml")
