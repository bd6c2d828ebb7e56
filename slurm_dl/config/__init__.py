"""One YAML file, one frozen tree, and errors that name file and line."""

from slurm_dl.config.loading import DEFAULT_PATH, ENVIRONMENT, load, load_with_origins
from slurm_dl.config.tree import Config
from slurm_dl.config.value_origins import ConfigValue, Origins, show

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
