"""Build the Debian package: ``python tools/packaging/deb.py`` (or ``make deb``); into ``dist/``.

slurm_dl and all that it needs from PyPI go into a virtual environment of their own under
``/usr/lib/slurm-dl``; see docs/adr/0019-debian-package.md for why. Equal sources, vendored versions
and SOURCE_DATE_EPOCH give an equal package, byte by byte.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import hashlib
import os
import re
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from email.parser import HeaderParser
from email.utils import format_datetime
from pathlib import Path

from sources import ROOT, BuildError, dated, epoch_s, export, run

PARTS = ROOT / "tools" / "packaging" / "deb"
HOME = "usr/lib/slurm-dl"
SYSTEM_PYTHON = "/usr/bin/python3"
EXTRAS = ("metrics", "watch")
"""Optional parts that every installation gets; the others are named in docs/start/install.md."""
SITE = "/usr/local/lib/slurm-dl/python{}"
"""Where a site puts policies of its own, by Python's version."""
CONFFILES = {"etc/slurm_dl.yaml": "etc/slurm_dl/slurm_dl.yaml"}
SCRIPTS = ("postinst", "prerm", "postrm")
SAMPLES = "matplotlib/mpl-data/sample_data"
"""Nobody here plots them, and one of them has a time inside that lintian may object to."""
OVERRIDES = "usr/share/lintian/overrides/slurm-dl"
PAGES = ("README.md", "CHANGELOG.md")
MAINTAINER = "slurm_dl authors <slurm_dl@example.org>"
"""The project has no address. Debian wants one that could be; this is nobody's (RFC 2606)."""
_UNIT_PROGRAM = "ExecStart=/opt/slurm_dl/bin/dlschedd\n"


def version_of(wheel: Path) -> str:
    """The wheel's version in Debian's words: ``1.0rc1`` comes before ``1.0`` as ``1.0~rc1``."""
    return re.sub(r"\.?(a|b|rc|dev)(?=\d)", r"~\1", wheel.name.split("-")[1])


def python_series(python: str = SYSTEM_PYTHON) -> tuple[int, int]:
    """Major and minor version of *python*.

    Raises:
        BuildError: It cannot be run, or is too old.
    """
    text = run(python, "-I", "-c", "import sys; print(*sys.version_info[:2])")
    major, minor = map(int, text.split())
    if (major, minor) < (3, 11):
        msg = f"{python} is {major}.{minor}; slurm_dl needs 3.11 or later (Debian 12)"
        raise BuildError(msg)
    return major, minor


def vendor(tree: Path, wheel: Path, constraint: Path | None) -> list[tuple[str, str, str]]:
    """Put *wheel* and what it needs into *tree*; name, version and licence of each of the latter.

    Raises:
        BuildError: Something cannot be had as a wheel.
    """
    series = ".".join(map(str, python_series()))
    packages = tree / HOME / f"lib/python{series}/site-packages"
    extras = f"[{','.join(EXTRAS)}]"
    run(
        *(sys.executable, "-m", "pip", "install", "--quiet", "--no-compile"),
        *("--python-version", series, "--only-binary=:all:", "--target", packages),
        *(("--constraint", constraint) if constraint else ()),
        f"{wheel}{extras}",
    )
    shutil.rmtree(packages / "bin", ignore_errors=True)
    # Tests and examples of theirs, and what pip wrote about where it took them from.
    for path in sorted([*packages.glob("**/tests"), packages / SAMPLES]):
        if path.is_dir() and path.relative_to(packages).parts[0] != "slurm_dl":
            shutil.rmtree(path, ignore_errors=True)
    for pattern in ("*.dist-info/direct_url.json", "*.dist-info/REQUESTED"):
        for path in packages.glob(pattern):
            path.unlink()
    for record in packages.glob("*.dist-info/RECORD"):
        # Without the files that are gone; the hash of one tells where the wheel was built.
        with record.open(encoding="utf-8", newline="") as file:
            rows = [row for row in csv.reader(file) if (packages / row[0]).is_file()]
        with record.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)
    (packages / "site-own.pth").write_text(SITE.format(series) + "\n", "utf-8")
    return sorted(_vendored(packages))


