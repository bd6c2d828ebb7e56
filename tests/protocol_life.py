"""One life of a daemon on a ledger that outlives it, in which any call can go wrong.

Each call has a name: ``observe``, ``book``, the name of an action that is applied (``Signal``), and
``begin Signal`` or ``settle Signal`` for what is written down about it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

from protocol_world import World
from superseding import supersede

from slurm_dl.daemon.enrich import Enricher
from slurm_dl.daemon.rate_limits import may_have_reservations
from slurm_dl.engine.cycle import AppliedAction, Carry, Cycle, run_cycle
from slurm_dl.engine.settings import Settings
from slurm_dl.estimates.training_speed import SitePriors
from slurm_dl.ledger.sqlite.store import SqliteStore, StoreError
from slurm_dl.ledger.store_protocol import LedgerContents, StoreChange
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.errors import ClusterError, SlurmDlError
from slurm_dl.model.ids import HandoverId
from slurm_dl.model.plan import Action, ClusterAction
from slurm_dl.model.snapshot import Observed
from slurm_dl.policies.base import Policy

T = TypeVar("T")
How = Literal["refused", "unanswered", "killed before", "killed after", "meanwhile"]
"""What goes wrong at a call: it fails and does nothing; it is done and said to have failed; the
daemon dies before it, or after it; something else happens first."""


class Killed(BaseException):
    """SIGKILL: nothing of the daemon runs after it."""


@dataclass
class Fault:
    """Something that is to go wrong, once.

    Attributes:
        at: The name of the call; ``any`` for whichever comes.
        skip: So many calls of that name are let through before.
        meanwhile: What happens first.
    """

    at: str
    how: How
    skip: int = 0
    meanwhile: Callable[[], None] = lambda: None


@dataclass
class Faults:
    """Those that are still to come."""

    coming: list[Fault] = field(default_factory=list)
    struck: int = 0

    def guard(self, name: str, error: type[SlurmDlError], do: Callable[[], T]) -> T:
        """Make one call, in which what is due goes wrong."""
        fault = self._due(name)
        if fault is None:
            return do()
        how = fault.how
        if how == "unanswered" and error is StoreError:
            # SQLite does not show a commit that failed, on the disk or not; a crash alone would.
            how = "refused"
        if how in ("unanswered", "killed after"):
            done = do()
        self.struck += 1
        match how:
            case "refused":
                msg = f"{name} was refused"
                raise error(msg)
            case "killed before":
                raise Killed
            case "meanwhile":
                fault.meanwhile()
                return do()
            case "killed after":
                raise Killed
            case "unanswered":
                msg = f"{name} was not answered {done}"
                raise error(msg)

    def _due(self, name: str) -> Fault | None:
        for fault in self.coming:
            if fault.at in (name, "any"):
                if fault.skip:
                    fault.skip -= 1
                    continue
                self.coming.remove(fault)
                return fault
        return None


class _Store:
    """A `Store` in which writing can go wrong."""

    def __init__(self, inner: SqliteStore, faults: Faults) -> None:
        self.inner = inner
        self.doing = "book"
        self.saved = 0
        self._faults = faults

    def load(self) -> LedgerContents:
        """All that is stored."""
        return self.inner.load()

    def save(self, change: StoreChange, /) -> None:
        """Write *change*, if nothing goes wrong."""
        self._faults.guard(self.doing, StoreError, lambda: self.inner.save(change))
        self.saved += 1

    def close(self) -> None:
        """Let go of the file."""
        self.inner.close()


class Life:
    """A daemon from its start to its end.

    Attributes:
        basis: What it saw last, by which it acts.
        had_gpu_s: What each job had had then, in truth.
        booked: Whether that is in its ledger.
        last: Its last whole cycle.
        on_done: Told of each action that was tried.
        under_way: Hand-overs that may have signalled somebody before its last cycle.
        superseded: Another has taken its ledger over.
    """

    def __init__(self, world: World, path: Path, policy: Policy, faults: Faults) -> None:
        self.world, self.path, self.policy, self.faults = world, path, policy, faults
        self.store = _Store(SqliteStore(path, generation=supersede(path)), faults)
        self.ledger = Ledger(self.store)
        self.basis: Observed | None = None
        self.had_gpu_s: dict[int, float] = {}
        self.booked = False
        self.last: Cycle | None = None
        self.cycles = 0
        self.under_way: set[HandoverId] = set()
        self.superseded = False
        self.acting = False
        self.on_done: Callable[[AppliedAction], None] = lambda _: None
        self._carry = Carry()
        self._enrich = Enricher(profiles={}, site=SitePriors(), checkpoint_cost_s=1, policy=policy)
        self._name("begin")
        self._name("settle")

    def _name(self, what: str) -> None:
        do = getattr(self.ledger, what)

        def step(action: Action, *rest: float) -> None:
            self.store.doing = f"{what} {type(action).__name__}"
            do(action, *rest)

        setattr(self.ledger, what, step)

    def observe(self) -> Observed:
        """See `Cluster`; reservations are read when dlschedd would."""
        self.basis, self.booked = None, False
        seen = self.faults.guard("observe", ClusterError, self.world.observe)
        if not may_have_reservations(self.last):
            seen = dataclasses.replace(seen, reservations=())
        self.basis = seen
        self.had_gpu_s = {j: self.world.service_gpu_s(job) for j, job in self.world.jobs.items()}
        return seen

    def apply(self, action: ClusterAction, /) -> None:
        """See `Cluster`."""
        self.faults.guard(type(action).__name__, ClusterError, lambda: self._apply(action))

    def _apply(self, action: ClusterAction) -> None:
        assert self.acting, f"{action} by a daemon that was only to look"
        self.world.acting = self
        self.world.apply(action)

    def cycle(self, settings: Settings, *, acting: bool) -> Cycle | None:
        """One cycle, the first only looking; None if it came to no end.

        Raises:
            Killed: It died.
        """
        self.cycles += 1
        self.store.doing = "book"
        self.acting = acting and self.cycles > 1
        self.under_way = {h.handover_id for h in self.ledger.handovers if h.signalled}
        try:
            self.last = run_cycle(
                self,
                self.ledger,
                self.policy,
                settings,
                clock=self.world.clock,
                acting=self.acting,
                on_done=self.on_done,
                backfilling=self.world.backfilling,
                carry=self._carry,
                complete=self._complete,
                enrich=self._enrich,
            )
        except SlurmDlError as err:
            self.superseded = type(err).__name__ == "SupersededError"
            return None
        return self.last

    def _complete(self, _: Observed) -> None:
        self.booked = True

    def end(self) -> None:
        """Let go of the file, as the end of a process does."""
        self.store.close()
