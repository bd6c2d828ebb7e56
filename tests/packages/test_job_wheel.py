"""The wheel slurm_dl_job: what is in it, and the steps of the guide in an environment with it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path

import pytest
import pythons
import shown
from patience import PATIENCE
from resized import TWO, resizing_schedd, until_holds

from slurm_dl import __version__
from slurm_dl.sandbox import Sandbox

ROOT = Path(__file__).parents[2]
JOB = ROOT / "tools/packaging/job"
PAGE = ROOT / "docs/use/in-the-job.md"
MOST_BYTES = 200_000
MOST_IMPORT_S = 0.1
FOR_SCRIPTS = ("__init__", "__main__", "executor", "function_job", "pickled_call")
"""Of slurm_dl/submit: what `slurm_dl.submit` imports, and the command of its jobs."""

TRIES = 3
"""Builds take hatchling from an index, which may be away for a moment."""

pytestmark = [pytest.mark.wheel, pytest.mark.full("builds and installs a wheel")]


def output(*argv: object, cwd: Path, tries: int = 1) -> str:
    """Output of a command, in an environment without Python's variables."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "SLURM"))}
    for left in reversed(range(tries)):
        done = subprocess.run(
            [*map(str, argv)],
            env=kept,
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120 * PATIENCE,
            check=False,
        )
        if done.returncode == 0:
            break
        assert left, done.stdout
    return done.stdout


def built(project: Path, out: Path) -> Path:
    """The wheel of that project."""
    output(sys.executable, "-m", "build", "--wheel", "--outdir", out, project, cwd=out, tries=TRIES)
    (wheel,) = out.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of this checkout."""
    return built(JOB, tmp_path_factory.mktemp("job"))


def files(wheel: Path) -> dict[str, bytes]:
    """All in it but its description."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name]
        return {re.sub(r".*\.data/", "", name): archive.read(name) for name in names}


def description(wheel: Path) -> Message:
    """Its metadata."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        return HeaderParser().parsestr(archive.read(name).decode())


def test_it_is_small_pure_and_needs_nothing(wheel: Path) -> None:
    """Any Python from 3.8 on may install it."""
    told = description(wheel)

    assert wheel.name == f"slurm_dl_job-{__version__}-py3-none-any.whl"
    assert wheel.stat().st_size < MOST_BYTES
    assert (told["Name"], told["Version"]) == ("slurm-dl-job", __version__)
    assert (told["Requires-Python"], told["License-File"]) == (">=3.8", "LICENSE")
    assert [need for need in told.get_all("Requires-Dist") or () if "extra ==" not in need] == []


def test_its_files_are_those_of_the_checkout(wheel: Path) -> None:
    """All that runs in a job and nothing else; so beside slurm-dl each file has one content."""
    sources = [ROOT / "slurm_dl" / name for name in ("__init__.py", "py.typed", "job/README.md")]
    sources += (ROOT / "slurm_dl/job").rglob("*.py")
    sources += (ROOT / "slurm_dl/submit" / f"{name}.py" for name in FOR_SCRIPTS)

    expected = {str(path.relative_to(ROOT)): path.read_bytes() for path in sources}
    assert files(wheel) == {**expected, "scripts/dlrun": (ROOT / "bin/dlrun").read_bytes()}


def environment(directory: Path, python: Path, *wheels: Path) -> None:
    """One in ``env`` with the wheels; to put pip there too takes seconds."""
    output(python, "-m", "venv", "--without-pip", "env", cwd=directory)
    pip(directory, "install", *wheels)


def pip(directory: Path, command: str, *words: object) -> None:
    """Run pip of this Python on that environment, without an index."""
    more = ("--no-deps", "--no-index", "--no-compile") if command == "install" else ("--yes",)
    words = ("--python", "env/bin/python", command, *more, *words)
    output(sys.executable, "-m", "pip", *words, cwd=directory)


IMPORTS = """
import sys, time
before = set(sys.modules)
began_s = time.perf_counter()
import slurm_dl.job
print(time.perf_counter() - began_s, *{m.partition(".")[0] for m in set(sys.modules) - before})
"""
HEAVY = {
    "asyncio",
    "click",
    "multiprocessing",
    "numpy",
    "pydantic",
    "subprocess",
    "typing_extensions",
}


@pytest.mark.parametrize("version", pythons.VERSIONS)
def test_the_guide_from_the_installation_to_a_resumed_training(
    wheel: Path, tmp_path: Path, version: str
) -> None:
    """As typed, with that Python: the log is the one shown, and each step is done once."""
    guide = PAGE.read_text("utf-8").split("## From a loop", 1)[1].split("\n## ", 1)[0]
    page = tmp_path / "guide.md"
    page.write_text(guide)
    (_, install), (_, train), (_, run), (_, log) = shown.fences(page)
    (tmp_path / wheel.name).symlink_to(wheel)
    (tmp_path / "train.py").write_text(train)
    python = pythons.python(version)

    if version == pythons.VERSIONS[0]:
        install = install.replace("python3 -m", f"{python} -m")
        output("/bin/bash", "-ec", install, cwd=tmp_path)
    else:
        environment(tmp_path, python, wheel)
    told = output("/bin/bash", "-c", f"{run.rstrip()}\nexit $(($? - 124))", cwd=tmp_path)

    lines = [re.sub(r"\d{4}-\S+ ", "", line) for line in told.splitlines()]
    shapes = [re.sub(r"\S*/checkpoint-0 at step \d+", "", line) for line in lines]
    at = [shapes.index(re.sub(r"\S*/check\S* at step \d+", "", x)) for x in log.splitlines()]
    assert at == sorted(at), told
    output(
        "env/bin/python", "-c", "from slurm_dl.submit import Executor as E; E('x')", cwd=tmp_path
    )
    seconds, *modules = output("env/bin/python", "-c", IMPORTS, cwd=tmp_path).split()
    assert HEAVY & {*modules} == set()
    assert float(seconds) < MOST_IMPORT_S * PATIENCE


def test_beside_slurm_dl_either_is_mended_after_the_other_is_gone(
    wheel: Path, tmp_path: Path
) -> None:
    """In one environment they share files: to uninstall one takes them from the other."""
    (tmp_path / "whole").mkdir()
    whole = built(ROOT, tmp_path / "whole")
    environment(tmp_path, Path(sys.executable), whole, wheel)

    def works(path: str) -> bool:
        code = f"import importlib.util as u, sys; sys.exit(u.find_spec('{path}') is None)"
        done = subprocess.run([tmp_path / "env/bin/python", "-Ic", code], check=False)
        return done.returncode == 0

    assert works("slurm_dl.job.run")
    assert works("slurm_dl.engine")
    assert "hi" in output("env/bin/dlrun", "--", "echo", "hi", cwd=tmp_path)
    pip(tmp_path, "uninstall", "slurm-dl-job")
    assert not works("slurm_dl.job.run")
    assert works("slurm_dl.engine")
    pip(tmp_path, "install", "--force-reinstall", whole)
    assert works("slurm_dl.job.run")
    assert "hi" in output("env/bin/dlrun", "--", "echo", "hi", cwd=tmp_path)


RESIZED = """
import json, os, sys, time
from pathlib import Path
from slurm_dl import job

