"""dlctl policies: the list, one of them whole, and what a site installs."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from on_terminal import on_terminal

from slurm_dl.policies import registry

Command = Callable[..., "subprocess.CompletedProcess[str]"]

KEYS = {
    *("name", "row", "source", "level", "needs", "interpretation", "fallback", "formula"),
    *("starves", "idles", "trusts", "preempts", "on_slurm", "parameters", "error"),
}


def listed(command: Command, *args: str, **more: Any) -> Any:  # noqa: ANN401
    done = command("ctl", "policies", *args, "--json", **more)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def on_a_terminal(width: int, *args: str) -> list[str]:
    """Lines that ``dlctl policies ARGS`` prints on a terminal of so many columns."""
    text = on_terminal("dlctl", "policies", *args, columns=width)
    return re.sub(r"\x1b\[[0-9;]*m", "", text).replace("\r", "").splitlines()


def test_the_list_as_json_says_all_of_each(command: Command) -> None:
    """A list of objects; each of ours is complete."""
    found = listed(command)

    assert [p["name"] for p in found] == list(registry.names())
    for policy in found:
        assert policy.keys() >= KEYS, policy["name"]
        kind = registry.find(policy["name"])
        assert policy["error"] is None
        assert (policy["row"], policy["level"]) == (kind.about.row, kind.about.level)
        assert tuple(policy["needs"]) == kind.about.needs
        assert policy["on_slurm"] == registry.runs_on_slurm(kind)
        assert policy["formula"]
        assert all(p["meaning"] for p in policy["parameters"])


def test_the_table_has_a_line_for_each_in_a_pipe(command: Command) -> None:
    """Name, row, level, where it runs, needs and rule; plain text."""
    lines = command("ctl", "policies").stdout.splitlines()

    assert lines[0].split() == ["NAME", "ROW", "LEVEL", "RUNS", "NEEDS", "RULE"]
    assert [line.split()[0] for line in lines[1:]] == list(registry.names())
    by_name = {line.split()[0]: line.split() for line in lines[1:]}
    assert by_name["discrete_las"][1:5] == ["A1", "W4", "Slurm", "-"]
    assert by_name["srtf"][1:5] == ["G2", "W3", "Slurm", "left_s"]
    assert "\x1b" not in "".join(lines)


@pytest.mark.parametrize("args", [(), ("show", "gittins")], ids=["list", "show"])
def test_a_terminal_gets_lines_that_fit_it(args: tuple[str, ...]) -> None:
    """Nothing is cut off: what is too long goes on in the next line."""
    narrow, wide = on_a_terminal(80, *args), on_a_terminal(300, *args)

    assert max(map(len, narrow)) <= 80
    assert len(narrow) > len(wide)
    # One title is shorter where there is little room.
    words = {word for line in wide for word in line.split()} - {"LEVEL"}
    assert words <= {word for line in narrow for word in line.split()}


def test_a_policy_is_shown_whole(command: Command) -> None:
    """Paper, formula, needs, what without, whom it preempts, who starves, trusts, parameters."""
    said = command("ctl", "policies", "show", "srtf").stdout
    facts = dict(re.findall(r"^([A-Z][A-Za-z ]*): +(.*)$", said, re.MULTILINE))
    about = registry.find("srtf").about

    assert said.startswith("srtf: Shortest remaining time first.\n")
    assert facts["Formula"] == about.formula
    assert facts["Needs"] == "left_s (how long each job will still run)"
    assert facts["Without it"] == about.fallback
    assert facts["Preempts"] == "any job ranking below"
    assert facts["Starves"] == about.starves
    assert facts["Trusts"] == "nothing that jobs say of themselves"
    assert facts["Runs"] == "on Slurm and in dlsim"
    assert facts["Row"] == "G2"
    assert "No parameters." in said
    las = command("ctl", "policies", "show", "discrete_las").stdout
    assert "\n  thresholds_gpu_s (default [3250, 7200, 18000], GPU-seconds): Service at" in las
    assert "blocks all jobs behind it" in command("ctl", "policies", "show", "fifo").stdout
    one = json.loads(command("ctl", "policies", "show", "fifo", "--json").stdout)
    assert one == next(p for p in listed(command) if p["name"] == "fifo")


@pytest.mark.parametrize(
    ("listed", "name", "begins"),
    [
        ("policies", "gitins", "dlctl: no policy 'gitins'; did you mean gittins"),
        ("policies", "ni\x1b[2Jx", "dlctl: no policy 'ni[2Jx'; there are afs, "),
        ("placements", "ni\x1b[2Jx", "dlctl: no scheme or rule 'ni[2Jx'; there are best_fit, "),
    ],
)
def test_a_name_that_is_not_there(command: Command, listed: str, name: str, begins: str) -> None:
    """One line with the nearest names, or with all of them."""
    said = command("ctl", listed, "show", name)

    assert said.returncode == 2
    assert said.stderr.startswith(begins)
    assert len(said.stderr.splitlines()) == 1
    assert "\x1b" not in said.stderr


def test_shells_complete_names(command: Command) -> None:
    """After 'show' a shell offers those that begin so."""
    env = {
        "_DLCTL_COMPLETE": "bash_complete",
        "COMP_WORDS": "dlctl policies show fif",
        "COMP_CWORD": "3",
    }

    assert command("ctl", env=env).stdout.split() == ["plain,fifo", "plain,fifo_skip"]


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """An environment with a distribution of a site that has a good policy and a broken one."""
    (tmp_path / "site_mix.py").write_text(
        "from dataclasses import dataclass\n"
        "from slurm_dl.policies.fifo import Fifo\n"
        "@dataclass(frozen=True, slots=True, kw_only=True)\n"
        "class Mine(Fifo):\n"
        '    """Ours\\x1b[2J.\n\n    Attributes:\n        pace_frac: Speed.\n    """\n'
        '    name = "mine"\n'
        "    pace_frac: float\n",
        "utf-8",
    )
    info = tmp_path / "site_mix-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: site-mix\nVersion: 1\n", "utf-8")
    (info / "entry_points.txt").write_text(
        "[slurm_dl.policies]\nmine = site_mix:Mine\nodd = site_mix:Absent\n", "utf-8"
    )
    return {"PYTHONPATH": str(tmp_path)}


def test_policies_of_a_site_are_among_them(command: Command, installed: dict[str, str]) -> None:
    """One that works is like ours; one that cannot be loaded says why, and hides no other."""
    found = {p["name"]: p for p in listed(command, env=installed)}
    table = command("ctl", "policies", env=installed)
    shown = command("ctl", "policies", "show", "mine", env=installed).stdout
    odd = command("ctl", "policies", "show", "odd", env=installed)

    assert found.keys() >= {"mine", "odd", *registry.POLICIES}
    assert found["mine"]["module"] == "site_mix"
    assert found["mine"]["tiers"] is None
    assert found["mine"]["parameters"] == [
        {
            "name": "pace_frac",
            "meaning": "Speed.",
            "default": None,
            "required": True,
            "unit": "share",
        }
    ]
    assert "site_mix:Absent cannot be loaded" in found["odd"]["error"]
    assert found["odd"]["parameters"] == []
    assert re.search(r"^odd +- +- +- +- +cannot be used: ", table.stdout, re.MULTILINE)
    assert shown.startswith("mine: Ours[2J.\n")
    assert "\n  pace_frac (required, share): Speed.\n" in shown
    assert "odd cannot be used: " in odd.stdout
    assert "\x1b" not in table.stdout + shown