def _vendored(packages: Path) -> Iterator[tuple[str, str, str]]:
    for path in packages.glob("*.dist-info/METADATA"):
        told = HeaderParser().parsestr(path.read_text("utf-8", "replace"))
        if told["Name"] == "slurm-dl":
            continue
        licence = told["License-Expression"] or next(
            (c.rpartition(":: ")[2] for c in told.get_all("Classifier", []) if "License ::" in c),
            (told["License"] or "see its directory").splitlines()[0],
        )
        yield told["Name"], told["Version"], licence


def compile_all(tree: Path) -> None:
    """Write the bytecode of every module, trusted without a look at its source.

    Users cannot write it, and without it each command would compile matplotlib anew.
    """
    home = tree / HOME
    run(
        *(SYSTEM_PYTHON, "-I", "-m", "compileall", "-q", "-j1"),
        *("--invalidation-mode", "unchecked-hash", "-s", tree, "-p", "/", home / "lib"),
        env={"PATH": os.environ["PATH"], "PYTHONHASHSEED": "0"},
    )


def environment(tree: Path, wheel: Path) -> list[str]:
    """Make a virtual environment of it, with the commands of *wheel*; their names."""
    home, series = tree / HOME, ".".join(map(str, python_series()))
    bin_dir = home / "bin"
    bin_dir.mkdir()
    (bin_dir / "python3").symlink_to(f"../../../bin/python{series}")
    (bin_dir / "python").symlink_to("python3")
    (home / "pyvenv.cfg").write_text(
        f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {series}\n", "utf-8"
    )
    (tree / "usr/bin").mkdir(parents=True)
    with zipfile.ZipFile(wheel) as archive:
        scripts = {
            Path(name).name: archive.read(name)
            for name in sorted(archive.namelist())
            if Path(name).parent.match("*.data/scripts")
        }
    for command, script in scripts.items():
        (bin_dir / command).write_bytes(script)
        (bin_dir / command).chmod(0o755)
        (tree / "usr/bin" / command).symlink_to(f"../lib/slurm-dl/bin/{command}")
    share = tree / "usr/share/slurm-dl/python"
    share.mkdir(parents=True)
    packages = f"lib/slurm-dl/lib/python{series}/site-packages"
    (share / "slurm_dl").symlink_to(f"../../../{packages}/slurm_dl")
    return list(scripts)


def unit() -> str:
    """The unit for the package's place of dlschedd.

    Raises:
        BuildError: The unit of the checkout starts something else.
    """
    text = (ROOT / "etc/systemd/dlschedd.service").read_text("utf-8")
    head, unit_mark, body = text.partition("[Unit]\n")
    if not unit_mark or body.count(_UNIT_PROGRAM) != 1:
        msg = f"etc/systemd/dlschedd.service has no single line {_UNIT_PROGRAM!r}"
        raise BuildError(msg)
    said = head.splitlines()[0]
    return f"{said}\n# To change it: systemctl edit dlschedd\n\n[Unit]\n" + body.replace(
        _UNIT_PROGRAM, "ExecStart=/usr/bin/dlschedd\n"
    ).replace("Documentation=man:slurmctld(8)", "Documentation=man:dlschedd(8) man:slurmctld(8)")


