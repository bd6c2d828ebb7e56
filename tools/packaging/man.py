"""Manual pages of all commands and subcommands, out of what their ``--help`` says.

``python tools/packaging/man.py DIR`` writes ``DIR/man1`` and ``DIR/man8``. One source: what a page
says is the help text, its options and its examples, escaped for groff.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
from commands import SECTIONS, Described, described

import slurm_dl
from slurm_dl.client_config import SOCKET_NAME
from slurm_dl.daemon.control.client import DEFAULT_CONFIG, DEFAULT_RUN_DIR
from slurm_dl.job.options import dlrun_parser

_FILES = (
    (str(DEFAULT_CONFIG), "configuration"),
    ("/var/lib/slurm_dl", "ledger and audit log of dlschedd"),
    (str(DEFAULT_RUN_DIR / SOCKET_NAME), "where the commands ask dlschedd"),
)
_STATUS = (
    ("0", "done"),
    ("1", "it failed"),
    ("2", "the command line or the configuration has to be changed"),
)


def escaped(text: str) -> str:
    """*text* so that groff prints it as it is: backslashes, hyphens, quotes, leading dots."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("^", "\\(ha")
    text = text.replace("~", "\\(ti").replace("`", "\\(ga").replace("'", "\\(aq")
    return re.sub(r"(?m)^(?=\.)", r"\\&", text)


def _quoted(text: str) -> str:
    """*text* as one argument of a macro."""
    return '"' + escaped(text).replace('"', "\\(dq") + '"'


def _blocks(text: str) -> Iterator[str]:
    r"""Paragraphs of a help text; those behind ``\b`` keep their lines."""
    for paragraph in re.split(r"\n[ \t]*\n", inspect.cleandoc(text)):
        lines = paragraph.split("\n")
        if lines[0].strip() == "\b":
            yield ".PP\n.nf\n" + "\n".join(escaped(line) for line in lines[1:]) + "\n.fi"
        else:
            yield ".PP\n" + escaped(" ".join(line.strip() for line in lines))


def _head(words: Sequence[str], section: int, epoch_s: int) -> str:
    date = time.strftime("%Y-%m-%d", time.gmtime(epoch_s))
    title = "-".join(words).upper()
    cells = (title, str(section), date, f"slurm_dl {slurm_dl.__version__}", "slurm_dl")
    return ".TH " + " ".join(_quoted(cell) for cell in cells)


def _pairs(title: str, pairs: Sequence[tuple[str, str]]) -> list[str]:
    if not pairs:
        return []
    lines = [f".SH {title}"]
    for term, text in pairs:
        shown = escaped(" ".join(text.split())) or "\\&"
        lines += [".TP", f"\\fB{escaped(term)}\\fR", shown]
    return lines


def _first_sentence(text: str) -> str:
    first = " ".join(inspect.cleandoc(text).split("\n\n")[0].split())
    return first.rstrip(".")


def page(found: Described, epoch_s: int) -> str:
    """The page of one command, with *epoch_s* as its date (seconds since the epoch)."""
    command, context = found.command, found.context
    name = " ".join(found.words)
    text = command.help or ""
    usage = " ".join(command.collect_usage_pieces(context))
    options = [
        record
        for param in command.get_params(context)
        if isinstance(param, click.Option) and (record := param.get_help_record(context))
    ]
    below: list[tuple[str, str]] = []
    if isinstance(command, click.Group):
        children = ((n, command.get_command(context, n)) for n in command.list_commands(context))
        below = [
            (f"{found.page}-{n}({found.section})", _first_sentence(child.help or ""))
            for n, child in children
            if child is not None and not child.hidden
        ]
    see = [f"{'-'.join(found.words[:-1])}({found.section})"] if found.words[1:] else []
    see += [f"{other}({at})" for other, at in SECTIONS.items() if other != found.page]
    lines = [
        _head(found.words, found.section, epoch_s),
        ".SH NAME",
        f"{escaped(found.page)} \\- {escaped(_first_sentence(text))}",
        ".SH SYNOPSIS",
        f"\\fB{escaped(name)}\\fR {escaped(usage)}",
        ".SH DESCRIPTION",
        *_blocks(text),
        *_pairs("OPTIONS", options),
        *_pairs("COMMANDS", below),
        *([".SH NOTES", *_blocks(command.epilog)] if command.epilog else []),
        *_end(see),
    ]
    return "\n".join(lines) + "\n"


def dlrun_page(epoch_s: int) -> str:
    """The page of dlrun, whose command line is not click's."""
    parser = dlrun_parser()
    options = []
    for action in parser._actions:  # noqa: SLF001 - argparse has no other list of them
        if action.option_strings and action.help is not argparse.SUPPRESS:
            value = ""
            if action.choices is not None:
                value = " " + "|".join(map(str, action.choices))
            elif action.nargs != 0:
                value = f" {action.metavar}"
            shown = (action.help or "") % {"default": action.default, "prog": "dlrun"}
            options.append((", ".join(action.option_strings) + value, shown))
    usage = parser.format_usage().removeprefix("usage: dlrun").strip()
    lines = [
        _head(("dlrun",), SECTIONS["dlrun"], epoch_s),
        ".SH NAME",
        f"dlrun \\- {escaped(_first_sentence(parser.description or ''))}",
        ".SH SYNOPSIS",
        f"\\fBdlrun\\fR {escaped(' '.join(usage.split()))}",
        ".SH DESCRIPTION",
        *_blocks(parser.description or ""),
        *_pairs("OPTIONS", options),
        *([".SH NOTES", *_blocks(parser.epilog)] if parser.epilog else []),
        ".SH FILES",
        ".TP",
        "/usr/share/doc/slurm\\-dl/docs/use/in\\-the\\-job.md",
        "what the training script does with it",
        *_see([f"{other}({at})" for other, at in SECTIONS.items() if other != "dlrun"]),
    ]
    return "\n".join(lines) + "\n"


def _end(see: Sequence[str]) -> list[str]:
    return [*_pairs("EXIT STATUS", _STATUS), *_pairs("FILES", _FILES), *_see(see)]


def _see(pages: Sequence[str]) -> list[str]:
    return [".SH SEE ALSO", escaped(", ".join(pages) + ", sbatch(1), slurm.conf(5)")]


def pages(epoch_s: int) -> dict[str, str]:
    """Every page by its place below ``/usr/share/man``: ``man8/dlctl-status.8``."""
    made = {f"man{d.section}/{d.page}.{d.section}": page(d, epoch_s) for d in described()}
    made[f"man{SECTIONS['dlrun']}/dlrun.{SECTIONS['dlrun']}"] = dlrun_page(epoch_s)
    return made


def main(argv: Sequence[str]) -> int:
    """Write all pages into a directory."""
    parser = argparse.ArgumentParser(
        prog="tools/packaging/man.py",
        description="Write the manual pages of all commands.",
        epilog="Example: python tools/packaging/man.py build/man && man -l build/man/man8/dlctl.8",
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument("--epoch", type=int, default=0, metavar="S", help="date of the pages")
    wanted = parser.parse_args(argv)
    made = pages(wanted.epoch or int(time.time()))
    for name, text in made.items():
        path = wanted.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    print(f"{len(made)} pages in {wanted.directory}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
