"""The dashboard, held against Grafana's documented model: what it would drop or show wrongly."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from slurm_dl.daemon.metrics.catalogue import METRICS

FILE = Path(__file__).parents[2] / "etc" / "grafana" / "slurm_dl.json"
BOARD: dict[str, Any] = json.loads(FILE.read_text("utf-8"))
PANELS: list[dict[str, Any]] = BOARD["panels"]
SHOWING = [p for p in PANELS if p["type"] != "row"]
VARIABLES = {v["name"]: v for v in BOARD["templating"]["list"]}

UNITS = {"short", "s", "percentunit"}
"""Of Grafana's names of units those that fit here."""

WORDS = {
    ("stat", "colorMode"): {"none", "value", "background", "background_solid"},
    ("stat", "graphMode"): {"none", "line", "area"},
    ("stat", "textMode"): {"auto", "value", "value_and_name", "name", "none"},
    ("timeseries", "legend.displayMode"): {"list", "table", "hidden"},
    ("timeseries", "legend.placement"): {"bottom", "right"},
    ("timeseries", "tooltip.mode"): {"single", "multi", "none"},
    ("timeseries", "tooltip.sort"): {"none", "asc", "desc"},
}
"""Type of panel and option to the words that it may have."""

KINDS = {
    m.name + s: m.kind
    for m in METRICS
    for s in (("_bucket", "_count", "_sum") if m.kind == "histogram" else ("",))
}
LABELS = {label for metric in METRICS for label in metric.labels} | {"instance"}

EVERY_PANEL = pytest.mark.parametrize("panel", SHOWING, ids=lambda p: p["title"])


def at(tree: Any, path: str) -> Any:  # noqa: ANN401
    """The value at ``a.b.c`` of JSON."""
    for key in path.split("."):
        tree = tree[key]
    return tree


def test_the_board_can_be_imported() -> None:
    """Grafana gives the id; the uid is ours, and short enough for its database."""
    assert "id" not in BOARD
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,40}", BOARD["uid"])
    assert BOARD["title"]
    # 36: Grafana 8.5 and all later ones; they bring older boards up to date by themselves.
    assert BOARD["schemaVersion"] == 36
    assert BOARD["graphTooltip"] in {0, 1, 2}
    assert re.fullmatch(r"\d+[smhd]", BOARD["refresh"])
    assert BOARD["time"] == {"from": "now-6h", "to": "now"}
    assert BOARD["timezone"] in {"", "browser", "utc"}
    assert not re.search(r"https?://", FILE.read_text("utf-8"))


def test_panels_have_an_id_each_and_lie_side_by_side() -> None:
    """24 columns, no panel over another, and no row of cells in which there is nothing."""
    ids = [p["id"] for p in PANELS]
    assert len(set(ids)) == len(ids)
    assert all(isinstance(n, int) and n > 0 for n in ids)
    cells: list[tuple[int, int]] = []
    for grid in (p["gridPos"] for p in PANELS):
        assert grid.keys() == {"x", "y", "w", "h"}
        assert grid["w"] >= 1
        assert grid["h"] >= 1
        columns = range(grid["x"], grid["x"] + grid["w"])
        cells += itertools.product(columns, range(grid["y"], grid["y"] + grid["h"]))
    assert len(cells) == len(set(cells))
    assert {x for x, _ in cells} == set(range(24))
    assert {y for _, y in cells} == set(range(max(y for _, y in cells) + 1))
    for row in (p for p in PANELS if p["type"] == "row"):
        # Those of an open row stand behind it, not in it.
        assert (row["collapsed"], row["panels"], row["gridPos"]["w"]) == (False, [], 24)


