"""Bad input that only a real Slurm gives, word for word as docs/operate/troubleshooting.md."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bad_inputs import row
from schedd import Schedd, schedd_in

from slurm_dl.sandbox import Sandbox, SandboxSpec
from slurm_dl.sandbox.daemons import SLURMCTLD

pytestmark = [pytest.mark.slurm, pytest.mark.full("restarts and breaks controllers of its own")]

MakeSandbox = Callable[..., Sandbox]
PLUGINS = ("/usr/lib/x86_64-linux-gnu/slurm-wlm", "/usr/lib/aarch64-linux-gnu/slurm-wlm")


def status(place: Schedd) -> dict[str, Any]:
    """What dlctl status says."""
    answer: dict[str, Any] = json.loads(place.ask("dlctl", "status", "--json").stdout)
    return answer


def restart_with(box: Sandbox, *lines: str, without: str) -> None:
    """Restart slurmctld with these lines in slurm.conf, and none that begins with *without*."""
    conf = Path(box.env["SLURM_CONF"])
    kept = [text for text in conf.read_text("utf-8").splitlines() if not text.startswith(without)]
    conf.write_text("\n".join([*kept, *lines, ""]), "utf-8")
    box.stop_daemon(SLURMCTLD)
    box.start_daemon(SLURMCTLD)


@pytest.fixture
def place(make_sandbox: MakeSandbox, short_directory: Path) -> Iterator[Schedd]:
    """A daemon's place beside a controller alone; it looks at its settings every second."""
    with schedd_in(make_sandbox(SandboxSpec(start_slurmd=False)), short_directory) as daemon:
        daemon.configure(daemon={"nodes_every_s": 1})
        yield daemon


def test_a_slurm_that_would_ignore_site_factors(place: Schedd) -> None:
    """At the start and later: it does nothing, says why, and goes on by itself once it is mended.

    ``--once --live`` ends with the same words.
    """
    basic, box = row("priority/basic"), place.box
    job = box.run(["sbatch", "--parsable", "--wrap", "true"]).stdout.strip()
    restart_with(box, "PriorityType=priority/basic", without="PriorityType")
    place.start()
    place.until("a cycle that could act", lambda: status(place)["cycles"] > 2)

    doing = status(place)["doing"]
    assert doing.startswith("only looking: ")
    basic.check(doing.removeprefix("only looking: "))
    basic.check_within((place.home / "schedd.log").read_text("utf-8"))
    assert status(place)["actions"] == {"done": 0, "failed": 0}
    assert place.audit(action="set_site_factor") == []

    restart_with(box, "PriorityType=priority/multifactor", without="PriorityType")
    place.until("it to act", lambda: place.audit(action="set_site_factor", job=int(job)), 120)
    restart_with(box, "PriorityType=priority/basic", without="PriorityType")
    place.until("it to stop", lambda: "priority/basic" in status(place)["doing"], 120)
    place.stop()

    once = place.ask("dlschedd", "--config", str(place.config), "--once", "--live", check=False)
    assert once.returncode == 1
    basic.check(once.stderr.replace("dlschedd: ", ""))


def test_a_plugin_that_sets_site_factors(make_sandbox: MakeSandbox, short_directory: Path) -> None:
    """Slurm's own do-nothing plug-in, under the name of a site's, in a real slurmctld."""
    plugins = next(Path(p) for p in PLUGINS if Path(p).is_dir())
    for path in plugins.iterdir():
        (short_directory / path.name).symlink_to(path)
    shutil.copy(plugins / "site_factor_none.so", short_directory / "site_factor_lab.so")
    extra = (f"PluginDir={short_directory}", "PrioritySiteFactorPlugin=site_factor/lab")
    box = make_sandbox(SandboxSpec(start_slurmd=False, slurm_conf_extra=extra))
    home = short_directory / "home"
    home.mkdir()
    with schedd_in(box, home) as place:
        box.run(["sbatch", "--wrap", "true"])
        place.start()
        place.until("a cycle that could act", lambda: status(place)["cycles"] > 2)

        said = status(place)["doing"].removeprefix("only looking: ")
        row("a site factor plug-in").check(said)
        assert "PrioritySiteFactorPlugin=site_factor/lab" in said
        assert status(place)["actions"]["done"] == 0


def test_a_controller_that_is_not_there(place: Schedd) -> None:
    """The daemon says what it waits for and goes on when it comes; --once gives up."""
    unreachable, box = row("slurmctld cannot be reached"), place.box
    box.stop_daemon(SLURMCTLD)
    argv = ("dlschedd", "--config", str(place.config), "--once")
    once = place.ask(*argv, check=False)
    box.start_daemon(SLURMCTLD)
    place.start()
    box.stop_daemon(SLURMCTLD)
    place.until("a look to fail", lambda: status(place)["failures"], 120)
    message = status(place)["trouble"]["message"]
    box.start_daemon(SLURMCTLD)

    assert once.returncode == 1
    unreachable.check(once.stderr.replace("dlschedd: ", ""))
    unreachable.check(message)
    unreachable.check_within((place.home / "schedd.log").read_text("utf-8"))
    place.until("it to look again", lambda: not status(place)["failures"], 120)
