"""The environment of a job: what the script does for it, run by bash without Slurm."""

from __future__ import annotations

import re
import subprocess
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from slurm_dl.client_config import ClientConfig
from slurm_dl.model.errors import ConfigError
from slurm_dl.submit import batch_script, job_shape, script_job
from slurm_dl.submit.job_request import SubmitOptions, check
from slurm_dl.submit.script_templates import TemplateDirectory
from slurm_dl.submit.user_script import read_script

TEMPLATES = (
    TemplateDirectory(owner="checkout", directory=Path(__file__).parents[2] / "templates"),
)
DLRUN = """#!/bin/sh
[ "$1" = --env ] && exit
while [ "$1" != -- ]; do shift; done
shift
exec "$@"
"""
CONDA = """#!/bin/sh
[ "$*" = "shell.posix activate my env" ] || { echo "no such: $*" >&2; exit 1; }
echo 'export CONDA_PREFIX=/envs/mine; [ -n "$NEVER" ]'
"""
MODULE = """module() {
    [ "$*" = "load cuda/12.4 gcc" ] && { echo loading >&2; export LOADED="$*"; return 0; }
    echo "x.c(1):ERROR:105: Unable to locate $*" >&2
}
"""


class Desk:
    """A user's directory with stand-ins for dlrun, conda and module."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.environ = {"PATH": f"{path}/bin:/usr/bin:/bin", "HOME": str(path)}
        for name, text in {
            "bin/dlrun": DLRUN,
            "bin/conda": CONDA,
            "lmod/init/bash": MODULE,
            "t.sif": "",
            "it's $x.sh": 'export FROM="$PWD/x"',
        }.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_text(text)
            (path / name).chmod(0o755)

    def script(
        self,
        typed: Mapping[str, str],
        *command: str,
        where: Sequence[TemplateDirectory] = TEMPLATES,
        nodes: int = 1,
    ) -> str:
        """The batch script of a command."""
        request = check(
            SubmitOptions(gpus=f"{nodes}", **typed),  # type: ignore[arg-type]
            sbatch=(),
            command=command,
            cwd=str(self.path),
            dlrun=str(self.path / "bin" / "dlrun"),
            environ=self.environ,
        )
        shape = job_shape.JobShape(
            nodes=nodes, gpus_per_node=1, gpu_type=None, types=("a",), enough_up=True
        )
        return batch_script.compose(request, shape, where).script

    def wrapped(self, text: str, **typed: str | bool) -> str:
        """The batch script of a user's script."""
        (self.path / "job.sh").write_text(text)
        request = script_job.ScriptRequest(
            script=read_script(self.path / "job.sh"),
            script_args=(),
            typed=typed,
            usual={},
            usual_sbatch=(),
            sbatch=(),
            environ=self.environ,
            site=ClientConfig(),
            dlrun=str(self.path / "bin" / "dlrun"),
            cwd=str(self.path),
        )
        return script_job.compose(request, TEMPLATES).script

    def run(self, script: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """The result of *script* in bash."""
        return subprocess.run(
            ["/bin/bash"],
            input=script,
            cwd=self.path,
            env={**self.environ, "SLURM_JOB_ID": "7", **environ},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


@pytest.mark.parametrize("kind", ["command", "script"])
@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        ({"module": "cuda/12.4, gcc"}, "load cuda/12.4 gcc|||"),
        ({"conda": "my env"}, "|/envs/mine||"),
        ({"conda": "./my env"}, None),
        ({"setup": "it's $x.sh"}, "||{cwd}/x|"),
        ({"venv": "my venv"}, "|||{cwd}/my venv"),
        ({"module": "gcc"}, None),
        ({"conda": "other"}, None),
        *(
            ({"setup": f"{name}.sh"}, "||yes|" if name == "strict" else None)
            for name in ("strict", "fails", "exits", "dies")
        ),
    ],
)
def test_the_job_runs_in_its_environment_or_not_at_all(
    desk: Desk, kind: str, typed: dict[str, str], shown: str | None
) -> None:
    """A command and a batch script alike; what fails is named, and the job does not end well."""
    texts = {
        "strict": "set -eu -o pipefail; trap - USR1 EXIT; export FROM=yes",
        "fails": "false",
        "exits": "exit 0",
        "dies": "set -e; false; true",
    }
    for name, text in texts.items():
        (desk.path / f"{name}.sh").write_text(f"{text}\n")
    if "venv" in typed:
        venv.create(desk.path / "my venv", symlinks=True)
    show = (
        'printf "%s|%s|%s|%s\\n" "$LOADED" "$CONDA_PREFIX" "$FROM" "$VIRTUAL_ENV";'
        " python -c 'import sys; print(sys.prefix)'; kill -USR1 $$ && echo alive"
    )
    script = (
        desk.script(typed, "sh", "-c", show)
        if kind == "command"
        else desk.wrapped(f"#!/bin/sh\n{show}\n", **typed)
    )

    done = desk.run(script, LMOD_PKG=str(desk.path / "lmod"), PYTHONHOME="/none")

    if shown is None:
        assert done.returncode != 0
        assert f"--{next(iter(typed))}: " in done.stderr
        assert "|" not in done.stdout
        return
    lines = done.stdout.splitlines()
    assert lines[0] == shown.format(cwd=desk.path), done.stderr
    assert lines[-1] == "alive"
    assert ("venv" in typed) == (lines[1] == f"{desk.path}/my venv")


