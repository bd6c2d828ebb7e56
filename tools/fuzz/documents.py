"""Files of the admin's and of our own: configuration, profiles, ledger, audit log, recordings."""

from __future__ import annotations

import functools
import json
import sqlite3
import tempfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from slurm_dl.config.loading import load
from slurm_dl.daemon.audit_log import AuditLog
from slurm_dl.daemon.preconditions import FILE_NAME, PauseSwitch
from slurm_dl.engine.settings import Settings
from slurm_dl.experiments.array_job import Folder
from slurm_dl.experiments.grid import Experiment, Workload, product
from slurm_dl.experiments.policy_words import parse_policies
from slurm_dl.ledger.sqlite.store import SqliteStore, StoreError, stored_steers
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.profile import Profile
from slurm_dl.model.shape import Shape
from slurm_dl.policies.fifo import Fifo
from slurm_dl.profiles import learning
from slurm_dl.profiles.directory import profile_of, read_profile, text_of
from slurm_dl.profiles.load_reports import LOAD_FILE
from slurm_dl.profiles.run_reports import SPEED_FILE, STATE_FILE, learned, read_reports, votes
from slurm_dl.recording.cycles_file import Recording, Setup, Writer
from slurm_dl.sandbox.layout import Layout
from slurm_dl.sandbox.manifest import load as load_record
from slurm_dl.sandbox.spec import parse_group, parse_partition
from slurm_dl.testing.situations import situations
from slurm_dl.traces.format_registry import read_trace
from slurm_dl.traces.workload_fit import fit, read_fit
from slurm_dl.yaml_places import parse as parse_config
from slurm_dl.yaml_places import parse as parse_profile
from tools.fuzz.target import Target, a_file, folder, text

_CONFIG = b"""manage: {partitions: [gpu]}
policy: {order: discrete_las, parameters: {thresholds_gpu_s: [3250, 7200]}}
preemption:
  mode: external
daemon: {poll_s: 5.5}
"""
_PROFILE = b"""name: vgg
aliases: [VGG-16]
source: measured
tensors_mb: [1, 2.5]
beside: {a3c: 0.5}
checkpoint: {size_mb: 100, save_s: 2}
speeds:
- {shape: 1x1, steps_per_s: 3.4, gpu_type: k80, origin: published}
- {shape: 2x4, steps_per_s: 5.0}
"""
_SPEEDS = b'{"runs":[{"model":"a","nodes":1,"gpus_per_node":2,"gpu_type":"a100","windows":[[5,1.5],'
_SPEEDS += b"[6,1.5],[7,1.5],[8,1.5],[9,1.5],[9,1.6],[9,1.7]]}]}"
_LOADS = (
    b'{"runs":[{"restart":0,"attempt":0,"nodes":1,"model":"a","gpu_type":"a100","node":"n1",'
    b'"devices":["GPU-1"],"device_mb":40000,"mode":"mps","memory_mb":[10,90],'
    b'"shared":[[1150,1300]],"windows":['
)
_LOADS += b",".join(
    b"[%d,30,%s,0.4,0.1,null,900,30,1900,300,%d]" % (1000 + 30 * n, alone, 20 - n)
    for n, alone in enumerate([b"true"] * 5 + [b"false"] * 5)
)
_LOADS += b"]}]}"
_BODY: dict[str, object] = {
    "handover_id": 3,
    "opened_s": 5.5,
    "beneficiaries": [8],
    "victims": [
        {
            "run": {"job_id": 1, "start_s": 2.5, "restarts": 4},
            "gpus": 2.0,
            "contract": {
                "signal": "USR2",
                "target": "steps",
                "grace_s": 9.0,
                "requeued_by": "job",
            },
            "state": "chosen",
            "signalled_s": 6.0,
            "gone_s": 0.0,
            "outcome": "",
        }
    ],
    "nodes": ["n1"],
    "attached": [8],
    "seal": "wanted",
    "purpose": "preempt",
    "seats": [],
    "apart": [],
}
_AUDIT = (
    b'{"time": 1.5, "kind": "Requeue", "job": 7, "details": {"handover": {"beneficiaries": [8], '
    b'"victims": [{"run": {"job_id": 9}}]}}}\n{"job": 8}\n'
)
_JOBS = b"job_id,submission_time,duration,num_gpu\n1,0,9,1\n2,5,90,2\n3,5000,90,8\n"


