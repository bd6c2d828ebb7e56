"""A Docker Engine for the tests: the one that is there, or Debian's, started as root.

``python tests/engine.py COMMAND...`` runs a command while there is an engine. Images stay in the
engine's data directory: one that was built so is there again for the engine that is started next.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from patience import eventually

PACKAGES = ("docker.io", "docker-compose", "debootstrap", "iptables")


NO_ENGINE = 77
"""Exit status of the command line where there can be no engine."""


class NoEngineError(Exception):
    """There is no Docker Engine and none can be had; says why."""


@contextmanager
def docker_engine() -> Iterator[None]:
    """A Docker Engine that answers; one that was started here is ended here.

    Raises:
        NoEngineError: None answers, and we may not install one.
    """
    if _answers():
        _need_compose()
        yield
        return
    if os.geteuid() != 0:
        msg = "no Docker Engine answers, and only root may install and start one"
        raise NoEngineError(msg)
    if shutil.which("dockerd") is None or not _has_compose():
        _install()
    log = Path(tempfile.mkdtemp(prefix="sdl-dockerd-", dir="/tmp")) / "log"
    with log.open("wb") as out:
        engine = subprocess.Popen(
            ["dockerd"],  # noqa: S607 - where Debian puts it
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        eventually(lambda: _answers() or engine.poll() is not None, 60.0, what="dockerd to answer")
        if engine.poll() is not None:
            said = log.read_text(encoding="utf-8", errors="replace")[-2000:]
            msg = f"dockerd does not start here: {said}"
            raise NoEngineError(msg)
        yield
    finally:
        engine.terminate()
        try:
            engine.wait(60)
        except subprocess.TimeoutExpired:
            engine.kill()
            engine.wait()
        shutil.rmtree(log.parent, ignore_errors=True)


def _answers() -> bool:
    return _succeeds("docker", "info")


def _has_compose() -> bool:
    return shutil.which("docker-compose") is not None or _succeeds("docker", "compose", "version")


def _need_compose() -> None:
    if _has_compose():
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        msg = "a Docker Engine answers, but docker compose is missing"
        raise NoEngineError(msg)
    _install()


def _succeeds(*argv: str) -> bool:
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False
        )
    except FileNotFoundError:
        return False
    return done.returncode == 0


def _install() -> None:
    """Debian's packages; their scripts may not start the engine, we do."""
    if shutil.which("apt-get") is None:
        msg = "no Docker Engine answers, and without apt-get none can be installed"
        raise NoEngineError(msg)
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    apt = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=5"]
    said = ""
    for pause_s in (5, 20, 0):
        for argv in (["update"], ["install", "-y", "--no-install-recommends", *PACKAGES]):
            done = subprocess.run(
                [*apt, *argv],
                env=env,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=900,
                check=False,
            )
            said = done.stderr[-2000:]
            if done.returncode != 0:
                break
        else:
            return
        # A mirror that is away comes back by itself; there is nothing to ask it.
        time.sleep(pause_s)
    msg = f"Debian's {', '.join(PACKAGES)} cannot be installed: {said}"
    raise NoEngineError(msg)


def _main(argv: list[str]) -> int:
    """Run *argv* with an engine; its exit status, or `NO_ENGINE`."""
    # The engine must not outlive a terminated run.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        with docker_engine(), subprocess.Popen(argv, start_new_session=True) as running:
            try:
                return running.wait()
            except BaseException:
                os.killpg(running.pid, signal.SIGTERM)
                raise
    except NoEngineError as err:
        print(err, file=sys.stderr)  # noqa: T201
        return NO_ENGINE


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
