from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from patience import PATIENCE, eventually

from slurm_dl.model.errors import ClusterError, ConfigError
from slurm_dl.sandbox import PartitionSpec, Sandbox, SandboxNodes, SandboxSpec, process_control

pytestmark = pytest.mark.slurm

MakeSandbox = Callable[..., Sandbox]

SMALL = SandboxSpec(groups=(SandboxNodes(nodes=1, gpus=2),), nodes_per_leaf=0)
CLI = [
    sys.executable,
    "-c",
    "from slurm_dl.cli.dlctl.sandbox import sandbox; sandbox(prog_name='dlctl sandbox')",
]


def submit(box: Sandbox, command: str, *options: str, user: str | None = None) -> int:
    argv = ["sbatch", "--parsable", *options, f"--wrap={command}"]
    return int(box.run(argv, user=user).stdout)


def state_of(box: Sandbox, job: int) -> str:
    return box.run(["squeue", "-ah", "-t", "all", "-j", str(job), "-o", "%T"]).stdout.strip()


def wait_state(box: Sandbox, job: int, state: str) -> None:
    eventually(lambda: state_of(box, job) == state, 60.0, what=f"job {job} to be {state}")


def pids(box: Sandbox) -> dict[str, int | None]:
    return {daemon.name: daemon.pid for daemon in box.status().daemons}


def processes_of(directory: Path) -> set[int]:
    """Every process that has the directory in an open file, an argument or its environment."""
    found = set()
    mark = os.fsencode(f"{directory}/")
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            texts = [(entry / "cmdline").read_bytes(), (entry / "environ").read_bytes()]
            texts += [os.readlink(fd).encode() for fd in (entry / "fd").iterdir()]  # noqa: PTH115
        except OSError:
            continue
        if any(mark in text for text in texts):
            found.add(int(entry.name))
    return found


def test_a_users_job_gets_its_gpus(sandbox: Sandbox) -> None:
    """An unprivileged user's job runs, sees its own GPUs and writes its output."""
    job = submit(sandbox, "id -un; echo $CUDA_VISIBLE_DEVICES", "--gres=gpu:a100:2", user="nobody")
    wait_state(sandbox, job, "COMPLETED")

    output = sandbox.jobs_directory / f"slurm-{job}.out"
    assert output.read_text() == "nobody\n0,1\n"
    assert output.owner() == "nobody"


def test_a_job_spans_nodes_under_one_switch(sandbox: Sandbox) -> None:
    """Steps start on every node of a job, and the switches are those of the spec."""
    job = submit(
        sandbox, "srun printenv SLURMD_NODENAME", "--gres=gpu:4", "--nodes=2", "--switches=1"
    )
    wait_state(sandbox, job, "COMPLETED")

    nodes = set((sandbox.jobs_directory / f"slurm-{job}.out").read_text().split())
    assert nodes in ({"n1", "n2"}, {"n3", "n4"})


def test_the_state_is_roots_alone(sandbox: Sandbox) -> None:
    """A user can read slurm.conf but neither the controller's state nor munge's key."""
    directory = sandbox.directory
    assert sandbox.run(["cat", f"{directory}/slurm.conf"], user="nobody").stdout
    for program, secret in (("ls", "state"), ("cat", "munge.key")):
        with pytest.raises(ClusterError, match="Permission denied"):
            sandbox.run([program, f"{directory}/{secret}"], user="nobody")


def test_a_failed_or_slow_command_is_one_line(sandbox: Sandbox) -> None:
    """Errors of commands carry Slurm's own words, and no command outlives its deadline."""
    with pytest.raises(ClusterError, match=r"ended with status 1: .*Invalid job id") as err:
        sandbox.run(["scontrol", "hold", "9999999\n"])
    assert "\n" not in str(err.value)
    with pytest.raises(ClusterError, match=r"did not end within 0\.2 s"):
        sandbox.run(["sleep", "60"], 0.2)
    assert sandbox.run(["false"], check=False).returncode == 1


