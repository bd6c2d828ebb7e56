"""The command line is divided without guessing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_dl.cli.dlsubmit.command import options_of
from slurm_dl.model.errors import ConfigError
from slurm_dl.submit.sbatch_options import REFUSED, SBATCH, CommandLine, Option, Takes, divide

NAME = Option("name", Takes.VALUE)
OWN = {
    "--name": NAME,
    "-J": NAME,
    "--signal": Option("signal", Takes.VALUE),
    "--dry-run": Option("dry-run", Takes.NOTHING),
}


@pytest.mark.parametrize(
    ("head", "own", "sbatch"),
    [
        (["--name=x", "--qos=high"], ("--name=x",), ("--qos=high",)),
        (["--name", "x", "--qos", "high"], ("--name=x",), ("--qos=high",)),
        (["-J", "x", "-A", "acct"], ("--name=x",), ("--account=acct",)),
        (["-Jx", "-Aacct"], ("--name=x",), ("--account=acct",)),
        (["-Hvc", "8"], (), ("--hold", "--verbose", "--cpus-per-task=8")),
        (["--dry-run", "--nice"], ("--dry-run",), ("--nice",)),
        (
            ["--nice=-5", "--exclusive=user", "-koff"],
            (),
            ("--nice=-5", "--exclusive=user", "--no-kill=off"),
        ),
        (["--gres=lustre:1,gpu_mem:2"], (), ("--gres=lustre:1,gpu_mem:2",)),
        (
            ["--site-plugin=a b", "--site-flag", "--hold"],
            (),
            ("--site-plugin=a b", "--site-flag", "--hold"),
        ),
        (["--comment=--uid=0"], (), ("--comment=--uid=0",)),
        (["--open-mode=append", "--requeue"], (), ("--open-mode=append", "--requeue")),
    ],
)
def test_every_spelling_is_passed_on_in_one(
    head: list[str], own: tuple[str, ...], sbatch: tuple[str, ...]
) -> None:
    """However an option is written, it leaves as one word --long=value."""
    line = divide([*head, "--", "python", "--lr", "--", "-x"], OWN)

    assert line.own == own
    assert line.sbatch == sbatch
    assert line.command == ("python", "--lr", "--", "-x")


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (["-"], "COMMAND goes after --"),
        ([":"], "heterogeneous"),
        (["--hold", ":", "--hold"], "heterogeneous"),
        (["-"], "'-' is not an option"),
        (["-z"], "unknown option '-z'"),
        (["-é"], r"unknown option '-é'"),
        (["--name"], "--name needs a value"),
        (["-A"], "-A needs a value"),
        (["-A", "--hold"], "looks like an option; write -AVALUE"),
        (["--qos", "-x"], "looks like an option; write --qos=VALUE"),
        (["--wra=true"], "--wra is short for --wrap; write it in full"),
        (["--sign=KILL@1"], "--sign is short for --signal"),
        (["--no-requ"], "--no-requ is short for --no-requeue"),
        (["--site-plugin", "value"], "write --site-plugin=VALUE"),
        (["--bad name=1"], "is not an option"),
        (["--=1"], "is not an option"),
        (["---x"], "is not an option"),
        (["--gres=gpu:2"], "--gpus="),
        (["--gres=lustre:1,gpu:a100:2"], "--gpus="),
        (["--gres", "gres:gpu:2"], "--gpus="),
        (["--gres=GPU"], "--gpus="),
        (["--gres=shard:2"], "--gpus="),
        (["--open-mode=truncate"], "only append"),
        (["--qos=a\nb"], "control character"),
        (["--qos=\udcff"], "not valid UTF-8"),
        (["-t5x", "--mail-user=a\x1bb"], "control character"),
    ],
)
def test_what_cannot_be_placed_gets_its_line(head: list[str], message: str) -> None:
    """An option that is unclear, shortened or harmful is refused in one printable line."""
    with pytest.raises(ConfigError, match=message) as caught:
        divide([*head, "--", "true"], OWN)

    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("args", "sbatch", "script"),
    [
        (["job.sh"], (), ("job.sh",)),
        (["-N2", "job.sh", "--lr", "--", "-x"], ("--nodes=2",), ("job.sh", "--lr", "--", "-x")),
        (["--gres=gpu:2", "--ntasks", "4", "j"], ("--gres=gpu:2", "--ntasks=4"), ("j",)),
    ],
)  # fmt: skip
def test_a_word_that_is_no_option_is_a_batch_script(
    args: list[str], sbatch: tuple[str, ...], script: tuple[str, ...]
) -> None:
    """All that follows are its arguments, and its GPUs may be asked for in sbatch's way."""
    assert divide(args, OWN) == CommandLine(own=(), sbatch=sbatch, command=(), script=script)

    with pytest.raises(ConfigError, match="wrap"):
        divide(["--wrap=true", *args], OWN)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_refused_options_say_what_to_do_instead(name: str) -> None:
    """Each option that breaks the contract is refused, with or without a value."""
    option = SBATCH[f"--{name}"]
    word = f"--{name}" if option.takes is Takes.NOTHING else f"--{name}=1"

    with pytest.raises(ConfigError, match=f"--{name} cannot be used: "):
        divide([word, "--", "true"], {})


def test_no_option_is_both_ours_and_refused() -> None:
    """Our own options never stand in the list of refused ones."""
    typed, line = options_of(
        ["--gpus=1", "-J", "n", "-N1", "-p", "gpu", "-t5", "-a1", "-o", "x", "--comment=c",
         "--tasks-per-node=2", "--", "true"]
    )  # fmt: skip

    assert line.sbatch == ()
    assert (typed.gpus, typed.name, typed.nodes, typed.partition) == ("1", "n", "1", "gpu")
    assert (typed.time, typed.array, typed.output, typed.comment) == ("5", "1", "x", "c")
    assert typed.ntasks_per_node == "2"


words = st.one_of(
    st.text(max_size=8),
    st.sampled_from(
        ["--", "-", ":", "--wrap", "--wra=x", "--gres=gpu:1", "-A", "--nodes", "--x=y"]
    ),
    st.tuples(st.sampled_from(sorted(SBATCH)), st.text(max_size=8)).map("=".join),
)


@given(st.lists(words, max_size=6))
def test_nothing_reaches_sbatch_but_whole_options(head: list[str]) -> None:
    """Whatever is typed, sbatch gets whole option words that are not refused, or nothing."""
    try:
        line = divide([*head, "--", "true"], OWN)
    except ConfigError as err:
        line, refusal = CommandLine(own=(), sbatch=(), command=()), str(err)
    else:
        refusal = ""

    assert refusal.isprintable()
    for word in (*line.own, *line.sbatch):
        name = word.partition("=")[0]
        assert name.startswith("--")
        assert name.removeprefix("--") not in REFUSED
        assert name in SBATCH or name in OWN or not any(o.startswith(name) for o in SBATCH)
    assert all(len(word.splitlines()) <= 1 for word in line.sbatch)
