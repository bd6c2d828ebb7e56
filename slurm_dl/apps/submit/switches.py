"""How few leaf switches a job of several nodes asks for, and how long it waits for so few.

Only on a topology of switches: on one of blocks Slurm heeds no such wish. Jobs whose model sends
one large tensor are the ones that gain (Tiresias, NSDI 2019, section 3.3).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from slurm_dl.apps.submit.shape import Partition, Shape
from slurm_dl.apps.submit.site import Site
from slurm_dl.job.topology import is_tree, leaves
from slurm_dl.model.profile import Profile, skew_of


def wait_s(shape: Shape, profile: Profile | None, at_site: Site) -> float:
    """Seconds that the job should wait for the fewest switches; 0 if it need not."""
    if shape.nodes == 1 or profile is None:
        return 0.0
    skew = profile.skew
    if skew is None and profile.tensors_mb:
        skew = skew_of(profile.tensors_mb)
    if skew is None or skew <= at_site.skew_threshold:
        return 0.0
    return at_site.locality_wait_s


def fewest(shape: Shape, partitions: Sequence[Partition], topology: str) -> int | None:
    """The fewest leaf switches that have nodes enough for the job; None if that says nothing.

    Args:
        topology: What ``scontrol show topology`` says.
    """
    if not is_tree(topology):
        return None
    leaf_of = leaves(topology)
    counts = []
    for partition in partitions:
        fitting = {n.name for n in partition.nodes if n.up and shape.may_use(n)}
        below = Counter(leaf_of[name] for name in fitting if name in leaf_of)
        room, needed = 0, 0
        for _, count in below.most_common():
            room, needed = room + count, needed + 1
            if room >= shape.nodes:
                counts.append(needed)
                break
    return min(counts, default=None)


def option(switches: int, for_s: float) -> str:
    """The argument for sbatch."""
    minutes, seconds = divmod(max(1, round(for_s)), 60)
    return f"--switches={switches}@{minutes}:{seconds:02}"
