"""A daemon that starts before Slurm does waits for it."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from slurm_dl import logging_setup
from slurm_dl.cli.dlschedd.startup import LONGEST_WAIT_S, when_slurm_answers
from slurm_dl.config import Config, load
from slurm_dl.model.errors import ClusterError, ConfigError


@pytest.fixture
def config(tmp_path: Path) -> Config:
    path = tmp_path / "dl.yaml"
    path.write_text("manage: {partitions: [gpu]}\ndaemon: {poll_s: 10}\n", "utf-8")
    return load(path)


def test_it_is_tried_again_until_slurm_answers(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After ever longer pauses, and systemd is told that it takes longer each time."""
    where = tmp_path / "notify"
    parts = object()
    tries: list[Config] = []
    pauses_s: list[float] = []

    def assemble(config: Config) -> object:
        tries.append(config)
        if len(tries) <= 6:
            msg = "scontrol show config failed (exit 1): Unable to contact slurm controller"
            raise ClusterError(msg)
        return parts

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as service_manager:
        service_manager.bind(str(where))
        service_manager.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(where))
        made = when_slurm_answers(assemble, config, logging_setup.logger(), sleep=pauses_s.append)
        told = [service_manager.recv(200).decode().splitlines()[0] for _ in pauses_s]

    assert made is parts
    assert len(pauses_s) == 6
    assert pauses_s[0] <= 10 < pauses_s[1] <= 20 < pauses_s[2]
    assert max(pauses_s) == LONGEST_WAIT_S
    for pause_s, line in zip(pauses_s, told, strict=True):
        word, _, usec = line.partition("=")
        assert word == "EXTEND_TIMEOUT_USEC"
        assert int(usec) / 1e6 > pause_s + config.cluster.timeout_s


def test_what_waiting_does_not_mend_is_no_reason_to_wait(config: Config) -> None:
    """A wrong configuration ends the start at once."""
    slept: list[float] = []

    def assemble(_: Config) -> object:
        msg = "preemption.mode: native: slurm.conf has PreemptType=(null)"
        raise ConfigError(msg)

    with pytest.raises(ConfigError):
        when_slurm_answers(assemble, config, logging_setup.logger(), sleep=slept.append)
    assert not slept
