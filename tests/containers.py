"""The dockerised cluster of docker/, for tests: its containers, its users, what it says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from patience import eventually

RELEASES = ("22.05", "24.11", "26.05")
NODES = ("n1", "n2", "n3", "n4")
PARTS = ("slurmctld", "dlschedd", "login", *NODES)
"""Containers with Slurm's configuration, but for that of accounting."""
CHECKOUT = Path(__file__).resolve().parents[1]
DOCKER = CHECKOUT / "docker"

_T = TypeVar("_T")


class Containers:
    """A cluster that `docker/up` has made.

    Attributes:
        release: Which Slurm, for instance ``24.11``.
        project: Name of the compose project.
    """

    def __init__(self, release: str, project: str) -> None:
        self.release = release
        self.project = project
        self._names: dict[str, str] = {}

    @property
    def image(self) -> str:
        """Name of its image, once it is built."""
        return f"{os.environ.get('SLURM_DL_IMAGE', 'slurm_dl')}:{self.release}"

    def up(self) -> None:
        """Build, start, wait until healthy."""
        self.script("up", within_s=1500)

    def down(self) -> None:
        """Remove containers, network and volumes."""
        self.script("down", within_s=120)

    def script(self, name: str, *argv: str, within_s: float = 60) -> str:
        """Standard output of one of the scripts in docker/, for this cluster."""
        with subprocess.Popen(
            [str(DOCKER / name), self.release, *argv],
            env={**os.environ, "SLURM_DL_PROJECT": self.project},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as running:
            try:
                said, errors = running.communicate(timeout=within_s)
            except BaseException:
                # What it has started would go on building and starting while we clean up.
                os.killpg(running.pid, signal.SIGTERM)
                with suppress(subprocess.TimeoutExpired):
                    running.wait(20)
                with suppress(ProcessLookupError):
                    os.killpg(running.pid, signal.SIGKILL)
                raise
        assert running.returncode == 0, f"docker/{name} {self.release}: {errors[-4000:]}"
        return said

    def container(self, part: str) -> str:
        """Name of the container of *part*: ``login``, ``slurmctld``, ``n1`` ..."""
        if part not in self._names:
            labels = {"project": self.project, "service": part}
            wanted = [f"--filter=label=com.docker.compose.{k}={v}" for k, v in labels.items()]
            names = docker("ps", "--all", "--format={{.Names}}", *wanted).split()
            assert len(names) == 1, f"{self.project} has {names} as {part}"
            self._names[part] = names[0]
        return self._names[part]

    def run(
        self,
        part: str,
        *argv: str,
        user: str = "root",
        input: str | None = None,  # noqa: A002 - as subprocess has it
        check: bool = True,
        within_s: float = 60.0,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the container of *part* as *user*, at home there."""
        home = {"root": "/root", "slurm_dl": "/var/lib/slurm_dl"}.get(user, f"/home/{user}")
        as_user = ["--user", user, "--workdir", home, "--env", f"HOME={home}"]
        at = ["--env", f"USER={user}", self.container(part)]
        done = subprocess.run(
            ["docker", "exec", "--interactive", *as_user, *at, *argv],  # noqa: S607 - on PATH
            input="" if input is None else input,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=within_s,
            check=False,
        )
        if check:
            said = done.stdout[-2000:] + done.stderr[-2000:]
            assert done.returncode == 0, f"{part}: {' '.join(argv)}: exit {done.returncode}: {said}"
        return done

    def erase(self, part: str, directory: str, pattern: str) -> None:
        """Delete the files of that name from a volume of *part*, which need not run."""
        where = self.container(part)
        image = docker("inspect", "--format={{.Config.Image}}", where).strip()
        find = [image, directory, "-name", pattern, "-print", "-delete"]
        found = docker("run", "--rm", f"--volumes-from={where}", "--entrypoint=find", *find)
        assert found, f"{part} has no {directory}/{pattern}"

    def until(
        self, what: str, predicate: Callable[[], _T], within_s: float = 60.0, every_s: float = 0.5
    ) -> _T:
        """Poll until *predicate* holds; its value."""
        return eventually(predicate, within_s, every_s, what=f"{what} ({self.project})")

    def is_healthy(self, part: str) -> bool:
        """Whether the health check of *part* says so now."""
        return self.run(part, "/opt/image/healthy", check=False).returncode == 0

    # What users do.

    def toy(
        self,
        user: str,
        gpus: int,
        steps: int,
        *more: str,
        gpu_type: str = "a100",
        options: Sequence[str] = (),
    ) -> str:
        """Submit the example training with dlsubmit, ten steps a second; its job id.

        There are eight GPUs of each type: a100 on n1 and n2, h100 on n3 and n4.
        """
        training = ["/opt/slurm_dl/bin/python", "/opt/src/examples/train_toy.py"]
        argv = ["dlsubmit", "--parsable", f"--gpus={gpus}", f"--gpu-type={gpu_type}", "--time=30"]
        argv += ["--signal=USR1@10", "--grace=20", "--run-dir=.", *options, "--", *training]
        done = self.run("login", *argv, f"--steps={steps}", "--step-s=0.1", *more, user=user)
        return done.stdout.strip()

    def steps(self, user: str, job: str) -> list[int]:
        """Each step that the training logged, in order, over all runs of the job."""
        log = self.run("login", "cat", f"{job}/loss.jsonl", user=user).stdout
        return [int(json.loads(line)["step"]) for line in log.splitlines()]

    # What Slurm says.

    def job(self, job: str) -> dict[str, str]:
        """``scontrol show job`` of a job whose name and comment hold no blanks."""
        text = self.run("slurmctld", "scontrol", "show", "job", "--oneliner", job).stdout
        return dict(item.partition("=")[::2] for item in text.split())

    def state(self, job: str) -> str:
        """Its state, such as RUNNING."""
        return self.job(job)["JobState"]

    def restarts(self, job: str) -> int:
        """How often Slurm has put it back."""
        return int(self.job(job)["Restarts"])

    def runs(self, job: str) -> list[tuple[float, float, int]]:
        """Start, end (epoch seconds; 0 while it runs) and GPUs of each run by accounting."""
        fields = "JobIDRaw,Start,End,AllocTRES%200"
        text = self.run(
            *("slurmctld", "env", "SLURM_TIME_FORMAT=%s", "sacct", "--allusers", "--duplicates"),
            *("-X", "-n", "-P", f"--jobs={job}", f"--format={fields}"),
        ).stdout
        runs = []
        for line in text.splitlines():
            job_id, start, end, tres = line.split("|")
            gpus = dict(item.partition("=")[::2] for item in tres.split(",")).get("gres/gpu", "0")
            if job_id == job and start.isdecimal():
                runs.append((float(start), float(end) if end.isdecimal() else 0.0, int(gpus)))
        return runs

    def is_accounted(self, job: str) -> bool:
        """Whether slurmdbd knows the job; from then on it takes updates without it."""
        return bool(self.run("slurmctld", "sacct", "-aXn", f"--jobs={job}").stdout.strip())

    def accounted_gpu_s(self, job: str) -> float:
        """GPU-seconds of a job that has ended, by Slurm's own accounting."""
        runs = self.runs(job)
        assert runs, f"accounting knows no run of job {job}"
        assert all(end for _, end, _ in runs), f"job {job} has not ended: {runs}"
        return sum((end - start) * gpus for start, end, gpus in runs)

    # What dlschedd says.

    def queue(self, user: str = "alice") -> dict[str, dict[str, Any]]:
        """The records of ``dlqueue --json`` by job id."""
        said = self.run("login", "dlqueue", "--json", user=user).stdout
        return {str(record["job"]): record for record in json.loads(said)["jobs"]}

    def tier(self, job: str) -> int:
        """Its queue; 0 also while it is not seen."""
        return int(self.queue().get(job, {}).get("tier", 0))

    def attained_gpu_s(self, job: str) -> float:
        """What the ledger says that the job has had."""
        script = (
            "import sqlite3, sys\n"
            "db = sqlite3.connect('file:/var/lib/slurm_dl/ledger.sqlite?mode=rw', uri=True)\n"
            "rows = db.execute('select attained_gpu_s from job where job_id = ?', (sys.argv[1],))\n"
            "print(*(v for v, in rows))\n"
        )
        said = self.run("dlschedd", "python3", "-c", script, job, user="slurm_dl").stdout.split()
        assert len(said) == 1, f"the ledger has {len(said)} rows of job {job}"
        return float(said[0])

    def audit(self, job: str) -> list[dict[str, Any]]:
        """What dlschedd did to the job, in order."""
        text = self.run("dlschedd", "cat", "/var/lib/slurm_dl/audit.jsonl").stdout
        entries = [json.loads(line) for line in text.splitlines()]
        return [e for e in entries if e.get("job") == int(job) and e.get("result") == "ok"]


def docker(*argv: str) -> str:
    """What docker says."""
    done = subprocess.run(
        ["docker", *argv],  # noqa: S607 - wherever it is installed
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"docker {' '.join(argv)}: {done.stdout[-2000:]}"
    return done.stdout
