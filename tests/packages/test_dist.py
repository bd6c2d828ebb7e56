"""Wheel and source distribution: of tracked files alone, and equal wherever they are built."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import shown
import sources

pytestmark = pytest.mark.full("builds packages with pip")

ROOT = Path(__file__).parents[2]
COMMITTED_S = 1_700_000_002
"""Even, as the times in a zip file are."""
TRIES = 3
"""Builds take hatchling from an index, which may be away for a moment."""
STRAY = (
    *("slurm_dl/notes_of_mine.py", "slurm_dl/policies/old.py.orig", "templates/site.sbatch.j2"),
    *("etc/site.yaml", "docs/todo.md", "tests/unit/test_scratch.py", "profiles/models/mine.yaml"),
    *("slurm-17.out", "docs/ledger.sqlite", "core"),
)
"""What a checkout may hold besides: where packages take files from, ignored by git and not."""

pytestmark = pytest.mark.skipif(
    not (ROOT / ".git").exists(), reason="git has to say which files are tracked"
)


def git(tree: Path, *words: str) -> str:
    """What git prints in *tree*, with nothing of this account's settings."""
    env = {
        "PATH": os.environ["PATH"],
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_SYSTEM": os.devnull,
        # The checkout may be somebody else's.
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "safe.directory",
        "GIT_CONFIG_VALUE_0": "*",
        **{f"GIT_{who}_NAME": "a" for who in ("AUTHOR", "COMMITTER")},
        **{f"GIT_{who}_EMAIL": "a@localhost" for who in ("AUTHOR", "COMMITTER")},
        **{f"GIT_{who}_DATE": f"{COMMITTED_S} +0000" for who in ("AUTHOR", "COMMITTER")},
    }
    done = subprocess.run(
        ["git", "-C", tree, *words],  # noqa: S607 - on PATH
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def python(*argv: object, env: dict[str, str] | None = None, umask: int = 0o022) -> str:
    """What a script prints, with no time set from outside; again if the index was away."""
    plain = {key: text for key, text in os.environ.items() if key != "SOURCE_DATE_EPOCH"}
    said = ""
    for _ in range(TRIES):
        try:
            done = subprocess.run(
                [sys.executable, *map(str, argv)],
                env={**plain, **(env or {})},
                umask=umask,
                capture_output=True,
                text=True,
                timeout=600,
                check=False,
            )
        except subprocess.TimeoutExpired as err:
            said = str(err)
            continue
        if done.returncode == 0:
            return done.stdout
        said = done.stderr
    pytest.fail(said[-4000:])


@dataclass(frozen=True)
class Built:
    """The wheels and the source distribution."""

    wheel: Path
    job: Path
    sdist: Path

    @property
    def names(self) -> set[str]:
        """Files of the source distribution, as they are named in the checkout."""
        with tarfile.open(self.sdist) as archive:
            return {member.name.partition("/")[2] for member in archive if not member.isdir()}


def built(tree: Path, out: Path, *, env: dict[str, str] | None = None, umask: int = 0o022) -> Built:
    """What the script of *tree* builds from it."""
    said = python(tree / "tools/packaging/dist.py", "--out", out, env=env, umask=umask)
    wheel, sdist, job = sorted(map(Path, said.splitlines()))
    assert (wheel.suffix, sdist.suffix, job.name[:12]) == (".whl", ".gz", "slurm_dl_job")
    assert sorted(out.iterdir()) == [wheel, sdist, job]
    return Built(wheel, job, sdist)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clean one with this one's files as they are now."""
    tree = tmp_path_factory.mktemp("one") / "tree"
    for name in git(ROOT, "ls-files", "-z").split("\0"):
        if name and (ROOT / name).exists():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name, follow_symlinks=False)
    git(tree, "init", "--quiet")
    git(tree, "add", "--force", "--all")
    git(tree, "commit", "--quiet", "--message=all")
    return tree


