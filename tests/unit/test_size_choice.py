"""The choice of one of several sizes by the verdicts on them, and lists that are refused."""

from __future__ import annotations

import re
from typing import Any

import pytest

from slurm_dl.cli.dlsubmit import verdict
from slurm_dl.cli.dlsubmit.size_choice import choose, sizes_of
from slurm_dl.cli.dlsubmit.verdict import NOT_PROMISED, Question
from slurm_dl.daemon.control.client import DaemonError
from slurm_dl.json_types import JsonObject, as_list
from slurm_dl.model.errors import ConfigError

PLAIN = {"quote": False, "or_else": None, "dry_run": False, "diff": False, "quiet": False,
         "as_json": False}  # fmt: skip
NOW_S = 1_800_000_000


def question(gpus: int, limit_s: float | None = 3600) -> JsonObject:
    return {"shapes": [f"1x{gpus}"], "limit_s": limit_s, "due_s": NOW_S + 9000}


def answering(monkeypatch: pytest.MonkeyPatch, *promised: int, doing: str) -> list[JsonObject]:
    """The requests to a daemon that promises jobs of so many GPUs their deadline."""
    asked: list[JsonObject] = []

    def ask(whole: JsonObject, *, within_s: float) -> JsonObject:
        assert within_s < 20
        asked.append(whole)
        if not doing:
            msg = "no daemon"
            raise DaemonError(msg)
        same = {"why": "", "rests_on": "limit", "begin_s": NOW_S, "spare_s": 0, "nearest_s": None}
        yes = [int(str(shape)[2:]) in promised for shape in as_list(whole["shapes"])]
        rows: list[Any] = [{**same, "says": "yes" if one else "no"} for one in yes]
        return {"shapes": rows, "now_s": NOW_S, "due_s": NOW_S + 9000, "doing": doing}

    monkeypatch.setattr(verdict, "ask", ask)
    return asked


@pytest.mark.parametrize("sizes", [(2, 4, 8), (8, 4, 2), (4, 8, 2)])
@pytest.mark.parametrize("promised", [(), (2,), (4, 8), (8,), (2, 4, 8)])
@pytest.mark.parametrize("doing", ["acting", "shadow mode", ""])
@pytest.mark.parametrize(
    "given", [{}, {"or_else": "cancel"}, {"or_else": "cancel", "dry_run": True}, {"quote": True}]
)
def test_the_smallest_promised_size_or_the_first(  # noqa: PLR0917 - a table
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    sizes: tuple[int, ...],
    promised: tuple[int, ...],
    doing: str,
    given: dict[str, Any],
) -> None:
    """A daemon that does not act promises nothing."""
    asked = answering(monkeypatch, *promised, doing=doing)
    options = [{"gpus": str(gpus)} for gpus in sizes]
    params, questions = {**PLAIN, **given}, [question(gpus) for gpus in sizes]
    if given.get("quote") and not doing:
        with pytest.raises(DaemonError, match="no daemon"):
            choose(params, options, questions)
        return

    at, status = choose(params, options, questions)

    best = min(promised) if promised and doing == "acting" else None
    told = capsys.readouterr()
    if given.get("quote"):
        assert status == (NOT_PROMISED if best is None else 0)
        assert [line.split(" GPUs: ")[0] for line in told.out.splitlines()] == list(map(str, sizes))
    elif best is None and given == {"or_else": "cancel"}:
        assert status == NOT_PROMISED
    else:
        assert (sizes[at], status) == (best or sizes[0], None)
        assert re.search(f", {sizes[at]}(?: GPUs)?: ", told.err)
    assert asked == [{**question(0), "shapes": [f"1x{gpus}" for gpus in sizes]}]


def test_limits_of_their_own_go_along_and_what_cannot_be_asked_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An earlier daemon is asked as it knows, where all limits are the same."""
    asked = answering(monkeypatch, 2, doing="acting")
    two: list[Question] = [question(2, 7200), question(4, None)]

    choose({**PLAIN, "quiet": True}, [{"gpus": "2"}, {"gpus": "4"}], two)

    assert (asked[0]["limit_s"], asked[0]["limits_s"]) == (None, [7200, None])
    with pytest.raises(ConfigError, match="and arrays are never promised; give one size"):
        choose(PLAIN, [{"gpus": "2"}, {"gpus": "4"}], [two[0], "arrays are never promised"])


@pytest.mark.parametrize(
    ("given", "by", "found"),
    [
        ({"gpus": "2", "time": "1,2"}, "+1h", [{}]),
        ({"gpus": None, "time": None}, "+1h", [{}]),
        ({"gpus": "2,"}, "+1h", [{}]),
        ({"gpus": "volta:3,kepler:5"}, "+1h", [{}]),
        ({"gpus": "8,2"}, "+1h", [{"gpus": "8"}, {"gpus": "2"}]),
        ({"gpus": "8,2", "time": "1:00"}, "+1h", [{"gpus": "8"}, {"gpus": "2"}]),
        ({"gpus": "a:8,a:2", "time": "9,8"}, "+1h",
         [{"gpus": "a:8", "time": "9"}, {"gpus": "a:2", "time": "8"}]),
        ({"gpus": "2,4"}, None, "give --by TIME"),
        ({"gpus": "2,4", "sizes": "1,2"}, "+1h", "--sizes"),
        ({"gpus": "2,4", "time": "1,2,3"}, "+1h", "--time has 3 limits for 2 sizes"),
        ({"gpus": "2,4,2"}, "+1h", "each of them once"),
        ({"gpus": "2,0"}, "+1h", "1 or more"),
        ({"gpus": ",".join(map(str, range(1, 10)))}, "+1h", "at most 8"),
        ({"gpus": "2", "quote": True}, None, "--quote needs a deadline"),
        ({"gpus": "2", "or_else": "run"}, None, "--or-else needs a deadline"),
    ],
)  # fmt: skip
def test_sizes_in_a_list(
    given: dict[str, Any], by: str | None, found: list[dict[str, str]] | str
) -> None:
    """Anything but a list of counts of one type is left to whoever reads --gpus."""
    if isinstance(found, list):
        assert list(sizes_of(given, by)) == found
    else:
        with pytest.raises(ConfigError, match=found):
            sizes_of(given, by)