def test_the_environment_is_clean(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller inside another cluster's job does not leak its settings into commands."""
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv("SBATCH_PARTITION", "none")
    environment = sandbox.run(["env"], env={"EXTRA": "1"}).stdout.splitlines()

    assert f"SLURM_CONF={sandbox.directory}/slurm.conf" in environment
    assert "EXTRA=1" in environment
    assert not [line for line in environment if line.startswith(("SLURM_JOB", "SBATCH"))]


def test_up_again_changes_nothing(sandbox: Sandbox) -> None:
    """A sandbox that is up stays as it is; another spec is refused and named."""
    before = pids(sandbox)

    assert pids(Sandbox.up(sandbox.directory)) == before
    assert pids(Sandbox.up(sandbox.directory, sandbox.spec)) == before
    with pytest.raises(ConfigError, match="nodes_per_leaf is 2, asked for 4"):
        Sandbox.up(sandbox.directory, replace(sandbox.spec, nodes_per_leaf=4))


def test_a_killed_controller_comes_back_with_its_jobs(sandbox: Sandbox) -> None:
    """A job runs on without slurmctld and is there when it is started again."""
    job = submit(sandbox, "sleep 300", "--gres=gpu:1")
    wait_state(sandbox, job, "RUNNING")
    # slurmctld writes its state every few seconds; what is younger dies with it (22.05.8).
    running_ns = time.time_ns()
    # It may have written the start already, and writes again only after a change.
    sandbox.run(["scontrol", "update", f"JobId={job}", "Comment=running"])
    saved = sandbox.directory / "state" / "job_state"
    eventually(lambda: saved.exists() and saved.stat().st_mtime_ns > running_ns, what="a save")

    sandbox.kill_daemon("slurmctld")
    status = sandbox.status()
    assert not status.answers
    assert [daemon.name for daemon in status.daemons if not daemon.alive] == ["slurmctld"]
    with pytest.raises(ClusterError, match=r"slurmctld of the sandbox .* does not run"):
        sandbox.stop_daemon("slurmctld")

    sandbox.start_daemon("slurmctld")
    assert state_of(sandbox, job) == "RUNNING"
    assert sandbox.status().is_up


@pytest.mark.parametrize("name", ["munged", "slurmd-n1"])
def test_a_killed_daemon_is_replaced_by_up(sandbox: Sandbox, name: str) -> None:
    """What is missing is started again, and what runs is left alone."""
    before = pids(sandbox)
    sandbox.kill_daemon(name, signal.SIGKILL)
    assert not sandbox.status().is_up

    Sandbox.up(sandbox.directory)
    after = pids(sandbox)

    assert sandbox.status().is_up
    assert after.pop(name) != before.pop(name)
    assert after == before


def test_a_stopped_node_is_in_service_when_started(sandbox: Sandbox) -> None:
    """start_daemon returns when jobs can run on the node."""
    sandbox.stop_daemon("slurmd-n2")
    sandbox.run(["scontrol", "update", "NodeName=n2", "State=DOWN", "Reason=test"])
    sandbox.start_daemon("slurmd-n2")

    assert {node.state for node in sandbox.status().nodes} == {"IDLE"}
    with pytest.raises(ConfigError, match="no daemon 'slurmd-n9'"):
        sandbox.start_daemon("slurmd-n9")


def test_several_clusters_do_not_meet(sandbox: Sandbox, make_sandbox: MakeSandbox) -> None:
    """Clusters on one host have their own ports, queues, keys and lives."""
    other = make_sandbox(
        SandboxSpec(
            groups=(SandboxNodes(nodes=2, gpus=8, gpu_type="v100"), SandboxNodes(nodes=1, gpus=0)),
            partitions=(PartitionSpec("gpu", "n[1-2]"), PartitionSpec("cpu", "n3", ("MaxTime=5",))),
        )
    )
    job = submit(other, "sleep 300", "--gres=gpu:v100:8")
    wait_state(other, job, "RUNNING")
    submit(other, "sleep 300", "-p", "cpu")

    assert not sandbox.run(["squeue", "-ah"]).stdout
    with pytest.raises(ClusterError):
        sandbox.run(["squeue", "-h"], env={"SLURM_CONF": str(foreign_key(sandbox, other))})
    before = pids(sandbox)
    other.down(remove=True)

    assert processes_of(other.directory) == set()
    assert pids(sandbox) == before
    assert sandbox.status().is_up


def foreign_key(sandbox: Sandbox, other: Sandbox) -> Path:
    """A slurm.conf that goes to *sandbox* with the credentials of *other*."""
    text = (sandbox.directory / "slurm.conf").read_text()
    path = sandbox.jobs_directory / "foreign.conf"
    path.write_text(text.replace(f"socket={sandbox.directory}", f"socket={other.directory}"))
    (sandbox.jobs_directory / "topology.conf").write_text("")
    return path


def test_a_pending_job_is_there_after_down_and_up(make_sandbox: MakeSandbox) -> None:
    """The queue survives, what ran is cancelled, and what waits does not start meanwhile."""
    box = make_sandbox(SMALL)
    deaf = submit(box, "trap '' TERM; sleep 300 & wait; wait", "--gres=gpu:1")
    quick = submit(box, "sleep 300", "--gres=gpu:1")
    for job in (deaf, quick):
        wait_state(box, job, "RUNNING")
    # The quick one's GPU is free while the deaf one is waited for.
    waiting = submit(box, "echo ran", "--gres=gpu:1", "--comment=kept")
    port = box.first_port

    box.down()
    assert processes_of(box.directory) == set()
    assert not box.status().is_up
    output = box.jobs_directory / f"slurm-{waiting}.out"
    assert not output.exists()

    resumed = Sandbox.up(box.directory)
    assert resumed.first_port == port
    wait_state(resumed, waiting, "COMPLETED")
    assert output.read_text() == "ran\n"
    assert "Comment=kept" in resumed.run(["scontrol", "show", "job", str(waiting)]).stdout
    assert {state_of(resumed, job) for job in (deaf, quick)} == {"CANCELLED"}


@pytest.mark.parametrize("lost", [(), ("slurmctld",), ("slurmd-n1",), ("slurmctld", "slurmd-n1")])
def test_down_leaves_nothing_of_a_running_job(
    make_sandbox: MakeSandbox, lost: tuple[str, ...]
) -> None:
    """Batch scripts, steps and their daemons end, even when the daemons above them have died."""
    box = make_sandbox(SMALL)
    job = submit(
        box, "trap '' TERM; srun sleep 300 & sleep 300; wait", "--gres=gpu:2", user="nobody"
    )
    eventually(lambda: f"{job}.0" in box.run(["squeue", "-ahs", "-o", "%i"]).stdout.split())
    for name in lost:
        box.kill_daemon(name)
    assert len(processes_of(box.directory)) > len(box.daemon_names) - len(lost)

    box.down()

    assert processes_of(box.directory) == set()
    assert box.down() == ()


def test_down_touches_no_process_but_its_own(make_sandbox: MakeSandbox, tmp_path: Path) -> None:
    """A look-alike, a reader of the logs and a reused pid live on."""
    box = make_sandbox(SMALL)
    imitation = tmp_path / "slurmctld"
    imitation.write_bytes(Path("/usr/bin/sleep").read_bytes())
    imitation.chmod(0o755)
    with (
        subprocess.Popen([imitation, "300"], env=box.env) as foreign,
        subprocess.Popen(
            ["/usr/bin/tail", "-f", box.log_directory / "slurmctld.log"], stdout=subprocess.DEVNULL
        ) as reader,
    ):
        try:
            # The pid of a daemon that died now belongs to somebody else.
            box.kill_daemon("slurmd-n1")
            record = box.directory / "run" / "slurmd-n1.json"
            stale = process_control.read_record(record)
            assert stale is not None
            record.write_text(record.read_text().replace(str(stale.pid), str(foreign.pid)))

            box.down()

            assert foreign.poll() is None
            assert reader.poll() is None
        finally:
            foreign.kill()
            reader.kill()
    assert processes_of(box.directory) == set()


def test_daemons_without_record_are_found(make_sandbox: MakeSandbox) -> None:
    """A start that died between starting a daemon and noting it is continued or ended."""
    box = make_sandbox(SMALL)
    before = pids(box)
    (box.directory / "run" / "slurmctld.json").unlink()
    (box.directory / "run" / "munged.json").unlink()

    Sandbox.up(box.directory)
    assert box.status().is_up
    assert pids(box)["slurmctld"] != before["slurmctld"]

    for record in (box.directory / "run").glob("*.json"):
        record.unlink()
    box.down()
    assert processes_of(box.directory) == set()


@pytest.mark.parametrize("moment", ["record", "munged", "slurmctld"])
def test_a_start_killed_half_way_goes_on(short_directory: Path, moment: str) -> None:
    """Killed after any step, up leaves something that up continues and down ends."""
    directory = short_directory / "c"
    hook = {
        "record": "layouts.make_tree = die",
        "munged": "Daemons.start = only('munged')",
        "slurmctld": "Daemons.start = only('slurmctld')",
    }[moment]
    code = f"""
import os, signal
from slurm_dl.sandbox import Sandbox, SandboxNodes, SandboxSpec, layout as layouts
from slurm_dl.sandbox.daemons import Daemons
start = Daemons.start
def die(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)
def only(last):
    def until(self, names, *, env):
        start(self, names, env=env)
        if last in names:
            die()
    return until
{hook}
Sandbox.up({str(directory)!r}, SandboxSpec(
    groups=(SandboxNodes(nodes=1, gpus=2),), nodes_per_leaf=0
))
"""
    try:
        died = subprocess.run([sys.executable, "-c", code], check=False, timeout=60 * PATIENCE)
        assert died.returncode == -signal.SIGKILL
        box = Sandbox.open(directory)
        assert not box.status().is_up

        assert Sandbox.up(directory, SMALL).status().is_up
        box.down()
        assert processes_of(directory) == set()
    finally:
        Sandbox.open(directory).down(remove=True)
    assert not directory.exists()


def test_a_taken_port_is_one_line(make_sandbox: MakeSandbox, short_directory: Path) -> None:
    """Neither a new sandbox nor one that resumes starts on somebody else's port."""
    box = make_sandbox(SMALL)
    box.down()
    with socket.socket() as somebody:
        somebody.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        somebody.bind(("127.0.0.1", box.first_port))
        somebody.listen()
        with pytest.raises(ConfigError, match=f"port {box.first_port} is taken"):
            Sandbox.up(box.directory)
    with pytest.raises(ConfigError, match=f"overlap those of the sandbox in {box.directory}"):
        Sandbox.up(short_directory / "c", SMALL, port=box.first_port)
    assert not (short_directory / "c" / "sandbox.json").exists()

    assert Sandbox.up(box.directory).status().is_up


def test_a_daemon_that_cannot_start_says_why(make_sandbox: MakeSandbox) -> None:
    """The daemon's own words are in the error, and mending the cause is enough."""
    box = make_sandbox(SMALL)
    box.stop_daemon("slurmctld")
    conf = box.directory / "slurm.conf"
    good = conf.read_text()
    conf.write_text(good.replace("select/cons_tres", "select/nonsense"))
    with pytest.raises(ClusterError, match=r"slurmctld ended at its start: .*select/nonsense"):
        Sandbox.up(box.directory)

    conf.write_text(good)
    assert Sandbox.up(box.directory).status().is_up


NO_CGROUPS = "mount -t tmpfs none /sys/fs/cgroup"
# SIOCSIFFLAGS, IFF_UP.
ONLY_LOOPBACK = (
    f'{sys.executable} -c "import fcntl, socket, struct; '
    "fcntl.ioctl(socket.socket(), 0x8914, struct.pack('16sH14x', b'lo', 1))\""
)


@pytest.mark.parametrize(
    ("space", "host"),
    [("--mount", NO_CGROUPS), ("--net", ONLY_LOOPBACK)],
    ids=["no cgroups", "only 127.0.0.1"],
)
def test_a_bare_host_will_do(space: str, host: str, short_directory: Path) -> None:
    """A job gets its GPU there; without cgroup.conf the error names the first cause."""
    box, dlctl = short_directory / "c", shlex.join(CLI)

    def there(script: str) -> subprocess.CompletedProcess[str]:
        words = ["unshare", space, "sh", "-ec", f"{host}\n{script}", "sh", str(box)]
        return subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)

    job = f'eval "$({dlctl} env $1)"; srun --gres=gpu:1 printenv CUDA_VISIBLE_DEVICES'
    try:
        done = there(f"{dlctl} up $1 --nodes 1 --gpus 1 --nodes-per-leaf 0\n{job}")
        assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["0"]), done.stderr
        Sandbox.open(box).down()
        if host == NO_CGROUPS:
            (box / "cgroup.conf").write_text("CgroupPlugin=autodetect\n")
            done = there(f"{dlctl} up $1")
            assert done.returncode == 1
            assert re.search(r"at its start: slurmd: error: .*/sys/fs/cgroup", done.stderr)
    finally:
        if (box / "sandbox.json").exists():
            Sandbox.open(box).down(remove=True)