def _recorded() -> bytes:
    snap = situations()[0].snap
    settings = Settings(partitions=frozenset(snap.seen.partitions))
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "seed"
        with Writer(path, Setup.of(Fifo(), settings)) as writer:
            writer.write(snap)
        return path.read_bytes()


def _swept() -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        trace = read_trace(a_file(_JOBS, "jobs.csv"), "itp")
        experiment = Experiment(workloads={"": Workload(cluster="2x4", trace=trace)})
        path = Path(directory) / "sweep"
        Folder.create(path, experiment, product(parse_policies("fifo", {}), resamples=1), {})
        return (path / "experiment.json").read_bytes()


def _fitted() -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "jobs.csv"
        path.write_bytes(_JOBS)
        return fit(read_trace(path, "itp")).model_dump_json().encode()


def _config(data: bytes) -> object:
    flag, _, content = data.partition(b"\x1c")
    if not content:
        flag, content = b"daemon.poll_s=5", data
    return load(
        a_file(content, "slurm_dl.yaml"),
        overrides=[text(flag).replace("\0", "")],
        require_private=True,
        environ={},
    )


def _profile(data: bytes) -> None:
    profile = read_profile(a_file(data, "vgg.yaml"), reader="user")
    again = profile_of(parse_profile(text_of(profile), "again"), "again")
    assert again == profile, "a profile that was read is not the one that was written"  # noqa: S101


def _reports(data: bytes) -> object:
    speeds, states, loads = (*data.split(b"\x1c", 2), b"", b"")[:3]
    a_file(speeds, SPEED_FILE)
    a_file(states, STATE_FILE)
    a_file(loads, LOAD_FILE)
    reports = read_reports(folder(), {"a"})
    profile = Profile(name="a")
    runs = [replace(run, place=Path(str(n))) for n in range(3) for run in reports.loads]
    found = learning.find(runs, profile, names={"a"})
    again = replace(
        learned(profile, votes([reports] * 3)),
        load=learning.with_load(profile.load, found),
        beside=learning.with_pairs((), found.beside),
    )
    written = profile_of(parse_profile(text_of(again), "again"), "again")
    assert written == again, "what was learned is no profile"  # noqa: S101
    return reports


@functools.cache
def _ledger() -> Path:
    path = folder() / "ledger.sqlite"
    SqliteStore(path).close()
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("INSERT INTO handover VALUES (3, '', '')")
    return path


def _ledger_body(data: bytes) -> object:
    path = _ledger()
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE handover SET body = ?", (text(data),))
    store = SqliteStore(path)
    try:
        return store.load()
    finally:
        store.close()


def _ledger_file(data: bytes) -> object:
    path = a_file(data, "other.sqlite")
    for more in ("-wal", "-shm"):
        Path(f"{path}{more}").unlink(missing_ok=True)
    stored_steers(path)
    store = SqliteStore(path)
    try:
        return store.load()
    finally:
        store.close()


def _audit(data: bytes) -> object:
    log = AuditLog(a_file(data, "audit.jsonl"))
    try:
        return [log.history(job) for job in (7, 8, 9)]
    finally:
        log.close()


def _pause(data: bytes) -> object:
    a_file(data, FILE_NAME)
    switch = PauseSwitch(folder())
    assert switch.why_not(), "a file that is there means a pause"  # noqa: S101
    return None if switch.pause is None else json.dumps(switch.pause.as_json())


def _recording(data: bytes) -> object:
    with Recording(a_file(data, "recording")) as recording:
        return list(recording)


def _sandbox(data: bytes) -> object:
    layout = Layout(folder())
    layout.record.parent.mkdir(parents=True, exist_ok=True)
    layout.record.write_bytes(data)
    return load_record(layout)


def _sweep(data: bytes) -> object:
    directory = folder() / "sweep"
    directory.mkdir(exist_ok=True)
    (directory / "experiment.json").write_bytes(data)
    return Folder.open(directory)


