from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from slurm_dl.model.errors import ConfigError
from slurm_dl.sandbox import PartitionSpec, SandboxNodes, SandboxSpec, accounting_database
from slurm_dl.sandbox.config_files import files, gres_conf, ports_needed, slurm_conf, topology_conf
from slurm_dl.sandbox.layout import Layout
from slurm_dl.sandbox.spec import differences, parse_group, parse_partition

LAYOUT = Layout(Path("/srv/box"))
MIXED = SandboxSpec(
    groups=(
        SandboxNodes(nodes=3),
        SandboxNodes(nodes=2, gpus=8, gpu_type="v100"),
        SandboxNodes(1, 0, ""),
    ),
    partitions=(PartitionSpec("gpu"), PartitionSpec("old", "n[4-5]", ("MaxTime=60",))),
)


def conf(spec: SandboxSpec) -> list[str]:
    return slurm_conf(spec, LAYOUT, cluster="c", first_port=18_000).splitlines()


def test_group_text_names_nodes_gpus_and_type() -> None:
    """The text 2x8:v100 is two nodes with eight v100 each, 3x0 three nodes without GPUs."""
    assert parse_group("2x8:v100", cpus=8, mem_mb=100) == SandboxNodes(2, 8, "v100", 8, 100)
    assert parse_group("3x0", cpus=8, mem_mb=100) == SandboxNodes(3, 0, "", 8, 100)


@pytest.mark.parametrize(
    "text",
    [
        *("", "4", "4x4", "4x0:a100", "x4:a100", "0x4:a100", "4x4:a b", "4x4:a100\n", "4x999:a"),
        "-1x1:a",
    ],
)
def test_a_malformed_group_is_refused(text: str) -> None:
    """A group that is not NODESxGPUS:TYPE is the user's error."""
    with pytest.raises(ConfigError):
        parse_group(text, cpus=8, mem_mb=100)


@pytest.mark.parametrize("text", ["", "DEFAULT", "a b", "gpu=n1 State=DOWN", "gpu\nx=n1", "1gpu"])
def test_a_partition_cannot_smuggle_settings(text: str) -> None:
    """Partition names and node lists are plain words, so no further setting fits into them."""
    with pytest.raises(ConfigError):
        parse_partition(text)


@pytest.mark.parametrize(
    "line",
    [
        "MaxJobCount",
        "MaxJobCount=1\nSlurmUser=nobody",
        "A=1 # x",
        "slurmctldport=1",
        "NodeName=x",
        "StateSaveLocation=/",
        "include=/etc/passwd",
        "AccountingStoragePort=1",
    ],
)
def test_an_extra_setting_cannot_break_the_sandbox(line: str) -> None:
    """An extra setting is one Key=Value and none that ports, paths or processes hang on."""
    with pytest.raises(ConfigError):
        SandboxSpec(slurm_conf_extra=(line,))


@pytest.mark.parametrize(
    "change",
    [
        {"groups": ()},
        {"partitions": ()},
        {"partitions": (PartitionSpec("a"), PartitionSpec("a"))},
        {"kill_wait_s": 0},
        {"cred_expire_s": 0},
        {"nodes_per_leaf": -1},
        {"scheduler_parameters": "a=1 b=2"},
    ],
)
def test_a_spec_that_cannot_work_is_refused(change: dict[str, object]) -> None:
    """Bounds are checked where the spec is made, before anything is started."""
    with pytest.raises(ConfigError):
        SandboxSpec(**change)  # type: ignore[arg-type]


def test_differences_name_the_field_and_both_values() -> None:
    """The message about another spec says what is there and what was asked for."""
    asked = replace(MIXED, kill_wait_s=30)

    assert differences(MIXED, MIXED) == ""
    assert differences(MIXED, asked) == "kill_wait_s is 5, asked for 30"


def test_nodes_are_numbered_through_the_groups() -> None:
    """Every node has its own name and port, and the type of its group."""
    lines = [line for line in conf(MIXED) if line.startswith("NodeName=")]

    assert [line.split()[0] for line in lines] == [
        "NodeName=n[1-3]",
        "NodeName=n[4-5]",
        "NodeName=n6",
    ]
    assert "Port=[18001-18003]" in lines[0]
    assert "Gres=gpu:a100:4" in lines[0]
    assert "Port=[18004-18005]" in lines[1]
    assert "Gres=gpu:v100:8" in lines[1]
    assert "Port=18006 " in lines[2]
    assert "Gres" not in lines[2]
    assert ports_needed(MIXED) == 7


def test_the_first_partition_is_the_default_one() -> None:
    """Exactly one partition is the default, and own options replace the sandbox's."""
    lines = [line for line in conf(MIXED) if line.startswith("PartitionName=")]

    assert lines == [
        "PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP",
        "PartitionName=old Nodes=n[4-5] Default=NO State=UP MaxTime=60",
    ]


def test_an_extra_setting_replaces_the_sandboxs_own() -> None:
    """A key stands once in slurm.conf, whatever its case: Slurm only logs a second one."""
    lines = conf(replace(MIXED, slurm_conf_extra=("killwait=30", "MaxJobCount=5", "maxjobcount=6")))

    assert [line for line in lines if line.lower().startswith("killwait")] == ["KillWait=30"]
    assert [line for line in lines if line.lower().startswith("maxjob")] == ["MaxJobCount=6"]


def test_leaves_hold_nodes_of_one_group() -> None:
    """Leaf switches never mix groups, and all hang on one core switch."""
    assert topology_conf(MIXED).splitlines() == [
        "SwitchName=leaf1 Nodes=n[1-2]",
        "SwitchName=leaf2 Nodes=n3",
        "SwitchName=leaf3 Nodes=n[4-5]",
        "SwitchName=leaf4 Nodes=n6",
        "SwitchName=core Switches=leaf[1-4]",
    ]
    assert (
        topology_conf(SandboxSpec(groups=(SandboxNodes(nodes=2),)))
        == "SwitchName=leaf1 Nodes=n[1-2]\n"
    )


