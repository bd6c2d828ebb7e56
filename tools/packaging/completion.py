"""Completion of all commands for bash, zsh and fish, at the places where Debian's shells look.

Click writes the scripts; a script asks the command itself, so it knows every subcommand. dlrun is
no program of click's: its scripts are in ``tools/packaging/deb``, and complete the command behind
it. ``python tools/packaging/completion.py DIR`` writes all of them as they lie below ``/``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete
from commands import CLICK

_HERE = Path(__file__).parent
_SHELLS: dict[str, tuple[type[ShellComplete], str]] = {
    "bash": (BashComplete, "usr/share/bash-completion/completions/{}"),
    "zsh": (ZshComplete, "usr/share/zsh/vendor-completions/_{}"),
    "fish": (FishComplete, "usr/share/fish/vendor_completions.d/{}.fish"),
}
_BASH_END = "complete -o nosort -F"


def scripts() -> dict[str, str]:
    """Each script by its path on the system, without the leading slash.

    Raises:
        ValueError: Click writes them in a form that is not known here.
    """
    made = {}
    for shell, (kind, place) in _SHELLS.items():
        for name, command in CLICK.items():
            variable = f"_{name.upper()}_COMPLETE"
            # Only the text is wanted: source() of bash would first ask which bash is here.
            vars_of = kind(command, {}, name, variable).source_vars()
            text = kind.source_template % vars_of
            made[place.format(name)] = _with_files(text) if shell == "bash" else text
        made[place.format("dlrun")] = (_HERE / "deb" / f"dlrun.{shell}").read_text("utf-8")
    return made


def _with_files(text: str) -> str:
    """Complete files where the command knows nothing, as behind dlsubmit's ``--``.

    Raises:
        ValueError: The line that says what to complete by is not there.
    """
    if text.count(_BASH_END) != 1:
        msg = f"click's bash completion has no single {_BASH_END!r}"
        raise ValueError(msg)
    return text.replace(_BASH_END, "complete -o nosort -o bashdefault -o default -F")


def main(argv: Sequence[str]) -> int:
    """Write all scripts below a directory."""
    parser = argparse.ArgumentParser(
        prog="tools/packaging/completion.py",
        description="Write the completion of all commands for bash, zsh and fish.",
        epilog="Example: python tools/packaging/completion.py build/root",
    )
    parser.add_argument("directory", type=Path)
    directory = parser.parse_args(argv).directory
    made = scripts()
    for name, text in made.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    print(f"{len(made)} scripts below {directory}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
