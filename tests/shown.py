"""The commands that the documents show, and whether each could be typed as it stands there."""

from __future__ import annotations

import re
import shlex
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from slurm_dl.job.options import dlrun_parser

ROOT: Final = Path(__file__).parents[1]
PAGES: Final = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))

_FENCE: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INDENTED: Final = re.compile(r"(?<=\n\n) {4,}\S.*\n(?: {4,}\S.*\n)*")
_PARAGRAPH: Final = re.compile(r"(?<=\n\n) {0,3}\S.*")
_ITEM: Final = re.compile(r" {0,3}(?:\d+\.|[-*+]) ")
_SETTINGS: Final = re.compile(r"[\w.]+:(\s|$)|\[|[A-Z][a-z]+[A-Z]\w*=")
_HERE_BEGINS: Final = re.compile(r"<<-?'?(\w+)'?")
_LOOP_BEGINS: Final = re.compile(r"(?:for|until|while|if)\b(?!.*\b(?:done|fi)$)")
_LOOP_ENDS: Final = re.compile(r"(?:done|fi|end)\b")
_INLINE: Final = re.compile(
    r"(?<!`)`((?:dlctl|dlqueue|dlschedd|dlsim|dlsubmit|dlrun) [^`\n]+)`(?!`)"
)
_HERE: Final = re.compile(r"<<-?'?(\w+)'?.*?\n.*?^\1$\n?", re.MULTILINE | re.DOTALL)
_SUBSTITUTED: Final = re.compile(r"\w+=\$\(([^()]*)\)")
_BEFORE: Final = frozenset({"exec", "until", "while", "if", "do", "then", "!"})
_BETWEEN: Final = re.compile(r";|&&|\|\|?|&")
_PLACEHOLDER: Final = re.compile(r"\.\.\.|[\[\]<>{}|*]|\bNAME\b.*\bNAME\b")


@dataclass(frozen=True, slots=True)
class Shown:
    """One command on one page, as words."""

    page: Path
    words: tuple[str, ...]

    @property
    def text(self) -> str:
        """For the message of a test."""
        return f"{self.page.relative_to(ROOT)}: {shlex.join(self.words)}"


def fences(page: Path) -> list[tuple[str, str]]:
    """Kind and inside of each fenced block."""
    found: list[tuple[str, str]] = _FENCE.findall(page.read_text(encoding="utf-8"))
    return found


def blocks(page: Path) -> Iterator[str]:
    """What is to be typed, block by block: fenced as sh, bash or console, or indented.

    What is indented and looks like settings (``key:``, ``[Unit]``, ``SlurmKey=``) is no command,
    and what is indented by four inside a list item is a paragraph of that item.
    """
    text = page.read_text(encoding="utf-8")
    found = [(m.start(), m[1], m[2]) for m in _FENCE.finditer(text)]
    # What lies in a fence is blanked out: places in the page stay what they are.
    rest = _FENCE.sub(lambda m: "\n" * len(m[0]), text)
    found += [
        (m.start(), "", textwrap.dedent(m[0]))
        for m in _INDENTED.finditer(rest)
        if m[0].startswith(" " * 8) or not _is_in_item(rest, m.start())
    ]
    for _, kind, inside in sorted(found):
        if kind == "console":
            yield _typed(inside)
        elif kind in {"sh", "bash"} or (not kind and not _SETTINGS.match(inside)):
            yield inside


def _is_in_item(text: str, at: int) -> bool:
    """The last paragraph before *at* that is not indented belongs to a list."""
    *_, last = ("", *_PARAGRAPH.findall(f"\n\n{text}", 0, at + 2))
    return bool(_ITEM.match(last))


def _typed(console: str) -> str:
    return "".join(f"{x[2:]}\n" for x in console.splitlines() if x.startswith("$ "))


