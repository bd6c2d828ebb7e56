"""What slurmctld says of itself and its backup, what slurm.conf says, and who holds the lease."""

from __future__ import annotations

from slurm_dl.model.errors import ClusterError
from slurm_dl.slurm.controller import (
    acting,
    read_health,
    read_ping,
    rpcs_of,
    same_host,
    settings_in,
    site_factor_plugin,
)
from tools.fuzz.target import Target, a_file, text

_SDIAG = (
    b"*******************************************************\n"
    b"sdiag output at Sun Nov 22 10:00:00 2026 (1795341600)\n"
    b"Data since      Sun Nov 22 00:00:00 2026 (1795305600)\n"
    b"*******************************************************\n"
    b"Server thread count:  3\nAgent queue size:     0\nDBD Agent queue size: 12\n\n"
    b"Main schedule statistics (microseconds):\n\tLast cycle:   512\n\tMean cycle:   300\n"
    b"Backfilling stats\n\nRemote Procedure Call statistics by message type\n"
    b"\tREQUEST_JOB_INFO                        ( 2003) count:40 ave_time:900 total_time:36000\n"
    b"Remote Procedure Call statistics by user\n"
    b"\troot            (       0) count:41     ave_time:800    total_time:32800\n"
)


def _sdiag(data: bytes) -> object:
    said = text(data)
    rpcs_of(said)
    health = read_health(said)
    return health.dump_s_since(None), health.dump_s_since(health)


def _ping(data: bytes) -> object:
    found = read_ping(text(data))
    return same_host(acting(found), "node1.example")


def _slurm_conf(data: bytes) -> object:
    path = a_file(data, "slurm.conf")
    return settings_in(path), site_factor_plugin({}, str(path))


TARGETS = (
    Target(
        name="sdiag",
        parse=_sdiag,
        own=(ClusterError,),
        source="sdiag: slurmctld's time and load",
        parser="slurm.controller.read_health",
        seeds=(_SDIAG,),
    ),
    Target(
        name="ping",
        parse=_ping,
        source="scontrol ping",
        parser="slurm.controller.read_ping",
        seeds=(b"Slurmctld(primary) at a is DOWN\nSlurmctld(backup) at b.example is UP\n",),
    ),
    Target(
        name="slurm-conf",
        parse=_slurm_conf,
        source="slurm.conf and what it includes",
        parser="slurm.controller.settings_in",
        seeds=(b"ClusterName=a # x\nPrioritySiteFactorPlugin=site_factor/x\nInclude b.conf\n",),
    ),
)
