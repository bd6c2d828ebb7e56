"""What policies know of a trace's jobs beside what Slurm says: names, speeds, what is due."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from slurm_dl.model.completed_jobs import NO_PAST, Past
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import F64, I64, Origin
from slurm_dl.model.pair_rates import PairRates
from slurm_dl.model.policy_inputs import Inputs
from slurm_dl.model.shape import Shape
from slurm_dl.model.sizes import Sizes
from slurm_dl.model.snapshot import JobText
from slurm_dl.model.trace import Trace
from slurm_dl.model.value_curve import ValueCurve

_GROWS = 0.1  # What is learnt from finished jobs is learnt anew when there are so many more of them


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JobSizes:
    """The s sizes of an elastic job, fewest GPUs first; see `Sizes`."""

    gpus: F64  # ``(s,)``
    nodes: F64  # ``(s,)``
    rate: F64  # ``(s,)`` speed as it is foreseen, 1 in the size asked for
    asked: int = 0

    def shapes(self) -> tuple[Shape, ...]:
        """The sizes, split evenly over their nodes."""
        both = zip(self.nodes.tolist(), self.gpus.tolist(), strict=True)
        return tuple(Shape(int(nodes), max(1, int(gpus // nodes))) for nodes, gpus in both)

    def speed(self, shape: Shape) -> float:
        """Speed in *shape*, or in a size with as many GPUs; 1 where there is none."""
        like = [i for i, gpus in enumerate(self.gpus.tolist()) if gpus == shape.gpus]
        exact = [i for i in like if self.nodes[i] == shape.nodes]
        return next((float(self.rate[i]) for i in exact + like), 1.0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TraceKnowledge:
    """Facts about the N jobs of a trace, row by row.

    Attributes:
        rates: ``(N, t)`` speed of each job on each GPU type of the cluster, 0 where it cannot run;
            None: all types are alike.
        due_s: ``(N,)`` when each is to be done, in the trace's time; inf for those that are not
            due. None: none is.
        curves: Values of the jobs with several deadlines, in the trace's time, by row.
        foreseen_s: ``(N,)`` how long each is thought to run; None: it is known exactly.
        steps_per_s: ``(N,)`` steps a second at rate 1; rates are then steps a second, and work and
            *foreseen_s* are counted in steps. None: work is counted in seconds at rate 1.
        sizes: Of each job; None for one that is not elastic. None: no job is.
        pair_rates: Speeds of two of them on the same GPUs; None: nobody shares.
        before: Jobs that were over before, for policies that learn; users and names are indices
            into the trace's users and models.
    """

    rates: F64 | None = None
    due_s: F64 | None = None
    curves: Mapping[int, ValueCurve] = field(default_factory=dict)
    foreseen_s: F64 | None = None
    steps_per_s: F64 | None = None
    sizes: tuple[JobSizes | None, ...] | None = None
    pair_rates: PairRates | None = None
    texts: bool = False  # Whether jobs have their names, users and accounts
    before: Past = NO_PAST

    def sizes_of(self, rows: I64) -> Sizes | None:
        """Sizes of the elastic ones of the jobs at *rows*; None if no job of the trace is."""
        if self.sizes is None:
            return None
        mine = [(at, one) for at, row in enumerate(rows.tolist()) if (one := self.sizes[row])]
        first = np.cumsum([0, *(len(one.gpus) for _, one in mine)], dtype=np.int64)
        k, none = int(first[-1]), np.zeros(0)
        return Sizes(
            row=np.array([at for at, _ in mine], dtype=np.int64),
            first=first,
            gpus=np.concatenate([none, *(one.gpus for _, one in mine)]),
            nodes=np.concatenate([none, *(one.nodes for _, one in mine)]).astype(np.int32),
            rate=np.concatenate([none, *(one.rate for _, one in mine)]),
            origin=np.full(k, Origin.KNOWN, dtype=np.int8),
            asked=first[:-1] + np.array([one.asked for _, one in mine], dtype=np.int64),
            on_type=None
            if self.rates is None
            else np.concatenate(
                [np.zeros((0, self.rates.shape[1]))]
                + [one.rate[:, None] * self.rates[rows[at]] for at, one in mine]
            ),
        )

    def inputs(self, rows: I64, zero_s: float) -> Inputs:
        """The inputs of policies that a trace knows of the jobs at *rows*.

        What depends on how far a job has got is the simulator's: see `left_s`.

        Args:
            zero_s: The trace's zero on the simulation's clock.
        """
        exact = self.foreseen_s is None
        return {
            "left_from": np.full(len(rows), Origin.KNOWN if exact else Origin.HISTORY, np.int8),
            "due_s": None if self.due_s is None else self.due_s[rows] + zero_s,
            "rates": None if self.rates is None else self.rates[rows],
            "sizes": self.sizes_of(rows),
            "pair_rates": None if self.pair_rates is None else self.pair_rates.at(rows),
        }

    def curves_from(self, zero_s: float, first_id: int = 0) -> Mapping[JobId, ValueCurve]:
        """*curves* on the simulation's clock, by job id; a simulator asks once.

        Args:
            zero_s: See `inputs`.
            first_id: Id of the job at row 0.
        """
        return {JobId(first_id + row): one.shifted(zero_s) for row, one in self.curves.items()}

    def left_s(self, rows: I64, done_s: F64, truly_s: F64) -> F64:
        """``(len(rows),)`` seconds of work that the jobs at *rows* are thought to have left.

        A job that has outlived what was foreseen is thought to need as much again as it has had.

        Args:
            done_s: Work done so far, seconds.
            truly_s: What is really left.
        """
        if self.foreseen_s is None:
            return truly_s
        left_s = self.foreseen_s[rows] - done_s
        return np.where(left_s > 0, left_s, done_s)


NOTHING = TraceKnowledge()  # How long each job runs is known, and nothing else


class TraceTexts(Mapping[JobId, JobText]):
    """The texts of a trace's jobs by row; made when they are asked for.

    An account is the trace's user; a job's name is its model.
    """

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._made: dict[JobId, JobText] = {}

    def __getitem__(self, job_id: JobId) -> JobText:
        text = self._made.get(job_id)
        if text is None:
            trace = self._trace
            if not 0 <= job_id < len(trace):
                raise KeyError(job_id)
            user = trace.users[trace.user[job_id]]
            text = JobText(label=str(job_id), name=name_of(trace, job_id), user=user, account=user)
            self._made[job_id] = text
        return text

    def __len__(self) -> int:
        return len(self._trace)

    def __iter__(self) -> Iterator[JobId]:
        return map(JobId, range(len(self._trace)))


def name_of(trace: Trace, row: int) -> str:
    """The name of a job of a trace: its model's; empty where the trace does not say."""
    model = int(trace.model[row])
    return trace.models[model] if model >= 0 else ""


