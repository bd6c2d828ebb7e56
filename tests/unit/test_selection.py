"""Which tests a run has: a share of the cases, a part of the slow tests, files longest first."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import selection

TABLE = {
    "tests/cluster/test_a.py": {"full": 100.0},
    "tests/cluster/test_b.py": {"full": 60.0, "test": 5.0},
    "tests/docker@22.05": {"full": 70.0},
    "tests/docker@26.05": {"full": 80.0},
    "tests/unit/test_c.py": {"test": 500.0},
}


class Item:
    """A test as pytest has collected it."""

    def __init__(self, nodeid: str, *marks: str, **parameters: str) -> None:
        self.nodeid, self._marks = nodeid, marks
        if "[" in nodeid:
            self.callspec = SimpleNamespace(params=parameters)

    def get_closest_marker(self, name: str) -> str | None:
        """The mark, if the test has it."""
        return name if name in self._marks else None


def item(nodeid: str, *marks: str, **parameters: str) -> Any:  # noqa: ANN401 - stands for an Item
    """One of these, for functions that take pytest's."""
    return Item(nodeid, *marks, **parameters)


@pytest.mark.parametrize(("share", "kept"), [(0.25, 5), (0.01, 3), (1.0, 20)])
def test_a_share_of_each_file_is_kept(share: float, kept: int) -> None:
    """At least three, always the marked one, the same for one seed, others for another."""
    cases = [item(f"tests/sim/test_x.py::test_y[{n}]") for n in range(19)]
    cases.append(item("tests/sim/test_x.py::test_z"))
    always = item("tests/sim/test_x.py::test_y[20]", "always")
    outside = [item(f"tests/unit/test_x.py::test_y[{n}]") for n in range(20)]
    everything = [*cases, *outside]

    out = selection.shared_out(everything, share, "seed")

    assert len(cases) - len(out & set(cases)) == kept
    assert out <= set(cases)
    assert out == selection.shared_out(everything[::-1], share, "seed")
    assert always not in selection.shared_out([*everything, always], share, "seed")
    if share < 1:
        assert any(out != selection.shared_out(everything, share, seed) for seed in "abcd")


def test_the_parts_together_have_each_slow_test_once() -> None:
    """And no test of `make test`; a changed file comes on top as a whole."""
    slow = [
        item("tests/cluster/test_a.py::test_1", "full"),
        item("tests/cluster/test_b.py::test_1", "torch"),
        item("tests/cluster/test_new.py::test_1", "full"),
        item("tests/docker/test_d.py::test_1[22.05]", "docker", release="22.05"),
        item("tests/docker/test_d.py::test_1[26.05]", "docker", cluster="26.05"),
    ]
    quick = [item("tests/cluster/test_b.py::test_2"), item("tests/unit/test_c.py::test_1")]
    items = slow + quick
    run = [
        item
        for n in (1, 2, 3)
        for item in kept(items, selection.outside_part(items, f"{n}/3", [], TABLE))
    ]

    assert sorted(run, key=slow.index) == slow
    changed = ["tests/cluster/test_b.py"]
    for n in (1, 2, 3):
        out = selection.outside_part(items, f"{n}/3", changed, TABLE)
        assert {slow[1], quick[0]} <= set(kept(items, out))
        assert quick[1] in out


def test_each_part_has_a_sixth_of_what_is_marked_so() -> None:
    """Six parts in a row have every one, each once."""
    items = [item(f"tests/cluster/test_a.py::test_1[{n}]", "full", "sixth") for n in range(40)]
    parts = [
        set(kept(items, selection.outside_part(items, f"{n}/12", [], TABLE))) for n in range(1, 13)
    ]

    assert all(parts)
    assert sum(map(len, parts)) == 2 * len(items)
    assert set.union(*parts[:6]) == set(items)


def kept(items: list[Any], out: set[Any]) -> list[Any]:
    return [item for item in items if item not in out]


def test_parts_have_about_equal_durations() -> None:
    """The largest is longer than the mean by less than the longest unit."""
    table = {f"tests/x/test_{n}.py": {"full": float(n)} for n in range(1, 40)}
    part = selection.part_of(table, 6, table)
    loads = [sum(float(s["full"]) for u, s in table.items() if part[u] == n) for n in range(1, 7)]

    assert set(part.values()) == set(range(1, 7))
    assert max(loads) - min(loads) <= 39


def test_the_longest_file_is_first_and_files_stay_whole() -> None:
    """The order of the tests of a file is kept."""
    names = ["unit/test_new.py::1", "cluster/test_a.py::1", "cluster/test_a.py::2"]
    items = [item(f"tests/{name}") for name in (*names, "unit/test_c.py::1")]
    selection.longest_first(items, TABLE)

    assert [i.nodeid.removeprefix("tests/") for i in items] == [
        "unit/test_c.py::1",
        "cluster/test_a.py::1",
        "cluster/test_a.py::2",
        "unit/test_new.py::1",
    ]


def test_the_table_names_files_that_exist() -> None:
    """A renamed file keeps no entry."""
    units = selection.durations()
    missing = [unit for unit in units if "@" not in unit and not (selection.ROOT / unit).is_file()]
    assert not missing
