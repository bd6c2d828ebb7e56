"""Completion, as bash asks for it; the shells that this host may lack are tried on the package."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import completion
import pytest
from commands import SECTIONS

SCRIPTS = completion.scripts()
ASK = r"""
source "$1"
shift
[[ $(complete -p "$1") =~ -F\ ([^ ]+) ]] || exit 3
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
"${BASH_REMATCH[1]}" "$1" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}" 2>/dev/null
printf '%s\n' "${COMPREPLY[@]}"
"""


def completed(directory: Path, *words: str) -> list[str]:
    """What bash offers for the last of *words*."""
    script = directory / words[0]
    script.write_text(SCRIPTS[f"usr/share/bash-completion/completions/{words[0]}"], "utf-8")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["/bin/bash", "-c", ASK, "bash", str(script), *words],
        cwd=directory,
        env={"PATH": path, "HOME": str(directory), "LC_ALL": "C.UTF-8"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "some"),
    [
        (["dlctl", "prof"], ["profile"]),
        (["dlctl", "profile", "l"], ["learn", "list"]),
        (["dlqueue", "wh"], ["why"]),
        (["dlschedd", "--sh"], ["--shadow"]),
        (["dlsim", "comp"], ["compare"]),
        (["dlsubmit", "--gpu"], ["--gpus", "--gpu-type"]),
        (["dlsubmit", "--gpus", "8", "--no-pre"], ["--no-preempt"]),
        (["dlrun", "--laun"], ["--launcher"]),
        (["dlrun", "--ver"], ["--version"]),
        (["dlrun", "--launcher", "t"], ["torchrun"]),
        (["dlrun", "--", "bas"], ["bash"]),
    ],
    ids=" ".join,
)
def test_bash_offers_what_there_is(line: list[str], some: list[str], tmp_path: Path) -> None:
    """Subcommands and options, and behind dlrun's ``--`` commands."""
    offered = completed(tmp_path, *line)

    assert set(some) <= set(offered)
    assert all(word.startswith(line[-1]) for word in offered)


@pytest.mark.parametrize(
    "line", [["dlsubmit", "--gpus", "8", "--", "tra"], ["dlrun", "--", "a", "t"]]
)
def test_files_are_left_to_bash(line: list[str], tmp_path: Path) -> None:
    """Nothing is offered, so bash itself goes on with files."""
    assert completed(tmp_path, *line) == []
    text = SCRIPTS[f"usr/share/bash-completion/completions/{line[0]}"]
    assert "complete -o nosort -o bashdefault -o default" in text or "-o default -F _dlrun" in text


def test_every_command_and_shell_has_a_script() -> None:
    """Six of each."""
    for place in ("bash-completion/completions/{}", "zsh/vendor-completions/_{}"):
        assert {f"usr/share/{place.format(name)}" for name in SECTIONS} <= set(SCRIPTS)
    fish = {f"usr/share/fish/vendor_completions.d/{name}.fish" for name in SECTIONS}
    assert fish <= set(SCRIPTS)
    assert len(SCRIPTS) == 3 * len(SECTIONS)


def test_a_script_of_another_form_is_refused() -> None:
    """A later click that writes it differently is noticed at the build."""
    with pytest.raises(ValueError, match="no single"):
        completion._with_files("complete -F f dlctl")
