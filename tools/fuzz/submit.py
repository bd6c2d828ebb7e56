"""What users type at dlsubmit, and what sinfo tells it."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from pathlib import Path

from click import UsageError
from click.exceptions import Exit

from slurm_dl.cli.dlsubmit.command import options_of
from slurm_dl.cli.dlsubmit.command_job import choose_shape
from slurm_dl.model.contract import Contract
from slurm_dl.model.errors import ConfigError
from slurm_dl.slurm.requeue_facts import job_words, lost
from slurm_dl.submit import option_values
from slurm_dl.submit.host_resources import Silence
from slurm_dl.submit.job_comment import comment, with_more
from slurm_dl.submit.job_environment import clean
from slurm_dl.submit.job_extras import fewest_switches, told
from slurm_dl.submit.job_request import check
from slurm_dl.submit.job_shape import JobShape, choose
from slurm_dl.submit.shell_quoting import UserText, quote
from slurm_dl.submit.slurm_calls import parse_partitions
from slurm_dl.submit.user_files import parse_defaults
from slurm_dl.submit.user_script import parse_script
from tools.fuzz.target import Target, argument, text

_SINFO = (
    b"gpu*|idle|gpu:a100:4(S:0-1),shard:8|n1|16|64000|UNLIMITED|2\n"
    b"gpu*|mixed|gpu:a100:4|n2|16|64000|8|1\nold|down*|(null)|n3|4|1000|UNLIMITED|1\n"
)


def _words(data: bytes) -> list[str]:
    return [argument(word) for word in data.split(b"\n")]


def _command_line(data: bytes) -> object:
    with contextlib.redirect_stdout(io.StringIO()):
        options, line = options_of(_words(data))
    request = check(
        options,
        sbatch=line.sbatch,
        command=line.command,
        cwd="/nowhere",
        dlrun="/usr/bin/dlrun",
    )
    return choose_shape(request, list(parse_partitions(_SINFO.decode()).by_name.values()))


_VALUES: tuple[Callable[[str], object], ...] = (
    lambda value: option_values.clean_text(value, "--x"),
    lambda value: option_values.plain_name(value, "--x"),
    lambda value: option_values.count(value, "--x"),
    lambda value: option_values.signal_and_lead(value, 60),
    option_values.model_name,
    option_values.job_name,
    option_values.partition_list,
    option_values.array_spec,
    option_values.gpu_request,
    option_values.node_range,
    option_values.cpus_for_each_gpu,
    option_values.grace,
    option_values.time_limit_s,
)


def _value(data: bytes) -> None:
    value = argument(data)
    for read in _VALUES:
        with contextlib.suppress(ConfigError):
            read(value)


def _sinfo(data: bytes) -> object:
    partitions = parse_partitions(text(data))
    return choose(list(partitions.by_name.values()), gpus=4, gpu_type=None, nodes=None)


def _topology(data: bytes) -> object:
    partitions = list(parse_partitions(_SINFO.decode()).by_name.values())
    shape = choose(partitions, gpus=8, gpu_type=None, nodes=None)
    assert isinstance(shape, JobShape)  # noqa: S101 - narrows the type
    return fewest_switches(shape, partitions, text(data))


def _comment(data: bytes) -> object:
    written = comment(argument(data), contract=Contract(), model="vgg")
    return with_more(written, {"cpus": 4})


def _quoted(data: bytes) -> None:
    written = quote(UserText(argument(data)))
    assert written.isprintable() or not written.isascii(), "a script is read by lines"  # noqa: S101


def _told(data: bytes) -> object:
    partitions = list(parse_partitions(_SINFO.decode()).by_name.values())
    shape = choose(partitions, gpus=4, gpu_type=None, nodes=None)
    nodes = [node for partition in partitions for node in partition.nodes]
    silence = Silence(cpus=True, memory=True)
    return told(shape, nodes, silence, _words(data), tasks_per_node=1)


def _defaults(data: bytes) -> object:
    known = {"grace", "account", "no-preempt", "time"}
    return list(parse_defaults(text(data), Path("/nowhere/config.yaml"), known))


def _script(data: bytes) -> object:
    script = parse_script(data.decode("utf-8", "surrogateescape"), Path("/nowhere/job.sh"))
    return script.sbatch_lines({"gpus": "left out"}), script.interpreter, script.calls("srun")


def _sent(data: bytes) -> object:
    job = job_words(text(data))
    return lost({"JobId": "7", **job}, comment("x", contract=Contract(), model=None), {})


TARGETS = (
    Target(
        name="dlsubmit-defaults",
        parse=_defaults,
        own=(ConfigError,),
        source="the user's own defaults for dlsubmit",
        parser="submit.user_files.parse_defaults",
        seeds=(b"grace: 60\naccount: 'a b'\nno_preempt: true\ntime: 2:00:00\n",),
    ),
    Target(
        name="dlsubmit-script",
        parse=_script,
        own=(ConfigError,),
        source="batch scripts of users",
        parser="submit.user_script.parse_script",
        seeds=(
            b"#!/bin/bash -l\n#SBATCH -J 'a b' --gpus=2 # all\n#SBATCH -t 5\nsrun python x.py\n",
            b'#!/bin/sh\n#SBATCH --comment="a\\"b" --nic=3\n\ntrue',
        ),
    ),
    Target(
        name="dlsubmit-sent",
        parse=_sent,
        own=(ConfigError,),
        source="scontrol show job, after a submission",
        parser="slurm.requeue_facts.job_words, lost",
        seeds=(b'JobId=7 JobName=a Requeue=1\n   Comment={"slurm_dl":{"v":1,"sig":"USR1"}} \n',),
    ),
    Target(
        name="dlsubmit",
        parse=_command_line,
        own=(ConfigError, UsageError, Exit),
        source="dlsubmit's command line",
        parser="cli.dlsubmit.command.options_of, job_request.check",
        seeds=(
            b"--gpus=a100:8\n--model=vgg\n--time=1-00:00:00\n-J\nname\n--\npython\ntrain.py",
            b'--gpus=4\n--nodes=1-2\n--account=lab\n--array=0-9:2%3\n--comment={"a":1}\n--\na',
            b"--share\n--signal=B:USR1@60\n--grace=5.5\n-Hv\n--mem=5G\n--\na",
        ),
    ),
    Target(
        name="dlsubmit-value",
        parse=_value,
        source="single values of dlsubmit's options",
        parser="submit.option_values",
        seeds=(b"1-02:03:04", b"a100:8", b"0-15,20-30:2%4", b"SIGUSR1@90", b"name"),
    ),
    Target(
        name="dlsubmit-sinfo",
        parse=_sinfo,
        own=(ConfigError,),
        source="sinfo, for dlsubmit",
        parser="submit.slurm_calls.parse_partitions",
        seeds=(_SINFO,),
    ),
    Target(
        name="dlsubmit-topology",
        parse=_topology,
        source="scontrol show topology, for dlsubmit",
        parser="submit.job_extras.fewest_switches",
        seeds=(b"SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[1-2]\n",),
    ),
    Target(
        name="dlsubmit-comment",
        parse=_comment,
        own=(ConfigError,),
        source="dlsubmit --comment",
        parser="submit.job_comment.comment",
        seeds=(b'{"a": [1, 2]}', b"plain words"),
    ),
    Target(
        name="dlsubmit-quoting",
        parse=_quoted,
        source="texts of users that go into a script",
        parser="submit.shell_quoting.quote",
        seeds=(b'it\'s $(x) `y` "z" \\ \n!', b""),
        own=(ConfigError,),
    ),
    Target(
        name="dlsubmit-told",
        parse=_told,
        source="sbatch's options that dlsubmit passes to the daemon",
        parser="submit.job_extras.told",
        seeds=(b"--cpus-per-task=8\n--mem=60000M\n--mem-per-gpu=5G",),
    ),
    Target(
        name="dlsubmit-environment",
        parse=lambda data: clean(
            dict(word.partition("=")[::2] for word in _words(data)), keep_sbatch=False
        ),
        source="the environment of dlsubmit",
        parser="submit.job_environment.clean",
        seeds=(b"SBATCH_GRES=gpu:8\nSLURM_JOB_ID=7\nPATH=/bin",),
    ),
)
