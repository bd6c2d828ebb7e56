"""Each cycle of a running daemon once, over its control socket, with what was in force in it.

The daemon tells its last snapshot and knows nobody who listens. So its status is asked at the pace
of its cycles, and a snapshot is taken only if cycle and configuration were the same before and
after it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pydantic import ValidationError

from slurm_dl.cli.dlctl.status_text import as_list
from slurm_dl.config import Config
from slurm_dl.config.engine_settings import profiles_of, settings_of
from slurm_dl.daemon.control.client import DaemonError
from slurm_dl.json_types import Json, JsonObject
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.recording import snapshot_file
from slurm_dl.recording.cycles_file import Setup

SHORTEST_WAIT_S = 0.2
LONGEST_WAIT_S = 5.0
"""A pause that ends or a reload makes a cycle come early; it must not be missed."""

_SECTIONS = (
    "manage",
    "daemon",
    "policy",
    "ranking",
    "preemption",
    "placement",
    "defragment",
    "paths",
)
"""The sections of the configuration that plans depend on."""

Ask = Callable[[str], JsonObject]


@dataclass(frozen=True, slots=True, eq=False)
class FollowedCycle:
    """One cycle of the daemon.

    Attributes:
        version: The slurm_dl that the daemon is.
    """

    snapshot: Snapshot
    setup: Setup
    version: str


@dataclass(frozen=True, slots=True)
class _Moment:
    """Which cycle of which daemon was the last, and with which configuration the next will be.

    Attributes:
        started_s, cycles: The daemon's start and its cycles since then.
        seen_s: When the last of them ended, epoch seconds; 0 before the first.
        reloaded_s: When its configuration was last replaced, epoch seconds; 0 if never.
    """

    started_s: float
    cycles: int
    seen_s: float
    reloaded_s: float


class Follower:
    """Sees each cycle of one daemon once, over restarts and reloads.

    Args:
        ask: Asks the daemon for something, by the name of the request.

    Attributes:
        missed: Cycles that came and went between two looks.
        wait_s: How long it is worth waiting until the next look, seconds.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._last: _Moment | None = None
        self.missed = 0
        self.wait_s = SHORTEST_WAIT_S

    def look(self) -> FollowedCycle | None:
        """The daemon's last cycle; None if there is none that was not seen yet.

        Raises:
            DaemonError: It does not answer, refuses, or answers what is not understood.
        """
        status = self._ask("status")
        now = _moment(status)
        due_s = _number(status.get("next_poll_s")) - _number(status.get("now_s"))
        self.wait_s = min(max(due_s, SHORTEST_WAIT_S), LONGEST_WAIT_S)
        # A configuration that is newer than the cycle is not the one it was planned with.
        if not now.cycles or self._is_old(now) or now.reloaded_s > now.seen_s:
            return None
        values = as_list(self._ask("config").get("values"))
        content = self._ask("snapshot").get("snapshot")
        after = self._ask("status")
        if _moment(after) != now:
            self.wait_s = 0.0
            return None
        if self._last is not None and self._last.started_s == now.started_s:
            self.missed += now.cycles - self._last.cycles - 1
        self._last = now
        return FollowedCycle(_snapshot(content), _setup(values), str(status.get("version")))

    def _is_old(self, now: _Moment) -> bool:
        last = self._last
        return last is not None and (last.started_s, last.cycles) == (now.started_s, now.cycles)


def _moment(status: JsonObject) -> _Moment:
    reloaded = status.get("reloaded")
    effective = isinstance(reloaded, dict) and reloaded.get("ok") is True
    return _Moment(
        started_s=_number(status.get("started_s")),
        cycles=int(_number(status.get("cycles"))),
        seen_s=_number(status.get("seen_s")),
        reloaded_s=_number(reloaded.get("at_s"))
        if effective and isinstance(reloaded, dict)
        else 0.0,
    )


def _number(value: Json) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _snapshot(content: Json) -> Snapshot:
    try:
        return snapshot_file.decode(content if isinstance(content, dict) else {})
    except ValueError as err:
        msg = f"dlschedd's snapshot is not understood (is it another version?): {err}"
        raise DaemonError(msg) from None


def _setup(rows: list[Json]) -> Setup:
    """Policy and limits out of the daemon's rows, such as ``policy.parameters.promote_knob``.

    The profiles are those that lie where it reads its own.
    """
    tree: dict[str, dict[str, object]] = {name: {} for name in _SECTIONS}
    inner: dict[tuple[str, str], dict[str, object]] = {}
    for row in rows:
        if not isinstance(row, dict):
            continue
        section, _, key = str(row.get("key")).partition(".")
        key, dot, name = key.partition(".")
        if section in tree and dot:
            inner.setdefault((section, key), {})[name] = row.get("value")
        elif section in tree:
            tree[section][key] = row.get("value")
    for (section, key), values in inner.items():
        tree[section][key] = values
    try:
        config = Config.model_validate(tree)
        settings = settings_of(config, profiles_of(config, reader="user"))
        return Setup.of(config.policy.make(), settings)
    except (ConfigError, ValidationError, ValueError, TypeError) as err:
        msg = f"dlschedd's configuration is not understood (is it another version?): {err}"
        raise DaemonError(msg) from None
