"""How lintian is asked, without it; over a package of ours it runs in tests/docker/test_deb.py."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import deb
import lintian
import pytest

pytestmark = [pytest.mark.full("builds the Debian package with pip"), pytest.mark.timeout(900)]

needs_dpkg = pytest.mark.skipif(not shutil.which("dpkg-deb"), reason="dpkg is not installed")
SAID = """\
N: masked by screen python/egg/metadata
M: slurm-dl: package-contains-documentation-outside-usr-share-doc [usr/lib/x]
I: slurm-dl: hardening-no-bindnow [usr/lib/x.so]
O: slurm-dl: unstripped-binary-or-object [usr/lib/x.so]
P: slurm-dl: image-file-in-usr-lib [usr/lib/x.png]
E: slurm-dl: no-copyright-file
W: slurm-dl: unusual-interpreter python [usr/lib/x.py]
I: slurm-dl: unused-override embedded-library * [usr/lib/*] [usr/share/lintian/overrides/x:3]
W: slurm-dl: mismatched-override wrong-path-for-interpreter /usr/bin/x
"""


def test_errors_warnings_and_needless_overrides_are_objections() -> None:
    """And nothing else: what is hidden or only told is not."""
    found = [line.split()[2] for line in lintian.complaints(SAID)]

    assert found == [
        "no-copyright-file",
        "unusual-interpreter",
        "unused-override",
        "mismatched-override",
    ]
    assert lintian.complaints("") == []


@pytest.mark.parametrize(("exit_status", "objections"), [(0, 1), (0, 0), (2, 0)])
def test_the_exit_status_says_whether_there_are_any(
    exit_status: int,
    objections: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A lintian that could not look has not found nothing."""
    line = "E: slurm-dl: no-copyright-file\n" * objections
    program = tmp_path / "lintian"
    program.write_text(f"#!/bin/sh\nprintf '%s' '{line}'\nexit {exit_status}\n", "utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    status = lintian.main(["some.deb"])

    assert status == int(bool(objections or exit_status))
    assert capsys.readouterr().out == line


def package(top: Path, version: str) -> Path:
    """A package with a wheel beside ours, and the overrides for both."""
    tree = top / "tree"
    inside = f"{deb.HOME}/lib/python3.11/site-packages"
    names = ("slurm_dl/__init__.py", "slurm_dl-1.dist-info/METADATA", "numpy/core.py", "six.py")
    for name in (*(f"{inside}/{name}" for name in names), "etc/slurm_dl/slurm_dl.yaml"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(f"{name}\n", "utf-8")
    (tree / deb.OVERRIDES).parent.mkdir(parents=True)
    text = f"{deb.overrides(version)}\n{deb.overrides_vendored()}"
    (tree / deb.OVERRIDES).write_text(text, "utf-8")
    deb.control(tree, version, "a <a@localhost>")
    return deb.pack(tree, top, 5000)


@needs_dpkg
def test_what_is_ours_is_a_package_without_the_wheels(tmp_path: Path) -> None:
    """With their overrides gone, as nothing needs them then."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()

    own = lintian.without_wheels(package(tmp_path / "a", "1.0-1"), tmp_path / "b")

    subprocess.run(["dpkg-deb", "-R", own, tmp_path / "c"], check=True)  # noqa: S607 - on PATH
    left = {str(p.relative_to(tmp_path / "c")) for p in (tmp_path / "c").rglob("*") if p.is_file()}
    inside = f"{deb.HOME}/lib/python3.11/site-packages"
    assert {name for name in left if not name.startswith("DEBIAN/")} == {
        f"{inside}/slurm_dl/__init__.py",
        f"{inside}/slurm_dl-1.dist-info/METADATA",
        "etc/slurm_dl/slurm_dl.yaml",
        deb.OVERRIDES,
    }
    sums = (tmp_path / "c/DEBIAN/md5sums").read_text("utf-8")
    assert {line.split()[1] for line in sums.splitlines()} <= left
    assert "DEBIAN" not in sums
    assert (tmp_path / "c" / deb.OVERRIDES).read_text("utf-8") == deb.overrides("1.0-1")


@needs_dpkg
def test_another_package_is_refused(tmp_path: Path) -> None:
    """It has no environment to take wheels out of."""
    (tmp_path / "tree/usr/bin").mkdir(parents=True)
    deb.control(tmp_path / "tree", "1.0-1", "a <a@localhost>")
    made = deb.pack(tmp_path / "tree", tmp_path, 5000)
    (tmp_path / "b").mkdir()

    with pytest.raises(deb.BuildError, match="no single site-packages"):
        lintian.without_wheels(made, tmp_path / "b")


def test_a_sites_own_revision_has_no_override_that_nothing_needs() -> None:
    """Of revision 1 alone lintian thinks that it is meant for Debian."""
    tag = "initial-upload-closes-no-bugs"

    assert tag in deb.overrides("1.0-1")
    assert tag not in deb.overrides("1.0-1site1")
    assert deb.overrides("1.0-1").startswith(deb.overrides("1.0-1site1"))
    for text in (deb.overrides("1.0-1"), deb.overrides_vendored()):
        lines = text.splitlines()
        assert all(line[:1] in {"", "#"} or line.startswith("slurm-dl: ") for line in lines)
        # Each has its reason above it.
        assert lines[0].startswith("#")
