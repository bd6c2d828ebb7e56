"""Trace files: public ones, which anybody may have changed, and sites' own."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path

from slurm_dl.model.errors import ConfigError
from slurm_dl.simulation.ideal.measured_models import MeasuredModel
from slurm_dl.traces.format_registry import (
    BY_COLUMNS,
    BY_MODELS,
    FORMATS,
    detect_format,
    read_trace,
)
from slurm_dl.traces.recorded_schedule import read_recorded
from tools.fuzz.target import Target, a_file, folder

_JSON = (
    b'[{"status": "Pass", "vc": "v", "jobid": "j1", "user": "u", "submitted_time": '
    b'"2017-10-07 01:07:04", "attempts": [{"start_time": "2017-10-07 01:07:04", "end_time": '
    b'"2017-10-07 01:08:04", "detail": [{"ip": "m", "gpus": ["gpu0", "gpu1"]}]}]}]\n'
)
_SACCT_JSON = (
    b'{"jobs": [{"job_id": 7, "array": {"job_id": 6, "task_id": {"set": true, "number": 1}}, '
    b'"het": {"job_id": 0, "job_offset": null}, "user": "ada", "association": {"account": "lab"}, '
    b'"state": {"current": ["COMPLETED"]}, "time": {"submission": 1795906809, "start": 1795906809, '
    b'"elapsed": 60}, "tres": {"allocated": [{"type": "gres", "name": "gpu", "count": 2}]}}]}\n'
)
_PAI_JOBS = b"j1,i1,u1,Terminated,100.0,200.0\n"
_PAI_TASKS = b"j1,worker,1.0,Terminated,100.0,200.0,600.0,29.0,100.0,V100\n"
_SEEDS = {
    "slurm_dl": b"job_id,submit_s,duration_s,gpus,user,model,ending\n1,0,10,2,u,m,COMPLETED\n",
    "sacct": (
        b"JobIDRaw|User|Account|Submit|Start|End|State|ElapsedRaw|ReqTRES|AllocTRES\n"
        b"7|ada|lab|2026-01-01T00:00:00|2026-01-01T00:01:00|2026-01-01T00:02:00|COMPLETED|60|"
        b"gres/gpu=2|gres/gpu=2\n"
    ),
    "philly": b"timestamp,duration,num_gpus,cluster\n2017-10-07 01:07:04,60,2,a\n",
    "philly-json": _JSON,
    "itp": b"job_id,submission_time,duration,num_gpu,model_name\n1,0,60,2,vgg\n",
    "chronus": (
        b"job_id,user,num_gpu,submit_time,duration,expect_time_list,expect_value_list,best_effort\n"
        b"0,a,1,10,96,159-189,10-8,0\n"
    ),
    "helios": (
        b"job_id,user,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,"
        b"queue\n1,u,2,8,1,COMPLETED,2020-04-01 00:00:00,2020-04-01 00:00:01,"
        b"2020-04-01 00:01:01,60,0\n"
    ),
    "pai": _PAI_JOBS + b"\x1c" + _PAI_TASKS,
    "tiresias": b"job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n"
    b"1,2,0,100,vgg,60,0\n",
    "muri": b"job_id,num_gpu,submit_time,iterations,model_name,iteration_time\n1,2,0,100,vgg,20\n",
    "gavel": b"ResNet-18 (batch size 16)\tpython3 main.py\t--num_steps\t1\t10000\t0.5\t1\n",
    "synergy": b"0,alexnet,10,100,1\n",
    "pollux": b"name,time,application,num_replicas,batch_size\na,107,cifar10,6,2048\n",
}

_MODEL = (
    b"placement,local_bsz,step_time,sync_time\n1,4,0.2,0.1\n1,8,0.3,0.1\n4,1,0.1,0.1\n4,8,0.4,0.2\n"
    b"\x1cnum_nodes,num_replicas,local_bsz,step_time,sync_time\n"
    b"2,5,1,0.2,0.1\n2,8,1,0.3,0.2\n2,8,4,0.4,0.2\n3,9,1,0.4,0.2\n"
    b"\x1cprogress,iteration,metric,grad_sqr,grad_var\n10,10,1,0.2,0.3\n20,20,1,0.2,0.1\n"
)
_MODELS = Path(__file__).parents[2] / "traces" / "pollux" / "models"
_MODULES = {
    "gavel": "formats.gavel_shockwave",
    "pai": "formats.pai",
    "philly-json": "formats.philly_json",
    "pollux": "formats.artifact_workloads",
    "sacct": "slurm.sacct",
    "slurm_dl": "formats.slurm_dl_csv",
    "synergy": "formats.artifact_workloads",
}


def _reader(name: str) -> Callable[[bytes], object]:
    if name == "sacct":
        return _with_its_runs
    if name == "pollux":
        name = f"{BY_MODELS}{_MODELS}"
    if name != "pai":
        return lambda data: read_trace(a_file(data, "trace"), name)

    def read(data: bytes) -> object:
        jobs, _, tasks = data.partition(b"\x1c")
        directory = folder() / "pai"
        directory.mkdir(exist_ok=True)
        (directory / "pai_job_table.csv").write_bytes(jobs)
        (directory / "pai_task_table.csv").write_bytes(tasks)
        return read_trace(directory)

    return read


def _with_its_runs(data: bytes) -> object:
    path = a_file(data, "trace")
    return read_recorded(path, read_trace(path, "sacct"))


def _measured(data: bytes) -> object:
    """Placements, larger sizes and epochs with a batch of 8; on one node, and between sizes."""
    names = ("placements.csv", "scalability.csv", "validation-8.csv")
    directory = folder() / "measured"
    directory.mkdir(exist_ok=True)
    for name, part in zip_longest(names, data.split(b"\x1c", 2), fillvalue=b""):
        (directory / str(name)).write_bytes(bytes(part))
    model = MeasuredModel(directory)
    return model.duration_s(1, 8), model.foreseen_step_s(6, 8), model.foreseen_steps(0, 8)


def _by_columns(data: bytes) -> object:
    columns, _, table = data.partition(b"\x1c")
    name = BY_COLUMNS + columns.decode("utf-8", "replace")
    return read_trace(a_file(table, "trace"), name)


TARGETS = (
    *(
        Target(
            name=f"trace-{name.replace('_', '-')}",
            parse=_reader(name),
            own=(ConfigError,),
            source=f"trace files in format {name}",
            parser=f"traces.{_MODULES.get(name, 'formats.tabular')}",
            seeds=(seed,),
        )
        for name, seed in _SEEDS.items()
    ),
    Target(
        name="measured-model",
        parse=_measured,
        own=(ConfigError,),
        source="measured models of a trace in format pollux",
        parser="simulation.ideal.measured_models",
        seeds=(_MODEL,),
    ),
    Target(
        name="trace-columns",
        parse=_by_columns,
        own=(ConfigError,),
        source="--columns, and the table that it is for",
        parser="traces.formats.slurm_dl_csv.with_columns",
        seeds=(b"gpus=#GPU,submit_s=At,duration_s=Run\x1c#GPU;At;Run\n1;2026-01-01;1-00:00:00\n",),
    ),
    Target(
        name="trace-sacct-json",
        parse=_with_its_runs,
        own=(ConfigError,),
        source="trace files of sacct --json",
        parser="traces.slurm.sacct",
        seeds=(_SACCT_JSON,),
    ),
    Target(
        name="trace",
        parse=lambda data: (
            detect_format(a_file(data, "trace")),
            read_trace(a_file(data, "trace")),
        ),
        own=(ConfigError,),
        source="trace files, packed or not, of any format",
        parser="traces.format_registry.read_trace",
        seeds=(gzip.compress(_SEEDS["itp"], mtime=0), _SEEDS["slurm_dl"], _SEEDS["muri"]),
    ),
)

assert set(FORMATS) == set(_SEEDS), "each format has a seed"  # noqa: S101
