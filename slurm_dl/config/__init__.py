"""One YAML file, one frozen tree, and errors that name file and line."""

from slurm_dl.config.loading import DEFAULT_PATH, ENVIRONMENT, load, load_with_origins
from slurm_dl.config.origins import Origins, Row, show
from slurm_dl.config.tree import Config

__all__ = [
    "DEFAULT_PATH",
    "ENVIRONMENT",
    "Config",
    "Origins",
    "Row",
    "load",
    "load_with_origins",
    "show",
]
