"""Python processes of our own: this interpreter, isolated.

Otherwise they would import what lies in the current directory, in PYTHONPATH and in the user's own
packages, with the rights of whoever stands there. Users' programs are not started so.
"""

from __future__ import annotations

import sys
from typing import Final

ISOLATED: Final = "-I"


def own_python(*words: str) -> tuple[str, ...]:
    """The command line that runs Python with *words*, such as ``-m`` and a module."""
    return (sys.executable, ISOLATED, *words)
