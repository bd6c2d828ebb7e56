"""Runs inside the cluster as root: fills its queue with every kind of job; prints JSON.

``stubborn``: jobs that take KillWait to end. ``submitted``: how many.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

SLEEP = "exec sleep 900"
STUBBORN = "trap '' TERM; while :; do sleep 1; done"

GPU_REQUESTS = (
    ["--gpus=1"],
    ["--gpus=a100:2"],
    ["--gpus=3", "-N2"],
    ["--gpus=h100:3", "-N2"],
    ["--gpus-per-node=2"],
    ["--gpus-per-node=h100:1", "-N2"],
    ["--gpus-per-task=1", "-n2"],
    ["--gpus-per-task=a100:1", "-n2"],
    ["--gpus-per-socket=1", "--sockets-per-node=2"],
    ["--gpus-per-socket=a100:1", "--sockets-per-node=1"],
    ["--gres=gpu:2"],
    ["--gres=gpu:a100:1"],
    ["--gres=gpu"],
    ["--gres=shard:2"],
    ["--gres=shard:3", "-N2"],
    ["--gres=none"],
    ["--tres-per-task=gres/gpu:1", "-n3"],
    ["--tres-per-task=cpu:2,gres/gpu:a100:1", "-n2"],
    ["--gpus=2", "--gpus-per-node=1"],
    ["--gpus=2", "--ntasks-per-gpu=2"],
    ["--gpus-per-node=1", "--cpus-per-gpu=3", "--mem-per-gpu=100"],
    ["--gpus-per-node=2", "-N2-4"],
)

OTHERS: tuple[list[str], ...] = (
    ["--dependency=singleton", "--hold"],
    ["--begin=now+3600"],
    ["--hold"],
    ["--exclude=n1,n[3-4]"],
    ["--nodelist=n2"],
    ["--nodelist=n[1-2]", "-N2", "--exclude=n4"],
    ["--nodelist=n1", "-N2"],
    ["--constraint=a100"],
    ["--constraint=a100|h100"],
    ["--constraint=[a100*1&h100*1]", "-N2"],
    ["--partition=gpu,debug", "--hold"],
    ["--partition=debug", "--hold"],
    ["--partition=debug", "--time=120"],
    ["--exclusive", "--hold"],
    ["--exclusive=user", "--hold"],
    ["--exclusive=mcs", "--hold"],
    ["--exclusive=topo", "--hold"],
    ["--oversubscribe", "--hold"],
    ["--no-requeue"],
    ["--time=UNLIMITED"],
    ["--time=0"],
    ["--time=1-02:03"],
    ["--time=90", "--time-min=30", "--hold"],
    ["--mem=1", "-n7"],
    ["--mem=1037M", "--hold"],
    ["--mem=63000M", "-N3", "--hold"],
    ["--mem-per-cpu=333", "-n3", "-c2", "--hold"],
    ["--nice=500", "--hold"],
    ["--qos=high"],
    ["--uid=bob", "--qos=short", "--time=5"],
    ["--uid=carol", "--account=language"],
    ["--switches=1@10:00", "-N2", "--hold"],
    ["--ntasks-per-node=2", "-N2", "--hold"],
    ["--reservation=foreign"],
    ["--reservation=slurm_dl_77"],
    ["--array=0-9%2", "--hold"],
    ["--array=0", "--hold"],
    ["--array=3-40:3%4", "--hold"],
    ["--array=1,5,7-9,100", "--hold"],
)

NAMES: tuple[bytes, ...] = (
    b"None",
    b"(null)",
    b" ",
    b"a\nJobId=1 UserId=root(0)",
    b"\xff\xfe\x80 not utf-8 \xe2\x82",
    "Gr\u00f6\u00dfe \U0001f600 \u202e back".encode(),
    b"\x1b[31mred\x07\x1f\x7f",
    b"x" * 900,
    b"-Jtwo",
    b"'\"\\;$(reboot)`|&",
)
CLAIM = b'{"slurm_dl": {"v": 1, "sig": "USR1", "grace_s": 120}, "note": "%s"}'


def submit(*argv: str | bytes, script: str = SLEEP, command: str = "sbatch") -> str:
    """Submit as alice unless it says otherwise; the job id."""
    who = () if any(str(a).startswith("--uid") for a in argv) else ("--uid=alice",)
    done = subprocess.run(
        [command, "--parsable", *who, "--output=/dev/null", *argv],
        input=f"#!/bin/bash\n{script}\n".encode(),
        capture_output=True,
        check=False,
        cwd="/tmp",  # noqa: S108 - of the container
    )
    if done.returncode:
        words = b" ".join(os.fsencode(a) for a in argv).decode(errors="replace")
        sys.exit(f"{words}: {done.stderr.decode(errors='replace')}")
    return done.stdout.decode().split(";")[0].strip()


def control(*argv: str) -> None:
    """One scontrol."""
    subprocess.run(["/usr/bin/scontrol", *argv], check=True, capture_output=True)


def state(job: str) -> str:
    """The state of one record."""
    argv = ["squeue", "--noheader", "--array", "--states=all", f"--jobs={job}", "--format=%T"]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()


def until(job: str, wanted: str) -> None:
    """Wait until *job* is in a state."""
    end_s = time.monotonic() + 60
    while state(job) != wanted:
        if time.monotonic() > end_s:
            sys.exit(f"job {job} is {state(job)}, not {wanted}")
        time.sleep(0.2)


def main() -> None:
    """Submit, hold, requeue, suspend, cancel."""
    for name, node in (("foreign", "n3"), ("slurm_dl_77", "n4")):
        control(
            *("create", "reservation", f"ReservationName={name}", "Users=alice", f"Nodes={node}"),
            *("StartTime=now+36000", "Duration=10", "Flags=IGNORE_JOBS"),
        )
    # What runs, first: there is room now.
    stubborn = [submit("--mem=1", "--gpus=1", script=STUBBORN) for _ in range(3)]
    split = submit("--mem=1", "--gpus=5", "-N2", "--ntasks-per-node=1")
    tasks = submit("--mem=1", "--array=0-7%3")
    salloc = ["salloc", "--no-shell", "--no-bell", "--immediate=30", "--mem=1"]
    subprocess.run(
        ["/usr/sbin/runuser", "-u", "alice", "--", *salloc], check=True, capture_output=True
    )
    done, failed = submit("--mem=1", script="true"), submit("--mem=1", script="exit 3")
    suspended = submit("--mem=1", "--uid=bob")
    requeued = submit("--mem=1", "--gpus-per-node=1")
    running = (*stubborn, split, f"{tasks}_0", suspended, requeued)
    for job in running:
        until(job, "RUNNING")
    until(done, "COMPLETED")
    until(failed, "FAILED")
    control("suspend", suspended)
    control("requeue", requeued)
    control("requeue", f"{tasks}_0")
    control("requeuehold", f"{tasks}_1")
    submitted = len(running) + 2
    for request in (*GPU_REQUESTS, *OTHERS):
        submit(*request)
    for request in GPU_REQUESTS:
        submit("--hold", "--begin=now+7200", *request)
    for name in NAMES:
        submit("--hold", b"--job-name=" + name, b"--comment=" + name)
        submit("--hold", "--requeue", b"--comment=" + CLAIM % name)
    submit(f"--dependency=afterok:{split}")
    held, gone = submit("--gpus=1"), submit("--hold")
    control("hold", held)
    subprocess.run(["/usr/bin/scancel", gone], check=True)
    script = "#SBATCH -n1 --gpus=a100:1\n#SBATCH hetjob\n#SBATCH -n2 --gpus-per-node=1\n" + SLEEP
    submit("--hold", script=script)
    submitted += len(GPU_REQUESTS) * 2 + len(OTHERS) + len(NAMES) * 2 + 5
    print(json.dumps({"stubborn": stubborn, "submitted": submitted}))  # noqa: T201


if __name__ == "__main__":
    main()
