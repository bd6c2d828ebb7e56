"""Native preemption: Slurm takes the GPUs back, dlschedd only writes SiteFactors."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import yaml
from containers import PARTS, Containers, docker

CONF = "/etc/slurm/slurm.conf"
CONFIG = "/etc/slurm_dl/slurm_dl.yaml"
QOS = "preemptible"
MARK = "# native preemption\n"
POLL_S = 3.0

pytestmark = [
    pytest.mark.docker,
    pytest.mark.full("needs containers of three releases"),
    pytest.mark.timeout(900),
    # The oldest and the newest: the one setting that moved did so in 23.02.
    pytest.mark.parametrize("cluster", ["22.05", "26.05"], indirect=True),
]


def sacctmgr(cluster: Containers, *argv: str) -> None:
    """Change accounting; what is so already is no error."""
    cluster.run("slurmctld", "sacctmgr", "--immediate", "--quiet", *argv, check=False)


def restart(cluster: Containers, slurm_conf: str, config: str) -> None:
    """Let every part have these files, and slurmctld and dlschedd start with them."""
    for part in PARTS:
        cluster.run(part, "tee", CONF, input=slurm_conf)
    cluster.run("dlschedd", "tee", CONFIG, input=config)
    told = cluster.run("dlschedd", "dlctl", "client-config", "--server=dlschedd:6822").stdout
    cluster.run("login", "tee", "/etc/slurm_dl/client.yaml", input=told)
    for part in ("slurmctld", "dlschedd"):
        docker("restart", "--time=10", cluster.container(part))
        cluster.until(f"{part} to be back", lambda part=part: cluster.is_healthy(part), 90)


@pytest.fixture
def native(cluster: Containers) -> Iterator[Containers]:
    """The cluster set up as the admin guide says; afterwards as it was."""
    slurm_conf = cluster.run("slurmctld", "cat", CONF).stdout
    config = cluster.run("dlschedd", "cat", CONFIG).stdout
    signal = (
        "SlurmctldParameters=preempt_send_user_signal"
        if cluster.release == "22.05"
        else "PreemptParameters=send_user_signal"
    )
    lines = f"PreemptType=preempt/qos\nPreemptMode=REQUEUE\n{signal}\n"
    settings = yaml.safe_load(config)
    settings["preemption"] |= {"mode": "native", "qos": QOS}
    times = ("GraceTime=60", "PreemptExemptTime=00:00:10")
    sacctmgr(cluster, "add", "qos", QOS, "PreemptMode=REQUEUE", *times)
    sacctmgr(cluster, "modify", "account", "where", "name=vision", "set", f"QOS+={QOS}")
    try:
        restart(cluster, slurm_conf + MARK + lines, yaml.safe_dump(settings))
        modify = ("modify", "qos", "where", f"name={QOS}", "set")
        sacctmgr(cluster, *modify, "PreemptMode=REQUEUE,WITHIN")
        yield cluster
    finally:
        sacctmgr(cluster, "modify", "qos", "where", f"name={QOS}", "set", "PreemptMode=cluster")
        restart(cluster, slurm_conf, config)


def test_slurm_itself_takes_gpus_back_for_a_better_tier(native: Containers) -> None:
    """The large job sinks, Slurm signals and requeues it for a small one, and it resumes."""
    cluster, steps = native, 350
    big = cluster.toy("alice", 8, steps, "--checkpoint-every=10000")
    assert cluster.job(big)["QOS"] == QOS
    cluster.until("it to sink", lambda: cluster.tier(big) > 0, 60)
    small = cluster.toy("bob", 4, 20)

    cluster.until("Slurm to put it back", lambda: cluster.restarts(big) == 1, 90)
    for job in (small, big):
        cluster.until(f"job {job} to end", lambda job=job: cluster.state(job) == "COMPLETED", 150)

    assert {act["action"] for act in cluster.audit(big)} <= {"set_site_factor"}
    assert cluster.restarts(small) == 0
    assert cluster.steps("alice", big) == list(range(1, steps + 1))
    for job, gpus in ((small, 4), (big, 8)):
        cluster.until(
            f"the ledger of job {job} to agree with accounting",
            lambda job=job, gpus=gpus: (
                cluster.attained_gpu_s(job)
                == pytest.approx(cluster.accounted_gpu_s(job), abs=gpus * POLL_S)
            ),
            30,
        )
