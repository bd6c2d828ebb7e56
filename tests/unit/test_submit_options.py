"""The command line is divided without guessing, and every bad value gets its one line."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slurm_dl.cli.dlsubmit.command import options_of
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.profile import NAME
from slurm_dl.submit import option_values
from slurm_dl.submit.sbatch_options import (
    OF_A_SCRIPT,
    REFUSED,
    SBATCH,
    CommandLine,
    Option,
    Takes,
    divide,
)

WORD = Option("name", Takes.VALUE)
OWN = {
    "--name": WORD,
    "-J": WORD,
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
@example(["--gpus-per-node=", "0"])  # The second one is a batch script, with options of its own
def test_nothing_reaches_sbatch_but_whole_options(head: list[str]) -> None:
    """Whatever is typed, sbatch gets whole option words that are not refused, or nothing."""
    try:
        line = divide([*head, "--", "true"], OWN)
    except ConfigError as err:
        line, refusal = CommandLine(own=(), sbatch=(), command=()), str(err)
    else:
        refusal = ""

    assert refusal.isprintable()
    refused = REFUSED.keys() - (OF_A_SCRIPT if line.script else set())
    for word in (*line.own, *line.sbatch):
        name = word.partition("=")[0]
        assert name.startswith("--")
        assert name.removeprefix("--") not in refused
        assert name in SBATCH or name in OWN or not any(o.startswith(name) for o in SBATCH)
    assert all(len(word.splitlines()) <= 1 for word in line.sbatch)


@pytest.mark.parametrize(
    "value",
    [
        "x\n#SBATCH --uid=0",
        "x\r",
        "a\tb",
        "nul\0",
        "esc\x1b[2J",
        "del\x7f",
        "c1\x85",
        "line\u2028",
        "paragraph\u2029",
        "bytes\udcff",
        "x" * 4097,
    ],
)
def test_text_that_is_not_one_line_of_utf8_is_refused(value: str) -> None:
    """A value is one line of valid UTF-8 of bounded length, and the message is one line too."""
    with pytest.raises(ConfigError) as caught:
        option_values.clean_text(value, "--output")

    assert str(caught.value).startswith("--output: ")
    assert str(caught.value).isprintable()


@given(st.text())
def test_text_that_is_accepted_is_one_line(value: str) -> None:
    """Whatever comes through has no line break in anybody's reading, and is unchanged."""
    try:
        accepted = option_values.clean_text(value, "x")
    except ConfigError:
        return

    assert accepted == value
    assert len(value.splitlines()) <= 1
    assert "\0" not in value


def gpu_type(value: str) -> str:
    return option_values.plain_name(value, "--gpu-type")


def signal(value: str) -> tuple[str, int]:
    return option_values.signal_and_lead(value, 60)


@pytest.mark.parametrize(
    ("read", "option", "values"),
    [
        (option_values.job_name, "--name", ["", " ", "-x", " a", "a ", "x" * 129, "a\nb"]),
        (gpu_type, "--gpu-type", ["", "-x", "../x", "a b", "x" * 65, ".hidden", "ä"]),
        (option_values.model_name, "--model", ["", "-x", "../x", "a b", "x" * 65, ".hidden", "ä"]),
        (option_values.partition_list, "--partition", ["a\nb"]),
        (option_values.array_spec, "--array", ["", "1\n2", "1%", "0-9%x", "1%2%3", "1%٣"]),
        (
            option_values.gpu_request,
            "--gpus",
            ["", "0", "-1", "1.5", "a100", "a100:", ":4", "a100:0", "8 ", "1e3"],
        ),
        (
            signal,
            "--signal",
            ["KILL", "STOP@60", "10@60", "R:USR1", "USR1@", "usr1", "USR1@65536"],
        ),
        (option_values.grace, "--grace", ["0", "-1", "nan", "inf", "1e3", "", "86401", "9" * 400]),
        (
            option_values.time_limit_s,
            "--time",
            ["", "-1", "1h", "1:2:3:4", "1-", "1-2:3:4:5", "1:", "9" * 50],
        ),
    ],
)
def test_wrong_values_are_refused(
    read: Callable[[str], object], option: str, values: list[str]
) -> None:
    """The message names the option."""
    for value in values:
        with pytest.raises(ConfigError, match=option):
            read(value)


