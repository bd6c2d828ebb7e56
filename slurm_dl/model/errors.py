"""The few errors the project raises, by whose fault they are.

Everything else that goes wrong is a bug and keeps its own traceback.
"""

from __future__ import annotations


class SlurmDlError(Exception):
    """Base of all errors that carry a message meant for a person."""


class ConfigError(SlurmDlError):
    """The configuration or the command line is wrong; the reader of the message can mend it.

    Commands end with exit status 2.
    """


class ElsewhereError(SlurmDlError):
    """The command is for *host*, and runs there by ssh."""

    def __init__(self, host: str) -> None:
        super().__init__(f"only on {host}, by ssh")
        self.host = host


class ClusterError(SlurmDlError):
    """Slurm refused, was silent or answered something that cannot be read.

    The running cycle does nothing more; the next one tries again from what it then sees.
    """
