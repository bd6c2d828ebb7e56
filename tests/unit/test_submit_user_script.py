"""A user's batch script: its options, and what becomes of it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from user_scripts import arguments, submitted, written

from slurm_dl.client_config import ClientConfig
from slurm_dl.model.errors import ConfigError
from slurm_dl.submit.user_script import read_script

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
