"""The files Slurm reads, as text from a spec.

Pure: no file is touched here. Every setting is known to work without privileges beyond root's and
without slurmdbd on Slurm 22.05.8. AccountingStorageTRES is there with accounting alone: with it
slurmctld refuses to start without slurmdbd (measured on 22.05.8).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from slurm_dl.sandbox import accounting_database
from slurm_dl.sandbox.layout import Layout
from slurm_dl.sandbox.spec import SandboxSpec, split_setting

_CAN_DISABLE_CGROUPS: Final = (24, 5)


def host_range(prefix: str, first: int, last: int) -> str:
    """Slurm's name for a run of numbered things: ``n3`` or ``n[1-4]``."""
    return f"{prefix}{first}" if first == last else f"{prefix}[{first}-{last}]"


def ports_needed(spec: SandboxSpec) -> int:
    """Size of the block: slurmctld's port, one for each slurmd, the last one for slurmdbd.

    Without slurmd all nodes share the port behind slurmctld's, where nobody listens.
    """
    return 1 + (spec.node_count if spec.start_slurmd else 1) + spec.accounting


def slurmdbd_port(spec: SandboxSpec, first_port: int) -> int:
    """Where slurmdbd listens, in a sandbox with accounting."""
    return first_port + ports_needed(spec) - 1


def slurm_conf(
    spec: SandboxSpec, layout: Layout, *, cluster: str, first_port: int, only_loopback: bool = False
) -> str:
    """The text of slurm.conf; *only_loopback*: see `layout.has_only_loopback`."""
    # "localhost" is accepted by slurmctld as this host's name (22.05.8), so a directory goes on
    # working when the host is renamed.
    settings = {
        "ClusterName": cluster,
        "SlurmctldHost": "localhost(127.0.0.1)",
        "SlurmctldPort": str(first_port),
        "SlurmUser": "root",
        "SlurmdUser": "root",
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={layout.munge_socket},cred_expire={spec.cred_expire_s}",
        "StateSaveLocation": str(layout.state),
        "SlurmdSpoolDir": f"{layout.spool}/%n",
        "SlurmctldPidFile": f"{layout.run}/slurmctld.pid",
        "SlurmdPidFile": f"{layout.run}/slurmd-%n.pid",
        "SlurmctldLogFile": f"{layout.log}/slurmctld.log",
        "SlurmdLogFile": f"{layout.log}/slurmd-%n.log",
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "JobAcctGatherType": "jobacct_gather/none",
        "AccountingStorageType": "accounting_storage/none",
        "MpiDefault": "none",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core",
        "PriorityType": "priority/multifactor",
        "GresTypes": ",".join(_gres_types(spec)),
        # Nodes claim CPUs and memory that the host does not have.
        "SlurmdParameters": "config_overrides",
        "ReturnToService": "2",
        "KillWait": str(spec.kill_wait_s),
        "MailProg": "/bin/true",
    }
    if only_loopback:
        # AI_ADDRCONFIG drops neither of two families (22.05.8; also in a kernel without IPv6).
        settings["CommunicationParameters"] = "EnableIPv6"
    if spec.accounting:
        port = slurmdbd_port(spec, first_port)
        settings |= accounting_database.slurm_conf_settings(layout, port=port)
    if not spec.start_slurmd:
        # No node is ever declared DOWN for its silence.
        settings["SlurmdTimeout"] = "0"
    if spec.scheduler_parameters:
        settings["SchedulerParameters"] = spec.scheduler_parameters
    if spec.nodes_per_leaf:
        settings["TopologyPlugin"] = f"topology/{spec.topology}"
    # Slurm's keys know no case, and a key given twice is only an error line in its log.
    spelled = {key.lower(): key for key in settings}
    for line in spec.slurm_conf_extra:
        key, value = split_setting(line, where="slurm.conf setting")
        settings[spelled.setdefault(key.lower(), key)] = value
    lines = [f"{key}={value}" for key, value in settings.items()]
    lines += _node_lines(spec, first_port)
    lines += _partition_lines(spec)
    return "\n".join(lines) + "\n"


def gres_conf(spec: SandboxSpec, layout: Layout) -> str:
    """The text of gres.conf: nodes share the device files, as nothing ever opens them."""
    lines: list[str] = []
    for group, first, last in spec.ranges():
        nodes = f"NodeName={host_range('n', first, last)}"
        first_gpu = 0
        for gres in group.all_gres():
            name, *of_type, count = gres.split(":")
            words = [f"Name={name}", *(f"Type={word}" for word in of_type), f"Count={count}"]
            if name == "gpu":
                devices = host_range("gpu", first_gpu, first_gpu + int(count) - 1)
                words[-1], first_gpu = f"File={layout.dev}/{devices}", first_gpu + int(count)
            lines.append(" ".join((nodes, *words)))
        if group.shards:
            lines.append(f"{nodes} Name=shard Count={group.shards}")
    return "".join(f"{line}\n" for line in lines)


