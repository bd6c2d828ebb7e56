"""Values of a job that are right together, and the options of a user's batch script."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from user_scripts import arguments, submitted, written

from slurm_dl.client_config import ClientConfig
from slurm_dl.model.errors import ConfigError
from slurm_dl.slurm.read.comment_claims import ClaimReader
from slurm_dl.submit.job_request import JobRequest, SubmitOptions, check
from slurm_dl.submit.user_script import read_script

TYPED = SubmitOptions(gpus="4")


def checked(
    typed: SubmitOptions = TYPED, *command: str, dlrun: str | None = "/opt/bin/dlrun"
) -> JobRequest:
    return check(
        typed, sbatch=(), command=command or ("python", "train.py"), cwd="/home/ann", dlrun=dlrun
    )


def test_defaults() -> None:
    """Few words make a whole job: preemptible, requeueable, logged and named."""
    request = checked()

    assert (request.gpus, request.launcher, request.name) == (4, "plain", "train")
    assert (request.signal, request.lead_s, request.grace_s) == ("USR1", 60, 120.0)
    assert request.requeue
    assert request.output == "slurm-%j.out"
    assert request.run_base == "/home/ann/slurm_dl_runs"
    assert request.template == "plain"
    assert json.loads(request.comment)["slurm_dl"]["by"] == "daemon"
    assert request.due_s is None
    due = checked(replace(TYPED, by="+1h"))
    assert json.loads(due.comment)["slurm_dl"]["due"] == due.due_s
    soft = checked(replace(TYPED, by="+2d=5;+1d=10.5; +3d=1"))
    claim = ClaimReader(max_grace_s=1e9).read(soft.comment)
    assert claim.due_s == soft.due_s
    assert claim.curve is not None
    assert claim.curve.value == (10.5, 5.0, 1.0)
    assert [at_s - claim.curve.due_s[0] for at_s in claim.curve.due_s] == [0, 86_400, 172_800]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gpus": None}, "give --gpus=N"),
        ({"by": "+1h; +2h"}, "--by: '\\+1h' is not TIME=VALUE"),
        ({"by": "+1h=10;+2h"}, "each of several deadlines needs a value"),
        ({"by": "+1h=10;"}, "TIME=VALUE"),
        ({"by": "+1h="}, "TIME=VALUE"),
        ({"by": "=10"}, "--by: '' is not a time"),
        ({"by": "+1h=-1"}, "TIME=VALUE"),
        ({"by": "+1h=1e9"}, "TIME=VALUE"),
        ({"by": "+1h=\uff11"}, "TIME=VALUE"),
        ({"by": "+1h=0"}, "above 0"),
        ({"by": "+1h=10;+2h=10"}, "of less value"),
        ({"by": "+1h=10;+1h=5"}, "must be later"),
        ({"by": ";".join(f"+{i}h={20 - i}" for i in range(1, 10))}, "1 to 8 deadlines"),
        ({"by": "2001-01-01T00:00=10;+1h=5"}, "has passed"),
        ({"gpus": "a100:4", "gpu_type": "h100"}, "--gpus asks for a100 and --gpu-type for h100"),
        ({"gpu_type": "a b"}, "--gpu-type"),
        ({"nodes": "2-1"}, "--nodes: '2-1' is not N or MIN-MAX"),
        ({"nodes": "1-"}, "--nodes"),
        ({"nodes": "0-2"}, "--nodes"),
        ({"nodes": "0"}, "--nodes"),
        ({"nodes": "5-8"}, "4 GPUs cannot lie on 5 nodes or more"),
        ({"nodes": "1-4", "ntasks_per_node": "1"}, "leave it out, there is one task for each GPU"),
        ({"cpus": "many"}, "--cpus: 'many' is not a whole number"),
        ({"cpus": "0"}, "--cpus"),
        ({"share": True}, "half a GPU is for jobs of one GPU or less, not for --gpus=4"),
        ({"share": True, "gpus": None, "nodes": "2"}, "half a GPU lies on one node"),
        ({"share": True, "gpus": None, "nodes": "1-2"}, "half a GPU lies on one node"),
        ({"batch": "gpu"}, "--batch says what --sizes do to the batch"),
        ({"in_place": True}, "--in-place says how it comes to fewer of its --sizes"),
        ({"sizes": "1", "batch": "both"}, "--batch: 'both' is not fixed or gpu"),
        *(
            ({"sizes": text}, "--sizes: .* is not a list")
            for text in ("", "1,", "0", "2x", "x", "a")
        ),
        *(
            ({"sizes": text}, "--sizes: .* is not a list")
            for text in ("1-4", "\uff11", "2x2\n", "1\0")
        ),
        ({"sizes": ",".join("1" * 33)}, "--sizes: at most 32"),
        ({"wait_for_data": True, "array": "0-3"}, "--wait-for-data cannot go with an array"),
        ({"sizes": "1", "array": "0-3"}, "--sizes cannot go with --array"),
        ({"sizes": "1", "share": True, "gpus": "1"}, "--sizes cannot go with --share"),
        ({"sizes": "1", "nodes": "1-2"}, "a range of --nodes: name the sizes as NODESxGPUS"),
        ({"sizes": "1", "ntasks_per_node": "1"}, "--ntasks-per-node: leave it out"),
        ({"launcher": "mpirun"}, "--launcher: 'mpirun' is not one of plain, torchrun, srun"),
        ({"model": "../x"}, "--model"),
        ({"name": "-x"}, "--name"),
        ({"partition": "a\nb"}, "--partition"),
        ({"time": "soon"}, "--time"),
        ({"time": "1"}, "the signal would come as the job starts"),
        ({"time": "5", "signal": "USR1@300"}, "the signal would come as the job starts"),
        ({"by": "soon"}, "--by: 'soon' is not a time"),
        ({"by": "2020-01-01T00:00"}, "--by: '2020-01-01T00:00' has passed"),
        ({"array": "0-9%x"}, "--array"),
        ({"output": "a\nb"}, "--output"),
        ({"output": ""}, "--output"),
        ({"run_dir": "a\nb"}, "--run-dir"),
        ({"comment": "a\nb"}, "--comment"),
        ({"signal": "KILL"}, "--signal"),
        ({"grace": "0"}, "--grace"),
        ({"stops_with": "256"}, "--stops-with"),
        ({"stops_with": "0; rm x"}, "--stops-with"),
        ({"stops_with": ""}, "--stops-with"),
        ({"requeued_by": "me"}, "--requeued-by: 'me' is not daemon or job"),
        ({"no_requeue": True}, "add --no-preempt"),
        ({"template": "_header"}, "part of other templates"),
        ({"template": "a/b"}, "--template"),
        ({"dlrun": "bin/dlrun"}, "not an absolute path"),
        ({"dlrun": "/bin/\ndlrun"}, "--dlrun"),
        ({"launcher": "torchrun", "ntasks_per_node": "4"}, "one per GPU; leave it out"),
        ({"ntasks_per_node": "x"}, "--ntasks-per-node"),
    ],
)
def test_bad_requests_get_their_line(change: dict[str, str | bool | None], message: str) -> None:
    """Each wrong value, and each contradiction, is told in one printable line."""
    with pytest.raises(ConfigError, match=message) as caught:
        checked(replace(TYPED, **change))  # type: ignore[arg-type]

    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("launcher", "command", "message"),
    [
        ("plain", ("",), "give -- COMMAND"),
        ("plain", ("-c", "x"), "'-c' is not a program"),
        ("srun", ("-m", "train"), "'-m' is not a program"),
        ("plain", ("a", "b\0c"), "NUL"),
        ("srun", ("echo", "a", ":", "b"), "a lone ':'"),
        ("torchrun", ("train.py", ":"), "a lone ':'"),
    ],
)
def test_commands_that_cannot_run_are_refused(
    launcher: str, command: tuple[str, ...], message: str
) -> None:
    """What srun or exec would misread is refused at submission, not hours later."""
    with pytest.raises(ConfigError, match=message):
        checked(replace(TYPED, launcher=launcher), *command)


def test_no_command_at_all() -> None:
    """A job needs something to run."""
    with pytest.raises(ConfigError, match="give -- COMMAND"):
        check(TYPED, sbatch=(), command=(), cwd="/", dlrun="/dlrun")


def test_dlrun_must_be_known() -> None:
    """Without a dlrun beside dlsubmit the user has to say where it is; his word wins."""
    with pytest.raises(ConfigError, match="give its path on the compute nodes"):
        checked(dlrun=None)
    assert checked(replace(TYPED, dlrun="/other/dlrun")).dlrun == "/other/dlrun"


def test_torchrun_may_run_a_module() -> None:
    """-m is torchrun's way of naming a module."""
    assert checked(replace(TYPED, launcher="torchrun"), "-m", "train").command == ("-m", "train")


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (("python", "-u", "dir/my train.py", "x.sh"), "my-train"),
        (("/usr/bin/env", "x"), "env"),
        (("./---",), "job"),
        (("é" * 300,), "job"),
        (("a" * 300,), "a" * 64),
    ],
)
def test_default_names(command: tuple[str, ...], name: str) -> None:
    """A job is named after its script, in letters that no tool stumbles over."""
    assert checked(TYPED, *command).name == name