TARGETS = (
    Target(
        name="config",
        parse=_config,
        own=(ConfigError,),
        source="the configuration file and flags",
        parser="config.loading.load",
        seeds=(
            _CONFIG,
            b'policy.parameters={"a": [1, .5]}\x1c' + _CONFIG,
            b"a: &a [1]\nb: [*a, *a]\n",
        ),
    ),
    Target(
        name="config-yaml",
        parse=lambda data: parse_config(text(data), "file"),
        own=(ConfigError,),
        source="YAML of the configuration",
        parser="yaml_places.parse",
        seeds=(_CONFIG, b"a: !!int 3\n", b'a: "\\x41"\n? [b]\n: c\na: 2\n'),
    ),
    Target(
        name="profile",
        parse=_profile,
        own=(ConfigError,),
        source="profiles of models",
        parser="profiles.directory.read_profile",
        seeds=(_PROFILE,),
    ),
    Target(
        name="profile-shape",
        parse=lambda data: Shape.of(text(data)),
        own=(ValueError,),
        source="sizes such as 4x8",
        parser="model.profile.Shape.of",
        seeds=(b"4x8", b"99999x9999"),
    ),
    Target(
        name="run-reports",
        parse=_reports,
        source="progress and samples that users' jobs wrote, for dlctl profile learn",
        parser="profiles.run_reports.read_reports",
        seeds=(_SPEEDS + b'\x1c{"checkpoints":[{"size_b":100000,"save_s":1.5}]}\x1c' + _LOADS,),
    ),
    Target(
        name="ledger-body",
        parse=_ledger_body,
        own=(StoreError,),
        source="hand-overs in the ledger",
        parser="ledger.sqlite.store.SqliteStore.load",
        seeds=(json.dumps(_BODY).encode(), json.dumps(_BODY | {"purpose": "split"}).encode()),
    ),
    Target(
        name="ledger-file",
        parse=_ledger_file,
        own=(StoreError,),
        source="the ledger's file",
        parser="ledger.sqlite.store.SqliteStore",
        seeds=(b"", b"SQLite format 3\0" + bytes([16, 0, 1, 1, 0, 64, 32, 32])),
    ),
    Target(
        name="audit",
        parse=_audit,
        source="the end of the audit log",
        parser="daemon.audit_log.AuditLog",
        seeds=(_AUDIT,),
    ),
    Target(
        name="pause",
        parse=_pause,
        source="the file that keeps the daemon paused",
        parser="daemon.preconditions.PauseSwitch",
        seeds=(b'{"by": "ada", "since_s": 1.5, "reason": "maintenance"}',),
    ),
    Target(
        name="recording",
        parse=_recording,
        own=(ConfigError,),
        source="recordings and snapshots, which users send in",
        parser="recording.cycles_file.Recording",
        seeds=(_recorded(),),
    ),
    Target(
        name="fit",
        parse=lambda data: read_fit(a_file(data, "fit.json")),
        own=(ConfigError,),
        source="fits of workloads",
        parser="traces.workload_fit.read_fit",
        seeds=(_fitted(),),
    ),
    Target(
        name="sweep",
        parse=_sweep,
        own=(ConfigError,),
        source="the folder of a sweep",
        parser="experiments.array_job.Folder.open",
        seeds=(_swept(),),
    ),
    Target(
        name="sandbox-record",
        parse=_sandbox,
        own=(ConfigError,),
        source="the record of a sandbox",
        parser="sandbox.manifest.load",
        seeds=(
            (
                b'{"spec": {"groups": [{"nodes": 2, "gpus": 4, "gpu_type": "a100", "cpus": 8, '
                b'"mem_mb": 1000}]}, "first_port": 20000, "sandbox_id": "ab", "format": 1}'
            ),
        ),
    ),
    Target(
        name="sandbox-group",
        parse=lambda data: parse_group(text(data), cpus=8, mem_mb=1000),
        own=(ConfigError,),
        source="dlctl sandbox up: groups of nodes",
        parser="sandbox.spec.parse_group",
        seeds=(b"4x4:a100", b"2x0"),
    ),
    Target(
        name="sandbox-partition",
        parse=lambda data: parse_partition(text(data)),
        own=(ConfigError,),
        source="dlctl sandbox up: partitions",
        parser="sandbox.spec.parse_partition",
        seeds=(b"debug=n[1-2]", b"gpu"),
    ),
)