def topology_conf(spec: SandboxSpec) -> str:
    """The text of topology.conf: leaves of one group each under one core switch, or blocks."""
    begins = "BlockName=block" if spec.topology == "block" else "SwitchName=leaf"
    leaves: list[str] = []
    for _, first, last in spec.ranges():
        for start in range(first, last + 1, spec.nodes_per_leaf):
            end = min(start + spec.nodes_per_leaf - 1, last)
            leaves.append(f"{begins}{len(leaves) + 1} Nodes={host_range('n', start, end)}")
    if spec.topology == "block":
        leaves.append(f"BlockSizes={spec.nodes_per_leaf}")
    elif len(leaves) > 1:
        leaves.append(f"SwitchName=core Switches=leaf[1-{len(leaves)}]")
    return "".join(f"{line}\n" for line in leaves)


def cgroup_conf(release: tuple[int, int]) -> str:
    """The text of cgroup.conf: no daemon of a sandbox needs the host's cgroups.

    slurmd 22.05 loads a plugin all the same; by itself it finds none without a cgroup file system,
    or with version 2 and no systemd. "disabled" is in cgroup.conf(5) of 24.05.2, not of 23.11.4.
    """
    return f"CgroupPlugin={'disabled' if release >= _CAN_DISABLE_CGROUPS else 'cgroup/v1'}\n"


def files(
    spec: SandboxSpec,
    layout: Layout,
    *,
    cluster: str,
    first_port: int,
    release: tuple[int, int],
    only_loopback: bool = False,
) -> tuple[tuple[Path, str], ...]:
    """Every file that Slurm of *release* reads, with its text; slurm.conf last."""
    made: list[tuple[Path, str]] = []
    if spec.start_slurmd:
        made.append((layout.directory / "gres.conf", gres_conf(spec, layout)))
        if not any("cgroup" in line.lower() for line in spec.slurm_conf_extra):
            made.append((layout.directory / "cgroup.conf", cgroup_conf(release)))
    if spec.nodes_per_leaf:
        made.append((layout.directory / "topology.conf", topology_conf(spec)))
    main = slurm_conf(
        spec, layout, cluster=cluster, first_port=first_port, only_loopback=only_loopback
    )
    made.append((layout.slurm_conf, main))
    return tuple(made)


def _node_lines(spec: SandboxSpec, first_port: int) -> list[str]:
    lines: list[str] = []
    for group, first, last in spec.ranges():
        if spec.start_slurmd:
            port = host_range("", first_port + first, first_port + last)
        else:
            port = str(first_port + 1)
        shards = (f"shard:{group.shards}",) if group.shards else ()
        gres = ",".join((*group.all_gres(), *shards))
        settings = {
            "CPUs": group.cpus,
            "Boards": 1,
            "Sockets": 1,
            "CoresPerSocket": group.cpus,
            "ThreadsPerCore": 1,
            "RealMemory": group.mem_mb,
            **({"Gres": gres} if gres else {}),
            **dict(split_setting(option, where="a node") for option in group.options),
        }
        lines.append(
            f"NodeName={host_range('n', first, last)} NodeHostname=localhost NodeAddr=127.0.0.1"
            f" Port={port} " + " ".join(f"{key}={value}" for key, value in settings.items())
        )
    return lines


def _gres_types(spec: SandboxSpec) -> list[str]:
    others = (gres.partition(":")[0] for group in spec.groups for gres in group.gres)
    shards = ("shard",) if any(group.shards for group in spec.groups) else ()
    return list(dict.fromkeys(("gpu", *shards, *others)))


def _partition_lines(spec: SandboxSpec) -> list[str]:
    lines: list[str] = []
    for index, partition in enumerate(spec.partitions):
        own = {option.partition("=")[0].lower() for option in partition.options}
        defaults = {"MaxTime": "INFINITE", "State": "UP"}
        options = [f"{key}={value}" for key, value in defaults.items() if key.lower() not in own]
        lines.append(
            " ".join(
                (
                    f"PartitionName={partition.name}",
                    f"Nodes={partition.nodes}",
                    f"Default={'YES' if index == 0 else 'NO'}",
                    *options,
                    *partition.options,
                )
            )
        )
    return lines
