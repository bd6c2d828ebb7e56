"""One function finds a template, and it always looks in the same order."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_dl.model.errors import ConfigError
from slurm_dl.submit.script_templates import Owner, TemplateDirectory, find, names, places


def write(directory: Path, name: str, text: str = "#!/bin/bash\n") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}.sbatch.j2"
    path.write_text(text)
    return path


def test_users_then_sites_then_wheels_then_checkouts(tmp_path: Path) -> None:
    """The first place that has the file wins, and the others are named."""
    order: tuple[Owner, ...] = ("user", "site", "wheel", "checkout")
    where = [TemplateDirectory(owner=owner, directory=tmp_path / owner) for owner in order]
    files = {owner: write(tmp_path / owner, "plain", owner) for owner in order}

    for n, owner in enumerate(order):
        found = find("plain", where)
        assert (found.owner, found.path, found.text()) == (owner, str(files[owner]), owner)
        assert found.hides == tuple((o, str(files[o])) for o in order[n + 1 :])
        files[owner].unlink()
    with pytest.raises(ConfigError, match=r"no template plain\.sbatch\.j2 in .*there are: none"):
        find("plain", where)


def test_places_follow_the_environment(tmp_path: Path) -> None:
    """The user's and the site's places can be moved; the checkout's templates are found."""
    usual = places({"HOME": "/home/ann"})
    moved = places({"HOME": "/x", "XDG_CONFIG_HOME": "/cfg", "SLURM_DL_TEMPLATES": str(tmp_path)})

    assert [p.owner for p in usual] == ["user", "site", "wheel", "checkout"]
    assert str(usual[0].directory) == "/home/ann/.config/slurm_dl/templates"
    assert str(usual[1].directory) == "/etc/slurm_dl/templates"
    assert str(usual[2].directory).endswith("slurm_dl/_data/templates")
    assert str(moved[0].directory) == "/cfg/slurm_dl/templates"
    assert moved[1].directory == tmp_path
    assert {"plain", "srun", "torchrun"} <= set(names(usual))


def test_a_relative_site_directory_is_refused() -> None:
    """What a template is must not depend on the directory that the user stands in."""
    with pytest.raises(ConfigError, match="SLURM_DL_TEMPLATES"):
        places({"HOME": "/x", "SLURM_DL_TEMPLATES": "templates"})


@pytest.mark.parametrize("name", ["../plain", "/etc/passwd", "-x", "", "a/b", ".hidden"])
def test_a_name_is_not_a_path(tmp_path: Path, name: str) -> None:
    """No name leads out of the template directories."""
    with pytest.raises(ConfigError, match="--template"):
        find(name, [TemplateDirectory(owner="user", directory=tmp_path)])


def test_a_file_that_everyone_may_write_is_refused(tmp_path: Path) -> None:
    """Somebody else could put a command into everybody's jobs."""
    write(tmp_path, "plain").chmod(0o666)

    with pytest.raises(ConfigError, match="chmod o-w"):
        find("plain", [TemplateDirectory(owner="site", directory=tmp_path)]).text()


def test_a_file_that_cannot_be_read_gets_its_line(tmp_path: Path) -> None:
    """A template that is not UTF-8 is the reader's fault to mend, not a traceback."""
    write(tmp_path, "plain").write_bytes(b"\xff")

    with pytest.raises(ConfigError, match="cannot be read"):
        find("plain", [TemplateDirectory(owner="site", directory=tmp_path)]).text()


def test_a_directory_that_nobody_lets_us_see_holds_no_templates(tmp_path: Path) -> None:
    """Sites close /etc/slurm_dl to users; here the system refuses even to look."""
    closed = Path("/", "x" * 300)
    with pytest.raises(OSError, match="too long"):
        closed.is_dir()
    (tmp_path / "mine.sbatch.j2").write_text("#!/bin/sh\n")
    where = [
        TemplateDirectory(owner="site", directory=closed),
        TemplateDirectory(owner="wheel", directory=tmp_path),
    ]

    assert find("mine", where).owner == "wheel"
    assert names(where) == ["mine"]
