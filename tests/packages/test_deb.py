"""The parts of the Debian package that need no package: unit, scripts, version, equal bytes."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import deb
import pytest

pytestmark = [pytest.mark.full("builds the Debian package with pip"), pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
needs_dpkg = pytest.mark.skipif(not shutil.which("dpkg-deb"), reason="dpkg is not installed")


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("slurm_dl-0.1.0-py3-none-any.whl", "0.1.0"),
        ("slurm_dl-1.2.0rc1-py3-none-any.whl", "1.2.0~rc1"),
        ("slurm_dl-1.2.0.dev3-py3-none-any.whl", "1.2.0~dev3"),
        ("slurm_dl-1.2b2-py3-none-any.whl", "1.2~b2"),
    ],
)
def test_a_version_before_a_release_sorts_before_it(name: str, version: str) -> None:
    """Dpkg's tilde is less than nothing."""
    assert deb.version_of(Path(name)) == version


def test_the_unit_is_that_of_the_checkout_but_for_its_program() -> None:
    """Every line that bounds the daemon is in the package, too."""
    ours = (ROOT / "etc/systemd/dlschedd.service").read_text("utf-8").partition("[Unit]")[2]
    packaged = deb.unit().partition("[Unit]")[2]

    changed = set(ours.splitlines()) ^ set(packaged.splitlines())
    assert changed == {
        "ExecStart=/opt/slurm_dl/bin/dlschedd",
        "ExecStart=/usr/bin/dlschedd",
        "Documentation=man:slurmctld(8) man:scontrol(1)",
        "Documentation=man:dlschedd(8) man:slurmctld(8) man:scontrol(1)",
    }
    assert "/opt" not in deb.unit()


def test_a_unit_that_starts_something_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package would start nothing."""
    (tmp_path / "etc/systemd").mkdir(parents=True)
    (tmp_path / "etc/systemd/dlschedd.service").write_text("[Unit]\nExecStart=/x\n", "utf-8")
    monkeypatch.setattr(deb, "ROOT", tmp_path)

    with pytest.raises(deb.BuildError, match="no single line"):
        deb.unit()


@pytest.mark.parametrize("name", deb.SCRIPTS)
def test_the_scripts_are_shell_and_refuse_what_they_do_not_know(name: str) -> None:
    """By dash, which Debian runs them with; ``set -e`` in all."""
    script = ROOT / "tools/packaging/deb" / name
    subprocess.run(["/bin/sh", "-n", script], check=True)

    done = subprocess.run(
        ["/bin/sh", script, "no-such-step"], capture_output=True, text=True, check=False
    )

    assert done.returncode == 1
    assert "no-such-step" in done.stderr
    assert "\nset -e\n" in script.read_text("utf-8")


SYSTEMCTL = """\
#!/bin/sh
echo "$*" >>"$ASKED"
case "$1" in
is-active)
    echo "$STATE"
    case "$STATE" in active | reloading) exit 0 ;; *) exit 3 ;; esac
    ;;
esac
"""


class Host:
    """A place where the scripts of the package are run, with a stand-in for systemctl."""

    def __init__(self, top: Path, state: str) -> None:
        self.top = top
        self.env = {"PATH": f"{top}:/usr/bin:/bin", "ASKED": str(top / "asked"), "STATE": state}
        (top / "run/systemd/system").mkdir(parents=True)
        (top / "var").mkdir()
        for name, text in (("systemctl", SYSTEMCTL), ("systemd-sysusers", "#!/bin/sh\n")):
            (top / name).write_text(text, "utf-8")
            (top / name).chmod(0o755)

    def script(self, name: str, *words: str) -> list[str]:
        """What *name* asks systemctl to do."""
        text = (ROOT / "tools/packaging/deb" / name).read_text("utf-8")
        here = self.top / name
        for place in ("/run/", "/var/lib/slurm_dl"):
            text = text.replace(place, f"{self.top}{place}")
        here.write_text(text.replace("-o slurm_dl -g slurm_dl ", ""), "utf-8")
        asked = self.top / "asked"
        asked.write_text("", "utf-8")
        subprocess.run(["/bin/sh", here, *words], env=self.env, capture_output=True, check=True)
        said = [line.split() for line in asked.read_text("utf-8").splitlines()]
        return [w for words in said for w in words if w in {"stop", "disable", "enable", "start"}]

    def left(self) -> set[str]:
        """What a script has left for a later one."""
        return {path.name for path in (self.top / "run").glob("slurm-dl*")}


@pytest.mark.parametrize(
    ("state", "stops", "starts_again"),
    [
        ("active", ["stop"], ["slurm-dl.ran"]),
        ("reloading", ["stop"], ["slurm-dl.ran"]),
        # Also while it waits for its next start after a failure.
        ("activating", ["stop"], ["slurm-dl.ran"]),
        ("deactivating", ["stop"], []),
        ("inactive", [], []),
        ("failed", [], []),
        ("unknown", [], []),
    ],
)
def test_what_runs_or_is_about_to_is_stopped(
    state: str, stops: list[str], starts_again: list[str], tmp_path: Path
) -> None:
    """By systemd's words for a unit; after an upgrade it starts again if it was to run."""
    upgraded, removed = Host(tmp_path / "a", state), Host(tmp_path / "b", state)

    assert upgraded.script("prerm", "upgrade") == stops
    assert upgraded.left() == set(starts_again)
    assert removed.script("prerm", "remove") == [*stops, "disable"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (("upgrade", "2.0"), ("abort-upgrade", "2.0")),
        (("failed-upgrade", "1.0"), ("configure", "1.0")),
        (("deconfigure", "in-favour", "x"), ("abort-deconfigure", "in-favour", "x")),
    ],
)
def test_a_step_that_is_called_off_ends_with_a_daemon_that_runs(
    before: Sequence[str], after: Sequence[str], tmp_path: Path
) -> None:
    """Else nobody would order the queue."""
    host = Host(tmp_path / "a", "active")

    assert host.script("prerm", *before) == ["stop"]
    assert host.script("postinst", *after) == ["start"]
    assert host.left() == set()


