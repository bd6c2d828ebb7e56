"""One YAML file, one frozen tree, and errors that name file and line."""

from slurm_dl.config.loading import (
    DEFAULT_PATH,
    ENVIRONMENT,
    ConfigValue,
    Origins,
    load,
    load_with_origins,
    show,
)
from slurm_dl.config.tree import Config

__all__ = [
    "DEFAULT_PATH",
    "ENVIRONMENT",
    "Config",
    "ConfigValue",
    "Origins",
    "load",
    "load_with_origins",
    "show",
]
