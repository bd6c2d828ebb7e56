"""Whether jobs can go where they should: what is known of the network, and who spreads them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from slurm_dl.config import engine_settings
from slurm_dl.daemon.assembly import LONGEST_GRACE_S
from slurm_dl.doctor.controller_config import CannotTellError
from slurm_dl.doctor.site import CheckResult, Site, check, error, ok, warning
from slurm_dl.model.errors import ClusterError, ConfigError
from slurm_dl.model.profile import Profile
from slurm_dl.profiles import load_profiles
from slurm_dl.profiles.directory import SUFFIX
from slurm_dl.slurm.read.comment_claims import ClaimReader
from slurm_dl.slurm.read.record_parser import job_records, new_nonce, queue_arguments
from slurm_dl.text import user_name

_LEAVES = {"tree": "leaf switches", "block": "blocks"}
_MOST_MODELS = 5


@check("placement")
def placement(site: Site) -> CheckResult:
    """Who places jobs, and what is known of the network to do it by."""
    section = site.config.placement
    told = section.in_words()
    if not section.scheme:
        return ok(told)
    plugin = site.controller.text("TopologyPlugin").lower()
    leaves = _LEAVES.get(plugin.rpartition("/")[2])
    if leaves is None:
        return warning(
            f"{told}; TopologyPlugin={plugin or 'none'}: all nodes count as one leaf switch, no "
            "scheme can keep a job on one",
            "in slurm.conf: TopologyPlugin=topology/tree; with the switches in topology.conf, or "
            "topology/block with blocks, unless all nodes are equally near",
        )
    return ok(f"{told}; {leaves} are known ({plugin})")


@check("fragments")
def fragments(site: Site) -> CheckResult:
    """Least-loaded nodes first leaves no node whole."""
    key = "SelectTypeParameters"
    names = [p.name for p in site.managed if p.text("LLN").upper() == "YES"]
    where = [f"partition {name}" for name in names]
    lines = [f"in slurm.conf, partitions {', '.join(names)}: LLN=NO"] if names else []
    if "cr_lln" in site.controller.options(key):
        where.insert(0, f"{key} (CR_LLN)")
        # Without a unit of its own Slurm counts CPUs.
        line = site.controller.line_without(key, "cr_lln", none="CR_CPU")
        lines.insert(0, f"in slurm.conf: {line}")
    if not where:
        return ok("Slurm fills nodes up (no LLN)")
    return warning(
        f"LLN in {', '.join(where)}: Slurm starts jobs on the least loaded nodes, so none stays "
        "whole for large ones",
        f"{'; '.join(lines)}; unless that is meant: jobs that are steered stay on the nodes chosen "
        "for them all the same",
    )


@check("node weights")
def node_weights(site: Site) -> CheckResult:
    """Slurm takes nodes of low Weight first, before it looks at topology."""
    # All of them: sinfo takes no partitions beside --all, and hides some without it.
    argv = ("--noheader", "--all", "--exact", "--format=%R %w")
    _, managed = site.controller, site.config.manage.partitions
    try:
        lines = [line.split() for line in site.slurm.run("sinfo", *argv).splitlines()]
        weights = sorted({int(weight) for name, weight in lines if name in managed})
    except (ClusterError, ValueError) as err:
        msg = f"Weights of nodes cannot be read: {str(err)[:200]}"
        raise CannotTellError(msg) from None
    if len(weights) <= 1:
        return ok("all nodes of managed partitions have the same Weight")
    told = ", ".join(str(weight) for weight in weights[:4]) + (", ..." if weights[4:] else "")
    return warning(
        f"nodes of managed partitions have Weight {told}: Slurm takes the lowest first, whatever "
        "the topology",
        f"in slurm.conf: Weight={weights[0]} on all NodeName lines of theirs; now and until then: "
        f"scontrol update NodeName=NODES Weight={weights[0]}; unless that is meant: a job that is "
        "steered stays on the nodes chosen for it",
    )


@check("profiles")
def profiles(site: Site) -> CheckResult:
    """The profiles of models can be read, and jobs name models that there are."""
    directory = site.config.paths.profile_dir
    of_site: Mapping[str, Profile] = {}
    try:
        # Whose they are is asked for dlschedd's account, which need not be ours.
        known = engine_settings.profiles_of(site.config, reader="user")
        mistakes = []
        if directory.exists():
            of_site = load_profiles(directory, reader="user")
            mistakes = list(_foreign(directory, site))
    except ConfigError as err:
        mistakes = str(err).splitlines()
    if mistakes:
        more = f" (and {len(mistakes) - 1} more)" if mistakes[1:] else ""
        return error(
            f"{mistakes[0]}{more}",
            "correct it; dlschedd does not start like this, and a reload keeps the old ones",
        )
    all_models, of_files = ({p.name for p in found.values()} for found in (known, of_site))
    told = f"{len(all_models)} models, {len(of_files)} of them by files in {directory}"
    # The daemon watches errors alone: it need not read the queue for this warning.
    unknown = _unknown_models(site, known) if site.in_force is None else []
    if not unknown:
        return ok(told)
    names = [f"{name} ({jobs})" for name, jobs in unknown[:_MOST_MODELS]]
    more = f" and {len(unknown) - len(names)} more" if len(unknown) > len(names) else ""
    return warning(
        f"{told}; jobs name models without a profile: {', '.join(names)}{more}",
        f"write a profile of each into {directory} and reload dlschedd; until then such a job "
        "counts as one whose model is not known",
    )


@check("pairs")
def pairs(site: Site) -> CheckResult:
    """Profiles say how fast models are together, if jobs are to share GPUs."""
    section = site.config.placement
    if not section.pack:
        return ok("no jobs are put on one GPU")
    mode, types = section.sharing_mode, {"", *section.gpu_mem_mb}
    try:
        known = engine_settings.profiles_of(site.config, reader="user")
    except ConfigError:
        msg = "the profiles of models are not readable"
        raise CannotTellError(msg) from None
    able = {
        p.name
        for p in known.values()
        if p.load.gpu_mem_mb is not None
        and (
            (p.load.gpu_util is not None and p.load.gpu_type in types)
            or any(b.mode == mode and b.gpu_type in types for b in p.beside)
            or (mode == "slices" and p.label is not None)
        )
    }
    if able:
        return ok(f"{len(able)} models can be paired (sharing_mode {mode})")
    return warning(
        f"no model has a profile by which it can be paired (sharing_mode {mode}): every job with "
        "a share of a GPU runs alone",
        "see docs/use/sharing.md: let jobs run under dlrun, which measures them, or write load "
        "or beside of their models into profiles; and name the types of GPUs in "
        "placement.gpu_mem_mb",
    )


def _foreign(directory: Path, site: Site) -> Iterator[str]:
    """What dlschedd would not believe, because it is neither root's nor its own."""
    for path in (directory, *sorted(directory.glob(f"*{SUFFIX}"))):
        uid = path.stat().st_uid
        if uid not in {0, site.account.uid}:
            name = user_name(uid, "uid ")
            yield f"{path}: belongs to {name}, neither root nor {site.account.name}"


def _unknown_models(site: Site, known: Collection[str]) -> list[tuple[str, int]]:
    """Models that unfinished jobs name and nobody has a profile of, most jobs first."""
    nonce, reader = new_nonce(), ClaimReader(max_grace_s=LONGEST_GRACE_S)
    shown = site.slurm.run("squeue", *queue_arguments(("JobID", "Comment"), nonce))
    records, _ = job_records(shown, nonce, 2)
    models = (reader.read(comment).model for _, comment in records)
    counts = Counter(m for m in models if m is not None and m not in known)
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))
