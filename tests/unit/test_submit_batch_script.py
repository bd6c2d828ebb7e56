"""The script is what was recorded, and no user's text can change its shape."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_dl.model.errors import ConfigError
from slurm_dl.submit import batch_script, job_shape
from slurm_dl.submit.host_resources import Wanted
from slurm_dl.submit.job_request import SubmitOptions, check
from slurm_dl.submit.launch_command import LAUNCHERS
from slurm_dl.submit.script_templates import TemplateDirectory

DATA = Path(__file__).parents[1] / "data" / "scripts"
TEMPLATES = (
    TemplateDirectory(owner="checkout", directory=Path(__file__).parents[2] / "templates"),
)

_spec = importlib.util.spec_from_file_location("record_scripts", DATA / "record.py")
record = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(record)

TWO_NODES = job_shape.JobShape(
    nodes=2, gpus_per_node=4, gpu_type="a100", types=("a100",), enough_up=True
)
RANGE = job_shape.NodeRange(
    nodes=1, most_nodes=4, gpus=8, gpu_type="a100", types=("a100",), enough_up=True
)
HALF = job_shape.HalfGpu(shards=2, gpu_type=None, types=("a100",), enough_up=True)


def compose(
    typed: SubmitOptions,
    command: tuple[str, ...],
    *,
    where: tuple[TemplateDirectory, ...] = TEMPLATES,
    dlrun: str = "/d",
    wanted: Wanted = TWO_NODES,
) -> batch_script.Submission:
    request = check(typed, sbatch=(), command=command, cwd="/w", dlrun=dlrun)
    return batch_script.compose(request, wanted, where)


@pytest.mark.parametrize("name", sorted(record.cases()))
def test_scripts_are_as_recorded(name: str) -> None:
    """Each case gives the recorded script; tests/data/scripts/record.py records anew."""
    recorded = (DATA / f"{name}.sbatch").read_text(encoding="utf-8")

    assert record.render(record.cases()[name]).split("\n") == recorded.split("\n")


def test_every_recorded_script_has_its_case() -> None:
    """No recorded file is left that nothing compares."""
    assert {p.stem for p in DATA.glob("*.sbatch")} == set(record.cases())


anything = st.one_of(
    st.text(max_size=20),
    st.sampled_from(
        [
            *("x\n#SBATCH --uid=0", "'\n#SBATCH --exclusive\n'", "{{ 7 * 7 }}"),
            *("{% include '/etc/passwd' %}", "$(touch /tmp/x)", "`id`", "a; b", "-x", "\\"),
            "#SBATCH --exclusive",
        ]
    ),
    st.binary(max_size=8).map(lambda raw: os.fsdecode(raw.replace(b"\0", b""))),
)


@settings(deadline=None, max_examples=150)
@given(
    launcher=st.sampled_from(LAUNCHERS),
    texts=st.fixed_dictionaries(
        {},
        optional=dict.fromkeys(
            (
                "name", "model", "partition", "time", "array", "output", "run_dir", "comment",
                "signal", "grace", "gpu_type", "ntasks_per_node", "dlrun",
            ),
            anything,
        ),
    ),
    arguments=st.lists(anything, max_size=4),
    wanted=st.sampled_from([TWO_NODES, RANGE, HALF]),
)  # fmt: skip
def test_no_user_text_changes_the_shape_of_the_script(
    launcher: str, texts: dict[str, str], arguments: list[str], wanted: Wanted
) -> None:
    """Same lines, same directives as with harmless text; every argument of sbatch is one option."""
    typed = replace(SubmitOptions(gpus="8", launcher=launcher), **texts)  # type: ignore[arg-type]
    made, refusal = None, ""
    try:
        made = compose(typed, ("python", *arguments), wanted=wanted)
    except ConfigError as err:
        refusal = str(err)

    assert refusal.isprintable()
    if made is None:
        return
    harmless = compose(
        SubmitOptions(
            gpus="8",
            launcher=launcher,
            array="1" if typed.array else None,
            model="m" if typed.model else None,
        ),
        ("python",),
        wanted=wanted,
    )
    changeable = ("--signal=", "--ntasks-per-node=")
    for line, expected in zip(made.script.split("\n"), harmless.script.split("\n"), strict=True):
        assert line.isprintable()
        if line.startswith("#") and not line.startswith(tuple(f"#SBATCH {c}" for c in changeable)):
            assert line == expected
        assert line.startswith("#SBATCH") == expected.startswith("#SBATCH")
    assert all(a.startswith("--") and len(a.splitlines()) == 1 for a in made.args)


@settings(
    deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    arguments=st.lists(anything.filter(lambda t: "\0" not in t), max_size=5),
    base=st.text(alphabet="a '\"$`\\*é{}", max_size=8),
)
def test_the_whole_script_hands_every_argument_over(
    tmp_path: Path, arguments: list[str], base: str
) -> None:
    """Run by bash, the script gives dlrun the command as typed and makes the run directory."""
    fake = tmp_path / "it's $HOME dlrun"
    fake.write_text('#!/bin/sh\nprintf \'%s\\0\' "$SLURM_DL_RUN_DIR" "$@"\n')
    fake.chmod(0o755)
    run_base = tmp_path / f"runs{base}"
    made = compose(
        SubmitOptions(gpus="8", run_dir=str(run_base)), ("python", *arguments), dlrun=str(fake)
    )
    assert (
        subprocess.run(["/bin/bash", "-n"], input=made.script.encode(), check=False).returncode == 0
    )

    done = subprocess.run(
        ["/bin/bash"],
        input=made.script.encode(),
        env={"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "12"},
        capture_output=True,
        check=True,
    )

    got = [os.fsdecode(part) for part in done.stdout.split(b"\0")[:-1]]
    assert got[0] == f"{run_base}/12"
    assert Path(got[0]).is_dir()
    assert got[1:] == ["--launcher", "plain", "--grace", "120", "--", "python", *arguments]


def user_template(tmp_path: Path, text: str) -> tuple[TemplateDirectory, ...]:
    (tmp_path / "plain.sbatch.j2").write_text(text)
    return (TemplateDirectory(owner="user", directory=tmp_path), *TEMPLATES)


def test_a_users_template_may_use_the_shared_header(tmp_path: Path) -> None:
    """A template of one's own needs only the part that differs."""
    where = user_template(
        tmp_path, '{% include "_header" %}\nexec {{ dlrun|quote }} -- {{ command|quote }}\n'
    )

    made = compose(SubmitOptions(gpus="8"), ("a b",), where=where)

    assert made.script.startswith("#!/bin/bash\n#SBATCH --requeue\n")
    assert made.script.endswith("\nexec /d -- 'a b'\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("#!/bin/sh\n{{ command }}", "without '| quote'"),
        ("#!/bin/sh\n{{ name }}", "without '| quote'"),
        ("#!/bin/sh\n{{ 'x' ~ name }}", "without '| quote'"),
        ("#!/bin/sh\n{{ name | upper }}", "without '| quote'"),
        ("#!/bin/sh\n{{ command | join(' ') }}", "without '| quote'"),
        ("#!/bin/sh\n{{ '%s' | format(name) }}", "without '| quote'"),
        ("#!/bin/sh\n{{ name._text }}", "unsafe"),
        ("#!/bin/sh\n{{ ''.__class__.__mro__ }}", "unsafe"),
        ("#!/bin/sh\n{{ nmae | quote }}", "'nmae' is undefined"),
        ("#!/bin/sh\n{% include 'nothing' %}", "no template nothing"),
        ("#!/bin/sh\n{% include '../../etc/passwd' %}", "is not a name"),
        ("#!/bin/sh\n\n{% if %}", r"plain.sbatch.j2:3: "),
        ("no shell", "must begin with #!"),
        ("#!/bin/sh\n{{ '\\r' }}\n", "carriage return"),
    ],
)
def test_bad_templates_get_their_line(tmp_path: Path, text: str, message: str) -> None:
    """A template cannot print a user's text unquoted, run code or read files; it says where."""
    with pytest.raises(ConfigError, match=message):
        compose(SubmitOptions(gpus="8"), ("true",), where=user_template(tmp_path, text))


def test_a_template_that_knows_no_ranges_fails_for_one(tmp_path: Path) -> None:
    """It would start ``--nproc-per-node=None``; for jobs of even shape it is as it was."""
    where = user_template(tmp_path, "#!/bin/sh\ntorchrun --nproc-per-node={{ gpus_per_node }}\n")
    typed = SubmitOptions(gpus="8")

    assert "--nproc-per-node=4\n" in compose(typed, ("x",), where=where).script
    with pytest.raises(ConfigError, match=r"plain\.sbatch\.j2: it prints .* range of --nodes"):
        compose(typed, ("x",), where=where, wanted=RANGE)


def test_a_users_template_syntax_does_not_work_in_values() -> None:
    """Template syntax in a user's text comes out as it went in."""
    made = compose(SubmitOptions(gpus="8", run_dir="/r/{{ nodes }}"), ("echo", "{{ 7 * 7 }}"))

    assert "'/r/{{ nodes }}'/" in made.script
    assert made.script.endswith(" -- echo '{{ 7 * 7 }}'\n")
