"""The simulator's costs: what a real Slurm takes for each step of a job's life, on a sandbox.

Each figure comes from the job's own notes and from slurmctld's log, which has milliseconds. Four
jobs at a time, one on each node, 24 in all for each figure. Needs root and Debian's Slurm packages,
as the sandbox does; takes about four minutes.
"""

from __future__ import annotations

import argparse
import itertools
import math
import re
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import fidelity_site as fs
import measure

from slurm_dl.model.handover import Run
from slurm_dl.model.ids import HandoverId, JobId
from slurm_dl.model.plan import (
    Attach,
    ClusterAction,
    Detach,
    Requeue,
    Reserve,
    SetSiteFactor,
    Signal,
    Unseal,
)
from slurm_dl.sandbox.process_control import eventually
from slurm_dl.slurm.cluster import SlurmCluster
from slurm_dl.slurm.tool_runner import Slurm

AT_ONCE = fs.NODES
APART_S = 2.2
"""Between two submissions: a pass starts one of them, as in a queue that is in balance."""

WHY = "measurement"
WORK_S = 2.5
SAVE_S = 0.2
STUBBORN = "/bin/bash -c \"trap '' TERM USR1; for i in {1..300}; do sleep 1; done\""

Samples = dict[str, list[float]]


class Log:
    """slurmctld's log, looked through for one event after another."""

    def __init__(self, lines: Sequence[tuple[float, str]]) -> None:
        self._lines = lines

    def first(self, pattern: str, *, after_s: float) -> float:
        """When the first line that *pattern* finds was written at or after *after_s*."""
        wanted = re.compile(pattern)
        for at_s, text in self._lines:
            if at_s >= after_s and wanted.search(text):
                return at_s
        msg = f"slurmctld's log has no line like {pattern!r} after {after_s:.3f}"
        raise LookupError(msg)

    def gaps(self, pattern: str) -> list[float]:
        """Seconds between the lines that *pattern* finds."""
        wanted = re.compile(pattern)
        at = [at_s for at_s, text in self._lines if wanted.search(text)]
        return [b - a for a, b in itertools.pairwise(at)]