def statements(block: str) -> Iterator[str]:
    """What a shell would take at a time: lines with what continues them, loops, here documents.

    A script (``#!`` in its first line) is one of them.
    """
    if block.startswith("#!"):
        yield block
        return
    lines = iter(block.splitlines())
    for line in lines:
        if not line or line.startswith("#"):
            continue
        whole = [line]
        if here := _HERE_BEGINS.search(line):
            whole += _up_to(lines, here[1].__eq__)
        elif _LOOP_BEGINS.match(line):
            whole += _up_to(lines, lambda x: bool(_LOOP_ENDS.match(x)))
        elif line.endswith("\\"):
            whole += _up_to(lines, lambda x: not x.endswith("\\"))
        yield "\n".join(whole)


def _up_to(lines: Iterator[str], is_last: Callable[[str], bool]) -> Iterator[str]:
    for line in lines:
        yield line
        if is_last(line):
            return


def commands(block: str) -> Iterator[tuple[str, ...]]:
    """Each command of a block, without comments, here documents and redirections."""
    text = _HERE.sub("\n", block).replace("\\\n", " ")
    for line in text.splitlines():
        lexer = shlex.shlex(_SUBSTITUTED.sub(r"\1", line), posix=True, punctuation_chars=";&|<>")
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if not _BETWEEN.fullmatch(word):
                words.append(word)
                continue
            if told := _told(words):
                yield told
            words = []


def _told(words: list[str]) -> tuple[str, ...]:
    """*words* without what may stand before a command, and redirections behind it."""
    while words and (words[0] in _BEFORE or re.fullmatch(r"\w+=.*", words[0])):
        words = words[1:]
    for i, word in enumerate(words):
        if word and set(word) <= set("<>"):
            return tuple(words[: i - 1] if words[i - 1] == "2" else words[:i])
    return tuple(words)


def in_blocks() -> Iterator[Shown]:
    """All commands of all blocks of all pages."""
    for page in PAGES:
        for block in blocks(page):
            yield from (Shown(page, words) for words in commands(block))


def inline() -> Iterator[Shown]:
    """Our commands that stand in a sentence, but for those that leave something open."""
    for page in PAGES:
        for text in _INLINE.findall(page.read_text(encoding="utf-8")):
            if not _PLACEHOLDER.search(text):
                yield Shown(page, tuple(shlex.split(text)))


def ours() -> dict[str, click.Command]:
    """Our commands that click reads, by name."""
    sys.path.insert(0, str(ROOT / "tools" / "packaging"))
    try:
        from commands import CLICK  # noqa: PLC0415 - it lies there
    finally:
        sys.path.pop(0)
    return dict(CLICK)


def refusal(words: tuple[str, ...]) -> str:
    """Why our command line cannot be: no such command or option, a word too many; else nothing.

    What stands for a value (a file that is not there, a word in capitals) is not looked at.
    """
    name, *rest = words
    if name == "dlrun":
        return _refused_by_dlrun(rest)
    try:
        _resolve(name, ours()[name], rest)
    except click.exceptions.NoArgsIsHelpError:
        return ""
    except click.UsageError as err:
        return err.format_message()
    return ""


def _resolve(
    name: str, command: click.Command, args: list[str], above: click.Context | None = None
) -> None:
    # An option that a sentence names without its value, a file that is not there: neither is wrong.
    with suppress(click.exceptions.Exit, click.BadParameter, click.BadOptionUsage):
        context = command.make_context(name, args, parent=above)
        words = [*context._protected_args, *context.args]
        if isinstance(command, click.Group) and words:
            found, inner, rest = command.resolve_command(context, words)
            assert inner is not None
            _resolve(str(found), inner, rest, context)


def _refused_by_dlrun(words: list[str]) -> str:
    parser = dlrun_parser()
    mine = words[: words.index("--")] if "--" in words else words
    known = set(parser._option_string_actions)
    bad = [w for w in mine if w.startswith("-") and w.partition("=")[0] not in known]
    return f"no option {bad[0]}" if bad else ""
