"""Which tests a run has: a share of the tests of some files, or one part of the slow tests.

Both are functions of a seed and of the tests' names alone, so that all workers of a run choose the
same tests and a run can be repeated.

A *unit* is what a part has as a whole: a test file, or one Slurm release of the tests in
containers, since the image of a release takes minutes to build.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]
DURATIONS: Final = ROOT / "tests" / "durations.json"
"""Seconds of each unit: of the tests of `make test`, and of those that it leaves out."""
LONG_S: Final = 5.0
"""Files whose tests in `make test` take less are not in the table: they come last."""
SHARED: Final = (
    "tests/sim/",
    "tests/cli/",
    "tests/cluster/test_job_requeue",
    "tests/cluster/test_policies",
    "tests/cluster/test_sandbox",
    "tests/cluster/test_slurm_backend",
    "tests/faults/test_faults",
    "tests/faults/test_killed",
    "tests/unit/test_control_socket",
    "tests/unit/test_handover_protocol",
    "tests/unit/test_order_reaches_slurm",
    "tests/unit/test_policy_contract",
    "tests/unit/test_replay",
    "tests/unit/test_signal_test_local",
)
"""Files of which `make test` has a share: those that start a process or simulate in each test."""
LEFT_OUT: Final = ("full", "torch", "wheel", "docker")
"""Marks of tests that `make test` leaves out."""
SIXTH: Final = "sixth"
"""Mark, beside ``full``, of tests of which each part has a sixth, by their names."""
LEAST_TESTS: Final = 3
UNKNOWN_S: Final = 20.0
"""Assumed duration of a unit that is not in the table yet."""

Durations = Mapping[str, Mapping[str, float]]


def durations() -> Durations:
    """The table: seconds by unit, then by ``test`` or ``full``."""
    table: Durations = json.loads(DURATIONS.read_text(encoding="utf-8"))
    return table


def is_left_out(item: pytest.Item) -> bool:
    """Whether `make test` does not run it."""
    return any(item.get_closest_marker(mark) is not None for mark in LEFT_OUT)


def file_of(nodeid: str) -> str:
    """The test file, relative to the checkout."""
    return nodeid.partition("::")[0]


def unit_of(item: pytest.Item) -> str:
    """The file, and the release for a test in containers of one release."""
    file = file_of(item.nodeid)
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    release = parameters.get("release", parameters.get("cluster"))
    if file.startswith("tests/docker/") and isinstance(release, str):
        return f"tests/docker@{release}"
    return file


def part_of(units: Iterable[str], parts: int, table: Durations) -> dict[str, int]:
    """The part, 1 to *parts*, of each unit: the longest first, to the part that has least."""
    seconds = {unit: table.get(unit, {}).get("full", UNKNOWN_S) for unit in units}
    loads = [0.0] * parts
    chosen = {}
    for unit in sorted(seconds, key=lambda u: (-seconds[u], u)):
        part = loads.index(min(loads))
        loads[part] += seconds[unit]
        chosen[unit] = part + 1
    return chosen


def shared_out(items: Iterable[pytest.Item], share: float, seed: str) -> set[pytest.Item]:
    """The tests that a run of a *share* of each file leaves out: never one marked ``always``."""
    files = defaultdict(list)
    for item in items:
        if item.nodeid.startswith(SHARED):
            files[file_of(item.nodeid)].append(item)
    out: set[pytest.Item] = set()
    for tests in files.values():
        tests.sort(key=lambda i: hashlib.sha256((seed + i.nodeid).encode()).digest())
        rest = tests[max(LEAST_TESTS, math.ceil(len(tests) * share)) :]
        out.update(item for item in rest if item.get_closest_marker("always") is None)
    return out


def outside_part(
    items: Iterable[pytest.Item], part: str, changed: Iterable[str], table: Durations
) -> set[pytest.Item]:
    """What is in neither part *part* ("2/6") of the slow tests nor in a *changed* file.

    Of tests marked `SIXTH` a sixth is in each part.
    """
    items = list(items)
    number, _, parts = part.partition("/")
    sixth = {item for item in items if item.get_closest_marker(SIXTH) is not None}
    here = {item for item in sixth if _sixth_of(item) == int(number) % 6}
    slow = {item: unit_of(item) for item in items if is_left_out(item) and item not in sixth}
    part_by_unit = part_of({*slow.values(), *slow_units(table)}, int(parts), table)
    files = set(changed)
    return {
        item
        for item in items
        if file_of(item.nodeid) not in files
        and item not in here
        and (item not in slow or part_by_unit[slow[item]] != int(number))
    }


def _sixth_of(item: pytest.Item) -> int:
    return hashlib.sha256(item.nodeid.encode()).digest()[0] % 6


def slow_units(table: Durations) -> set[str]:
    """Units with slow tests: a run of some directories must cut the parts as a whole run does."""
    return {unit for unit, seconds in table.items() if seconds.get("full")}


def longest_first(items: list[pytest.Item], table: Durations) -> None:
    """Order the files by their durations, so that none of ten minutes begins last."""

    def seconds(item: pytest.Item) -> float:
        return sum(table.get(unit_of(item), {}).values())

    longest: dict[str, float] = defaultdict(float)
    for item in items:
        file = file_of(item.nodeid)
        longest[file] = max(longest[file], seconds(item))
    items.sort(key=lambda item: -longest[file_of(item.nodeid)])