class Bench:
    """One measurement; what it found is in `samples`, by name, seconds."""

    def __init__(self, site: fs.Site, waves: int) -> None:
        self.samples: Samples = defaultdict(list)
        self._site = site
        self._waves = waves
        self._asked_s: list[float] = []
        slurm = Slurm(slurm_conf=Path(site.box.env["SLURM_CONF"]), timeout_s=30.0)
        self._cluster = SlurmCluster(slurm, max_grace_s=600.0)

    def run(self) -> None:
        """Measure everything."""
        measure.say("commands of the daemon")
        self._commands()
        measure.say("start and end")
        for _ in range(self._waves):
            self._start_and_end()
        measure.say("signal, save, acknowledgement, requeue, restart")
        for _ in range(self._waves):
            self._preempt()
        measure.say("jobs that will not go")
        self._stubborn()
        log = Log([*self._site.log()])
        self.samples["full pass to full pass"] = log.gaps("Running job scheduler for full queue")
        self.samples["backfill to backfill"] = [
            gap
            for gap in log.gaps(r"_attempt_backfill: beginning")
            # While nothing happens it looks once a second whether something has.
            if gap < self._site.box.spec.cred_expire_s / 2
        ]

    def _commands(self) -> None:
        site, samples = self._site, self.samples
        blocker = self._trainings(nodes=fs.NODES, count=1, work_s=600.0)[0]
        job = JobId(self._trainings(nodes=1, count=1, work_s=1.0)[0])
        handover = HandoverId(1)
        steps: dict[str, ClusterAction] = {
            "SetSiteFactor": SetSiteFactor(job_id=job, value=7, why=WHY),
            "Reserve": Reserve(
                handover_id=handover, nodes=("n1",), uids=(0,), duration_s=600.0, why=WHY
            ),
            "Attach": Attach(handover_id=handover, job_id=job, why=WHY),
            "Detach": Detach(job_id=job, why=WHY),
            "Unseal": Unseal(name="slurm_dl_1", handover_id=handover, why=WHY),
        }
        self._cluster.observe()
        for _ in range(self._waves * AT_ONCE):
            samples["observe"].append(measure.timed(self._cluster.observe))
            for name, step in steps.items():
                samples[name].append(measure.timed(partial(self._cluster.apply, step)))
        site.box.run(["scancel", str(job), str(blocker)])
        site.wait_idle()

    def _start_and_end(self) -> None:
        site, samples = self._site, self.samples
        jobs = self._trainings(nodes=1, count=AT_ONCE, work_s=WORK_S)
        asked = dict(zip(jobs, self._asked_s[-AT_ONCE:], strict=True))
        self._until(partial(self._are, [*asked], "COMPLETED"), "the jobs to end")
        log, seen = Log([*site.log()]), site.jobs()
        for job_id, before_s in asked.items():
            accepted_s = log.first(f"submit_batch_job: JobId={job_id} ", after_s=before_s - 0.001)
            started_s = log.first(f"(Started|Allocate) JobId={job_id} ", after_s=accepted_s)
            work_s, end_s = (note.at_s for note in site.notes(job_id))
            completed_s = log.first(f"_job_complete: JobId={job_id} done", after_s=end_s)
            free_s = log.first(f"node_did_resp {seen[job_id].nodes}$", after_s=completed_s)
            samples["submit"].append(accepted_s - before_s)
            samples["launch"].append(work_s - started_s)
            samples["overslept"].append(end_s - work_s - WORK_S)
            samples["end to complete"].append(completed_s - end_s)
            samples["complete to free"].append(free_s - completed_s)
            samples["finish"].append(free_s - end_s)

    def _preempt(self) -> None:
        site, samples = self._site, self.samples
        jobs = self._trainings(nodes=1, count=AT_ONCE, work_s=12.0)
        self._until(lambda: all(site.notes(j) for j in jobs), "the jobs to work")
        time.sleep(1.0)
        asked_s, requeued_s = {}, {}
        for run in self._runs(jobs):
            asked_s[run.job_id] = time.time()
            step = Signal(
                handover_id=HandoverId(1), run=run, signal="USR1", target="batch", why=WHY
            )
            samples["Signal"].append(measure.timed(partial(self._cluster.apply, step)))
        self._until(lambda: all(self._acknowledged(j) for j in jobs), "the acknowledgements")
        for run in self._runs(jobs):
            requeued_s[run.job_id] = time.time()
            requeue = Requeue(handover_id=HandoverId(1), run=run, why=WHY)
            samples["Requeue"].append(measure.timed(partial(self._cluster.apply, requeue)))
        self._until(lambda: all(self._eligible_s(j) for j in jobs), "the requeues")
        eligible_s = {job_id: self._eligible_s(job_id) for job_id in jobs}
        self._until(partial(self._are, jobs, "COMPLETED"), "the jobs to end")
        log = Log([*site.log()])
        for job_id in jobs:
            notes = {(note.what, note.restart): note.at_s for note in site.notes(job_id)}
            got_s, saved_s = notes["signal", 0], notes["saved", 0]
            ack_s = log.first(f"setting comment to .*for JobId={job_id}$", after_s=saved_s)
            gone_s = log.first(f"Requeuing JobId={job_id}$", after_s=ack_s)
            # Slurm counts in whole seconds.
            samples["hold"].append(eligible_s[job_id] - math.floor(gone_s))
            again_s = log.first(f"(Started|Allocate) JobId={job_id} ", after_s=gone_s)
            samples["signal"].append(got_s - asked_s[JobId(job_id)])
            samples["save overhead"].append(saved_s - got_s - SAVE_S)
            samples["acknowledge"].append(ack_s - saved_s)
            samples["requeue to free"].append(gone_s - requeued_s[JobId(job_id)])
            samples["launch of a restart"].append(notes["work", 1] - again_s)

    def _stubborn(self) -> None:
        site = self._site
        for _ in range(2):
            jobs = [
                site.submit(STUBBORN, nodes=1, gpus_per_node=1, limit_min=10)
                for _ in range(3 * fs.NODES)
            ]
            self._until(partial(self._are, jobs, "RUNNING"), "them to run")
            time.sleep(1.0)
            asked_s = {}
            for job_id in jobs:
                asked_s[job_id] = time.time()
                site.box.run(["scontrol", "requeuehold", "Incomplete", str(job_id)])
            self._until(partial(self._are, jobs, "PENDING"), "the end")
            site.wait_idle()
            log = Log([*site.log()])
            for job_id, at_s in asked_s.items():
                gone_s = log.first(f"Requeuing JobId={job_id}$", after_s=at_s)
                self.samples["requeue to free, not stopped"].append(gone_s - at_s)
            site.box.run(["scancel", *map(str, jobs)])

    def _trainings(self, *, nodes: int, count: int, work_s: float) -> list[int]:
        jobs = []
        for _ in range(count):
            self._asked_s.append(time.time())
            job = self._site.train(
                nodes=nodes,
                gpus_per_node=fs.GPUS_PER_NODE,
                work_s=work_s,
                limit_min=20,
                save_s=SAVE_S,
            )
            jobs.append(job)
            if count > 1:
                fs.pace(self._asked_s[-1] + APART_S)
        return jobs

    def _runs(self, jobs: Sequence[int]) -> list[Run]:
        seen = self._cluster.observe().jobs
        rows = seen.row_of()
        return [
            Run(JobId(j), float(seen.start_s[rows[JobId(j)]]), int(seen.restarts[rows[JobId(j)]]))
            for j in jobs
        ]

    def _acknowledged(self, job_id: int) -> bool:
        return self._cluster.observe().claim(JobId(job_id)).acked_run == 0

    def _eligible_s(self, job_id: int) -> float:
        seen = self._site.jobs()[job_id]
        return seen.eligible_s if seen.restarts and seen.state == "PENDING" else 0.0

    def _are(self, jobs: Sequence[int], state: str) -> bool:
        seen = self._site.jobs()
        return all(seen[job_id].state == state for job_id in jobs)

    def _until(self, predicate: Callable[[], bool], what: str) -> None:
        eventually(predicate, 120.0, 0.25, what=what)


