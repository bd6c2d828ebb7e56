"""What the site says about preemptible jobs: of its configuration, the one key dlsubmit uses.

A site without the file on its login nodes, or with one that users may not read, has nothing to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slurm_dl.model.errors import ConfigError

# As slurm_dl.config has them; to import it takes as long as all the rest of dlsubmit.
DEFAULT_PATH = "/etc/slurm_dl/slurm_dl.yaml"
ENVIRONMENT = "SLURM_DL_CONFIG"


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The site's choices.

    Attributes:
        qos: QOS of the jobs that may be preempted; None if the site names none.
        native: Slurm itself preempts inside it.
        trouble: Why the configuration could not be used; empty if it could.
    """

    qos: str | None = None
    native: bool = False
    trouble: str = ""


def read_site(environ: Mapping[str, str]) -> Site:
    """The site's choices, from the file that `slurm_dl.config` finds."""
    path = Path(environ.get(ENVIRONMENT) or DEFAULT_PATH)
    if not _is_readable(path):
        return Site()
    from slurm_dl.config import load  # noqa: PLC0415 - pydantic, YAML and NumPy: 0.2 s

    try:
        section = load(path).preemption
    except ConfigError as err:
        first = str(err).partition("\n")[0]
        return Site(trouble=f"the site's configuration is not used: {first}")
    return Site(qos=section.qos or None, native=section.mode == "native")


def _is_readable(path: Path) -> bool:
    try:
        with path.open("rb"):
            return True
    except OSError:
        return False