def test_the_reader_chooses_data_source_and_daemons() -> None:
    """Two variables, and every expression goes by them."""
    assert list(VARIABLES) == ["datasource", "instance"]
    source, instance = VARIABLES.values()
    assert (source["type"], source["query"]) == ("datasource", "prometheus")
    assert instance["type"] == "query"
    assert instance["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    assert instance["query"]["query"] == instance["definition"]
    assert instance["definition"] == "label_values(slurm_dl_info, instance)"
    assert (instance["multi"], instance["includeAll"], instance["allValue"]) == (True, True, ".*")
    for variable in VARIABLES.values():
        assert variable["hide"] in {0, 1, 2}
        # Asked at least when the board is opened.
        assert variable["refresh"] in {1, 2}


@EVERY_PANEL
def test_a_panel_is_whole(panel: dict[str, Any]) -> None:
    """A type of Grafana's own, words that it knows, and a sentence for the reader."""
    assert panel["type"] in {"stat", "timeseries"}
    assert panel["title"]
    assert panel["description"].endswith(".")
    assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    for (kind, path), known in WORDS.items():
        if kind == panel["type"]:
            assert at(panel["options"], path) in known, path
    defaults = panel["fieldConfig"]["defaults"]
    assert defaults["unit"] in UNITS
    if panel["type"] == "stat":
        assert panel["options"]["reduceOptions"]["calcs"] == ["lastNotNull"]
        steps = defaults["thresholds"]["steps"]
        assert defaults["thresholds"]["mode"] == "absolute"
        assert steps[0]["value"] is None
        bounds = [step["value"] for step in steps[1:]]
        assert bounds == sorted(set(bounds))
    else:
        assert defaults["custom"]["stacking"]["mode"] in {"none", "normal"}
        assert defaults["custom"]["showPoints"] == "never"


@EVERY_PANEL
def test_queries_have_names_that_their_labels_can_fill(panel: dict[str, Any]) -> None:
    """``{{x}}`` in a legend is empty where the expression has summed x away."""
    targets = panel["targets"]
    assert [t["refId"] for t in targets] == list("ABCDEFGH"[: len(targets)])
    assert len({t["legendFormat"] for t in targets}) == len(targets)
    for target in targets:
        assert target["datasource"] == panel["datasource"]
        expression = target["expr"]
        assert expression.count("(") == expression.count(")")
        variables = set(re.findall(r"\$\{?([a-z_]+)", expression))
        assert variables <= {"instance", "__rate_interval"}
        shown = set(re.findall(r"\{\{([a-z]+)\}\}", target["legendFormat"]))
        kept = LABELS
        if re.match(r"(sum|max|histogram_quantile)\b", expression):
            grouped = re.search(r"\bby \(([a-z, ]+)\)", expression)
            kept = set(grouped[1].split(", ")) - {"le"} if grouped else set()
            # A line for each of them, or nobody could tell which is which.
            assert shown == kept
        assert shown <= kept


@EVERY_PANEL
def test_counters_are_shown_as_rates(panel: dict[str, Any]) -> None:
    """What only rises is no figure by itself, and a gauge has no rate."""
    for target in panel["targets"]:
        for before, name in re.findall(r"(\w*)\(?(slurm_dl_[a-z_]+)\{", target["expr"]):
            risen = before in {"rate", "increase"}
            assert risen == (KINDS[name] in {"counter", "histogram"}), name


@EVERY_PANEL
def test_seconds_are_shown_as_seconds(panel: dict[str, Any]) -> None:
    """By the names of the metrics; where a panel has both, by an override for one query."""
    overrides = {
        o["matcher"]["options"]: {p["id"]: p["value"] for p in o["properties"]}
        for o in panel["fieldConfig"]["overrides"]
        if o["matcher"]["id"] == "byFrameRefID"
    }
    assert len(overrides) == len(panel["fieldConfig"]["overrides"])
    assert set(overrides) <= {t["refId"] for t in panel["targets"]}
    for target in panel["targets"]:
        unit = overrides.get(target["refId"], panel["fieldConfig"]["defaults"])["unit"]
        expression = target["expr"]
        # GPU-seconds by second are GPUs, and a count of durations is a number.
        durations = re.search(r"(?<!gpu)_seconds(_bucket)?\{", expression)
        assert (unit == "s") == bool(durations), expression
        assert (unit == "percentunit") == (" / " in expression)