INSIDE = "apptainer exec --nv --bind {cwd} --bind {cwd}/slurm_dl_runs --pwd {cwd} {image}"
PYXIS = (
    "--container-image={image} --container-mounts={cwd}:{cwd},{cwd}/slurm_dl_runs:"
    "{cwd}/slurm_dl_runs --container-workdir={cwd}"
)


@pytest.mark.parametrize("image", ["t.sif", "docker://a/b:1"])
@pytest.mark.parametrize(
    ("launcher", "nodes", "expected"),
    [
        ("plain", 1, ("-- I python", "-- srun --nodes=1 --ntasks=1 --relative=0 P -- python")),
        ("srun", 2, ("-- I python", "srun --kill-on-bad-exit=1 P -- python")),
        ("torchrun", 1, ("-- I torchrun --standalone", '=1 P -- sh -c "$on_each_node" torchrun')),
        ("torchrun", 2, ('-- I sh -c "$on_each_node" t', '=1 P -- sh -c "$on_each_node" torchrun')),
    ],
)
def test_the_container_stands_as_near_to_the_training_as_it_can(
    desk: Desk, launcher: str, nodes: int, expected: tuple[str, str], image: str
) -> None:
    """One for each task or agent; dlrun stays outside; srun starts those of pyxis."""
    where = image if ":" in image else f"./{image}"
    said = {"cwd": desk.path, "image": image if ":" in image else desk.path / image}

    for kind, words in zip(("apptainer", "pyxis"), expected, strict=True):
        typed = {"launcher": launcher, "container": f"{kind}:{where}"}
        last = desk.script(typed, "python", "t.py", nodes=nodes).splitlines()[-1]
        assert last.startswith(f"exec {desk.path}/bin/dlrun --launcher {launcher} ")
        assert (
            re.sub("[IP](?= )", (INSIDE if "I " in words else PYXIS).format(**said), words) in last
        )


def test_what_starts_containers_here_is_found(desk: Desk) -> None:
    """Apptainer, else singularity, else pyxis by what srun says; else how to name one."""
    for name, text, start in (
        ("srun", "echo --none", None),
        ("srun", "echo --container-image=X", "-- srun "),
        ("singularity", "", "-- singularity exec "),
        ("apptainer", "", "-- apptainer exec "),
    ):
        (desk.path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (desk.path / "bin" / name).chmod(0o755)
        if start:
            assert start in desk.script({"container": "./t.sif"}, "x")
        else:
            with pytest.raises(ConfigError, match="apptainer:IMAGE"):
                desk.script({"container": "./t.sif"}, "x")


@pytest.mark.parametrize("name", ["module", "conda", "setup", "venv", "container"])
def test_no_value_is_more_than_a_word(desk: Desk, name: str) -> None:
    """Run by bash, hostile text does nothing; a line break is refused."""
    hostile = "$(touch pwned);`touch pwned`' {{ 7 * 7 }} {% include '/etc/passwd' %} \\ \"|"
    value = f"apptainer:./{hostile}" if name == "container" else hostile
    (desk.path / "bin" / "apptainer").symlink_to("/bin/true")

    script = desk.script({name: value}, "true")

    desk.run(script, LMOD_PKG=str(desk.path / "lmod"))
    assert not (desk.path / "pwned").exists()
    assert "{{ 7 * 7 }}" in script
    with pytest.raises(ConfigError, match=f"--{name}: .*line break"):
        desk.script({name: f"{value}\nx"}, "true")


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ({"module": "a,,b"}, "--module"),
        ({"module": "--force"}, "--module"),
        ({"setup": ""}, "--setup"),
        ({"conda": "-x"}, "--conda"),
        ({"container": "pyxis:"}, "is no image"),
        ({"container": "apptainer:-x"}, "is no image"),
        ({"container": "pyxis:a", "run_dir": "a,b"}, "':' or ','"),
        ({"container": "pyxis:a", "conda": "my env"}, "no effect inside"),
    ],
)
def test_what_has_no_meaning_is_refused(desk: Desk, typed: dict[str, str], message: str) -> None:
    """In one line."""
    with pytest.raises(ConfigError, match=message):
        desk.script(typed, "true")


def test_a_template_or_script_that_has_no_place_for_it_is_refused(desk: Desk) -> None:
    """An older header of a site's goes on working for jobs that do not ask."""
    own = desk.path / "templates"
    own.mkdir()
    (own / "_header.sbatch.j2").write_text("#!/bin/bash\n")
    where = (TemplateDirectory(owner="site", directory=own), *TEMPLATES)

    assert desk.script({}, "true", where=where).startswith("#!/bin/bash\n")
    with pytest.raises(ConfigError, match=r"template plain.*older"):
        desk.script({"setup": "it's $x.sh"}, "true", where=where)
    with pytest.raises(ConfigError, match="no effect"):
        desk.wrapped("#!/bin/sh\n", no_preempt=True, module="gcc")
    with pytest.raises(ConfigError, match="COMMAND"):
        desk.wrapped("#!/bin/sh\n", container="x")
    for wrong in ({"venv": "none"}, {"setup": "~nobody-there/x"}, {"setup": "bin"}):
        with pytest.raises(ConfigError, match=r"correct the path.*--no-check"):
            desk.wrapped("#!/bin/sh\n", **wrong)
    desk.environ["CONDA_EXE"] = "/opt/micromamba"
    assert "/opt/micromamba shell activate --shell bash x)" in desk.script({"conda": "x"}, "true")
