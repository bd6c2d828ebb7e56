"""Every command in the documents could be typed as it stands there: the program, the options."""

from __future__ import annotations

from pathlib import Path

import pytest
import shown

OTHERS = frozenset(
    {
        # Shells, files and packages.
        *(
            *("source", "eval", "export", "cat", "cd", "cp", "mkdir", "ln", "install", "kill"),
            *("sleep", "grep", "trap", "tail", "jq", "echo", "timeout"),
        ),
        *(
            *("for", "do", "done", "end", "env", "make", "git", "pip", "pipx", "pytest", "python"),
            "python3",
        ),
        *(
            *("apt-get", "apt", "dpkg", "docker", "docker/up", "docker/down", "docker/in"),
            *("docker/build", "chmod", "rm"),
        ),
        # What an administrator does with systemd and Slurm.
        *("systemctl", "systemd-sysusers", "journalctl", "sacct", "sacctmgr", "scontrol", "sbatch"),
        *("scancel", "sinfo", "squeue", "sdiag", "srun"),
        *("promtool", "prometheus", "curl", "sqlite3", "/opt/slurm_dl/bin/pip", "systemd-analyze"),
    }
)
"""Programs of others that the documents tell people to run: nobody can run them all in a test."""

IN_BLOCKS = tuple(shown.in_blocks())
OURS = tuple(s for s in (*IN_BLOCKS, *shown.inline()) if s.words[0] in {*shown.ours(), "dlrun"})


def test_programs_of_others_are_few_and_known() -> None:
    """Whatever else stands at the beginning of a line is a mistake, or has to be named here."""
    strange = {s.text for s in IN_BLOCKS if s.words[0].rpartition("/bin/")[2] not in KNOWN}

    assert strange == set()


KNOWN = OTHERS | {*shown.ours(), "dlrun"}


@pytest.mark.parametrize("text", sorted({s.text for s in OURS}))
def test_our_command_line_is_one(text: str) -> None:
    """It has that subcommand, and each of these options."""
    (words, *_) = (s.words for s in OURS if s.text == text)

    assert shown.refusal(words) == ""


def test_there_are_many_and_of_each_command() -> None:
    """The finder finds: hundreds in all, some of each command."""
    assert len(OURS) > 200
    assert {s.words[0] for s in OURS} == {*shown.ours(), "dlrun"}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("dlctl stats", "No such command"),
        ("dlctl profile lern", "No such command"),
        ("dlqueue --mine", "No such option"),
        ("dlsim run trace.csv --polcy fifo", "No such option"),
        ("dlctl status now", "unexpected extra argument"),
        ("dlrun --sig USR1 -- true", "no option"),
    ],
)
def test_what_cannot_be_typed_is_seen(line: str, why: str) -> None:
    """The test above can fail."""
    assert why.lower() in shown.refusal(tuple(line.split())).lower()


def test_a_block_is_taken_apart() -> None:
    """Comments, here documents, assignments, pipes and redirections are no words of a command."""
    block = "A=1 x -a 'b c' | y --d # z\ncat >f <<END\nrm x\nEND\nx \\\n  -q 2> err; w && v &\n"

    assert [*shown.commands(block)] == [
        ("x", "-a", "b c"), ("y", "--d"), ("cat",), ("x", "-q"), ("w",), ("v",)
    ]  # fmt: skip


def test_a_paragraph_of_a_list_item_is_no_block(tmp_path: Path) -> None:
    """In an item four spaces are a paragraph, eight are a block; elsewhere four are one."""
    page = tmp_path / "page.md"
    page.write_text(
        "Do:\n\n    w\n\n1. First:\n\n        x\n\n    Then.\n\nLast:\n\n    y\n", "utf-8"
    )

    assert [*shown.blocks(page)] == ["w\n", "x\n", "y\n"]
