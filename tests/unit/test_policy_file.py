"""``FILE.py:CLASS`` in place of a policy's name: what is found and refused, and who runs it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pydantic import ValidationError
from third_party import EXAMPLE, ROOT

from slurm_dl.config.parameters import POLICY
from slurm_dl.config.tree import PolicySection
from slurm_dl.experiments import comparison, grid
from slurm_dl.experiments.array_job import Folder
from slurm_dl.experiments.grid import Experiment, Workload
from slurm_dl.experiments.policy_words import parse_policies
from slurm_dl.model.errors import ConfigError
from slurm_dl.policies import policy_file, registry

SOURCE = (EXAMPLE / "small_first.py").read_text("utf-8")
DEEP = "def f():\n    return 1 / 0\n\nf()\n"


@pytest.mark.parametrize(
    ("word", "name", "preset"),
    [
        ("fifo", "fifo", None),
        ("fifo:lucid", "fifo", "lucid"),
        ("fifo:", "fifo", ""),
        ("a.py:B", "a.py:B", None),
        ("../a b/a.py:B:lucid", "../a b/a.py:B", "lucid"),
        ("a.py", "a.py", None),
        ("./a:B", "./a:B", None),
    ],
)
def test_a_preset_follows_a_file_as_it_follows_a_name(
    word: str, name: str, preset: str | None
) -> None:
    """``NAME[:PRESET]``, where the name may have a colon of its own."""
    assert policy_file.split(word) == (name, preset)


def test_the_class_is_the_same_until_the_file_changes(tmp_path: Path) -> None:
    """And no compiled file is left beside it."""
    path = tmp_path / "mine.py"
    path.write_text(SOURCE, "utf-8")
    name = f"{path}:SmallFirst"

    first = registry.find(name)
    assert registry.find(name) is first
    assert POLICY.check(name) == name
    path.write_text(SOURCE.replace("small_gpus: int = 2", "small_gpus: int = 3"), "utf-8")
    assert [kind().small_gpus for kind in (first, registry.find(name))] == [2, 3]  # type: ignore[attr-defined]
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize(
    ("file", "text", "kind", "said"),
    [
        ("no.py", None, "Mine", "No such file"),
        ("dir.py", "", "Mine", "Is a directory"),
        ("mine.py", SOURCE, "SmalFirst", "no class SmalFirst; the nearest is SmallFirst"),
        ("mine.py", SOURCE, "np", "no class np"),
        ("mine.py", "\nimport nowhere_x\n", "A", "line 2: ModuleNotFoundError: No module named"),
        ("mine.py", "x = 1\ndef (:\n", "A", "line 2: SyntaxError"),
        ("mine.py", DEEP, "A", "line 2: ZeroDivisionError"),
        ("mine.py", "raise SystemExit('a\\nb')\n", "A", "line 1: SystemExit: a b"),
        ("mine.py", "class A: pass\n", "A", "it is not a dataclass"),
        ("mine.py", SOURCE.replace("skips:", "skip:"), "SmallFirst", "it lacks skips"),
        ("mine.py", SOURCE.replace("    name:", "    nam:"), "SmallFirst", "it lacks name"),
        ("mine.py", SOURCE, "", "must be FILE.py:CLASS"),
        ("mine", SOURCE, "SmallFirst", "must be FILE.py:CLASS"),
        ("a,b.py", SOURCE, "SmallFirst", "comma"),
        ("a:b.py", SOURCE, "SmallFirst", "no comma or colon"),
    ],
)
def test_what_is_wrong_is_said_on_one_line(
    file: str, text: str | None, kind: str, said: str, tmp_path: Path
) -> None:
    """In the simulator and in the configuration alike."""
    path = tmp_path / file
    if text == "":
        path.mkdir()
    elif text is not None:
        path.write_text(text, "utf-8")

    for ask in (lambda name: parse_policies(f"fifo,{name}", {}), POLICY.usable):
        if ask is POLICY.usable and file == "a,b.py":
            said = "no comma or colon"
        with pytest.raises(ConfigError) as refused:
            ask(f"{path}:{kind}")
        assert said in str(refused.value)
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("mode", "folder_mode", "owner", "said"),
    [
        (0o644, 0o755, None, ""),
        (0o664, 0o755, None, "can be written by group or others"),
        (0o644, 0o777, None, "others"),
        (0o644, 0o755, 4321, "belongs to uid 4321"),
        (0o644, 0o755, "relative", "must be absolute"),
    ],
)
def test_the_daemon_runs_no_file_that_others_can_write(
    mode: int, folder_mode: int, owner: int | str | None, said: str, tmp_path: Path
) -> None:
    """It is judged as its configuration is, before a line of it runs."""
    folder = tmp_path / "policies"
    folder.mkdir()
    path, ran = folder / "mine.py", tmp_path / "ran"
    path.write_text(f"{SOURCE}\nopen({str(ran)!r}, 'w').close()\n", "utf-8")
    path.chmod(mode)
    folder.chmod(folder_mode)
    if isinstance(owner, int):
        if os.geteuid():
            pytest.skip("needs root to give a file away")
        os.chown(path, owner, -1)
    shown = os.path.relpath(path) if owner == "relative" else path

    if said:
        with pytest.raises(ValidationError) as refused:
            PolicySection.model_validate({"order": f"{shown}:SmallFirst"})
        assert said in str(refused.value)
    else:
        section = PolicySection.model_validate(
            {"order": f"{shown}:SmallFirst", "parameters": {"small_gpus": 4}}
        )
        assert section.make().small_gpus == 4  # type: ignore[attr-defined]
    assert ran.exists() is not bool(said)


def test_an_array_runs_a_copy_of_the_file(tmp_path: Path) -> None:
    """Nobody changes it meanwhile; labels and cells are as they were."""
    path = tmp_path / "mine.py"
    path.write_text(SOURCE, "utf-8")
    specs = parse_policies(f"{path}:SmallFirst,slurm", {})
    trace = ROOT / "traces" / "tiresias" / "60_job.csv"
    experiment = Experiment(workloads={"": Workload(cluster="4x4", file=trace)})
    cells = grid.product(specs, costs=("none", "slurm"))
    cells, refused = comparison.planned(experiment, cells, lenient=False)

    folder = Folder.create(tmp_path / "folder", experiment, cells, refused)
    path.write_text("raise ValueError\n", "utf-8")
    failed = [line for task in range(folder.tasks) for line in folder.run_task(task)]

    assert failed == []
    assert [str(cell) for cell in folder.cells] == [
        "costs none, mine.py:SmallFirst, load 1, resample 0",
        "costs slurm, mine.py:SmallFirst, load 1, resample 0",
        "costs slurm, slurm, load 1, resample 0",
    ]
    assert {f["jobs"] for f in folder.gathered().values()} == {60}
    assert [*refused] == [("slurm", "none")]
