"""Every bad value gets its one line, and no bad value gets through."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_dl.model.errors import ConfigError
from slurm_dl.model.profile import NAME
from slurm_dl.submit import option_values


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