def test_an_array_logs_each_task_apart() -> None:
    """Array tasks have a log each."""
    assert checked(replace(TYPED, array="0-3")).output == "slurm-%A_%a.out"


def test_a_job_that_may_not_be_preempted() -> None:
    """Without contract no signal is in the comment; --no-requeue is then allowed."""
    request = checked(replace(TYPED, no_preempt=True, no_requeue=True))

    assert not request.requeue
    assert json.loads(request.comment) == {"slurm_dl": {"v": 1}}


@pytest.mark.parametrize(
    ("typed", "expected"),
    [("2", (2, None)), ("1-4", (1, 4)), ("3-3", (3, None)), ("1-9", (1, 4)), ("4-9", (4, None))],
)
def test_a_range_of_nodes(typed: str, expected: tuple[int, int | None]) -> None:
    """No job lies on more nodes than it has GPUs; what is left of the range may be one number."""
    request = checked(replace(TYPED, nodes=typed))

    assert (request.nodes, request.most_nodes) == expected
    assert json.loads(request.comment)["slurm_dl"].get("nodes") == expected[1]


@pytest.mark.parametrize(
    ("typed", "sbatch", "message"),
    [
        (replace(TYPED, nodes="1-4"), "--cpus-per-task=8", "give the CPUs of each GPU as --cpus=N"),
        (replace(TYPED, cpus="8"), "--cpus-per-task=8", "--cpus and --cpus-per-task both"),
        (replace(TYPED, cpus="8"), "--cpus-per-gpu=8", "--cpus and --cpus-per-gpu both"),
        (replace(TYPED, sizes="1"), "--cpus-per-task=8", "give the CPUs of each GPU as --cpus=N"),
        (replace(TYPED, sizes="1"), "--exclusive", "--exclusive: a size takes its part of each"),
    ],
)
def test_two_words_about_cpus(typed: SubmitOptions, sbatch: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check(typed, sbatch=(sbatch,), command=("x",), cwd="/", dlrun="/d")


def test_where_slurm_itself_preempts_there_is_one_size() -> None:
    with pytest.raises(ConfigError, match="Slurm itself preempts here"):
        check(
            replace(TYPED, sizes="1"), sbatch=(), command=("x",), cwd="/", dlrun="/d", native=True
        )


def test_half_a_gpu_is_a_job_of_one() -> None:
    """It may name the type, and nothing else is needed."""
    assert checked(SubmitOptions(share=True)).gpus == 1
    assert checked(SubmitOptions(share=True, gpus="a100:1")).gpu_type == "a100"


def half(*sbatch: str, **typed: str) -> JobRequest:
    """A checked request for half a GPU, with options of sbatch."""
    options = SubmitOptions(share=True, **typed)  # type: ignore[arg-type]
    return check(options, sbatch=sbatch, command=("x",), cwd="/", dlrun="/d")


def test_what_is_said_for_each_gpu_is_said_otherwise_beside_shards() -> None:
    """Slurm refuses both options there."""
    for cpus in ("auto", "none"):
        request = half("--cpus-per-gpu=8", "--mem=4G", cpus=cpus)
        assert (request.cpus, request.sbatch) == (8, ("--mem=4G",))
    with pytest.raises(ConfigError, match="--cpus and --cpus-per-gpu both say"):
        half("--cpus-per-gpu=8", cpus="4")
    with pytest.raises(ConfigError, match="give the memory of the whole job, such as --mem=8G"):
        half("--mem-per-gpu=8G")


def test_half_a_gpu_without_a_model_is_named_by_what_it_runs(tmp_path: Path) -> None:
    """The same at every submission and in every directory; other words or another script: not."""

    def model(
        *command: str, where: str = "a", lines: str = "train()\n", **typed: str
    ) -> str | None:
        place = tmp_path / where
        place.mkdir(exist_ok=True)
        (place / "train.py").write_text(lines)
        options = SubmitOptions(share=True, **typed)  # type: ignore[arg-type]
        request = check(options, sbatch=(), command=command, cwd=str(place), dlrun="/d")
        told = json.loads(request.comment)["slurm_dl"]["model"]
        assert told == request.model
        return request.model

    first = model("python", "train.py", "--lr=1")
    assert re.fullmatch("tag-[0-9a-f]{12}", first or "")
    assert first == model("python", "train.py", "--lr=1", where="b")
    others = {
        model("python", "train.py", "--lr=2"),
        model("python", "train.py", "--lr", "1"),
        model("python", "train.py", "--lr=1", lines="train(2)\n"),
        model("python", "-m", "train"),
        model("python", "-m", "train", where="b"),
        model("python", f"{'x' * 5000}.py"),
    }
    assert len(others - {first}) == 6
    assert model("python", "train.py", model="bert") == "bert"
    whole = check(TYPED, sbatch=(), command=("python", "train.py"), cwd=str(tmp_path), dlrun="/d")
    assert whole.model is None


TRAIN = "#!/bin/bash\n#SBATCH -N 2 --gpus-per-node=4 -t 1:00:00\nsrun python train.py\n"
SITE = ClientConfig(qos="dl", max_grace_s=90.0, partitions=("gpu",), settle_s=2.5)


@pytest.mark.parametrize(
    ("lines", "said", "unread"),
    [
        ("#SBATCH -N 2 --time=1:00 # all night", [("nodes", "2"), ("time", "1:00")], ()),
        ('#SBATCH -J "my job" -A \'a b\'', [("job-name", "my job"), ("account", "a b")], ()),
        ("#SBATCH --job-name=a\\#c#d", [("job-name", "a#c")], ()),
        ("#SBATCH --job-name=a\\ b 'c\\' d'", [("job-name", "a")], ("b", "c' d")),
        ("#SBATCH -p gpu \\\n#SBATCH -t 5", [("partition", "gpu"), ("time", "5")], ()),
        ('#SBATCH -A "" -t 5\n#SBATCH -q high', [("account", "-q")], ("high",)),
        ("#SBATCH --exclusive --nice=5 -Hq", [("exclusive", None), ("nice", "5")], ("-Hq",)),
        ("#SBATCH --partitio=gpu --gpus=1", [("partition", "gpu"), ("gpus", "1")], ()),
        ("#SBATCH --gpu=1 --spank=x", [], ("--gpu=1", "--spank=x")),
        ("# a comment\n\n   # another\n#SBATCH -t 5\necho\n#SBATCH -t 9", [("time", "5")], ()),
        (" #SBATCH -t 5\n##SBATCH -t 6\n#sbatch -t 7", [], ()),
    ],
)  # fmt: skip
def test_lines_are_read_as_sbatch_reads_them(
    tmp_path: Path, lines: str, said: list[tuple[str, str | None]], unread: tuple[str, ...]
) -> None:
    """Quotes, escapes, comments, beginnings of options; nothing after the first command."""
    script = read_script(written(tmp_path, f"#!/bin/bash\n{lines}\ntrue\n"))

    assert [(option.name, option.value) for option in script.options] == said
    assert script.unread == unread


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import torch\n", "first line must be #!"),
        ("#!/bin/bash\r\ntrue\r\n", "dos2unix"),
        ("#!/bin/bash\ntrue\0\n", "NUL"),
        ('#!/bin/bash\n#SBATCH -J "a b\ntrue\n', "line 2.*without its end"),
    ],
)
def test_what_sbatch_would_refuse_is_refused(tmp_path: Path, text: str, message: str) -> None:
    """In one line that says where."""
    with pytest.raises(ConfigError, match=message):
        read_script(written(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "sbatch", "changes", "expected"),
    [
        (TRAIN, (), {}, {"signal": "B:USR1@60", "job-name": "job.sh", "requeue": ""}),
        (TRAIN.replace("-N 2", "--signal=R:10@200"), (), {}, {"signal": "B:USR1@200"}),
        (TRAIN, (), {"environ": {"SBATCH_SIGNAL": "USR2@30"}}, {"signal": "B:USR2@30"}),
        (TRAIN, (), {"typed": {"signal": "TERM@9"}}, {"signal": "B:TERM@9"}),
        (TRAIN.replace("1:00:00", "1"), (), {}, {"signal": "B:USR1@30"}),
        (TRAIN, (), {"environ": {"SBATCH_TIMELIMIT": "1"}}, {"signal": "B:USR1@30"}),
        (TRAIN.replace("-N 2", "-J mine"), (), {}, {"job-name": None}),
        (TRAIN, (), {"typed": {"time": "2-0", "nodes": "1"}}, {"time": "2-0", "nodes": "1"}),
        (TRAIN, (), {"usual": {"time": "2", "partition": "g"}}, {"time": None, "partition": "g"}),
        ("#!/bin/sh\n", (), {"usual": {"gpus": "2"}}, {"gpus": None}),
        (TRAIN, (), {"usual_sbatch": ["--account=v", "--time=9"]}, {"account": "v", "time": None}),
        (TRAIN, ("--qos=own",), {"site": SITE}, {"qos": "own", "begin": None}),
        (TRAIN, ("--partition=gpu",), {"site": SITE}, {"qos": "dl", "begin": "now+3"}),
        (TRAIN.replace("-N 2", "--comment=hello"), (), {}, {"comment": '"comment":"hello"'}),
    ],
)  # fmt: skip
def test_what_is_said_last_counts(
    tmp_path: Path,
    text: str,
    sbatch: tuple[str, ...],
    changes: dict[str, object],
    expected: dict[str, str | None],
) -> None:
    """The line before the environment, that before the script, that before what is usual."""
    said = arguments(submitted(written(tmp_path, text), *sbatch, **changes))

    for name, value in expected.items():
        if name == "comment":
            assert value is not None
            assert value in said[name]
        else:
            assert said.get(name) == value, (name, said)


