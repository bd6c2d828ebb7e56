"""Result files that are there whole or not at all."""

from __future__ import annotations

from pathlib import Path

from slurm_dl.files import replace_file
from slurm_dl.model.errors import ConfigError


def write_whole(path: Path, content: bytes) -> None:
    """Put *content* at *path*, in place of what was there; a reader never sees half of it.

    A device or a pipe is written to as it is.

    Raises:
        ConfigError: It cannot be written; what was there before is untouched.
    """
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(content)
        else:
            # What a link points to is replaced, not the link.
            with replace_file(path.resolve(), mode=0o666) as file:
                file.write(content)
    except OSError as error:
        msg = f"cannot write {path}: {error.strerror}; name a file in a directory you may write to"
        raise ConfigError(msg) from error
