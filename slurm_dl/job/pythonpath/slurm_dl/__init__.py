"""Stands for slurm_dl on the PYTHONPATH of a job, and makes way for the user's own.

dlrun appends the directory above to PYTHONPATH, which comes before the packages that are installed
for the job's Python. If one of those is a slurm_dl it is imported, else the one that this file
belongs to. Its site-packages never get onto the path of the job.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

_place = Path(__file__).parents[1]
_path = [Path(entry).absolute() for entry in sys.path]
# Not those before it: another directory of this kind there would look here again.
_later = _path[_path.index(_place) + 1 :] if _place in _path else []
_found = PathFinder.find_spec("slurm_dl", [*map(str, _later)])
if _found is None or _found.origin is None:  # None: a directory without __init__.py
    _found = PathFinder.find_spec("slurm_dl", [str(_place.parents[2])])
if _found is None or _found.loader is None:
    raise ImportError(f"no slurm_dl in {_place.parents[2]}")  # noqa: EM102, TRY003 -- one place
sys.modules[__name__] = _module = module_from_spec(_found)
_found.loader.exec_module(_module)