def system_files(
    tree: Path, sources: Path, now_s: int, vendored: Sequence[tuple[str, str, str]]
) -> None:
    """Unit, account, configuration, manual pages, completion and the documents in *sources*."""
    texts = {
        "usr/lib/systemd/system/dlschedd.service": unit(),
        "usr/lib/sysusers.d/slurm_dl.conf": _of("etc/sysusers.d/slurm_dl.conf"),
        "etc/logrotate.d/slurm_dl": _of("etc/logrotate.d/slurm_dl"),
        **{target: _of(source) for source, target in CONFFILES.items()},
    }
    for name, text in texts.items():
        _write(tree / name, text.encode())
    _generate(tree, now_s)
    doc = tree / "usr/share/doc/slurm-dl"
    for page in (sources / name for name in PAGES):
        if page.name == "CHANGELOG.md":
            _write(doc / "changelog.gz", _gzip(page.read_text("utf-8")))
        else:
            _write(doc / page.name, page.read_bytes())
    for page in sorted((sources / "docs").rglob("*.md")):
        _write(doc / page.relative_to(sources), page.read_bytes())
    listed = "\n".join(f"  {name} {version}: {what}" for name, version, what in vendored)
    copyright_in = (PARTS / "copyright.in").read_text("utf-8")
    _write(doc / "copyright", copyright_in.replace("@VENDORED@", listed).encode())
    pins = "".join(f"{name}=={version}\n" for name, version, _ in vendored)
    _write(doc / "vendored.txt", pins.encode())


def overrides(version: str) -> str:
    """What lintian is not to say of our own part of the package with that version."""
    names = ["lintian-overrides"] + ["lintian-overrides.first"] * version.endswith("-1")
    return "\n".join((PARTS / name).read_text("utf-8") for name in names)


def overrides_vendored() -> str:
    """What lintian is not to say of the wheels inside."""
    return (PARTS / "lintian-overrides.vendored").read_text("utf-8")


def _generate(tree: Path, now_s: int) -> None:
    """Manual pages and completion, by the commands that are in the package."""
    here = ROOT / "tools" / "packaging"
    (packages,) = (tree / HOME).glob("lib/python*/site-packages")
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(packages), "LC_ALL": "C.UTF-8"}
    manual = tree / "usr/share/man"
    python = (SYSTEM_PYTHON, "-B")
    run(*python, here / "completion.py", tree, env=env)
    run(*python, here / "man.py", manual, f"--epoch={now_s}", env=env)
    for path in sorted(manual.glob("man*/*")):
        _write(path.with_name(f"{path.name}.gz"), _gzip(path.read_text("utf-8")))
        path.unlink()