def test_thousands_of_nodes_without_slurmd(make_sandbox: MakeSandbox) -> None:
    """The controller alone answers for 2,500 nodes and keeps waiting jobs."""
    box = make_sandbox(
        SandboxSpec(
            groups=(SandboxNodes(nodes=2_500),),
            nodes_per_leaf=50,
            start_slurmd=False,
            slurm_conf_extra=("MaxJobCount=100000",),
        )
    )
    job = submit(box, "true", "--gres=gpu:4")

    status = box.status()
    assert status.is_up
    assert len(status.nodes) == 2_500
    assert {daemon.name for daemon in status.daemons} == {"munged", "slurmctld"}
    assert state_of(box, job) == "PENDING"
    assert "MaxJobCount             = 100000" in box.run(["scontrol", "show", "config"]).stdout


def test_the_command_line_from_up_to_remove(short_directory: Path) -> None:
    """The daemons outlive the command that started them, and down ends them all."""
    directory = short_directory / "c"

    def dlctl(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*CLI, *args], capture_output=True, text=True, check=False, timeout=120
        )

    try:
        up = dlctl("up", str(directory), "--nodes", "1", "--gpus", "1", "--nodes-per-leaf", "0")
        assert (up.returncode, up.stderr) == (0, "")
        assert dlctl("status", str(directory)).returncode == 0
        export = dlctl("env", str(directory)).stdout
        shell = subprocess.run(
            ["/bin/sh", "-c", f'{export} exec sinfo -h -o "%D %T"'],
            capture_output=True,
            text=True,
            check=True,
            timeout=30 * PATIENCE,
        )
        assert shell.stdout == "1 idle\n"
        refused = dlctl("up", str(directory), "--gpus", "2")
        assert refused.returncode == 2
        assert "asked for" in refused.stderr
        down = dlctl("down", "--remove", str(directory))
        assert down.stdout.endswith("directory removed\n")
    finally:
        if (directory / "sandbox.json").exists():
            Sandbox.open(directory).down(remove=True)
    assert not directory.exists()
    assert processes_of(directory) == set()