@pytest.mark.parametrize(
    ("read", "value", "expected"),
    [
        (option_values.partition_list, "a,b,a", ("a", "b")),
        (option_values.array_spec, "1,3,5-9:2", "1,3,5-9:2"),
        (option_values.array_spec, "0-99%4", "0-99%4"),
        (option_values.gpu_request, "8", (8, None)),
        (option_values.gpu_request, "a100:8", (8, "a100")),
        (option_values.gpu_request, "01", (1, None)),
        (signal, "USR2", ("USR2", 60)),
        (signal, "SIGUSR1@5", ("USR1", 5)),
        (signal, "B:TERM@300", ("TERM", 300)),
        (signal, "INT@0", ("INT", 0)),
        (signal, "HUP@65535", ("HUP", 65535)),
        # Minutes, rounded up; 0 means none.
        (option_values.time_limit_s, "90", 5400),
        (option_values.time_limit_s, "1:30", 120),
        (option_values.time_limit_s, "0:30", 60),
        (option_values.time_limit_s, "2:00:00", 7200),
        (option_values.time_limit_s, "1-0", 86400),
        (option_values.time_limit_s, "1-2:30", 95400),
        (option_values.time_limit_s, "1-0:0:1", 86460),
        (option_values.time_limit_s, "0", math.inf),
        (option_values.time_limit_s, "infinite", math.inf),
    ],
)
def test_values_are_read_as_slurm_reads_them(
    read: Callable[[str], object], value: str, expected: object
) -> None:
    assert read(value) == expected


@pytest.mark.parametrize("value", ["resnet50", "google/bert-base", "GPT-2+lora", "x" * 64])
def test_a_job_may_name_every_model_that_a_profile_may_be_of(value: str) -> None:
    """The names of profiles and those of jobs are written alike."""
    assert option_values.model_name(value) == value
    assert re.fullmatch(NAME, value)
    assert option_values._MODEL.pattern == NAME


@pytest.mark.parametrize(
    ("value", "moment"),
    [
        # Now is Wednesday 2026-12-02 12:00:30 in Berlin.
        ("+90", "2026-12-02 12:02:00"),
        ("now+3hours", "2026-12-02 15:00:30"),
        ("+3h", "2026-12-02 15:00:30"),
        ("+30 min", "2026-12-02 12:30:30"),
        ("now+2days", "2026-12-04 12:00:30"),
        ("+1w", "2026-12-09 12:00:30"),
        ("18:00", "2026-12-02 18:00:00"),
        ("9:05", "2026-12-03 09:05:00"),
        ("12:00:30", "2026-12-03 12:00:30"),
        ("Fri 18:00", "2026-12-04 18:00:00"),
        ("Friday 18:00", "2026-12-04 18:00:00"),
        ("Wed 18:00", "2026-12-02 18:00:00"),
        ("Wed 12:00", "2026-12-09 12:00:00"),
        ("2026-12-24T08:00", "2026-12-24 08:00:00"),
        ("2026-12-24 08:00:10", "2026-12-24 08:00:10"),
        # The clock changes on March 28.
        ("2027-03-29T12:00", "2027-03-29 12:00:00"),
    ],
)
def test_a_deadline_is_a_local_time_ahead(
    value: str, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As people write times, and as Slurm writes them."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        at_s = option_values.deadline_s(value, WEDNESDAY_S)
        assert time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_s)) == moment
        for wrong in WRONG_TIMES:
            with pytest.raises(ConfigError, match="--by"):
                option_values.deadline_s(wrong, WEDNESDAY_S)
    finally:
        monkeypatch.undo()
        time.tzset()


WEDNESDAY_S = 1_796_209_230.0
WRONG_TIMES = (
    *(
        "",
        "soon",
        "+",
        "+-1h",
        "+1.5h",
        "+3x",
        "now",
        "now-1h",
        "24:00",
        "12:60",
        "Fry 18:00",
        "Fri",
    ),
    *(
        "fri 18:00",
        "2026-13-01T00:00",
        "2026-12-02T12:00",
        "2026-12-02T12:00:30",
        "0001-01-01T00:00",
    ),
    *("9999-12-31T23:59x", "+999999999w", "1796209231", "+0", "18:00\n", "\u0661\u0668:00"),
)