def _of(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def _gzip(text: str) -> bytes:
    return gzip.compress(text.encode(), mtime=0)


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def history(version: str, maintainer: str, now_s: int) -> str:
    """The package's own changelog, in Debian's form; the program's is beside it."""
    when = format_datetime(datetime.fromtimestamp(now_s, UTC))
    return (
        f"slurm-dl ({version}) unstable; urgency=medium\n\n"
        f"  * Built from its sources; what has changed in them is in changelog.gz.\n\n"
        f" -- {maintainer}  {when}\n"
    )


def _md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()


def control(tree: Path, version: str, maintainer: str) -> None:
    """What dpkg is to know: control, conffiles, md5sums and the scripts."""
    major, minor = python_series()
    files = sorted(p for p in tree.rglob("*") if p.is_file() and not p.is_symlink())
    text = (PARTS / "control.in").read_text("utf-8")
    values = {
        "VERSION": version,
        "ARCHITECTURE": run("dpkg", "--print-architecture").strip(),
        "MAINTAINER": maintainer,
        "SIZE_KB": str(sum(-(-p.stat().st_size // 1024) for p in files)),
        "PYTHON": f"{major}.{minor}",
        "NEXT_PYTHON": f"{major}.{minor + 1}",
    }
    for key, value in values.items():
        text = text.replace(f"@{key}@", value)
    where = tree / "DEBIAN"
    _write(where / "control", text.encode())
    conffiles = [p for p in files if p.is_relative_to(tree / "etc")]
    _write(where / "conffiles", "".join(f"/{p.relative_to(tree)}\n" for p in conffiles).encode())
    sums = [f"{_md5(p)}  {p.relative_to(tree)}\n" for p in files if p not in conffiles]
    _write(where / "md5sums", "".join(sums).encode())
    for name in SCRIPTS:
        shutil.copyfile(PARTS / name, where / name)


def pack(tree: Path, out: Path, now_s: int) -> Path:
    """The package of *tree*, with modes and times that do not depend on who builds it, or when."""
    for path in sorted(tree.rglob("*"), reverse=True):
        if not path.is_symlink():
            program = path.parent in {tree / HOME / "bin", tree / "DEBIAN"}
            runs = program and path.read_bytes()[:2] == b"#!"
            path.chmod(0o755 if path.is_dir() or runs else 0o644)
        os.utime(path, (now_s, now_s), follow_symlinks=False)
    tree.chmod(0o755)
    os.utime(tree, (now_s, now_s))
    out.mkdir(parents=True, exist_ok=True)
    # One thread: with more of them xz's output depends on how many there are.
    told = run(
        *("dpkg-deb", "--root-owner-group", "-Zxz", "-z1", "--threads-max=1", "--build", tree, out),
        env=dated(now_s),
    )
    name = re.search(r"in '(.*)'", told)
    if name is None:
        msg = f"dpkg-deb did not say what it built: {told}"
        raise BuildError(msg)
    return Path(name[1])


def build(out: Path, *, revision: str, constraint: Path | None, maintainer: str) -> Path:
    """Build the package from the checkout; where it lies.

    Raises:
        BuildError: It cannot be built here.
    """
    now_s = epoch_s()
    python_series()
    with tempfile.TemporaryDirectory(prefix="slurm-dl-deb-") as scratch:
        top = Path(scratch)
        sources = export(top / "sources")
        run(
            *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"),
            *("--wheel-dir", top / "wheel", sources),
            env=dated(now_s),
        )
        (wheel,) = (top / "wheel").glob("*.whl")
        tree = top / "tree"
        vendored = vendor(tree, wheel, constraint)
        commands = environment(tree, wheel)
        compile_all(tree)
        system_files(tree, sources, now_s, vendored)
        _check_pages(tree, commands)
        version = f"{version_of(wheel)}-{revision}"
        _write(tree / OVERRIDES, f"{overrides(version)}\n{overrides_vendored()}".encode())
        told = history(version, maintainer, now_s)
        _write(tree / "usr/share/doc/slurm-dl/changelog.Debian.gz", _gzip(told))
        control(tree, version, maintainer)
        return pack(tree, out, now_s)


def _check_pages(tree: Path, commands: Sequence[str]) -> None:
    """See that no command is without a page or a completion.

    Raises:
        BuildError: One is.
    """
    for command in commands:
        if not any(tree.glob(f"usr/share/man/man[18]/{command}.[18].gz")):
            msg = f"{command} has no manual page: add it to tools/packaging/commands.py"
            raise BuildError(msg)


def main(argv: Sequence[str]) -> int:
    """Build it and say where it is."""
    parser = argparse.ArgumentParser(
        prog="tools/packaging/deb.py",
        description="Build the Debian package for this host's Debian and architecture.",
        epilog="Example: python tools/packaging/deb.py --out dist --revision 1site1",
    )
    parser.add_argument("--out", type=Path, default=ROOT / "dist", metavar="DIR")
    parser.add_argument(
        "--revision", default="1", metavar="R", help="behind the version; default 1"
    )
    parser.add_argument("--maintainer", default=MAINTAINER, metavar="NAME <ADDRESS>")
    parser.add_argument(
        "--constraint",
        type=Path,
        metavar="FILE",
        help="versions to vendor, such as vendored.txt of a former package",
    )
    wanted = parser.parse_args(argv)
    if re.fullmatch(r"[A-Za-z0-9+.~]+", wanted.revision) is None:
        parser.error("--revision: letters, digits, '+', '.' and '~' only")
    try:
        made = build(
            wanted.out,
            revision=wanted.revision,
            constraint=wanted.constraint,
            maintainer=wanted.maintainer,
        )
    except BuildError as err:
        print(f"tools/packaging/deb.py: {err}", file=sys.stderr)
        return 1
    print(made)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
