"""A batch script of the user's, read as sbatch reads it, and all else that is said of its job.

sbatch takes options from the lines that begin with ``#SBATCH``, up to the first line that is
neither a comment nor blank. In their words a backslash takes the next character as it is, also
inside quotes, but no blank outside; an unquoted ``#`` begins a comment, also in the middle of a
word; an empty word ends the line; and no line goes on in the next one (SchedMD/slurm,
src/sbatch/opt.c, 17.11 and later). A test compares all this with a real sbatch.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from slurm_dl.client_config import ClientConfig
from slurm_dl.model.errors import ConfigError
from slurm_dl.submit import option_values
from slurm_dl.submit.job_request import DEFAULT_RUN_DIR
from slurm_dl.submit.parameter_sweep import Sweep
from slurm_dl.submit.sbatch_options import GPU_GRES, SBATCH, Option, Takes
from slurm_dl.text import safe, shown

_MAGIC = "#SBATCH"
_HET = re.compile("hetjob|packjob", re.IGNORECASE)
_COMMENT = re.compile(r"^\s*#.*$", re.MULTILINE)
_QUOTED = r"""(["'])((?:\\.|(?!\1)[^\\])*)\1|\\(\S?)"""
_WORD = re.compile(rf"""\s*((?:[^\s"'#\\]|{_QUOTED.replace("1", "2")})*)""", re.DOTALL)
_QUOTES = re.compile(_QUOTED, re.DOTALL)
_ESCAPED = re.compile(r"\\(.?)", re.DOTALL)
_NOT_PLAIN = re.compile(r"[\s\"'#\\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptOption:
    """One option in the script's own lines."""

    name: str  # Its long name
    value: str | None  # None where it has none
    line: int  # Index of its line in the text


@dataclass(frozen=True, slots=True, kw_only=True)
class UserScript:
    """A batch script.

    Attributes:
        unread: Words of these lines that are no option of sbatch known here; sbatch judges them.
    """

    path: Path  # Its place
    text: str  # The whole script; bytes that are no UTF-8 are surrogates
    lines: tuple[int, ...]  # Indices of its ``#SBATCH`` lines in the text
    options: tuple[ScriptOption, ...]  # What these lines say, in order
    unread: tuple[str, ...]
    is_het: bool  # It asks for a heterogeneous job

    @property
    def name(self) -> str:
        """Name of the file, without directories."""
        return self.path.name

    @property
    def interpreter(self) -> list[str]:
        """The words of the first line, as the kernel divides them: the program, one argument."""
        return self.text.partition("\n")[0][2:].strip().split(maxsplit=1)

    def calls(self, program: str) -> bool:
        """True if a line that is no comment begins a command with *program*."""
        pattern = (
            rf"(?:^|[;&|({{'\"]|\b(?:exec|then|do|else)\s)\s*(?:\S*/)?{program}(?=[\s;&|)'\"]|$)"
        )
        return re.search(pattern, _COMMENT.sub("", self.text), re.MULTILINE) is not None

    def sbatch_lines(self, without: Mapping[str, str]) -> list[str]:
        """Its ``#SBATCH`` lines.

        Args:
            without: Names of options that are left out, each with the reason.
        """
        lines, kept = self.text.split("\n"), []
        for number in self.lines:
            said = [option for option in self.options if option.line == number]
            left_out = [option for option in said if option.name in without]
            if not left_out:
                kept.append(lines[number])
                continue
            kept += [f"# {without[o.name]}: {_word(f'--{o.name}', o.value)}" for o in left_out]
            rest = [(f"--{o.name}", o.value) for o in said if o not in left_out]
            rest += [("--gres", more) for o in left_out if (more := _other_gres(o))]
            words = _words(lines[number][len(_MAGIC) :], self.name, number)
            rest += [(word, None) for word in words if word in self.unread]
            kept += [f"{_MAGIC} {_word(*pair)}" for pair in rest]
        return kept


def read_script(path: Path) -> UserScript:
    """The batch script at *path*.

    Raises:
        ConfigError: It is none, or sbatch would refuse it.
    """
    try:
        with path.open("rb") as file:
            # A command may be a large program.
            content = file.read(2)
            content += file.read() if content == b"#!" else b""
    except OSError as err:
        where = safe(str(path))
        msg = (
            f"{where}: {err.strerror}; write dlsubmit [OPTIONS] SCRIPT for a batch script, or"
            " dlsubmit [OPTIONS] -- COMMAND"
        )
        raise ConfigError(msg) from None
    return parse_script(content.decode("utf-8", "surrogateescape"), path)


def parse_script(text: str, path: Path) -> UserScript:
    """The batch script *text*, which stands at *path*.

    Raises:
        ConfigError: It is none, or sbatch would refuse it.
    """
    where = safe(str(path))
    if not text.startswith("#!"):
        msg = (
            f"{where} is no batch script: its first line must be #! and the program that reads it,"
            " such as #!/bin/bash; a command goes after --, as in dlsubmit --gpus 1 -- python"
            f" {where}"
        )
        raise ConfigError(msg)
    if "\r\n" in text or "\0" in text:
        what = "has DOS line breaks: dos2unix it" if "\r\n" in text else "holds a NUL"
        msg = f"{where} {what}"
        raise ConfigError(msg)
    words: list[tuple[str, int]] = []
    numbers: list[int] = []
    is_het = False
    for number, line in enumerate(text.split("\n")):
        if line.startswith(_MAGIC):
            numbers.append(number)
            is_het = is_het or _HET.search(line) is not None
            words += [(word, number) for word in _words(line[len(_MAGIC) :], where, number)]
        elif line.strip() and not line.lstrip().startswith("#"):
            break
    options, unread = _options(words)
    return UserScript(
        path=path,
        text=text,
        lines=tuple(numbers),
        options=tuple(options),
        unread=tuple(unread),
        is_het=is_het,
    )


def _words(line: str, where: str, number: int) -> Iterator[str]:
    """The words of an ``#SBATCH`` line."""
    at = 0
    while (match := _WORD.match(line, at)) is not None:
        at = match.end()
        word = _QUOTES.sub(
            lambda part: _ESCAPED.sub(r"\1", part[2]) if part[1] else part[3], match[1]
        )
        if not word:
            break
        yield word
    if line[at : at + 1] in {'"', "'"}:
        msg = f"{where}, line {number + 1}: {line[at]} without its end; sbatch refuses that"
        raise ConfigError(msg)


def _options(words: Sequence[tuple[str, int]]) -> tuple[list[ScriptOption], list[str]]:
    """The options in the words of all lines, as getopt_long finds them, and what is none."""
    found: list[ScriptOption] = []
    unread: list[str] = []
    at = 0
    while at < len(words):
        word, line = words[at]
        at += 1
        name, equals, value = word.partition("=")
        if word.startswith("--"):
            option = _long(name)
            given = value if equals else None
        else:
            option = SBATCH.get(word[:2])
            given = word[2:] or None
        if option is None or (option.takes is Takes.NOTHING and given is not None):
            unread.append(word)
            continue
        if option.takes is Takes.VALUE and given is None and at < len(words):
            given = words[at][0]
            at += 1
        found.append(ScriptOption(name=option.name, value=given, line=line))
    return found, unread


def _long(name: str) -> Option | None:
    """The option of that name, or the only one that begins so."""
    longer = {option.name: option for key, option in SBATCH.items() if key.startswith(name)}
    return SBATCH.get(name) or (next(iter(longer.values())) if len(longer) == 1 else None)


def _other_gres(option: ScriptOption) -> str:
    items = (option.value or "").split(",") if option.name == "gres" else []
    return ",".join(item for item in items if not GPU_GRES.match(item.strip()))


def _word(name: str, value: str | None) -> str:
    """An option as a word that sbatch reads in a script."""
    word = name if value is None else f"{name}={value}"
    return '"' + re.sub(r'(["\\])', r"\\\1", word) + '"' if _NOT_PLAIN.search(word) else word


def named(unread: Sequence[str]) -> str:
    """The first words that were not understood, for a note."""
    return ", ".join(shown(word) for word in unread[:4]) + (" ..." if len(unread) > 4 else "")  # noqa: PLR2004 - as many as a line holds


GPU_OPTIONS = (
    "gpus",
    "gpus-per-node",
    "gpus-per-socket",
    "gpus-per-task",
    "gres",
    "gres-per-task",
    "tres-per-task",
)
"""Options of sbatch that say how many GPUs."""

_TO_SBATCH = {
    "gpus": "gpus",
    "nodes": "nodes",
    "ntasks_per_node": "ntasks-per-node",
    "name": "job-name",
    "partition": "partition",
    "time": "time",
    "array": "array",
    "output": "output",
}
"""Options of dlsubmit that are sbatch's too, by their names there."""

_SHAPE = frozenset({*GPU_OPTIONS, "nodes", "ntasks", "ntasks-per-node", "cpus-per-gpu"})
"""Options of sbatch that a default gives to no script."""

_EITHER = (("mem", "mem-per-cpu", "mem-per-gpu"), ("requeue", "no-requeue"))
"""Options that exclude each other."""

_VARIABLE = {"time": "SBATCH_TIMELIMIT", "array": "SBATCH_ARRAY_INX"}
"""Variables of sbatch that are not named as its options."""


@dataclass(slots=True, kw_only=True)
class ScriptRequest:
    """All that a script's job is made of.

    Attributes:
        typed: dlsubmit's options that were given, by the names of its parameters; a flag is True.
        usual: Such options that hold where neither the line nor the script says otherwise.
    """

    script: UserScript  # The script
    script_args: Sequence[str]  # Its arguments
    typed: Mapping[str, str | bool]
    usual: Mapping[str, str | bool]
    usual_sbatch: Sequence[str]  # sbatch's options that do
    sbatch: Sequence[str]  # sbatch's options on the line, ``--name`` or ``--name=value``
    environ: Mapping[str, str]  # The user's environment, without what is of another job
    site: ClientConfig  # The site's choices
    dlrun: str  # Absolute path of dlrun on the compute nodes
    cwd: str  # Directory of submission
    sweep: Sweep | None = None  # The job is an array of this
    notes: list[str] = field(default_factory=list)

    def given(self, name: str) -> str | bool | None:
        """An option of dlsubmit: from the line, else as usual."""
        return self.typed.get(name, self.usual.get(name))

    def text(self, name: str, default: str) -> str:
        """The same, of one that has a value."""
        value = self.given(name)
        return value if isinstance(value, str) else default

    def said(self, *names: str) -> tuple[str, str | None] | None:
        """The last word on *names* of the line, the environment, the script, or as usual.

        Returns:
            The option's name and value, as sbatch will have it; None if it is not given.
        """
        return self.own(*names) or _last(self.as_usual(), names)

    def own(self, *names: str) -> tuple[str, str | None] | None:
        """The same, but for what is as usual."""
        if found := _last(self.options(), names):
            return found
        for name in names:
            variable = variable_of(name)
            if variable in self.environ:
                return name, self.environ[variable]
        for option in reversed(self.script.options):
            if option.name in names:
                return option.name, option.value
        return None

    def as_usual(self) -> list[str]:
        """Options that hold as usual beside those that are given; the shape is the script's own."""
        ours = [
            f"--{theirs}={value}"
            for name, theirs in _TO_SBATCH.items()
            if isinstance(value := self.usual.get(name), str)
        ]
        names = {word: word.removeprefix("--").partition("=")[0] for word in ours}
        names |= {word: word.removeprefix("--").partition("=")[0] for word in self.usual_sbatch}
        either = {name: family for family in _EITHER for name in family}
        return [
            word
            for word, name in names.items()
            if name not in _SHAPE and self.own(*either.get(name, (name,))) is None
        ]

    def run_base(self) -> str:
        """Absolute directory under which each job gets its run directory."""
        return os.path.normpath(PurePath(self.cwd, self.text("run_dir", DEFAULT_RUN_DIR)))

    def options(self) -> list[str]:
        """Options of sbatch on the line, with those of dlsubmit that are sbatch's too."""
        ours = [
            f"--{theirs}={option_values.clean_text(value, f'--{theirs}')}"
            for name, theirs in _TO_SBATCH.items()
            if isinstance(value := self.typed.get(name), str)
        ]
        return [*ours, *self.sbatch]


def _last(words: Sequence[str], names: Sequence[str]) -> tuple[str, str | None] | None:
    for word_ in reversed(words):
        name, equals, value = word_.removeprefix("--").partition("=")
        if name in names:
            return name, value if equals else None
    return None


def variable_of(option: str) -> str:
    """The variable by which sbatch reads *option*."""
    return _VARIABLE.get(option) or f"SBATCH_{option.upper().replace('-', '_')}"