def test_the_queue_is_emptied_between_tests(
    sandbox: Sandbox, empty_queue: Callable[[Sandbox], None]
) -> None:
    """What a test leaves behind, held jobs, drained nodes and reservations included, goes away."""
    submit(sandbox, "sleep 300", "--gres=gpu:1")
    submit(sandbox, "sleep 300", "--hold", "--array=1-3")
    sandbox.run(["scontrol", "update", "NodeName=n1", "State=DRAIN", "Reason=test"])
    sandbox.run(["scontrol", "update", "PartitionName=gpu", "State=DOWN"])
    for name in ("slurm_dl_1", "foreign"):
        options = [
            "Nodes=n2",
            "Users=root",
            "StartTime=now",
            "Duration=10",
            "Flags=IGNORE_JOBS,OVERLAP",
        ]
        sandbox.run(["scontrol", "create", "reservation", f"ReservationName={name}", *options])
    try:
        empty_queue(sandbox)

        assert not sandbox.run(["squeue", "-ah"]).stdout
        assert {node.state for node in sandbox.status().nodes} <= {"IDLE", "IDLE+RESERVED"}
        left = sandbox.run(["scontrol", "-o", "show", "reservations"]).stdout
        assert "ReservationName=foreign" in left
        assert "ReservationName=slurm_dl_1" not in left
    finally:
        sandbox.run(["scontrol", "delete", "ReservationName=foreign"])


