"""Users' text reaches the program unchanged and the shell never."""

from __future__ import annotations

import os
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_dl.submit.shell_quoting import UnquotedError, UserText, quote, word

arguments = st.one_of(
    st.binary(max_size=30).map(lambda raw: os.fsdecode(raw.replace(b"\0", b""))),
    st.text(alphabet="a'\"\\$`!{}%#* \n\r\t\x1b~=é\u2028", max_size=20),
)


def through_bash(line: str) -> list[str]:
    done = subprocess.run(
        ["/bin/bash", "-c", f"printf '%s\\0' {line}"], capture_output=True, check=True
    )
    return [os.fsdecode(part) for part in done.stdout.split(b"\0")[:-1]]


@settings(deadline=None, max_examples=60)
@given(st.lists(arguments, min_size=1, max_size=12))
def test_bash_reads_back_what_was_quoted(texts: list[str]) -> None:
    """Any arguments at all, bytes that are not UTF-8 included, come back from bash."""
    assert through_bash(quote([UserText(text) for text in texts])) == texts


@given(arguments)
def test_a_quoted_word_is_one_printable_line(text: str) -> None:
    """No line of a script can begin inside a value, so none can begin with #SBATCH."""
    assert word(text).isprintable()


def test_an_octal_escape_does_not_swallow_the_digit_after_it() -> None:
    """A newline before a digit stays a newline before a digit."""
    assert through_bash(word("\n7\\n'")) == ["\n7\\n'"]


def test_a_nul_cannot_be_quoted() -> None:
    """There is no shell word with a NUL in it."""
    with pytest.raises(ValueError, match="NUL"):
        word("a\0b")


@pytest.mark.parametrize("leak", [str, repr, format, "{}".format, "%s".__mod__, "%r".__mod__])
def test_text_cannot_be_printed_unquoted(leak: object) -> None:
    """No way of making text of it gives the text away."""
    assert callable(leak)
    with pytest.raises(UnquotedError):
        leak(UserText("x"))
