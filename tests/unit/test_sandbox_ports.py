from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_dl.model.errors import ConfigError
from slurm_dl.sandbox import manifest

ASIDE = 61_000
"""Where no sandbox of another test is, and no connection begins (32768 to 60999)."""


@pytest.fixture(autouse=True)
def claims(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "claims.json"
    monkeypatch.setattr(manifest, "CLAIMS", path)
    return path


@pytest.fixture
def listener() -> Iterator[int]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        yield sock.getsockname()[1]


def claim(directory: Path, count: int, *, first: int | None = None) -> int:
    """Claim as a sandbox does: its record is written before the claim is."""
    directory.mkdir(exist_ok=True)
    with manifest.claimed_block(directory, f"id-{directory.name}", count, first=first) as block:
        (directory / "sandbox.json").write_text(f'"id-{directory.name}"')
    return block


def test_a_port_somebody_listens_on_is_taken(listener: int) -> None:
    """A listener on one address is enough to make the port unusable."""
    assert not manifest.is_free(listener)
    with pytest.raises(ConfigError, match=f"port {listener} is taken by another program"):
        manifest.check_free(range(listener, listener + 1))


def test_the_search_passes_over_a_taken_port(
    tmp_path: Path, listener: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block that holds somebody's port is not given out."""
    monkeypatch.setattr(manifest, "FLOOR", listener)
    monkeypatch.setattr(manifest, "CEILING", listener + 64)

    first = claim(tmp_path / "a", 4)

    assert listener < first <= listener + 60


def test_claims_of_sandboxes_that_are_down_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sandboxes never share a port, although nobody listens on either's."""
    monkeypatch.setattr(manifest, "FLOOR", ASIDE)
    monkeypatch.setattr(manifest, "CEILING", ASIDE + 32)

    first, second = claim(tmp_path / "a", 16), claim(tmp_path / "b", 16)

    assert abs(first - second) >= 16
    with pytest.raises(ConfigError, match="no 16 free ports in a row"):
        claim(tmp_path / "c", 16)


def test_a_removed_sandbox_gives_its_ports_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim lasts as long as the record that names its id."""
    monkeypatch.setattr(manifest, "FLOOR", ASIDE)
    monkeypatch.setattr(manifest, "CEILING", ASIDE + 16)
    first = claim(tmp_path / "a", 16)
    (tmp_path / "a" / "sandbox.json").unlink()

    assert claim(tmp_path / "b", 16) == first


def test_a_start_that_breaks_off_claims_nothing(tmp_path: Path, claims: Path) -> None:
    """The claim is written only when the record was."""
    with (
        pytest.raises(RuntimeError, match="broke"),
        manifest.claimed_block(tmp_path / "a", "id", 4),
    ):
        raise RuntimeError("broke")  # noqa: EM101 - the body that fails

    assert not claims.exists()


@pytest.mark.parametrize("first", [0, 80, 65_533, 70_000, -5])
def test_a_block_outside_the_usable_ports_is_refused(tmp_path: Path, first: int) -> None:
    """The whole block must lie between 1024 and 65535."""
    with pytest.raises(ConfigError, match="do not lie between"):
        claim(tmp_path / "a", 4, first=first)


def test_a_damaged_claims_file_is_named(tmp_path: Path, claims: Path) -> None:
    """The message says which file to delete."""
    claims.write_text("{")

    with pytest.raises(ConfigError, match=str(claims)):
        claim(tmp_path / "a", 4)
