"""A private Slurm as a subject, through the backend and one of its readers."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from contract.actions import ON_SLURM
from contract.cases import Case
from contract.described import described, unsound, wrong_in
from contract.filling import WITHIN_S
from contract.subject import Does

from slurm_dl.model.errors import ClusterError
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import JobState
from slurm_dl.model.plan import ClusterAction, Unfinished
from slurm_dl.model.snapshot import Observed
from slurm_dl.sandbox import Sandbox
from slurm_dl.sandbox.process_control import eventually
from slurm_dl.slurm.cluster import SlurmCluster
from slurm_dl.slurm.pyslurm.reader import Wanted, make_queue
from slurm_dl.slurm.tool_runner import Slurm
from slurm_dl.text import escaped

Problems = dict[str, list[str]]
"""What is not as it must be, by the name of what was looked at; empty lists where all is."""

ALL: Final = "nothing contradicts itself"
"""The name under which the whole observation is judged."""

_SCRIPTS: Final[dict[Does, str]] = {
    "sleeps": "#!/bin/sh\nsleep 3600\n",
    "ends": "#!/bin/sh\ntrue\n",
    "finishes when told": "#!/bin/bash\ntrap 'exit 0' USR1\nwhile :; do sleep 0.2; done\n",
    "saves when told": (
        "#!/bin/bash\n"
        'said=\'{"slurm_dl":{"v":1,"sig":"USR1","ack":\'${SLURM_RESTART_COUNT:-0}\'}}\'\n'
        'trap \'scontrol update "JobId=$SLURM_JOB_ID" "Comment=$said"\' USR1\n'
        "while :; do sleep 0.2; done\n"
    ),
    "counts": (
        "#!/bin/bash\n"
        "n=0 task=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID\n"
        'trap \'n=$((n + 1)); scontrol update "JobId=$task" '
        '"Comment={\\"slurm_dl\\":{\\"v\\":1,\\"sig\\":\\"USR1\\",\\"ack\\":$n}}"\' USR1\n'
        "while :; do sleep 0.2; done\n"
    ),
    "leaves a step behind": (
        "#!/bin/bash\n"
        'export said=\'{"slurm_dl":{"v":1,"sig":"USR1","ack":0}}\'\n'
        "trap 'exit 0' USR1\n"
        'srun --overlap sh -c "trap \\"\\" TERM; '
        'scontrol update JobId=$SLURM_JOB_ID Comment=\\$said; sleep 60" &\n'
        "while :; do sleep 0.2; done\n"
    ),
}


@contextmanager
def backend(box: Sandbox, reader: Wanted) -> Iterator[SlurmCluster]:
    """The backend over *box*; ClusterError if it cannot be read by that *reader*."""
    slurm = Slurm(slurm_conf=Path(box.env["SLURM_CONF"]))
    queue = make_queue(slurm, reader)
    with closing(SlurmCluster(slurm, max_grace_s=600, queue=queue)) as cluster:
        yield cluster


class OnSlurm:
    """A `Subject` on *box*."""

    def __init__(self, box: Sandbox, cluster: SlurmCluster) -> None:
        self._box = box
        self._cluster = cluster
        cluster.watch_reservations = True

    def submit(self, *options: str, does: Does = "sleeps") -> JobId:
        """See `Subject`."""
        argv = ["sbatch", "--parsable", "-o/dev/null", "-N1", *options]
        said = self._box.run(argv, stdin=_SCRIPTS[does]).stdout
        return JobId(int(said.strip().partition(";")[0]))

    def cancel(self, job_id: JobId) -> None:
        """See `Subject`."""
        self._box.run(["scancel", str(job_id)])

    def scontrol_requeue(self, job_id: JobId, *only: str) -> None:
        """See `Subject`."""
        self._box.run(["scontrol", "requeue", *only, str(job_id)])

    def scontrol(self, *arguments: str) -> str:
        """Answer of scontrol to *arguments*."""
        return self._box.run(["scontrol", *arguments]).stdout

    def cancel_task(self, array: JobId, task: int) -> None:
        """End one task of an array, which scancel knows by this name alone (22.05.8)."""
        self._box.run(["scancel", f"{array}_{task}"])

    def exclude(self, job_id: JobId, *nodes: str) -> None:
        """See `Subject`."""
        self._box.run(["scontrol", "update", f"JobId={job_id}", f"ExcNodeList={','.join(nodes)}"])
        self.refresh()

    def refresh(self) -> None:
        """Have what others may have changed asked about anew."""
        self._cluster.refresh_nodes()

    @property
    def slurm_conf(self) -> str:
        """Path of its slurm.conf."""
        return self._box.env["SLURM_CONF"]

    def observe(self) -> Observed:
        """See `Subject`."""
        return self._cluster.observe()

    def apply(self, action: ClusterAction) -> None:
        """See `Subject`."""
        self._finish([self._cluster.apply(action)])

    def apply_together(self, actions: Sequence[ClusterAction]) -> None:
        """Begin them all before the end of any is waited for."""
        self._finish([self._cluster.apply(action) for action in actions])

    def _finish(self, begun: Sequence[Unfinished | None]) -> None:
        """Wait for what was begun only."""
        for finish in begun:
            assert finish is None or finish(WITHIN_S)

    def until(self, is_so: Callable[[Observed], bool], what: str) -> Observed:
        """See `Subject`."""
        last: list[Observed] = []

        def look() -> bool:
            last[:] = [self._cluster.observe()]
            return is_so(last[0])

        eventually(look, WITHIN_S, what=what)
        return last[0]

    def empty(self) -> None:
        """End every job and every reservation."""
        self._box.run(["scancel", "--quiet", "--user=root"], check=False)
        shows = ["squeue", "-h", "--states=all", "-o%T"]
        over = {"COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "DEADLINE"}
        eventually(
            lambda: set(self._box.run(shows).stdout.split()) <= over,
            WITHIN_S,
            what="the queue to be empty",
        )
        for reservation in self._cluster.observe().reservations:
            # It may lapse just now.
            argv = ["scontrol", "delete", f"ReservationName={reservation.name}"]
            self._box.run(argv, check=False)
        self.until(lambda seen: seen.reservations == (), "the reservations to be gone")


def looked_at(cluster: SlurmCluster) -> Observed:
    """What *cluster* says, with all that is asked of the jobs that wait before a hand-over."""
    seen = cluster.observe()
    waiting = seen.jobs.job_id[seen.jobs.state == JobState.PENDING].tolist()
    return cluster.look_again(seen, frozenset(map(JobId, waiting)), nodes=False)


def wrong_jobs(
    cluster: SlurmCluster, cases: Mapping[str, Case], ids: Mapping[str, str]
) -> tuple[Problems, dict[str, dict[str, object]]]:
    """What is not as expected of *cases* when it has settled, and all that was told, by label."""
    problems: Problems = {}
    reported: dict[str, dict[str, object]] = {}

    def none() -> bool:
        seen = looked_at(cluster)
        rows = {text.label: seen.jobs.row_of()[job] for job, text in seen.texts.items()}
        reported.clear()
        reported.update({label: described(seen, row) for label, row in rows.items()})
        problems.clear()
        problems[ALL] = unsound(seen)
        for name, case in cases.items():
            problems[name] = [
                f"{end} {wrong}"
                for end, record in case.records.items()
                for wrong in _wrong_record(seen, rows.get(ids[name] + end), _named(name, record))
            ]
        expected = {ids[n] + end for n, case in cases.items() for end in case.records}
        problems[ALL] += [f"{label} is not expected" for label in sorted(rows.keys() - expected)]
        return not any(problems.values())

    try:
        eventually(none, WITHIN_S, 1.0)
    except ClusterError as err:
        if not any(problems.values()):
            problems[ALL] = [str(err)]
    return problems, reported


def _named(name: str, record: Mapping[str, object]) -> dict[str, object]:
    """*record* with what its job is called, as it may be shown, and whose it is."""
    shown = escaped(name.encode("utf-8", "surrogateescape").decode("utf-8", "replace"))
    return {"name": shown, "user": "root"} | dict(record)


def _wrong_record(seen: Observed, row: int | None, expected: Mapping[str, object]) -> list[str]:
    return ["it is not there"] if row is None else wrong_in(seen, row, expected)


def differences(
    one: Mapping[str, Mapping[str, object]], other: Mapping[str, Mapping[str, object]]
) -> list[str]:
    """Where two readings of one queue, field by field, are not the same."""
    found = [f"job {label} is in one of them only" for label in sorted(one.keys() ^ other.keys())]
    for label in sorted(one.keys() & other.keys()):
        found += [
            f"job {label}: {name} is {value!r} and {other[label][name]!r}"
            for name, value in one[label].items()
            if value != other[label][name]
        ]
    return found


def wrong_action(subject: OnSlurm, name: str) -> list[str]:
    """Why the check *name* does not hold; empty if it does."""
    subject.empty()
    try:
        ON_SLURM[name](subject)
    except (AssertionError, ClusterError) as err:
        where = traceback.extract_tb(err.__traceback__)
        at = next((f for f in reversed(where) if f.filename.endswith("actions.py")), where[-1])
        return [f"{type(err).__name__} {err} at line {at.lineno}: {at.line}"]
    return []
