"""Taking GPUs back by dlschedd (external) and by Slurm itself (native), on the cluster of docker/.

Four long jobs hold all GPUs. Short ones come one at a time, each of which displaces one of them;
after each the long ones run again before the next comes. Measured for each hand-over: the time
from the decision (the hand-over opened; the SiteFactor written that lets Slurm preempt) to the
start of the short job, and what that cost: GPU-seconds between the victim's last step and that
start, and steps that the victim had to compute again.

It writes slurm.conf, a QOS and dlschedd's configuration of the cluster it is given, so give it one
of its own: SLURM_DL_PROJECT=bench docker/up 22.05, and docker/down afterwards.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

import measure
import yaml

from slurm_dl.sandbox.process_control import eventually

GPUS = 4
LONG_JOBS = 4
STEP_S = 0.1
GRACE_S = 40
USER = "alice"
QOS = "preemptible"
MODES = ("external", "native")
ENOUGH_GPU_S = 120
"""Service after which a job is in the second tier."""

_MARK = "# bench_preemption"
_PARTS = ("slurmctld", "dlschedd", "login", "n1", "n2", "n3", "n4")
_DEADLINE_S = 300.0

_TRAINING = f"""\
import json, sys, time
from slurm_dl import job

steps, save_s = int(sys.argv[1]), float(sys.argv[2])
found = job.resume_from()
step = json.load(open(found)) if found else 0
log = open(job.run_dir() / "steps.jsonl", "a", buffering=1)
print(json.dumps({{"from": step, "restart": job.restart_count()}}), file=log)
while step < steps:
    time.sleep({STEP_S})
    step += 1
    print(json.dumps({{"step": step, "time_s": time.time()}}), file=log)
    asked = job.should_checkpoint()
    if asked or step % 100 == 0:
        time.sleep(save_s)
        path = job.run_dir() / ("asked.json" if asked else "periodic.json")
        path.write_text(json.dumps(step))
        job.checkpoint_saved(path, step=step)
    if asked:
        job.exit_for_requeue()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One hand-over; times in seconds, lost time in GPU-seconds."""

    queued_s: float
    decided_s: float
    idle_gpu_s: float
    redone_gpu_s: float


class Cluster:
    """The containers of one compose project."""

    def __init__(self, project: str) -> None:
        self._names: dict[str, str] = {}
        for part in _PARTS:
            name = _docker(
                "ps",
                "--filter",
                f"label=com.docker.compose.project={project}",
                "--filter",
                f"label=com.docker.compose.service={part}",
                "--all",
                "--format",
                "{{.Names}}",
            ).strip()
            if not name:
                sys.exit(f"project {project} has no part {part}: see docker/up --help")
            self._names[part] = name

    def run(self, part: str, *argv: str, user: str = "root", stdin: str = "") -> str:
        """Standard output of a command in a container."""
        home = "/root" if user == "root" else f"/home/{user}"
        options = ("--interactive", "--user", user, "--workdir", home, "--env", f"HOME={home}")
        env = ("--env", "SLURM_TIME_FORMAT=%s", "--env", "TZ=UTC")
        return _docker("exec", *options, *env, self._names[part], *argv, stdin=stdin)

    def slurm(self, *argv: str) -> str:
        """Standard output of a Slurm command, as root on the controller's host."""
        return self.run("slurmctld", *argv)

    def write(self, parts: Sequence[str], path: str, text: str) -> None:
        """Write a file in some containers."""
        for part in parts:
            self.run(part, "sh", "-c", f"cat > {path} && chmod 644 {path}", stdin=text)

    def restart(self, part: str) -> None:
        """Restart a container."""
        _docker("restart", self._names[part])

    def jobs(self) -> dict[str, list[str]]:
        """State, start time, run time and node of each job, by its id."""
        form = "JobID:12,State:16,StartTime:16,NodeList:12"
        rows = self.slurm("squeue", "--all", "--noheader", "--states=all", "-O", form).split("\n")
        return {words[0]: words[1:] for row in rows if (words := row.split())}

    def audit(self) -> list[Mapping[str, object]]:
        """What dlschedd has written down."""
        text = self.run("dlschedd", "cat", "/var/lib/slurm_dl/audit.jsonl")
        return [json.loads(line) for line in text.splitlines()]

    def submit(self, name: str, steps: int, save_s: float) -> str:
        """A job of one node's GPUs; its id."""
        python = "/opt/slurm_dl/bin/python"
        shape = (f"--gpus={GPUS}", f"--grace={GRACE_S}", "--time=60", f"--name={name}")
        argv = ("dlsubmit", *shape, "--parsable", "--", python, "bench_training.py")
        return self.run("login", *argv, str(steps), str(save_s), user=USER).strip()


