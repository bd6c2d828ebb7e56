"""The document, the alerts and the dashboard: all of them about metrics that there are."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from slurm_dl.cli.dlctl.advice import GAUGES
from slurm_dl.daemon.metrics.catalogue import METRICS, Metric, table

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "operate" / "metrics.md"
PROMETHEUS = ROOT / "etc" / "prometheus"
DASHBOARD = ROOT / "etc" / "grafana" / "slurm_dl.json"
PROMTOOL = shutil.which("promtool") or ""

RULES = yaml.safe_load((PROMETHEUS / "alerts.yml").read_text("utf-8"))["groups"][0]["rules"]
TESTS = yaml.safe_load((PROMETHEUS / "alerts_test.yml").read_text("utf-8"))["tests"]
PANELS = json.loads(DASHBOARD.read_text("utf-8"))["panels"]

EVERY_RULE = pytest.mark.parametrize("rule", RULES, ids=lambda r: r["alert"])
SELECTOR = re.compile(r"\b(slurm_dl_[a-z_]+)(?:\{([^}]*)\})?")
NEEDS_PROMTOOL = pytest.mark.skipif(not PROMTOOL, reason="promtool is not installed")


def series() -> dict[str, Metric]:
    """Names of series as expressions have them."""
    suffixes = {"histogram": ("_bucket", "_count", "_sum")}
    return {m.name + s: m for m in METRICS for s in suffixes.get(m.kind, ("",))}


def check(expression: str) -> None:
    """Every metric of *expression* is there, and every value that it asks a label for."""
    known = series()
    found = SELECTOR.findall(expression)
    for name, selector in found:
        assert name in known, name
        labels = known[name].labels
        for label, how, value in re.findall(r'([a-z_]+)(=~|!=|=)"([^"]*)"', selector):
            if label in {"instance", "job"}:
                continue
            asked = value.split("|") if how == "=~" else [value]
            assert set(asked) <= set(labels[label]), (name, label, value)
    for label in re.findall(r"\b(?:by|without) \(([a-z_, ]+)\)", expression):
        there = {label for name, _ in found for label in known[name].labels}
        assert set(label.split(", ")) <= there | {"le", "cluster"}, (expression, label)


def targets() -> Iterator[tuple[str, str]]:
    for panel in PANELS:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ("metrics.md", table()),
        ("idle-nodes.md", [f"| `{name}` | {text} |" for name, text in GAUGES.values()]),
    ],
)
def test_the_document_has_the_table_of_all_metrics(page: str, expected: Sequence[str]) -> None:
    """Rows as the code has them, in an order for readers."""
    text = DOCUMENT.with_name(page).read_text("utf-8")
    assert sorted(re.findall(r"^\| `slurm_dl_.*$", text, re.MULTILINE)) == sorted(expected)


@EVERY_RULE
def test_a_rule_is_about_metrics_that_there_are(rule: dict[str, Any]) -> None:
    """Names, labels and their values."""
    assert SELECTOR.search(rule["expr"]) or "up{" in rule["expr"]
    check(rule["expr"])


@EVERY_RULE
def test_a_rule_says_what_it_means_and_where_to_read_on(rule: dict[str, Any]) -> None:
    """Summary, description, and a section of the document by its anchor."""
    said = rule["annotations"]
    page, _, anchor = said["runbook"].partition("#")

    assert ROOT / page == DOCUMENT
    assert anchor == rule["alert"].lower()
    assert f"\n### {rule['alert']}\n" in DOCUMENT.read_text("utf-8")
    assert said["summary"]
    assert said["description"].endswith(".")
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    assert rule["alert"].startswith("SlurmDl")


def test_the_document_has_no_section_of_an_alert_that_is_gone() -> None:
    """In the order of the rules."""
    sections = re.findall(r"^### (\S+)$", DOCUMENT.read_text("utf-8"), re.MULTILINE)

    assert sections == [rule["alert"] for rule in RULES]


def test_the_document_says_of_each_alert_how_it_was_made_to_fire() -> None:
    """On a running daemon or by promtool alone: each of them stands in one of the two lists."""
    text = DOCUMENT.read_text("utf-8")
    listed = text.partition("seconds for minutes:\n")[2].partition("\n\n")[0]

    named = re.findall(r"\b[A-Z]\w+", listed.replace(". By `promtool`\nalone:", ","))
    assert sorted(named) == sorted(rule["alert"].removeprefix("SlurmDl") for rule in RULES)


@EVERY_RULE
def test_each_rule_is_tested_to_fire_late_and_not_to(rule: dict[str, Any]) -> None:
    """In alerts_test.yml: silent at first, then firing; and a case near it in which it is not."""
    name = rule["alert"]
    firing = [t for t in TESTS if t["name"].startswith(f"{name}, ")]
    quiet = [t for t in TESTS if t["name"].startswith(f"not {name}, ")]

    assert firing
    assert quiet
    for test in firing:
        early, late = (asked["exp_samples"] for asked in test["promql_expr_test"])
        assert early == []
        assert late == [{"labels": f'{{alertname="{name}"}}', "value": 1}]
    for test in (*firing, *quiet):
        for given in test["input_series"]:
            check(given["series"])


@pytest.mark.full("needs Prometheus")
@NEEDS_PROMTOOL
@pytest.mark.parametrize(
    "what",
    [
        ("check", "rules", "alerts.yml"),
        ("check", "config", "prometheus.yml"),
        pytest.param(("test", "rules", "alerts_test.yml"), marks=pytest.mark.long),
    ],
    ids=" ".join,
)
def test_promtool_agrees(what: tuple[str, ...]) -> None:
    """Prometheus' own checks, and the rules' own tests."""
    done = subprocess.run(
        [PROMTOOL, *what],
        cwd=PROMETHEUS,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr


def test_the_scrape_job_has_the_name_that_the_rules_ask_for() -> None:
    """Or the first alert would fire for ever."""
    config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text("utf-8"))
    (job,) = config["scrape_configs"]

    asked = {name for rule in RULES for name in re.findall(r'job="([^"]+)"', rule["expr"])}
    assert asked == {job["job_name"]}
    assert job["static_configs"][0]["targets"] == ["127.0.0.1:9477"]
    # Shorter than the time after which the quickest of the rules may fire.
    assert job["scrape_interval"] == "15s"


@pytest.mark.parametrize(("title", "expression"), list(targets()))
def test_a_panel_is_about_metrics_that_there_are(title: str, expression: str) -> None:
    """And about the daemons that were chosen."""
    check(expression)
    selected = SELECTOR.findall(expression)
    assert selected, title
    assert all('instance=~"$instance"' in selector for _, selector in selected)


def test_every_metric_is_shown_or_watched() -> None:
    """What neither a panel nor a rule uses is there for nobody, but for these."""
    known = series()
    expressions = [*(e for _, e in targets()), *(rule["expr"] for rule in RULES)]
    used = {known[name].name for e in expressions for name, _ in SELECTOR.findall(e)}
    # The list of daemons to choose from is made of it.
    used |= {"slurm_dl_info"}
    unused = {metric.name for metric in METRICS} - used

    assert unused == {
        "slurm_dl_preempted_gpus_total",
        "slurm_dl_replicas",
        "slurm_dl_slurmctld_clock_jumps_total",
        "slurm_dl_steer_start_error_seconds",
    }
