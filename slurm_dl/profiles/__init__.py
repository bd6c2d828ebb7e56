"""Profiles of models on disk: one YAML file each, and what real runs teach.

The daemon reads them and never writes: files change by an admin's ``dlctl profile`` alone.
"""

from slurm_dl.profiles.directory import load_profiles, shipped_profiles, site_over

__all__ = ["load_profiles", "shipped_profiles", "site_over"]
