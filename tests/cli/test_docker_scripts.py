"""The scripts of docker/, as far as they go without a Docker Engine."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import containers
import pytest
import yaml
from containers import DOCKER, PARTS, RELEASES, Containers
from patience import PATIENCE, eventually

SCRIPTS = ("up", "down", "in", "build", "images", "base-image", "image/role", "image/healthy")


def run(
    *argv: str | Path, path: Path | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run a script; programs of *path* come first."""
    first = f"{path}:" if path else ""
    return subprocess.run(
        [str(arg) for arg in argv],
        env={"PATH": f"{first}/usr/bin:/bin", **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60 * PATIENCE,
        check=False,
    )


def program(path: Path, name: str, body: str) -> None:
    """A program of that name which does *body*."""
    (path / name).write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    (path / name).chmod(0o755)


@pytest.mark.parametrize("name", ["up", "down", "in"])
def test_help_has_an_example(name: str) -> None:
    said = run(DOCKER / name, "--help")

    assert said.returncode == 0
    assert "Example" in said.stdout
    assert f"docker/{name}" in said.stdout
    assert run(DOCKER / name).returncode == 2


@pytest.mark.parametrize("name", ["up", "down", "in", "build"])
def test_an_unknown_release_is_refused_with_those_there_are(name: str) -> None:
    said = run(DOCKER / name, "21.08", "login")

    assert said.returncode == 2
    assert all(release in said.stderr for release in RELEASES)
    assert "21.08" in said.stderr


def test_without_an_engine_it_says_what_to_install(tmp_path: Path) -> None:
    program(tmp_path, "docker", "exit 1")

    said = run(DOCKER / "up", "24.11", path=tmp_path)

    assert said.returncode == 1
    assert "apt-get install docker.io" in said.stderr


ENGINE = """\
case "$1" in
	build) cat >/dev/null ;;
	ps)
		case "$*" in
			*status=exited*) ;;
			*'.Label "com.docker.compose.service"'*)
				printf '%s\\n' "$P-n1-1 n1" "$P-setup-1 setup" ;;
			*--quiet*) echo 0123 ;;
			*) printf '%s\\n' "$P-n1-1" "$P-setup-1" ;;
		esac ;;
	exec) echo "$*" ;;
esac"""
"""A docker in whose clusters there is one node, up and healthy."""


def test_a_project_of_any_name_comes_up(tmp_path: Path) -> None:
    """Also one with the name of the part in it that is not waited for."""
    program(tmp_path, "docker", f"P=my-setup\n{ENGINE}")

    said = run(DOCKER / "up", "24.11", path=tmp_path, SLURM_DL_PROJECT="my-setup")

    assert said.returncode == 0, said.stderr
    assert "docker/down 24.11" in said.stdout


@pytest.mark.parametrize(
    ("user", "home"),
    [("root", "/root"), ("slurm_dl", "/var/lib/slurm_dl"), ("alice", "/home/alice")],
)
def test_everybody_begins_at_home(tmp_path: Path, user: str, home: str) -> None:
    program(tmp_path, "docker", ENGINE)

    said = run(DOCKER / "in", "24.11", "login", "-u", user, "id", path=tmp_path)

    assert f"--user {user} --env HOME={home} " in said.stdout
    assert said.stdout.endswith(f"--workdir {home} 0123 id\n")
    assert "which user?" in run(DOCKER / "in", "24.11", "login", "-u", path=tmp_path).stderr


def test_a_base_image_is_pulled_where_there_is_no_timeout(tmp_path: Path) -> None:
    """As on macOS, where nothing else would give one."""
    for name in ("dirname", "id"):
        (tmp_path / name).symlink_to(shutil.which(name) or "")
    program(tmp_path, "docker", '[ "$1" = pull ]')

    said = run("/bin/sh", DOCKER / "base-image", "trixie", PATH=str(tmp_path))

    assert said.stdout == "debian:trixie-slim\n", said.stderr


def test_an_interrupted_build_leaves_its_context_nowhere(tmp_path: Path) -> None:
    """A signal ends dash without what is to be done at its exit."""
    (tmp_path / "tmp").mkdir()
    program(tmp_path, "docker", '[ "$1" != build ] || kill -TERM $(cat "$TMPDIR/../pid")')

    script = f'echo $$ >"$TMPDIR/../pid"; exec {DOCKER / "build"} 24.11'
    said = run("/bin/sh", "-c", script, path=tmp_path, TMPDIR=str(tmp_path / "tmp"))

    assert said.returncode == 1
    assert [p for p in (tmp_path / "tmp").iterdir() if p.is_dir()] == []


LABELLED = """\
case "$1" in
	image) [ "$3" != --format ] || cat "$0.label" 2>/dev/null ;;
	build)
		cat >/dev/null
		echo "$5" >>"$0.built"
		echo "$7" | sed 's/.*=//' >"$0.label" ;;
esac"""
"""A docker that keeps the label of the image built last, and the names of all that it built."""


def test_an_image_is_built_again_only_when_its_content_has_changed(tmp_path: Path) -> None:
    """New times of files change nothing; contents, names and executable bits do."""
    program(tmp_path, "docker", LABELLED)
    checkout = tmp_path / "checkout"
    for name in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"):
        (checkout / name).parent.mkdir(exist_ok=True)
        (checkout / name).write_text(name, encoding="utf-8")
    for name in ("slurm_dl", "templates", "profiles", "etc", "examples", "demo", "traces/fits"):
        (checkout / name).mkdir(parents=True)
    shutil.copytree(DOCKER, checkout / "docker")
    file = checkout / "etc" / "file"
    file.touch(0o644)

    def builds() -> bool:
        said = run(checkout / "docker/build", "24.11", path=tmp_path)
        assert said.returncode == 0, said.stderr
        up_to_date = "is up to date" in said.stderr
        return not up_to_date

    assert [builds(), builds()] == [True, False]
    os.utime(file, (1, 1))
    assert not builds()
    file.write_text("changed", encoding="utf-8")
    assert [builds(), builds()] == [True, False]
    file.chmod(0o755)
    assert [builds(), builds()] == [True, False]
    file.rename(file.with_name("renamed"))
    assert [builds(), builds()] == [True, False]
    # The base image of another suite.
    assert "building" in run(checkout / "docker/build", "22.05", path=tmp_path).stderr


def test_images_are_built_for_all_releases_or_those_named(tmp_path: Path) -> None:
    program(tmp_path, "docker", LABELLED)

    for argv, built in (((), RELEASES), (("24.11",), ("24.11",))):
        said = run(DOCKER / "images", *argv, path=tmp_path)

        assert said.returncode == 0, said.stderr
        names = (tmp_path / "docker.built").read_text(encoding="utf-8").split()
        assert names == [f"slurm_dl:{release}" for release in built]
        (tmp_path / "docker.built").unlink()


def test_a_script_that_takes_too_long_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither itself nor what it has started."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    program(tmp_path, "up", f"sleep 3600 >{fifo}")
    monkeypatch.setattr(containers, "DOCKER", tmp_path)
    holds = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)

    def nobody_could_write() -> bool:
        try:
            return os.read(holds, 1) == b""
        except BlockingIOError:
            return False

    try:
        with pytest.raises(subprocess.TimeoutExpired):
            Containers("24.11", "none").script("up", within_s=0.5)
        eventually(nobody_could_write, 10)
    finally:
        os.close(holds)


