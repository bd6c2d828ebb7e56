"""Every bad value gets its one line, and no bad value gets through."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_dl.model.errors import ConfigError
from slurm_dl.profiles.file_schema import NAME
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


@pytest.mark.parametrize("value", ["", " ", "-x", " a", "a ", "x" * 129, "a\nb"])
def test_bad_job_names_are_refused(value: str) -> None:
    """A job name is not empty, has no blanks at its ends and looks like no option."""
    with pytest.raises(ConfigError, match="--name"):
        option_values.job_name(value)


@pytest.mark.parametrize("value", ["", "-x", "../x", "a b", "x" * 65, ".hidden", "ä"])
def test_bad_names_of_models_and_types_are_refused(value: str) -> None:
    """Names that may become file names have no path, no option and no surprise in them."""
    with pytest.raises(ConfigError, match="--gpu-type"):
        option_values.plain_name(value, "--gpu-type")
    with pytest.raises(ConfigError, match="--model"):
        option_values.model_name(value)


@pytest.mark.parametrize("value", ["resnet50", "google/bert-base", "GPT-2+lora", "x" * 64])
def test_a_job_may_name_every_model_that_a_profile_may_be_of(value: str) -> None:
    """The names of profiles and those of jobs are written alike."""
    assert option_values.model_name(value) == value
    assert re.fullmatch(NAME, value)
    assert option_values._MODEL.pattern == NAME


@pytest.mark.parametrize("value", ["0-15", "1", "1,3,5-9:2", "0-99%4"])
def test_array_indexes_of_slurm_are_accepted(value: str) -> None:
    """Slurm's forms of array indexes pass unchanged."""
    assert option_values.array_spec(value) == value


@pytest.mark.parametrize("value", ["", "a", "1-", "-1", "1;2", "1%", "1 2", "٣", "1," * 300 + "1"])
def test_other_array_indexes_are_refused(value: str) -> None:
    """Anything else is refused before sbatch sees it."""
    with pytest.raises(ConfigError, match="--array"):
        option_values.array_spec(value)


@pytest.mark.parametrize(
    ("value", "expected"), [("8", (8, None)), ("a100:8", (8, "a100")), ("01", (1, None))]
)
def test_gpus_with_and_without_type(value: str, expected: tuple[int, str | None]) -> None:
    """GPUs are asked for as sbatch has it: N or TYPE:N."""
    assert option_values.gpu_request(value) == expected


@pytest.mark.parametrize(
    "value", ["", "0", "-1", "1.5", "a100", "a100:", ":4", "a100:0", "8 ", "1e3"]
)
def test_other_gpu_counts_are_refused(value: str) -> None:
    """No job without GPUs, and nothing but digits."""
    with pytest.raises(ConfigError, match="--gpus"):
        option_values.gpu_request(value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("USR2", ("USR2", 60)),
        ("SIGUSR1@5", ("USR1", 5)),
        ("B:TERM@300", ("TERM", 300)),
        ("INT@0", ("INT", 0)),
        ("HUP@65535", ("HUP", 65535)),
    ],
)
def test_signals(value: str, expected: tuple[str, int]) -> None:
    """A signal may carry SIG, sbatch's B: and a lead."""
    assert option_values.signal_and_lead(value, 60) == expected


@pytest.mark.parametrize(
    "value", ["KILL", "STOP@60", "10@60", "R:USR1", "USR1@", "usr1", "USR1@65536"]
)
def test_other_signals_are_refused(value: str) -> None:
    """A signal that cannot be caught, or that nobody else can read, is refused."""
    with pytest.raises(ConfigError, match="--signal"):
        option_values.signal_and_lead(value, 60)


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "1e3", "", "86401", "9" * 400])
def test_bad_graces_are_refused(value: str) -> None:
    """A grace is a plain number of seconds, above 0 and at most a day."""
    with pytest.raises(ConfigError, match="--grace"):
        option_values.grace(value)


@pytest.mark.parametrize(
    ("value", "expected_s"),
    [
        ("90", 5400),
        ("1:30", 120),
        ("0:30", 60),
        ("2:00:00", 7200),
        ("1-0", 86400),
        ("1-2:30", 95400),
        ("1-0:0:1", 86460),
        ("0", math.inf),
        ("infinite", math.inf),
    ],
)
def test_time_limits_in_slurms_words(value: str, expected_s: float) -> None:
    """Limits are read as Slurm reads them: minutes, rounded up; 0 means none."""
    assert option_values.time_limit_s(value) == expected_s


@pytest.mark.parametrize("value", ["", "-1", "1h", "1:2:3:4", "1-", "1-2:3:4:5", "1:", "9" * 50])
def test_other_time_limits_are_refused(value: str) -> None:
    """Anything else is refused before sbatch sees it."""
    with pytest.raises(ConfigError, match="--time"):
        option_values.time_limit_s(value)


@pytest.mark.parametrize("value", ["", "-p", "a,,b", "a b", "a;b", ",a"])
def test_bad_partition_lists_are_refused(value: str) -> None:
    """Partition names are plain words between commas."""
    with pytest.raises(ConfigError, match="--partition"):
        option_values.partition_list(value)