def test_a_removal_that_is_called_off_leaves_all_as_it_was(tmp_path: Path) -> None:
    """Another package was to take its place, and could not."""
    host = Host(tmp_path / "a", "active")

    assert host.script("prerm", "remove", "in-favour", "x", "1") == ["stop", "disable"]
    assert host.script("postinst", "abort-remove", "in-favour", "x", "1") == ["enable", "start"]
    assert host.left() == set()


def test_a_fresh_installation_starts_nothing_whatever_came_before(tmp_path: Path) -> None:
    """An upgrade that broke off had left word that the daemon ran; then it was removed."""
    host = Host(tmp_path / "a", "active")
    host.script("prerm", "upgrade", "2.0")

    host.script("prerm", "remove")
    host.script("postrm", "remove")

    assert host.left() == set()
    assert host.script("postinst", "configure", "") == []


def test_the_changelog_of_the_package_is_debians() -> None:
    """As dpkg reads it; and its address belongs to nobody, by RFC 2606."""
    text = deb.history("1.0-1", deb.MAINTAINER, 0)

    assert text.startswith("slurm-dl (1.0-1) unstable; urgency=medium\n\n  * ")
    signed = " -- slurm_dl authors <slurm_dl@example.org>  Thu, 01 Jan 1970 00:00:00 +0000\n"
    assert text.endswith(f"\n\n{signed}")


def small_tree(tree: Path, *, turned: bool) -> Path:
    """Some files, made in one order or the other."""
    files = {"usr/lib/slurm-dl/bin/dlctl": "#!/bin/sh\n", "etc/slurm_dl/a.yaml": "a: 1\n"}
    items = list(files.items())
    for name, text in reversed(items) if turned else items:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text, "utf-8")
        (tree / name).chmod(0o600 if turned else 0o775)
        os.utime(tree / name, (1000 + turned, 1000 + turned))
    deb.control(tree, "1.0-1", "a <a@localhost>")
    return tree


@needs_dpkg
def test_equal_trees_give_equal_packages(tmp_path: Path) -> None:
    """Whatever the order, the modes and the times of the files they are made of."""
    made = [
        deb.pack(small_tree(tmp_path / f"t{turned}", turned=turned), tmp_path / f"o{turned}", 5000)
        for turned in (False, True)
    ]

    assert made[0].read_bytes() == made[1].read_bytes()
    shown = subprocess.run(
        ["dpkg-deb", "-c", made[0]],  # noqa: S607 - on PATH
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    modes = {line.split()[-1]: line.split()[:2] for line in shown.splitlines()}
    assert modes["./usr/lib/slurm-dl/bin/dlctl"] == ["-rwxr-xr-x", "root/root"]
    assert modes["./etc/slurm_dl/a.yaml"] == ["-rw-r--r--", "root/root"]
    told = subprocess.run(
        ["dpkg-deb", "-I", made[0], "conffiles"],  # noqa: S607 - on PATH
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert told == "/etc/slurm_dl/a.yaml\n"


def test_a_revision_of_another_form_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """It would become part of a file's name, and of a line of control."""
    with pytest.raises(SystemExit) as err:
        deb.main(["--revision", "1\nDepends: x"])

    assert err.value.code == 2
    assert "--revision" in capsys.readouterr().err
