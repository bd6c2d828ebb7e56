"""How a user's text gets into a shell script: as one word, on one line.

`UserText` cannot be printed by a template unless it went through the filter ``quote``, so a
template that forgets the filter fails instead of opening a hole.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import NoReturn


class UnquotedError(Exception):
    """A template printed a user's text without the filter ``quote``."""

    def __init__(self) -> None:
        super().__init__("a value of the user is printed without '| quote'")


class UserText:
    """Text that came from a user and is not quoted yet.

    The text is private, because the template sandbox lets no template read private attributes.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> NoReturn:
        raise UnquotedError

    def __repr__(self) -> NoReturn:
        raise UnquotedError

    def __format__(self, spec: str) -> NoReturn:
        raise UnquotedError


class ShellText(UserText):
    """Text of a script with every word of the user's in it quoted already."""


def quote(value: UserText | str | Iterable[UserText | str]) -> str:
    """The shell words for *value*; several words for a sequence.

    Args:
        value: One text, or a sequence of texts.
    """
    if isinstance(value, ShellText):
        return value._text  # noqa: SLF001 - this and the next are the ways out
    if isinstance(value, UserText):
        return word(value._text)  # noqa: SLF001
    if isinstance(value, str):
        return word(value)
    return " ".join(quote(item) for item in value)


def word(text: str) -> str:
    r"""One bash word that expands to *text*, without any control character in it.

    ``shlex.quote`` would leave a newline as it is, inside quotes. That is right for the shell, but
    sbatch reads the script by lines, and refuses one with ``\r\n`` in it (measured on Slurm
    22.05.8). So text with anything that cannot be printed is written as ``$'...'``, bytes that are
    not UTF-8 included.

    Raises:
        ValueError: *text* holds a NUL, which no argument can carry.
    """
    if "\0" in text:
        msg = "a NUL cannot be part of an argument"
        raise ValueError(msg)
    if text.isprintable():
        return shlex.quote(text)
    return f"$'{''.join(_escaped(char) for char in text)}'"


def _escaped(char: str) -> str:
    if char in "\\'":
        return f"\\{char}"
    if char.isprintable():
        return char
    # Always three octal digits: a digit that follows is not taken for part of the byte.
    return "".join(f"\\{byte:03o}" for byte in char.encode("utf-8", "surrogateescape"))