@pytest.mark.full("needs MariaDB")
def test_accounting_of_its_own(make_sandbox: MakeSandbox) -> None:
    """Runs are on record with their GPUs, over an outage of either daemon and a down and up."""
    box = make_sandbox(replace(SMALL, accounting=True))
    assert box.daemon_names[:4] == ("munged", "mysqld", "slurmdbd", "slurmctld")
    for path in (box.directory / "slurmdbd.conf", box.directory / "database"):
        assert path.stat().st_mode & 0o077 == 0
    first = submit(box, "true", "--gres=gpu:2", user="nobody")
    eventually(lambda: records(box).get(first) == "COMPLETED|gres/gpu=2", 60.0, what="the record")

    box.stop_daemon("slurmdbd")
    second = submit(box, "true", "--gres=gpu:1", user="nobody")
    wait_state(box, second, "COMPLETED")
    box.kill_daemon("mysqld")
    with pytest.raises(ClusterError, match="does not run"):
        box.stop_daemon("mysqld")
    assert not box.status().is_up
    Sandbox.up(box.directory)
    # slurmctld keeps what it could not tell and tells it later.
    eventually(lambda: records(box).get(second) == "COMPLETED|gres/gpu=1", 60.0, what="the record")

    before = records(box)
    box.down()
    assert processes_of(box.directory) == set()
    resumed = Sandbox.up(box.directory)
    assert resumed.spec.accounting
    assert records(resumed) == before


def records(box: Sandbox) -> dict[int, str]:
    """State and GPUs of each job in sacct."""
    argv = ["sacct", "-aXnP", "-o", "JobIDRaw,State,AllocTRES"]
    rows = (line.split("|") for line in box.run(argv).stdout.splitlines())
    return {
        int(job): f"{state}|{next((t for t in tres.split(',') if 'gpu' in t), '')}"
        for job, state, tres in rows
    }
