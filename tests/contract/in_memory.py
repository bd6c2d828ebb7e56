"""The cluster in memory as a subject: sbatch's words, as far as it understands them."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NoReturn

from contract.cases import CASES, CLUSTER, STUBBORN, Case
from contract.filling import with_ids
from contract.subject import Does
from fake_cluster import FakeCluster

from slurm_dl.model.handover import Run
from slurm_dl.model.ids import HandoverId, JobId
from slurm_dl.model.plan import Attach, ClusterAction, Requeue, Reserve
from slurm_dl.model.snapshot import Observed
from slurm_dl.slurm.read.comment_claims import ClaimReader
from slurm_dl.slurm.read.tres import parse_gres
from slurm_dl.slurm.read.vocabulary import limit_s

WITHIN_S: Final = 300
_GPUS: Final = CLUSTER.groups[0].gpus
_FOREVER_S: Final = 1e9
_HOUR_S: Final = 3600
_UNMODELLED: Final = (
    *("cores-per-socket", "sockets-per-node", "ntasks-per-socket"),
    *("core-spec", "network", "bb", "cluster-constraint"),
)


class NotInMemoryError(Exception):
    """The cluster in memory has nothing of the kind."""


class InMemory:
    """A `Subject`."""

    def __init__(self, *, nodes: int = 2, hold_s: float = 6.0) -> None:
        self.cluster = FakeCluster(nodes=nodes, gpus=_GPUS, hold_s=hold_s)

    def submit(self, *options: str, does: Does = "sleeps") -> JobId:
        """See `Subject`."""
        return self._submit(options, does=does, fails=False)

    def cancel(self, job_id: JobId) -> None:
        """See `Subject`."""
        self.cluster.cancel(job_id)

    def exclude(self, job_id: JobId, *nodes: str) -> None:
        """See `Subject`."""
        self.cluster.exclude(job_id, *nodes)

    def observe(self) -> Observed:
        """See `Subject`."""
        return self.cluster.observe()

    def apply(self, action: ClusterAction) -> None:
        """See `Subject`."""
        self.cluster.apply(action)

    def apply_together(self, actions: Sequence[ClusterAction]) -> None:
        """See `Subject`."""
        for action in actions:
            self.cluster.apply(action)

    def until(self, is_so: Callable[[Observed], bool], what: str) -> Observed:
        """See `Subject`."""
        for _ in range(WITHIN_S):
            seen = self.cluster.observe()
            if is_so(seen):
                return seen
            self.cluster.advance(1)
        msg = f"waited {WITHIN_S} s in memory for {what}"
        raise AssertionError(msg)

    def fill(self) -> tuple[dict[str, str], dict[str, str]]:
        """Submit all cases; the job ids of those it can have, and why it refuses the others."""
        ids: dict[str, str] = {}
        refused: dict[str, str] = {}
        for name, case in CASES.items():
            try:
                ids[name] = str(self._submit_case(name, case, ids))
            except NotInMemoryError as err:
                refused[name] = str(err)
            self.cluster.advance(3)
        return ids, refused

    def _submit_case(self, name: str, case: Case, ids: Mapping[str, str]) -> JobId:
        if re.fullmatch("[a-z-]{1,40}", name) is None:
            raise NotInMemoryError(name)
        if case.tool != "sbatch" or case.script == STUBBORN:
            msg = f"{case.tool} {case.script}"
            raise NotInMemoryError(msg)
        for words in case.first:
            self._reserve(words)
        job_id = self._submit(
            tuple(with_ids(option, ids) for option in case.options),
            does="ends" if "--wrap=true" in case.options else "sleeps",
            fails="--wrap=false" in case.options,
        )
        self.cluster.advance(3)
        for words in case.then:
            self._do(words, job_id)
        return job_id

    def _submit(self, options: tuple[str, ...], *, does: Does, fails: bool) -> JobId:
        said = _PARSER.parse_args(options)
        n_nodes = said.nodes
        nodes = tuple(said.nodelist.split(",")) if said.nodelist else ()
        gpus, typed = _gpus(said)
        if gpus % n_nodes or gpus > n_nodes * _GPUS:
            msg = f"{gpus} GPUs on {n_nodes} nodes"
            raise NotInMemoryError(msg)
        if said.gpus and not said.gpus_per_node and len(nodes) > 1:
            msg = f"{gpus} GPUs somehow on {said.nodelist}"
            raise NotInMemoryError(msg)
        if nodes and len(nodes) != n_nodes:
            msg = f"{n_nodes} nodes of which {nodes}"
            raise NotInMemoryError(msg)
        claim = ClaimReader(max_grace_s=600).read(said.comment)
        if claim.model is not None:
            msg = f"model {claim.model}"
            raise NotInMemoryError(msg)
        job_id = self.cluster.submit(
            gpus,
            n_nodes=n_nodes,
            work_s=1.0 if does == "ends" else _FOREVER_S,
            contract=claim.contract,
            on_signal={"finishes when told": "finish", "saves when told": "save"}.get(
                does, "ignore"
            ),
            limit_s=1.0 if fails else _limit_s(said.time),
            uid=0,
            hold=said.hold,
            begin_s=self.cluster.now_s + _HOUR_S if said.begin else 0.0,
            after=_job_after(said.dependency),
            requeueable=not said.no_requeue,
            exclusive=said.exclusive is not None or said.core_spec is not None,
            nodes=nodes,
            exclude=tuple(said.exclude.split(",")) if said.exclude else (),
            typed=typed,
            deadline_s=math.inf if said.deadline is None else self.cluster.now_s + said.deadline,
            unmodelled=_unmodelled(said),
        )
        self.cluster.jobs[job_id].acked_run = claim.acked_run
        return job_id

    def _reserve(self, words: tuple[str, ...]) -> None:
        said = dict(word.partition("=")[::2] for word in words)
        if said["StartTime"] != "now":
            raise NotInMemoryError(said["StartTime"])
        self.cluster.apply(
            Reserve(
                handover_id=_handover(said["ReservationName"]),
                nodes=tuple(said["Nodes"].split(",")),
                uids=(0,),
                duration_s=60.0 * int(said["Duration"]),
                why="a case",
            )
        )

    def _do(self, words: tuple[str, ...], job_id: JobId) -> None:
        job = self.cluster.jobs[job_id]
        match words:
            case ("scancel", "{id}"):
                self.cluster.cancel(job_id)
            case ("scontrol", "requeue", "Incomplete", "{id}"):
                run = Run(job_id, job.start_s, job.restarts)
                self.cluster.apply(Requeue(handover_id=HandoverId(1), run=run, why="a case"))
            case ("scontrol", "update", "JobId={id}", setting):
                name = setting.removeprefix("ReservationName=")
                self.cluster.apply(Attach(handover_id=_handover(name), job_id=job_id, why="a case"))
            case _:
                raise NotInMemoryError(" ".join(words))


def _handover(reservation: str) -> HandoverId:
    return HandoverId(int(reservation.removeprefix("slurm_dl_")))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise NotInMemoryError(message)


def _only(*begins: str) -> Callable[[str], str]:
    """A type of option whose value begins with one of these, and is no list."""

    def check(value: str) -> str:
        if not value.startswith(begins) or "," in value:
            raise ValueError(value)
        return value

    return check


def _parser() -> _Parser:
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("-N", dest="nodes", type=int, default=1)
    parser.add_argument("-n", dest="tasks", type=int)
    parser.add_argument("-c", type=int, choices=[1])  # As without it.
    parser.add_argument("-w", dest="nodelist", default="")
    parser.add_argument("-x", dest="exclude", default="")
    parser.add_argument("-t", dest="time", default="")
    parser.add_argument("-b", dest="begin", type=_only("now+1hour"))
    parser.add_argument("-H", dest="hold", action="store_true")
    parser.add_argument("--wrap")
    parser.add_argument("--comment", default="")
    parser.add_argument("--dependency", type=_only("afterok:"))
    parser.add_argument("--no-requeue", action="store_true")
    parser.add_argument("--licenses")
    parser.add_argument("--exclusive", nargs="?", const="node", type=_only("node", "user"))
    parser.add_argument("--deadline", type=lambda at: float(at.removeprefix("now+")))
    parser.add_argument("--gres-flags", type=_only("enforce-binding", "disable-binding"))
    for flag in ("contiguous", "spread-job"):
        parser.add_argument(f"--{flag}", action="store_true")
    for option in _UNMODELLED:
        parser.add_argument(f"--{option}")
    parser.add_argument("--gres", type=_only("gpu", "none"), default="none")
    for what in ("gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket"):
        parser.add_argument(f"--{what}", type="gpu:{}".format)
    parser.add_argument("--ntasks-per-node", type=int, default=1)
    return parser


_PARSER: Final = _parser()


def _gpus(said: argparse.Namespace) -> tuple[int, bool]:
    """GPUs in all, and whether their type is named."""
    nodes = said.nodes
    asked = (
        (said.gpus, 1),
        (said.gres, nodes),
        (said.gpus_per_node, nodes),
        (said.gpus_per_task, said.tasks or nodes * said.ntasks_per_node),
        (said.gpus_per_socket, nodes * int(said.sockets_per_node or 1)),
    )
    for gres, times in ((parse_gres(text or ""), times) for text, times in asked):
        if gres.gpus:
            return int(gres.gpus * times), gres.gpu_type != ""
    return 0, False


def _unmodelled(said: argparse.Namespace) -> str:
    if said.exclusive == "user":
        return "--exclusive=user"
    if said.gres_flags == "disable-binding":
        said.gres_flags = None
    names = ("contiguous", "spread-job", "gres-flags", *_UNMODELLED)
    return next((f"--{n}" for n in names if getattr(said, n.replace("-", "_"))), "")


def _job_after(dependency: str | None) -> JobId | None:
    return JobId(int(dependency.removeprefix("afterok:"))) if dependency else None


def _limit_s(text: str) -> float:
    return 60.0 * int(text) if text.isdecimal() else limit_s(text)