def test_a_controller_alone_needs_two_ports_and_forgives_silence() -> None:
    """Without slurmd there are no devices, and no node is ever declared DOWN."""
    spec = SandboxSpec(groups=(SandboxNodes(nodes=2_500),), start_slurmd=False)
    made = dict(files(spec, LAYOUT, cluster="c", first_port=18_000, release=(22, 5)))

    assert ports_needed(spec) == 2
    assert Path("/srv/box/gres.conf") not in made
    assert "SlurmdTimeout=0" in made[LAYOUT.slurm_conf].splitlines()


def test_no_topology_means_no_topology_plugin() -> None:
    """With 0 nodes per leaf, Slurm is told of no switches."""
    spec = replace(MIXED, nodes_per_leaf=0)

    assert not any(line.startswith("Topology") for line in conf(spec))
    made = files(spec, LAYOUT, cluster="c", first_port=1, release=(22, 5))
    assert "topology.conf" not in {path.name for path, _ in made}


def test_the_hosts_cgroups_are_left_alone() -> None:
    """By the words of each release, unless a setting asks for them."""
    path, asked = LAYOUT.directory / "cgroup.conf", ("TaskPlugin=task/cgroup",)
    for release, plugin in (((23, 11), "cgroup/v1"), ((24, 5), "disabled")):
        made = dict(files(MIXED, LAYOUT, cluster="c", first_port=1, release=release))
        assert made[path] == f"CgroupPlugin={plugin}\n"
        own = replace(MIXED, slurm_conf_extra=asked)
        assert path not in dict(files(own, LAYOUT, cluster="c", first_port=1, release=release))


def test_shards_are_named_where_the_gpus_are() -> None:
    """Slurm wants shards in GresTypes, on the node's line and, counted, in gres.conf."""
    spec = replace(MIXED, groups=(SandboxNodes(nodes=2, shards=16), SandboxNodes(nodes=1)))

    assert gres_conf(spec, LAYOUT).splitlines() == [
        "NodeName=n[1-2] Name=gpu Type=a100 File=/srv/box/dev/gpu[0-3]",
        "NodeName=n[1-2] Name=shard Count=16",
        "NodeName=n3 Name=gpu Type=a100 File=/srv/box/dev/gpu[0-3]",
    ]
    assert "GresTypes=gpu,shard" in conf(spec)
    assert [line.partition("Gres=")[2] for line in conf(spec) if line.startswith("NodeName")] == [
        "gpu:a100:4,shard:16",
        "gpu:a100:4",
    ]
    assert "GresTypes=gpu" in conf(MIXED)


def test_other_gres_and_options_stand_at_their_nodes() -> None:
    """Slurm wants each GRES in GresTypes, on the node's line and, counted, in gres.conf."""
    some = SandboxNodes(
        nodes=2, gres=("nvme:2", "fpga:a:1", "fpga:b:2"), options=("TmpDisk=9", "Sockets=2")
    )
    none = SandboxNodes(nodes=1, gpus=0, gres=("nvme:1",))
    spec = replace(MIXED, groups=(some, none))

    assert [line.partition(" ")[2] for line in gres_conf(spec, LAYOUT).splitlines()][1:] == [
        "Name=nvme Count=2",
        "Name=fpga Type=a Count=1",
        "Name=fpga Type=b Count=2",
        "Name=nvme Count=1",
    ]
    assert "GresTypes=gpu,nvme,fpga" in conf(spec)
    assert [line.partition("Gres=")[2] for line in conf(spec) if line.startswith("NodeName")] == [
        "gpu:a100:4,nvme:2,fpga:a:1,fpga:b:2 TmpDisk=9",
        "nvme:1",
    ]
    assert ["Sockets=2 " in line for line in conf(spec) if "Gres=" in line] == [True, False]
    told = differences(spec, replace(spec, groups=(replace(some, options=()), none)))
    assert "fpga:b:2, TmpDisk=9, Sockets=2) + 1 x" in told, told


@pytest.mark.parametrize(("gpus", "shards"), [(4, 6), (4, -4), (0, 4)])
def test_shards_that_no_gpu_could_have_are_refused(gpus: int, shards: int) -> None:
    """Slurm spreads the shards of a node evenly over its GPUs, and keeps no others."""
    with pytest.raises(ConfigError, match="shards of a node"):
        SandboxNodes(gpus=gpus, shards=shards)


def test_blocks_stand_in_for_leaf_switches() -> None:
    """With topology/block the same groups of nodes are blocks, and their size is a level."""
    spec = replace(MIXED, topology="block")

    assert topology_conf(spec).splitlines() == [
        "BlockName=block1 Nodes=n[1-2]",
        "BlockName=block2 Nodes=n3",
        "BlockName=block3 Nodes=n[4-5]",
        "BlockName=block4 Nodes=n6",
        "BlockSizes=2",
    ]
    assert "TopologyPlugin=topology/block" in conf(spec)


def test_the_database_server_is_private(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads no file of the host, opens no port, and lies in the sandbox's directory."""
    monkeypatch.setattr(accounting_database.layouts, "program", lambda name: f"/usr/sbin/{name}")
    program, first, *rest = accounting_database.server_argv(LAYOUT)

    assert (program, first) == ("/usr/sbin/mariadbd", "--no-defaults")
    assert "--skip-networking" in rest
    assert "--datadir=/srv/box/database/data" in rest
    assert "--socket=/srv/box/database/mysqld.sock" in rest