@pytest.fixture(scope="module")
def once(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """What is built from it."""
    return built(checkout, tmp_path_factory.mktemp("once"))


@pytest.mark.wheel
def test_the_source_distribution_is_what_git_tracks(checkout: Path, once: Built) -> None:
    """All of it, tests and examples too, with the description that indexes read."""
    tracked = set(git(checkout, "ls-files").splitlines())

    assert once.names == tracked | {"PKG-INFO"}
    for name in ("LICENSE", "README.md", "CHANGELOG.md", "docs/start/install.md", "Makefile"):
        assert name in once.names
    for top in ("tests/", "examples/", "docs/", "tools/", "slurm_dl/"):
        assert sum(name.startswith(top) for name in once.names) > 5, top


@pytest.mark.wheel
def test_the_times_are_those_of_the_commit(once: Built) -> None:
    """Not of the clock, and no constant of the tool's."""
    with tarfile.open(once.sdist) as archive:
        assert {member.mtime for member in archive} == {COMMITTED_S}
    with zipfile.ZipFile(once.wheel) as archive:
        assert {member.date_time for member in archive.infolist()} == {(2023, 11, 14, 22, 13, 22)}


@pytest.mark.wheel
def test_another_place_time_umask_and_stray_files_change_no_byte(
    checkout: Path, once: Built, tmp_path: Path
) -> None:
    """Two people build the same release and have the same files."""
    tree = shutil.copytree(checkout, tmp_path / "some" / "where" / "else", symlinks=True)
    for name in STRAY:
        (tree / name).write_text("mine = 1\n", "utf-8")
    for path in tree.rglob("*"):
        if ".git" not in path.relative_to(tree).parts and not path.is_symlink():
            path.chmod(path.stat().st_mode & 0o700)
            os.utime(path, (86_400, 86_400))
    elsewhere = {"TZ": "Pacific/Kiritimati", "LC_ALL": "C", "PYTHONHASHSEED": "7"}

    again = built(tree, tmp_path / "out", env=elsewhere, umask=0o077)

    assert set(STRAY) & again.names == set()
    assert again.sdist.read_bytes() == once.sdist.read_bytes()
    assert again.wheel.read_bytes() == once.wheel.read_bytes()
    assert again.job.read_bytes() == once.job.read_bytes()


@pytest.mark.wheel
def test_the_source_distribution_builds_what_the_tree_builds(once: Built, tmp_path: Path) -> None:
    """Unpacked, without git and without a time from outside: whoever packages it elsewhere."""
    with tarfile.open(once.sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (tree,) = tmp_path.iterdir()

    again = built(tree, tmp_path / "out")

    assert contents(again.wheel) == contents(once.wheel)
    assert again.wheel.read_bytes() == once.wheel.read_bytes()
    assert again.job.read_bytes() == once.job.read_bytes()
    assert again.sdist.read_bytes() == once.sdist.read_bytes()


def contents(wheel: Path) -> dict[str, int]:
    """Each file's checksum; a difference of these can be read, one of bytes cannot."""
    with zipfile.ZipFile(wheel) as archive:
        return {member.filename: member.CRC for member in archive.infolist()}


TYPED = sorted(
    {
        typed
        for page in shown.PAGES
        for typed in re.findall(
            r"^ *((?:\S*/)?(?:pip|pipx|apt-get) [^\n#]*\*\.(?:whl|deb)[^\n#]*)",
            page.read_text("utf-8"),
            re.MULTILINE,
        )
    }
)


@pytest.mark.parametrize("typed", TYPED)
def test_of_several_versions_the_documented_commands_take_the_last(
    typed: str, tmp_path: Path
) -> None:
    """One file, so that pip and apt are not asked for two versions of a package at once."""
    assert len(TYPED) == 6, "of pip, pipx and apt-get, here and in the upgrade and for jobs"
    (tmp_path / "dist").mkdir()
    for age, version in enumerate(("0.10.0", "0.9.0", "0.11.0rc1")):
        for name in ("slurm_dl-{}-py3.whl", "slurm_dl_job-{}-py3.whl", "slurm-dl_{}-1_amd64.deb"):
            for place in (tmp_path, tmp_path / "dist"):
                path = place / name.format(version)
                path.touch()
                os.utime(path, (1000 - age, 1000 - age))
    typed = re.sub(r"^(\S*/)?(pipx?|apt-get) ", r"printf '%s\\n' ", typed)

    said = subprocess.run(
        ["/bin/sh", "-c", typed], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout.splitlines()

    files = [word for word in said if word.endswith((".whl", ".deb"))]
    assert len(files) == 1
    assert "0.10.0" in files[0]
    assert (tmp_path / files[0]).exists()


def small_checkout(tree: Path, names: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with those files, which is taken for ours."""
    for name in names:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(name, "utf-8")
    git(tree, "init", "--quiet")
    git(tree, "add", "--all")
    git(tree, "commit", "--quiet", "--message=all")
    monkeypatch.setattr(sources, "ROOT", tree)
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    return tree


def test_what_is_left_out_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A module that somebody forgot to add would be missed later, on another host."""
    tree = small_checkout(tmp_path / "a", ["kept", "sub/changed", "gone"], monkeypatch)
    (tree / "sub/changed").write_text("new", "utf-8")
    (tree / "gone").unlink()
    (tree / "sub/forgotten\n.py").write_text("", "utf-8")

    made = sources.export(tmp_path / "b")

    found = {str(path.relative_to(made)) for path in made.rglob("*") if path.is_file()}
    assert found == {"kept", "sub/changed"}
    assert (made / "sub/changed").read_text("utf-8") == "new"
    said = "left out, since git does not track it: 'sub/forgotten\\n.py'\n"
    assert capsys.readouterr().err == said


def test_the_time_is_set_from_outside_or_the_commits_or_the_changelogs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this order."""
    tree = small_checkout(tmp_path / "a", ["CHANGELOG.md"], monkeypatch)
    os.utime(tree / "CHANGELOG.md", (1000, 1000))

    assert sources.epoch_s() == COMMITTED_S
    (tree / ".git").rename(tmp_path / "git")
    assert sources.epoch_s() == 1000
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "5000")
    assert sources.epoch_s() == 5000


def test_a_checkout_that_git_refuses_is_no_reason_to_guess(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All files, or the time of one, would not be what was asked for."""
    (tmp_path / ".git").write_text("gitdir: nowhere\n", "utf-8")
    monkeypatch.setattr(sources, "ROOT", tmp_path)
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)

    with pytest.raises(sources.BuildError, match="exit status 128"):
        sources.export(tmp_path / "b")
    with pytest.raises(sources.BuildError, match="exit status 128"):
        sources.epoch_s()