class Chronicle:
    """The jobs of a simulation that are over, as policies see them.

    Args:
        exact: Tell of each job at once. Else the past is told anew when a tenth has been added: to
            learn from it takes time.
    """

    def __init__(self, trace: Trace, submit_s: F64, *, exact: bool) -> None:
        self._trace, self._submit_s, self._exact = trace, submit_s, exact
        self._rows: list[int] = []
        self._start_s: list[float] = []
        self._end_s: list[float] = []
        self._ran_s: list[float] = []
        self._told = NO_PAST

    def add(self, rows: list[int], start_s: list[float], ran_s: list[float], now_s: float) -> None:
        """Jobs at *rows* of the trace have come to their end at *now_s*."""
        self._rows += rows
        self._start_s += start_s
        self._end_s += [now_s] * len(rows)
        self._ran_s += ran_s

    def told(self) -> Past:
        """The past as far as it is known."""
        told, there = len(self._told), len(self._rows)
        if there > (told if self._exact else told * (1 + _GROWS)):
            self._told = self._all()
        return self._told

    def _all(self) -> Past:
        rows = np.array(self._rows)
        return past_of(
            self._trace,
            rows,
            gpus=self._trace.gpus[rows],
            submit_s=self._submit_s[rows],
            start_s=np.array(self._start_s),
            end_s=np.array(self._end_s),
            ran_s=np.maximum(np.array(self._ran_s), np.finfo(np.float64).tiny),
        )


def past_of(
    trace: Trace, rows: I64, *, gpus: F64, submit_s: F64, start_s: F64, end_s: F64, ran_s: F64
) -> Past:
    """The jobs at *rows* of a trace as they went in a simulation; see `Past` for the columns."""
    user = trace.user[rows].astype(np.int32)
    model = trace.model[rows]
    return Past(
        account=user,
        user=user.copy(),
        name=np.where(model >= 0, model, len(trace.models)).astype(np.int32),
        gpus=gpus,
        submit_s=submit_s,
        start_s=start_s,
        end_s=end_s,
        ran_s=ran_s,
        accounts=trace.users,
        users=trace.users,
        names=(*trace.models, ""),
    )