def _docker(*argv: str, stdin: str = "") -> str:
    done = subprocess.run(
        [shutil.which("docker") or "docker", *argv],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"docker {' '.join(argv)[:200]}: {done.stderr.strip()[-500:]}")
    return done.stdout


def set_up(cluster: Cluster, mode: str) -> None:
    """Let *mode* be in force, and nobody in the queue."""
    cluster.slurm("scancel", "--user", USER)
    eventually(
        lambda: not cluster.slurm("squeue", "--noheader").strip(), _DEADLINE_S, what="empty queue"
    )
    stock = cluster.slurm("cat", "/etc/slurm/slurm.conf").partition(_MARK)[0]
    release = tuple(int(n) for n in cluster.slurm("scontrol", "--version").split()[-1].split("."))
    send = (
        "PreemptParameters=send_user_signal"
        if release >= (23, 2)
        else "SlurmctldParameters=preempt_send_user_signal"
    )
    native = f"PreemptType=preempt/qos\nPreemptMode=REQUEUE\n{send}\n" if mode == "native" else ""
    cluster.write(_PARTS, "/etc/slurm/slurm.conf", f"{stock}{_MARK}\n{native}")
    cluster.restart("slurmctld")
    eventually(
        lambda: "is UP" in cluster.slurm("sh", "-c", "scontrol ping || true"),
        _DEADLINE_S,
        what="slurmctld",
    )
    sacctmgr = ("sacctmgr", "--immediate", "--quiet")
    quiet = " ".join(sacctmgr)
    within = "REQUEUE,WITHIN" if mode == "native" else "cluster"
    setting = f"PreemptMode={within} GraceTime=60 PreemptExemptTime=00:00:10"
    cluster.slurm("sh", "-c", f"{quiet} add qos {QOS} || true")
    cluster.slurm("sh", "-c", f"{quiet} modify qos {QOS} set {setting} || true")
    cluster.slurm("sh", "-c", f"{quiet} modify account vision set QOS+={QOS} || true")
    cluster.write(("dlschedd", "login"), "/etc/slurm_dl/slurm_dl.yaml", _config(mode))
    cluster.restart("dlschedd")
    eventually(
        lambda: "acting" in cluster.run("dlschedd", "sh", "-c", "dlctl status || true"),
        _DEADLINE_S,
        what="dlschedd",
    )


def _config(mode: str) -> str:
    return yaml.safe_dump(
        {
            "manage": {"partitions": ["gpu"]},
            "daemon": {"poll_s": 2, "fast_poll_s": 1, "nodes_every_s": 20, "shadow": False},
            "policy": {"parameters": {"thresholds_gpu_s": [ENOUGH_GPU_S, 100_000]}},
            "preemption": {
                "mode": mode,
                "qos": QOS,
                "min_quantum_s": 10,
                "cooldown_s": 10,
                "max_preemptions": 1000,
                "max_grace_s": 60,
                "handover_timeout_s": 90,
                "limit_reserve_s": 30,
                "start_margin_s": 20,
            },
            "breakers": {"cluster_share": 0},
        }
    )