done = []
steps = range(100_000)
for step in job.loop(steps, save=lambda p: p.write_text(json.dumps(done)),
                     load=lambda p: done.extend(json.loads(p.read_text()))):
    time.sleep(0.2)
    done.append([step, os.environ["SLURM_GPUS_ON_NODE"], sys.version_info[:2], job.__file__])
    if Path(sys.argv[1]).exists():
        break
Path(sys.argv[1]).write_text(json.dumps(done))
"""


@pytest.mark.slurm
@pytest.mark.parametrize("version", ["3.8", "3.12"])
def test_a_job_with_that_python_changes_size(
    wheel: Path, make_sandbox: Callable[..., Sandbox], short_directory: Path, version: str
) -> None:
    """Nothing but the wheel in its environment, dlrun too: 1 GPU, then 2, and each step once."""
    environment(short_directory, pythons.python(version), wheel)
    script, over, free = (short_directory / name for name in ("train.py", "over", "free"))
    script.write_text(RESIZED)
    ours = short_directory / "env/bin"
    with resizing_schedd(make_sandbox(TWO), short_directory) as place:
        for gpus, until in ((2, over), (1, free)):
            place.until_state(place.toy(gpus, 1, "--until", str(until)), "RUNNING")
        options = ["--sizes", "1,2", "--time", "60", f"--dlrun={ours / 'dlrun'}"]
        job = place.submit(1, str(ours / "python"), str(script), str(over), options=options)
        until_holds(place, job, 1, 1)
        free.touch()
        until_holds(place, job, 1, 2)
        record = short_directory / "slurm_dl_runs" / job / "slurm_dl.progress.json"
        place.until(
            "its second run to train", lambda: json.loads(record.read_text())["restart"] == 1
        )
        over.touch()
        place.until_state(job, "COMPLETED")
        assert len(place.audit(action="reshape", job=int(job), result="ok")) == 1

    told = json.loads(over.read_text())
    assert [step for step, *_ in told] == list(range(len(told)))
    gpus_seen = [gpus for _, gpus, *_ in told]
    assert gpus_seen == sorted(gpus_seen)
    assert set(gpus_seen) == {"1", "2"}
    assert {".".join(map(str, v)) for *_, v, _ in told} == {version}
    assert {Path(f).is_relative_to(short_directory) for *_, f in told} == {True}