def costs_of(samples: Samples) -> dict[str, float]:
    """The measured fields of the simulator's costs: medians, seconds."""
    middle = {name: statistics.median(values) for name, values in samples.items()}
    return {
        "observe_s": round(middle["observe"], 3),
        "rpc_s": round(middle["SetSiteFactor"], 3),
        "submit_s": round(middle["submit"], 3),
        "launch_s": round(middle["launch"], 3),
        "finish_s": round(middle["end to complete"], 3),
        "signal_s": round(middle["signal"], 3),
        "ack_s": round(middle["acknowledge"], 3),
        "stop_s": round(middle["requeue to free"] - middle["complete to free"], 3),
        "epilog_s": round(middle["complete to free"], 3),
        # A full pass comes every third tick.
        "sched_tick_s": round(middle["full pass to full pass"] / 3, 4),
        "bf_interval_s": round(middle["backfill to backfill"], 4),
    }


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--waves", type=int, default=6, help=f"rounds of {AT_ONCE} jobs (default: 6)"
    )
    options = parser.parse_args()
    loads = [fs.load_average()]
    with fs.site() as site:
        bench = Bench(site, options.waves)
        bench.run()
    loads.append(fs.load_average())
    table = {
        name: {
            "median_s": statistics.median(values),
            "p90_s": fs.quantile(values, 0.9),
            "samples": len(values),
        }
        for name, values in bench.samples.items()
    }
    rows = [
        [name, f"{row['median_s']:.3f}", f"{row['p90_s']:.3f}", str(row["samples"])]
        for name, row in table.items()
    ]
    measure.report(
        "measure_slurm_costs",
        {"loads": loads, "costs": costs_of(bench.samples), "seconds": table},
        [["what", "median s", "p90 s", "samples"], *rows],
    )


if __name__ == "__main__":
    main()