def test_signals_reach_the_servers_themselves() -> None:
    """Runuser would end at a SIGHUP, and kill its server two seconds after a SIGTERM."""
    role = (DOCKER / "image/role").read_text(encoding="utf-8")
    served = [line.split()[1] for line in role.splitlines() if line.startswith("\tserve ")]

    assert len(served) == 6
    assert not {"runuser", "su"} & set(served)


@pytest.mark.parametrize(
    ("slurm", "status"),
    [
        ("26.11.0", "not built: PyPI has no pyslurm for Slurm 26.11.0"),
        ("22.05.8", "not built: PyPI has no pyslurm for Slurm 22.05.8"),
        ("26.05.9", "not built: no libslurm-dev for Slurm 26.05.9 (no such mirror)"),
    ],
)
def test_a_slurm_that_has_outrun_pyslurm_does_not_fail_the_image(
    tmp_path: Path, slurm: str, status: str
) -> None:
    """Newer than any pyslurm, or without what it is built from: one line, and exit status 0."""
    program(tmp_path, "dpkg-query", f"printf {slurm}")
    program(tmp_path, "apt-get", "echo no such mirror >&2; exit 100")

    built = run(DOCKER / "image/pyslurm", tmp_path / "out", path=tmp_path)

    assert built.returncode == 0
    assert (tmp_path / "out/status").read_text(encoding="utf-8") == f"{status}\n"
    assert not list((tmp_path / "out").glob("*.whl"))


def test_every_part_has_a_role_and_a_health_check() -> None:
    """What compose starts, the first process knows, and so does its check."""
    services = yaml.safe_load((DOCKER / "compose.yaml").read_text(encoding="utf-8"))["services"]
    role = (DOCKER / "image/role").read_text(encoding="utf-8")
    healthy = (DOCKER / "image/healthy").read_text(encoding="utf-8")

    assert set(PARTS) < set(services)
    for name, service in services.items():
        assert f"role_{service['command']}()" in role
        checked = f'*" {service["command"]} ")' in healthy
        assert checked != service.get("healthcheck", {}).get("disable", False), name


def test_no_part_is_open_to_the_outside_or_privileged() -> None:
    services = yaml.safe_load((DOCKER / "compose.yaml").read_text(encoding="utf-8"))["services"]

    for service in services.values():
        assert not {"ports", "expose", "privileged", "cap_add", "network_mode"} & set(service)


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_are_sound(name: str) -> None:
    """They are shell, executable, and stop at the first error."""
    path = DOCKER / name
    text = path.read_text(encoding="utf-8")

    assert os.access(path, os.X_OK)
    shell = "bash" if text.startswith("#!/bin/bash") else "sh"
    assert run(shutil.which(shell) or "", "-n", path).returncode == 0
    assert "set -eu" in text
