"""Who else could write to a path, or replace it: every directory above it, and those of links."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm_dl.files import why_not_trusted

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for other users' files")

OWNER, STRANGER = 12345, 65534


@pytest.mark.parametrize(
    ("changed", "uid", "mode", "asked", "trusted"),
    [
        pytest.param("a/b/c", 0, 0o755, "a/b/c", True, id="root's"),
        pytest.param("a/b/c", OWNER, 0o700, "a/b/c", True, id="the owner's"),
        pytest.param("a/b/c", STRANGER, 0o755, "a/b/c", False, id="a stranger's"),
        pytest.param("a/b/c", OWNER, 0o770, "a/b/c", False, id="a group writes"),
        pytest.param("a/b/c", OWNER, 0o1777, "a/b/c", False, id="sticky, but in it all write"),
        pytest.param("a/b", STRANGER, 0o755, "a/b/c", False, id="a stranger's above it"),
        pytest.param("a", 0, 0o757, "a/b/c", False, id="far above it all write"),
        pytest.param("a", 0, 0o1777, "a/b/c", True, id="far above it the sticky bit"),
        pytest.param("a", STRANGER, 0o1777, "a/b/c", False, id="a stranger's with the sticky bit"),
        pytest.param("a", 0, 0o757, "link/c", False, id="above the target of a link all write"),
        pytest.param("link", STRANGER, None, "link/c", False, id="a stranger's link"),
        pytest.param("link", OWNER, None, "link/c", True, id="the owner's link"),
        pytest.param("links", 0, 0o757, "links/link/c", False, id="beside a link all write"),
        pytest.param("a/b", STRANGER, 0o755, "a/b/none", False, id="missing, below a stranger's"),
        pytest.param("a/b", 0, 0o755, "a/b/none/x", True, id="missing"),
    ],
)
def test_who_else_could_write(
    tmp_path: Path, changed: str, uid: int, mode: int | None, asked: str, *, trusted: bool
) -> None:
    """It names the place."""
    (tmp_path / "a" / "b" / "c").mkdir(parents=True)
    (tmp_path / "links").mkdir()
    for link in ("link", "links/link"):
        (tmp_path / link).symlink_to(tmp_path / "a" / "b")
    os.chown(tmp_path / changed, uid, 0, follow_symlinks=False)
    if mode is not None:
        (tmp_path / changed).chmod(mode)

    why = why_not_trusted(tmp_path / asked, {OWNER})
    assert (why == "") == trusted
    assert trusted or str(tmp_path / changed) in why
