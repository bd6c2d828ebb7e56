"""The contract, held against the Slurm of each release through each reader that works with it.

It runs as a program in a container of the release's image, in a private Slurm of its own: images
have no test runner, and this one needs nothing of the cluster of containers.
"""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from containers import CHECKOUT, RELEASES, Containers, docker
from contract.actions import ON_SLURM
from contract.filling import cases_of
from contract.on_slurm import ALL

from slurm_dl.slurm.releases import parse_release, series_of

pytestmark = [
    pytest.mark.docker,
    pytest.mark.full("needs containers of three releases"),
    pytest.mark.timeout(1800),
]

WITHIN_S = 900
RUN_IT = (
    "mkdir /tmp/suite && tar -C /tmp/suite -xf - && cd /tmp/suite &&"
    ' PYTHONPATH=/tmp/suite exec /opt/slurm_dl/bin/python -m contract.program "$@"'
)
HAS_PYSLURM = [r for r in RELEASES if series_of(parse_release(r)).pyslurm]
READERS = [(r, "cli") for r in RELEASES] + [(r, "pyslurm") for r in HAS_PYSLURM]


@dataclass(frozen=True)
class Judged:
    """What the program said in one image.

    Attributes:
        pyslurm: What became of pyslurm when the image was built.
        said: What it printed.
    """

    pyslurm: str
    said: dict[str, Any]

    def problems(self, reader: str, what: str) -> dict[str, list[str]]:
        """What is wrong with ``jobs`` or ``actions``, by name; skips where there is no reader."""
        if reader not in self.said["readers"]:
            pytest.skip(f"Slurm {self.said['release']} is read by the commands: {self.pyslurm}")
        problems: dict[str, list[str]] = self.said["readers"][reader][what]
        return problems


@pytest.fixture(scope="module")
def judging(engine: None, request: pytest.FixtureRequest) -> Iterator[dict[str, Future[Judged]]]:  # noqa: ARG001
    """What is said of each release that a test asks about; side by side, as they mostly wait."""
    asked = {
        item.callspec.params["release"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.path == request.path
    }
    names = {r: f"sdl-contract-{uuid.uuid4().hex[:12]}" for r in RELEASES if r in asked}
    with ThreadPoolExecutor(2) as crew:
        try:
            said = {}
            for release, name in names.items():
                # Builds keep the cores busy: one at a time, while what is built is judged.
                try:
                    image, pyslurm = built(release)
                except Exception as err:  # noqa: BLE001 - the tests of this release have it
                    said[release] = Future[Judged]()
                    said[release].set_exception(err)
                else:
                    said[release] = crew.submit(judge, image, pyslurm, name)
            yield said
        finally:
            for name in names.values():
                remove(name)


@pytest.fixture
def judged(judging: dict[str, Future[Judged]], release: str) -> Judged:
    """What is said of *release*; it runs once."""
    return judging[release].result()


def built(release: str) -> tuple[str, str]:
    """The image of *release*, and what became of pyslurm in it."""
    cluster = Containers(release, "none")
    cluster.script("build", within_s=1500)
    image = cluster.image
    return image, docker("run", "--rm", "--entrypoint=cat", image, "/opt/pyslurm/status").strip()


def judge(image: str, pyslurm: str, name: str) -> Judged:
    """Run the program in *image*, in a container of that *name*."""
    readers = ["cli", *(["pyslurm"] if pyslurm.startswith("built") else [])]
    as_what = ["--rm", "--init", "--interactive", f"--name={name}", "--entrypoint=sh"]
    try:
        done = subprocess.run(
            ["docker", "run", *as_what, image, "-c", RUN_IT, "sh", *readers],  # noqa: S607
            input=suite(),
            capture_output=True,
            timeout=WITHIN_S,
            check=False,
        )
    finally:
        remove(name)
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-3000:]
    return Judged(pyslurm=pyslurm, said=json.loads(done.stdout))


def remove(name: str) -> None:
    """Remove a container; gone already, unless it was given up."""
    subprocess.run(["docker", "rm", "--force", name], capture_output=True, check=False)  # noqa: S607


def suite() -> bytes:
    """The modules of the contract, as an archive."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path in sorted(Path(CHECKOUT / "tests/contract").glob("*.py")):
            if not path.name.startswith("test_"):
                archive.add(path, arcname=f"contract/{path.name}")
    return packed.getvalue()


def each(names: dict[str, list[str]]) -> pytest.MarkDecorator:
    """One test for each release, reader and name; *names* by release."""
    return pytest.mark.parametrize(
        ("release", "reader", "name"),
        [
            pytest.param(release, reader, name, id=f"{release}-{reader}-{ascii(name)[1:25]}")
            for release, reader in READERS
            for name in names[release]
        ],
    )


@each({r: [ALL, *cases_of(parse_release(r))] for r in RELEASES})
def test_job(judged: Judged, reader: str, name: str) -> None:
    """Every job is reported as it was submitted, field by field, in one observation of them all."""
    assert judged.problems(reader, "jobs")[name] == []


@each({release: list(ON_SLURM) for release in RELEASES})
def test_action(judged: Judged, reader: str, name: str) -> None:
    """Each action does what it must, and is refused when it must be."""
    assert judged.problems(reader, "actions")[name] == []


@pytest.mark.parametrize("release", HAS_PYSLURM)
def test_both_readers_say_the_same(judged: Judged) -> None:
    """Of one queue, in every field of every job."""
    judged.problems("pyslurm", "jobs")

    assert judged.said["differences"]["pyslurm"] == []


@pytest.mark.parametrize("release", RELEASES)
def test_it_was_the_release(judged: Judged, release: str) -> None:
    """The image has the Slurm that it is named after; Debian's newest moves on by itself."""
    found = parse_release(judged.said["release"])
    wanted = parse_release(release)

    series = (found.major, found.minor)
    newest = release == RELEASES[-1]
    assert series == (wanted.major, wanted.minor) or (newest and found > wanted)
    if release not in HAS_PYSLURM:
        assert judged.pyslurm.startswith("not built: PyPI has no pyslurm")