def samples(cluster: Cluster, handovers: int, save_s: float) -> Iterator[Sample]:
    """Displace one long job after another."""
    cluster.run("login", "sh", "-c", "cat > bench_training.py", user=USER, stdin=_TRAINING)
    long_jobs = [cluster.submit(f"long{i}", 10**6, save_s) for i in range(LONG_JOBS)]

    def ready() -> bool:
        jobs = cluster.jobs()
        # Long enough for the second tier in the first run; for the minimum quantum in all.
        begun = [float(jobs[j][1]) for j in long_jobs if jobs[j][0] == "RUNNING"]
        return len(begun) == LONG_JOBS and time.time() - max(begun) > ENOUGH_GPU_S / GPUS + 10

    for number in range(handovers):
        eventually(ready, _DEADLINE_S, every_s=2.0, what="all long jobs to run")
        before = cluster.jobs()
        submitted_s = time.time()
        short = cluster.submit(f"short{number}", 50, 0.0)
        eventually(
            lambda short=short: cluster.jobs().get(short, ["", ""])[0] == "COMPLETED",  # type: ignore[misc]
            _DEADLINE_S,
            what="the short job to end",
        )
        _, start, node = cluster.jobs()[short]
        victim = next(j for j in long_jobs if before[j][2] == node)
        eventually(
            lambda victim=victim: cluster.jobs()[victim][0] == "RUNNING",  # type: ignore[misc]
            _DEADLINE_S,
            what="the victim to run again",
        )
        yield _sample(
            cluster, short=short, victim=victim, submitted_s=submitted_s, start_s=float(start)
        )


def _sample(
    cluster: Cluster, *, short: str, victim: str, submitted_s: float, start_s: float
) -> Sample:
    decided_s = max(
        float(str(line["epoch_s"]))
        for line in cluster.audit()
        if _decides(line, int(short)) and float(str(line["epoch_s"])) <= start_s + 1
    )
    log = f"slurm_dl_runs/{victim}/steps.jsonl"

    def resumed() -> list[dict[str, float]]:
        text = cluster.run("login", "cat", log, user=USER)
        lines: list[dict[str, float]] = [json.loads(line) for line in text.splitlines()]
        return lines if "from" in lines[-1] or lines[-1]["time_s"] > start_s else []

    lines = eventually(resumed, _DEADLINE_S, what="the victim to resume")
    begins = [i for i, line in enumerate(lines) if "from" in line]
    last = lines[begins[-1] - 1]
    return Sample(
        queued_s=start_s - submitted_s,
        decided_s=start_s - decided_s,
        idle_gpu_s=GPUS * (start_s - last["time_s"]),
        redone_gpu_s=GPUS * STEP_S * (last["step"] - lines[begins[-1]]["from"]),
    )


def _decides(line: Mapping[str, object], job: int) -> bool:
    """Whether an audit line is the decision to take GPUs back for *job*."""
    if line["result"] != "ok":
        return False
    details = line["details"]
    opened = details.get("handover") if isinstance(details, dict) else None
    if line["action"] == "open_handover" and isinstance(opened, dict):
        return job in opened["beneficiaries"]
    # In native mode the first write lets Slurm preempt; later ones come after its start.
    return (
        line["action"] == "set_site_factor"
        and line["job"] == job
        and line["handover"] is None
        and "place in the order" in str(line["reason"])
    )


def main() -> None:
    """Measure both modes and print and save the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--project", required=True, help="compose project of a cluster of its own")
    parser.add_argument("--handovers", type=int, default=5, help="of each mode")
    parser.add_argument("--save-s", type=float, default=2.0, help="seconds a checkpoint takes")
    options = parser.parse_args()
    cluster = Cluster(options.project)
    taken: dict[str, list[Sample]] = {}
    for mode in MODES:
        measure.say(f"setting up {mode}")
        set_up(cluster, mode)
        taken[mode] = []
        for sample in samples(cluster, options.handovers, options.save_s):
            taken[mode].append(sample)
            measure.say(f"{mode}: {sample}")
    cluster.slurm("scancel", "--user", USER)
    values: dict[str, object] = {
        "cluster": cluster.slurm("scontrol", "--version").strip(),
        "save_s": options.save_s,
        **{mode: [asdict(sample) for sample in found] for mode, found in taken.items()},
    }
    rows: list[Sequence[str]] = [("median (min .. max)", *MODES)]
    rows += [(title, *(_figures(taken[mode], name) for mode in MODES)) for name, title in _TITLES]
    measure.report("bench_preemption", values, rows)


_TITLES = (
    ("queued_s", "submission to start, s"),
    ("decided_s", "decision to start, s"),
    ("idle_gpu_s", "idle, GPU-seconds"),
    ("redone_gpu_s", "work done again, GPU-seconds"),
)


def _figures(taken: Sequence[Sample], name: str) -> str:
    found = [float(getattr(sample, name)) for sample in taken]
    return f"{statistics.median(found):.1f} ({min(found):.1f} .. {max(found):.1f})"


if __name__ == "__main__":
    main()
