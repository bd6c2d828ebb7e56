"""A real Prometheus scrapes a real dlschedd on a real Slurm: figures, panels and alerts."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from patience import PATIENCE
from schedd import ROOT, Schedd, schedd_in

from slurm_dl.daemon.metrics.catalogue import METRICS
from slurm_dl.sandbox import Sandbox

PROMETHEUS = shutil.which("prometheus") or ""
pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(not PROMETHEUS, reason="Debian's package prometheus is not installed"),
    pytest.mark.full("needs Prometheus; alerts take minutes"),
    pytest.mark.timeout(900),
]

ETC = ROOT / "etc"
CLAIM = json.dumps({"slurm_dl": {"v": 1, "sig": "USR1", "grace_s": 10, "by": "daemon"}})
SAVES_AND_LEAVES = "trap 'exit 0' USR1; for i in $(seq 600); do sleep 0.2; done"
DOES_NOT = "sleep 600"
ABSENT = {"slurm_dl_prediction_error_seconds", "slurm_dl_replicas"}
"""What a daemon of a minute cannot know, and what only a site with services has."""

BUSY = {"SlurmDlCycleSlow", "SlurmDlSlurmctldSlow"}
"""Alerts that a machine with too much to do may provoke by itself."""

PROVOKED = {
    *("SlurmDlActionsRefused", "SlurmDlAuditLogUnwritable", "SlurmDlBreakerTripped"),
    *("SlurmDlDaemonDown", "SlurmDlLedgerUnwritable", "SlurmDlNobodyActs", "SlurmDlNotActing"),
    *("SlurmDlNotHonoured", "SlurmDlNotLooking", "SlurmDlPaused", "SlurmDlPollsFail"),
    *("SlurmDlProblem", "SlurmDlReloadFailed", "SlurmDlSlurmctldSlow", "SlurmDlUnreadableRecords"),
}
"""Alerts that are made to fire here; the others are shown to fire by promtool alone."""


def documented() -> set[str]:
    """What the document says of the same."""
    text = (ROOT / "docs" / "operate" / "metrics.md").read_text("utf-8")
    listed = text.partition("seconds for minutes:\n")[2].partition(". By `promtool`")[0]
    return {f"SlurmDl{name}" for name in re.findall(r"\b[A-Z]\w+", listed)}


def hurried(rule: dict[str, Any]) -> dict[str, Any]:
    """A rule with seconds where it has minutes and hours; all else as it is."""
    # What only bridges gaps may be shorter than what counts.
    expression = re.sub(r"(_over_time\([^()]*)\[\d+m\]", r"\1[10s]", rule["expr"])
    expression = re.sub(r"\[(\d+)[mh]\]", "[20s]", expression)
    # As many steps as before: the rule counts them.
    expression = re.sub(r"\[(\d+)m:15s\]", r"[\1s:250ms]", expression)
    assert not re.search(r"\[\w+[mh](:\w+)?\]", expression), expression
    expression = re.sub(r"(timestamp_seconds) > 180", r"\1 > 12", expression)
    return {**rule, "expr": expression, **({"for": "5s"} if "for" in rule else {})}


@dataclass(kw_only=True)
class Monitored:
    """A place for daemons with an endpoint, and the Prometheus that scrapes it."""

    place: Schedd
    port: int
    url: str
    provoked: set[str] = field(default_factory=set)

    @property
    def pid(self) -> int:
        """The daemon's."""
        assert self.place.process is not None
        return self.place.process.pid

    @contextlib.contextmanager
    def broken(self, *words: str) -> Iterator[None]:
        """Slurm's tools do as these words say (see `tools`) until the end."""
        files = [self.place.home / word for word in words]
        for file in files:
            file.touch()
        try:
            yield
        finally:
            for file in files:
                file.unlink()

    def api(self, path: str, **parameters: str) -> Any:  # noqa: ANN401
        """What Prometheus' API says."""
        query = urllib.parse.urlencode(parameters)
        url = f"{self.url}/api/v1/{path}?{query}"
        with urllib.request.urlopen(url, timeout=20 * PATIENCE) as answer:  # noqa: S310 - our own, loopback
            content = json.load(answer)
        assert content["status"] == "success", content
        return content["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The result of an expression now."""
        return list(self.api("query", query=expression)["result"])

    def value(self, expression: str) -> float | None:
        """The one value of an expression; None if there is none."""
        found = self.query(expression)
        return float(found[0]["value"][1]) if found else None

    def firing(self) -> dict[str, dict[str, Any]]:
        """The alerts that fire, by name."""
        alerts = self.api("alerts")["alerts"]
        return {a["labels"]["alertname"]: a for a in alerts if a["state"] == "firing"}

    def until_fires(self, name: str) -> dict[str, Any]:
        """Wait for an alert; its labels and its words."""
        seen: list[dict[str, Any]] = []

        def fires() -> bool:
            seen.extend(alert for n, alert in self.firing().items() if n == name)
            return bool(seen)

        self.place.until(f"{name} to fire", fires, 120)
        self.provoked.add(name)
        return seen[0]

    def until_quiet(self, *names: str) -> None:
        """Wait for them to be over."""
        gone = f"{', '.join(names)} to end"
        self.place.until(gone, lambda: not self.firing().keys() & set(names), 120)

    def until_only_busy(self) -> None:
        """Wait until nothing fires that says more than that the machine is busy."""
        self.place.until("no alert", lambda: self.firing().keys() <= BUSY, 120)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def prometheus(home: Path, target: str) -> Iterator[str]:
    """A Prometheus on the loopback with the example configuration in a hurry; its address."""
    home.mkdir()
    config = yaml.safe_load((ETC / "prometheus" / "prometheus.yml").read_text("utf-8"))
    rules = yaml.safe_load((ETC / "prometheus" / "alerts.yml").read_text("utf-8"))
    (group,) = rules["groups"]
    group["rules"] = [hurried(rule) for rule in group["rules"]]
    (home / "alerts.yml").write_text(yaml.safe_dump(rules), "utf-8")
    (job,) = config["scrape_configs"]
    job |= {"scrape_interval": "2s", "scrape_timeout": "2s"}
    job["static_configs"] = [{"targets": [target]}]
    config["global"] = {"evaluation_interval": "1s"}
    (home / "prometheus.yml").write_text(yaml.safe_dump(config), "utf-8")
    port = free_port()
    with (home / "log").open("ab") as log:
        process = subprocess.Popen(
            [
                PROMETHEUS,
                f"--config.file={home}/prometheus.yml",
                f"--storage.tsdb.path={home}/data",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30 * PATIENCE)


@pytest.fixture
def site(sandbox: Sandbox, short_directory: Path) -> Iterator[Monitored]:
    """A daemon that may take 5 GPUs an hour, with tools that can be broken, and Prometheus.

    It acts beside the acting slurmctld only, as one of several would.
    """
    port = free_port()
    with schedd_in(sandbox, short_directory) as place:
        place.configure(
            cluster={"bin_dir": str(tools(short_directory))},
            policy={"parameters": {"thresholds_gpu_s": [20, 100_000]}},
            breakers={"gpus_per_hour": 5},
            metrics={"listen": f"127.0.0.1:{port}"},
            takeover={"enabled": True, "follow_slurmctld": True},
        )
        place.start()
        with prometheus(short_directory / "prometheus", f"127.0.0.1:{port}") as url:
            site = Monitored(place=place, port=port, url=url)
            place.until("Prometheus to see it", lambda: _sees(site), 40)
            yield site


def _sees(site: Monitored) -> bool:
    with contextlib.suppress(OSError):
        return site.value('up{job="slurm_dl"}') == 1
    return False


SQUEUE = """#!/bin/sh
while [ -e {home}/hold ]; do sleep 0.1; done
if [ -e {home}/fail ]; then
    echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2
    exit 1
fi
if [ -e {home}/garble ]; then
    {real} "$@" | sed '0,/RUNNING/s//MARCHING/'
    exit
fi
exec {real} "$@"
"""
"""It waits while there is a file ``hold``, fails while there is ``fail``; with ``garble`` one
running job is in a state that nobody knows."""

SCONTROL = """#!/bin/sh
case "$1" in
update)
    if [ -e {home}/refuse ]; then
        echo 'slurm_update error: Access/permission denied' >&2
        exit 1
    fi
    if [ -e {home}/swallow ]; then exit 0; fi ;;
ping)
    if [ -e {home}/elsewhere ]; then
        echo 'Slurmctld(primary) at elsewhere is UP'
        exit 0
    fi ;;
esac
exec {real} "$@"
"""
"""With ``refuse`` no update is allowed, with ``swallow`` it has no effect, and with ``elsewhere``
slurmctld acts on another host."""


def tools(home: Path) -> Path:
    """Slurm's tools, of which two do as files in *home* say."""
    directory = home / "bin"
    directory.mkdir()
    for name in ("sinfo", "scancel", "sprio", "sacct", "sacctmgr", "sdiag"):
        if found := shutil.which(name):
            (directory / name).symlink_to(found)
    for name, script in (("squeue", SQUEUE), ("scontrol", SCONTROL)):
        file = directory / name
        file.write_text(script.format(home=home, real=shutil.which(name)), "utf-8")
        file.chmod(0o755)
    return directory


def submit(place: Schedd, script: str, *options: str) -> str:
    """A job of one node's GPUs."""
    argv = ["sbatch", "--parsable", "--output=/dev/null", "--nodes=1", "--gres=gpu:4", "--requeue"]
    return str(place.box.run([*argv, *options, f"--wrap={script}"]).stdout).strip()


def panels() -> list[tuple[str, str]]:
    """Every expression of the dashboard as Grafana would send it."""
    dashboard = json.loads((ETC / "grafana" / "slurm_dl.json").read_text("utf-8"))
    found = [
        (panel["title"], target["expr"])
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
    ]
    return [
        (title, expression.replace("$__rate_interval", "20s").replace("$instance", ".*"))
        for title, expression in found
    ]


def test_figures_panels_and_alerts(site: Monitored) -> None:
    """One life of a daemon: a preemption, a breaker, and then one trouble after the other."""
    place = site.place
    opted = [submit(place, SAVES_AND_LEAVES, f"--comment={CLAIM}") for _ in range(2)]
    others = [submit(place, DOES_NOT) for _ in range(2)]
    for job in (*opted, *others):
        place.until_state(job, "RUNNING")
    site.until_only_busy()
    sunk = 'sum(slurm_dl_job_gpus{tier="1",state="holding"})'
    place.until("them to sink", lambda: site.value(sunk) == 16)

    # One may be taken back, the next would be above the bound.
    first = submit(place, SAVES_AND_LEAVES, f"--comment={CLAIM}")
    place.until_state(first, "RUNNING")
    second = submit(place, SAVES_AND_LEAVES, f"--comment={CLAIM}")
    fired = site.until_fires("SlurmDlBreakerTripped")
    assert fired["labels"]["breaker"] == "gpus_per_hour"
    assert "Breaker gpus_per_hour has tripped on 127.0.0.1" in fired["annotations"]["description"]

    place.ask("dlctl", "reload")
    _figures_are_right(site, waiting=second)
    _panels_have_data(site)
    _rules_have_data(site)
    place.ask("dlctl", "breakers", "reset", "gpus_per_hour")
    site.until_quiet("SlurmDlBreakerTripped")
    site.until_only_busy()

    _refusals_are_noticed(site)
    _what_has_no_effect_is_noticed(site)
    _a_silent_slurm_is_noticed(site)
    _a_stuck_loop_is_noticed(site)
    _a_lost_disk_is_noticed(site)
    _a_daemon_that_stands_by_or_is_gone_is_noticed(site)

    assert site.provoked == PROVOKED == documented()
    site.until_quiet(*PROVOKED)


def _figures_are_right(site: Monitored, *, waiting: str) -> None:
    """Against Slurm, the audit log and `dlctl status`."""
    place = site.place
    assert place.state(waiting) == "PENDING"
    place.until("the hand-over to be over", lambda: site.value("sum(slurm_dl_handovers)") == 0, 60)
    ended = 'sum(slurm_dl_preemptions_total{purpose="preempt"})'
    (gone,) = place.audit(action="mark_gone", result="ok")
    place.until("it to be counted", lambda: site.value(ended) == 1, 10)
    outcome = gone["details"]["outcome"]
    assert site.value(f'slurm_dl_preemptions_total{{outcome="{outcome}",purpose="preempt"}}') == 1
    assert site.value("sum(slurm_dl_preempted_gpus_total)") == 4
    assert site.value("sum(slurm_dl_checkpoint_seconds_count)") == 1
    assert site.value('slurm_dl_handover_seconds_count{ended="served"}') == 1
    # Signalled, it was gone within its grace and a few looks: 4 GPUs for that long.
    lost = site.value('slurm_dl_lost_gpu_seconds_total{part="notice"}')
    assert lost is not None
    assert 0 <= lost <= 4 * 30
    assert site.value('sum(slurm_dl_jobs{state="holding"})') == 4
    assert site.value('sum(slurm_dl_jobs{state="waiting"})') == 1
    assert site.value("sum(slurm_dl_managed_gpus)") == 16
    assert site.value("slurm_dl_overtaken_jobs") == 1
    assert site.value('slurm_dl_state{state="acting"}') == 1
    status = json.loads(place.ask("dlctl", "status", "--json").stdout)
    done = site.value('slurm_dl_actions_total{result="done"}')
    assert done is not None
    assert abs(done - status["actions"]["done"]) <= 3
    cycles = site.value("slurm_dl_cycles_total")
    assert cycles is not None
    assert abs(status["cycles"] - cycles) <= 10
    # Each look is one squeue at least.
    looks = site.value('slurm_dl_slurm_commands_total{command="squeue"}')
    assert looks is not None
    assert looks >= cycles
    attained = sum(place.attained_gpu_s(str(job["job_id"])) for job in _queue(place))
    served = site.value("slurm_dl_served_gpu_seconds_total")
    assert served is not None
    # 16 GPUs run on while one and the other are asked.
    assert abs(served - attained) <= 16 * 30


def _queue(place: Schedd) -> list[dict[str, Any]]:
    argv = ("dlqueue", "--json", "--states", "all")
    return list(json.loads(place.ask(*argv).stdout)["jobs"])


def _panels_have_data(site: Monitored) -> None:
    """Every expression of the dashboard gives something, before it leaves out what is 0."""
    empty = [(title, e) for title, e in panels() if not site.query(e.removesuffix(" > 0"))]
    assert [e for _, e in empty if not any(name in e for name in ABSENT)] == []


def _rules_have_data(site: Monitored) -> None:
    """Every rule is evaluated without an error, and what it asks about is there."""
    told = "slurm_dl_config_reload_successful"
    site.place.until("the reload to be told", lambda: site.query(told), 60)
    (group,) = site.api("rules")["groups"]
    assert [(r["name"], r.get("lastError")) for r in group["rules"] if r["health"] != "ok"] == []
    for rule in group["rules"]:
        for series in re.findall(r"slurm_dl_[a-z_]+(?:\{[^}]*\})?", rule["query"]):
            assert site.query(series), (rule["name"], series)
    names = {s["metric"]["__name__"] for s in site.query('{__name__=~"slurm_dl_.*"}')}
    wanted = {m.name + ("_count" if m.kind == "histogram" else "") for m in METRICS}
    assert wanted - names == ABSENT
    assert len(site.query('{__name__=~"slurm_dl_.*"}')) < 700


def _refusals_are_noticed(site: Monitored) -> None:
    """No update is allowed: each of these jobs needs one."""
    with site.broken("refuse"):
        for _ in range(8):
            submit(site.place, DOES_NOT)
        site.until_fires("SlurmDlActionsRefused")


def _what_has_no_effect_is_noticed(site: Monitored) -> None:
    """Updates are said to be done and are not; it is paused; a configuration is wrong; all at once.

    And one job cannot be read.
    """
    place, told = site.place, site.place.config.read_text("utf-8")
    with site.broken("swallow"):
        submit(place, DOES_NOT)
        place.until("it to be seen", lambda: site.value("slurm_dl_unhonoured_jobs"))
        place.ask("dlctl", "pause", "--reason", "to see")
        place.config.write_text("manage: [gpu]\n", "utf-8")
        os.kill(site.pid, signal.SIGHUP)
        with site.broken("garble"):
            site.until_fires("SlurmDlNotHonoured")
            site.until_fires("SlurmDlPaused")
            site.until_fires("SlurmDlReloadFailed")
            # What cannot be reloaded would not start again either.
            site.until_fires("SlurmDlProblem")
            site.until_fires("SlurmDlUnreadableRecords")
    place.config.write_text(told, "utf-8")
    place.ask("dlctl", "resume")
    place.ask("dlctl", "reload")


def _a_silent_slurm_is_noticed(site: Monitored) -> None:
    """Squeue fails: it has nothing to go by, and does nothing."""
    with site.broken("fail"):
        fired = site.until_fires("SlurmDlPollsFail")
        assert "looks in a row failed on 127.0.0.1" in fired["annotations"]["description"]
        site.until_fires("SlurmDlNotActing")
    # Else it would go on waiting for as long as it does after so many failures.
    site.place.ask("dlctl", "reload")


def _a_stuck_loop_is_noticed(site: Monitored) -> None:
    """Squeue hangs: the endpoint says that a look is overdue; then, that it was slow."""
    with site.broken("hold"):
        fired = site.until_fires("SlurmDlNotLooking")
        assert site.value('up{job="slurm_dl"}') == 1
        assert "SlurmDlDaemonDown" not in site.firing()
        assert "has been due for" in fired["annotations"]["description"]
    site.until_fires("SlurmDlSlurmctldSlow")


def _a_lost_disk_is_noticed(site: Monitored) -> None:
    """Another program has the ledger, the audit log's directory is gone: it says who fails."""
    place, state = site.place, site.place.home / "state"
    audit, aside = state / "audit.jsonl", state / "aside.jsonl"
    # Of Slurm's silence before.
    site.until_quiet("SlurmDlPollsFail")
    audit.rename(aside)
    audit.symlink_to(state / "nowhere" / "audit.jsonl")
    # It is to write something down.
    place.ask("dlctl", "reload")
    ledger = sqlite3.connect(state / "ledger.sqlite", isolation_level=None)
    with contextlib.closing(ledger):
        ledger.execute("BEGIN EXCLUSIVE")
        site.until_fires("SlurmDlLedgerUnwritable")
        assert site.value('slurm_dl_polls_failed_in_a_row{because="slurm"}') == 0
        assert "SlurmDlPollsFail" not in site.firing()
        site.until_fires("SlurmDlAuditLogUnwritable")
        ledger.execute("ROLLBACK")
    audit.unlink()
    aside.rename(audit)
    place.ask("dlctl", "reload")
    site.until_quiet("SlurmDlLedgerUnwritable", "SlurmDlAuditLogUnwritable")
    assert place.audit(action="reload")


def _a_daemon_that_stands_by_or_is_gone_is_noticed(site: Monitored) -> None:
    """Slurm is ruled from a host without a daemon; then no scrape is answered, by SIGSTOP."""
    with site.broken("elsewhere"):
        site.until_fires("SlurmDlNobodyActs")
        os.kill(site.pid, signal.SIGSTOP)
        try:
            fired = site.until_fires("SlurmDlDaemonDown")
            assert fired["labels"]["instance"] == f"127.0.0.1:{site.port}"
        finally:
            os.kill(site.pid, signal.SIGCONT)


def test_a_port_that_is_taken_ends_the_start_and_not_a_reload(
    sandbox: Sandbox, short_directory: Path
) -> None:
    """Exit status 2 and a word why; a daemon that runs goes on where it was."""
    with schedd_in(sandbox, short_directory) as place, socket.create_server(("127.0.0.1", 0)) as s:
        taken, port = s.getsockname()[1], free_port()
        place.configure(metrics={"listen": f"127.0.0.1:{taken}"})
        done = place.ask("dlschedd", "--live", "--allow-root", check=False)
        assert done.returncode == 2
        assert f"metrics.listen: cannot listen on 127.0.0.1:{taken}" in done.stderr
        assert "Traceback" not in done.stderr

        place.configure(metrics={"listen": f"127.0.0.1:{port}"})
        place.start(mode="--shadow")
        assert 'slurm_dl_state{state="shadow"} 1.0' in _scraped(port)
        place.configure(metrics={"listen": f"127.0.0.1:{taken}"})
        place.ask("dlctl", "reload")
        assert 'slurm_dl_state{state="shadow"} 1.0' in _scraped(port)
        log = (place.home / "schedd.log").read_text("utf-8")
        assert "metrics stay where they were" in log
        place.configure()
        place.ask("dlctl", "reload")
        with pytest.raises(ConnectionRefusedError):
            _scraped(port)
        place.stop()


def _scraped(port: int) -> str:
    with socket.create_connection(("127.0.0.1", port), timeout=20 * PATIENCE) as sock:
        sock.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        chunks = iter(lambda: sock.recv(65536), b"")
        return b"".join(chunks).decode()