@pytest.mark.parametrize(
    ("text", "changes", "by"),
    [
        (TRAIN, {}, "daemon"),
        (TRAIN + "trap 'scontrol requeue $SLURM_JOB_ID' USR1\n", {}, "daemon"),
        (TRAIN + "# scontrol requeue would do\n", {}, "daemon"),
        (TRAIN, {"typed": {"requeued_by": "job"}}, "job"),
        (TRAIN, {"typed": {"no_preempt": True}}, None),
        (TRAIN.replace("-N 2", "--no-requeue"), {}, None),
        (TRAIN.replace("-N 2", "--no-requeue"), {"sbatch": ("--requeue",)}, "daemon"),
        (TRAIN, {"environ": {"SBATCH_NO_REQUEUE": "1"}}, None),
        (TRAIN.replace("srun", "#SBATCH hetjob\n#SBATCH -N1\nsrun", 1), {}, None),
        (TRAIN.replace("-N 2", "--container=/oci"), {}, None),
        (TRAIN.replace("srun", "exec /opt/bin/dlrun -- srun"), {}, None),
        (TRAIN.replace("-N 2", '--comment=\'{"slurm_dl":{"v":1}}\''), {}, None),
    ],
)
def test_a_script_that_cannot_come_back_has_no_contract(
    tmp_path: Path, text: str, changes: dict[str, object], by: str | None
) -> None:
    """It is submitted byte for byte, and a note says why, unless that was asked for."""
    path = written(tmp_path, text)
    job = submitted(path, script_args=["--lr", "1"], **changes)

    if by is not None:
        assert json.loads(arguments(job)["comment"])["slurm_dl"]["by"] == by
        return
    assert job.script == text
    assert job.args[-3:] == (str(path), "--lr", "1")
    assert not job.diff()
    assert "comment" not in arguments(job)
    asked = "no_preempt" in dict(changes.get("typed") or {})  # type: ignore[call-overload]
    assert any("never preempted" in note for note in job.notes) is not asked


