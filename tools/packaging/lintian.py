"""See what lintian says of the Debian package: ``python tools/packaging/lintian.py PACKAGE.deb``.

Errors, warnings and overrides that nothing needs are failures. Over the whole package it takes
minutes, nearly all of them for the wheels inside; `without_wheels` makes one of what is ours alone.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import deb
from sources import BuildError, epoch_s, run

OPTIONS = ("--tag-display-limit", "0", "--display-info", "--allow-root", "--fail-on", "none")
"""Nothing is left out, and every override is told that nothing needs (for lintian an "info")."""
_BAD = ("E: ", "W: ")
_BAD_TAGS = ("unused-override", "mismatched-override", "malformed-override")


def complaints(said: str) -> list[str]:
    """The lines of lintian's output that a package must not have."""
    return [
        line
        for line in said.splitlines()
        if line.startswith(_BAD) or line.split()[2:3] in [[tag] for tag in _BAD_TAGS]
    ]


def without_wheels(package: Path, scratch: Path) -> Path:
    """*package* with slurm_dl alone in its environment, and the overrides that this leaves.

    Args:
        scratch: A directory that is there; the package lies in it afterwards.

    Raises:
        BuildError: It is no package of ours.
    """
    tree = scratch / "tree"
    run("dpkg-deb", "-x", package, tree)
    places = list((tree / deb.HOME).glob("lib/python3*/site-packages"))
    if len(places) != 1:
        msg = f"{package}: no single site-packages below {deb.HOME}"
        raise BuildError(msg)
    for path in sorted(places[0].iterdir()):
        if not path.name.startswith("slurm_dl"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    version, maintainer = (
        run("dpkg-deb", "--field", package, field).strip() for field in ("Version", "Maintainer")
    )
    (tree / deb.OVERRIDES).write_text(deb.overrides(version), "utf-8")
    deb.control(tree, version, maintainer)
    return deb.pack(tree, scratch, epoch_s())


def main(argv: Sequence[str]) -> int:
    """Print what it objects to; 1 if there is any."""
    parser = argparse.ArgumentParser(
        prog="tools/packaging/lintian.py",
        description="Fail if lintian objects to a package, or if an override is not needed.",
        epilog="Example: python tools/packaging/lintian.py dist/slurm-dl_0.1.0-1_amd64.deb",
    )
    parser.add_argument("package", type=Path)
    try:
        said = run("lintian", *OPTIONS, parser.parse_args(argv).package)
    except BuildError as err:
        print(f"tools/packaging/lintian.py: {err}", file=sys.stderr)
        return 1
    bad = complaints(said)
    print(*bad, sep="\n", end="\n" * bool(bad))
    print(f"{len(bad)} objections, {len(said.splitlines())} lines", file=sys.stderr)
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
