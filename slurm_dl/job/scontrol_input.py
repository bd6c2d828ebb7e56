"""What scontrol is told on its standard input: every user of a host can read command lines.

scontrol without a command reads commands line by line, by readline or, where it was built without,
by fgets. Measured on 22.05.8 with readline 8.2; the source is the same from there to 26.11:

- A line break in a value begins a second command, and a carriage return, ^O and ^U lead to one.
- readline obeys control characters (tab completes the name of a file) and, by its release and the
  locale, bytes that are not ASCII: 8.2 drops those that are not UTF-8 in a UTF-8 locale.
- Blanks end a word but between quotes of either kind. Quotes stay in the word as they are, and a
  backslash before one changes nothing.
- fgets takes 4,095 bytes: the rest of a longer line would be a second command.
- A refusal is told on standard error, and scontrol ends with status 1. Standard output has the
  prompt and repeats the line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

_COMMENT = "Comment="
"""The only setting with what users wrote. The others have ids, numbers, names of nodes and of
accounts; a list of nodes may be longer than a line."""

_LONGEST_LINE = 4094

_WORD = re.compile(r'[!#-&(-~](?:[!#-&(-~]|"[ !#-&(-~]*")*')
"""Printable ASCII without single quotes, blanks between double quotes only."""

_ESCAPE = re.compile(r"\\.|['\x7f]")


def arguments_and_input(args: Sequence[str]) -> tuple[Sequence[str], bytes]:
    """With which arguments and standard input scontrol does what *args* say.

    Raises:
        ValueError: They cannot be written there.
    """
    if not any(word.startswith(_COMMENT) for word in args):
        return args, b""
    given = [word.partition(_COMMENT) for word in args]
    words = [before + key + (one_word(value) if key else "") for before, key, value in given]
    line = " ".join(words)
    if not all(map(_WORD.fullmatch, words)) or len(line) > _LONGEST_LINE:
        msg = "a value is too long for standard input, or has characters that scontrol would obey"
        raise ValueError(msg)
    return (), f"{line}\n".encode()


def one_word(text: str) -> str:
    r"""*text*, which is JSON, with the same value and spelled as scontrol reads one word.

    Characters that it would obey are written as ``\u0027``, and bytes that are not UTF-8 like the
    surrogates that stand for them.
    """
    compact = json.dumps(json.loads(text), separators=(",", ":"))
    return _ESCAPE.sub(
        lambda m: f"\\u{ord(m[0][-1]):04x}" if m[0][-1] in "\"'\x7f" else m[0], compact
    )