def test_options_for_gpus_on_the_line_replace_the_scripts(tmp_path: Path) -> None:
    """The other options of their line stay; the environment's do not count either."""
    path = written(tmp_path, TRAIN.replace("-N 2", "-N 2 -J 'a b#c'"))
    environ = {"SBATCH_GRES": "gpu:8", "SBATCH_WAIT": "1", "PATH": "/bin"}

    job = submitted(path, typed={"gpus": "2"}, environ=environ)

    lines = [line for line in job.script.split("cat >")[0].splitlines() if "SBATCH" in line]
    assert "#SBATCH --nodes=2" in lines
    assert '#SBATCH "--job-name=a b#c"' in lines
    assert not [x for x in lines if x.startswith("#SBATCH") and "gpus" in x]
    assert job.environ == {"PATH": "/bin"}


@pytest.mark.parametrize("option", ["sizes", "launcher", "cpus", "share", "template", "gpu_type"])
def test_options_of_a_command_are_refused(tmp_path: Path, option: str) -> None:
    """No launch is written for a script."""
    with pytest.raises(ConfigError, match=option.replace("_", "-")):
        submitted(written(tmp_path, TRAIN), typed={option: "1"})


@pytest.mark.parametrize(
    "text",
    [
        '#!/bin/bash -u\nprintf "%s|" "$@" "${x:-unset}"',
        "#!/bin/sh\nprintf '%s|' \"$@\"; cat <<'EOF'\nEND_OF_SCRIPT\n$HOME \\ `date` \udcff\nEOF\n",
        "#!/usr/bin/env python3\n#SBATCH -t 5\nimport sys\nprint(sys.argv[1:], '$x')\n",
    ],
)
def test_the_script_runs_byte_for_byte(tmp_path: Path, text: str) -> None:
    """By its own interpreter, with its arguments, whatever is in it."""
    path = written(tmp_path, text)
    dlrun = tmp_path / "dlrun"
    dlrun.write_text(
        '#!/bin/sh\n[ "$1" = --env ] && exit\n'
        'while [ "$1" != -- ]; do shift; done\nshift\nexec "$@"\n'
    )
    dlrun.chmod(0o755)
    job = submitted(path, script_args=["a b", "$HOME", "'"], dlrun=str(dlrun), cwd=str(tmp_path))
    path.chmod(0o755)

    runs = [
        subprocess.run(
            argv,
            input=script,
            cwd=tmp_path,
            env={"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "7", "HOME": "/h"},
            capture_output=True,
            timeout=30,
            check=True,
        ).stdout
        for argv, script in (
            ([str(path), "a b", "$HOME", "'"], b""),
            (["/bin/bash"], job.script.encode("utf-8", "surrogateescape")),
        )
    ]

    assert runs[0] == runs[1] != b""
    kept = (tmp_path / "slurm_dl_runs" / "7" / "slurm_script").read_bytes()
    assert kept.rstrip(b"\n") == path.read_bytes().rstrip(b"\n")
