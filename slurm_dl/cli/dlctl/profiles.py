"""``dlctl profile``: look at models' profiles, install them, and learn them from real runs."""

from __future__ import annotations

import difflib
import os
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import click

from slurm_dl.cli.commandline import AS_JSON, CONFIG, EXIT_USAGE, print_json
from slurm_dl.config import load
from slurm_dl.config.loading import DEFAULT_PATH, ENVIRONMENT
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.profile import Pair, Profile, Speed
from slurm_dl.profiles import (
    learning,
    load_profiles,
    shipped_profiles,
    site_over,
)
from slurm_dl.profiles.directory import add_profile, plain, profile_of, read_profile, text_of
from slurm_dl.profiles.run_reports import Place, Votes, learned, median_vote, read_reports, votes
from slurm_dl.report.terminal_table import Column, show
from slurm_dl.text import safe
from slurm_dl.yaml_places import Document

DEFAULT_DIRECTORY = Path("/etc/slurm_dl/profiles")

_DIR = click.option(
    "--dir",
    "directory",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="The site's profiles, if not those in paths.profile_dir of the configuration.",
)
_SITE, _SHIPPED = "site", "slurm_dl"
_LONGEST = 4000
_MAJORITY, _FARTHEST = 3, 3.0
_CHECKPOINT = {"size_mb": "MB", "save_s": "s", "observations": "saves"}
_LOAD = {"gpu_util": "", "memory_util": "", "sm_active": "", "gpu_mem_mb": "MB"}
_LOAD |= {"gpu_mem_kept_mb": "MB", "observations": ""}


@click.group()
def profile() -> None:
    """Look at models' profiles, install them, and learn them from real runs.

    A profile says what is known of a model: its tensors, its speed in each shape, what saving a
    checkpoint costs. Those in the site's directory count before the ones that come with slurm_dl.

    \b
    Examples:
      dlctl profile list
      dlctl profile show resnet50
      dlctl profile learn --model resnet50 runs/slurm_dl-17 --dry-run
    """  # noqa: D301 - \b is click's mark


@profile.command("list")
@_DIR
@CONFIG
@AS_JSON
def list_(*, directory: Path | None, config_path: Path | None, as_json: bool) -> None:
    """List all profiles with what they know.

    \b
    Example:
      dlctl profile list --json
    """  # noqa: D301 - \b is click's mark
    found = _all(_site_directory(directory, config_path))
    rows = []
    for owner, one in sorted(_once(found), key=lambda row: row[1].name):
        rows.append(
            {
                "name": one.name,
                "from": owner,
                "parameters": one.parameters,
                "skew": one.skew,
                "speeds": len(one.speeds) + len(one.shape_rates),
                "aliases": list(one.aliases),
            }
        )
    if as_json:
        print_json({"profiles": rows})
        return
    columns = (
        Column(title="NAME"),
        Column(title="FROM"),
        Column(title="PARAMETERS", right=True),
        Column(title="SKEW", right=True),
        Column(title="SPEEDS", right=True),
        Column(title="ALIASES", least=10),
    )
    show(columns, [_row(row) for row in rows])


def _row(row: Mapping[str, object]) -> list[str]:
    skew, aliases = row["skew"], row["aliases"]
    return [
        str(row["name"]),
        str(row["from"]),
        "" if row["parameters"] is None else f"{row['parameters']:,}",
        "" if skew is None else f"{skew:.3f}",
        str(row["speeds"]),
        ", ".join(aliases) if isinstance(aliases, list) else "",
    ]


@profile.command("show")
@click.argument("name")
@_DIR
@CONFIG
@AS_JSON
def show_(*, name: str, directory: Path | None, config_path: Path | None, as_json: bool) -> None:
    """Show one profile, by its name or an alias, as its file says it.

    \b
    Example:
      dlctl profile show "ResNet-50 (batch size 64)"
    """  # noqa: D301 - \b is click's mark
    found = _all(_site_directory(directory, config_path))
    if name not in found:
        near = difflib.get_close_matches(name[:64], list(found), n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else "; see 'dlctl profile list'"
        msg = f"no profile {safe(name, 64)}{hint}"
        raise ConfigError(msg)
    owner, one = found[name]
    if as_json:
        print_json({"from": owner, "profile": plain(one)})
        return
    click.echo(f"# from {owner}")
    for line in text_of(one).splitlines():
        click.echo(safe(line, _LONGEST))


@profile.command()
@click.argument(
    "files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path)
)
@AS_JSON
def check(*, files: tuple[Path, ...], as_json: bool) -> None:
    """Check profiles before they are installed; nothing is written.

    \b
    Example:
      dlctl profile check mymodel.yaml
    """  # noqa: D301 - \b is click's mark
    rows, errors = [], []
    for file in files:
        try:
            rows.append({"file": str(file), "name": read_profile(file, reader=None).name})
        except ConfigError as err:
            errors += str(err).splitlines()
    if as_json:
        print_json({"ok": not errors, "profiles": rows, "errors": errors})
    else:
        for row in rows:
            click.echo(f"{safe(row['file'], 1000)}: ok ({row['name']})")
        if errors:
            raise ConfigError("\n".join(errors))
    if errors:
        raise SystemExit(EXIT_USAGE)


@profile.command()
@click.argument("file", type=click.Path(path_type=Path))
@_DIR
@CONFIG
@AS_JSON
def add(*, file: Path, directory: Path | None, config_path: Path | None, as_json: bool) -> None:
    """Check a profile and install it for the site, whole or not at all.

    The daemon reads it with the next 'dlctl reload'. A profile of this name that is there is
    replaced.

    \b
    Example:
      dlctl profile add mymodel.yaml && dlctl reload
    """  # noqa: D301 - \b is click's mark
    one = read_profile(file, reader=None)
    path, replaced = add_profile(_ready(_site_directory(directory, config_path)), one)
    if as_json:
        print_json({"name": one.name, "file": str(path), "replaced": replaced})
    else:
        click.echo(f"{one.name}: {'replaced' if replaced else 'added'} {safe(str(path), 1000)}")


@profile.command()
@click.argument("run_dirs", nargs=-1, metavar="[RUN_DIR]...", type=click.Path(path_type=Path))
@click.option("--model", required=True, metavar="NAME", help="The model that these runs trained.")
@click.option(
    "--gpu-type", default="", metavar="TYPE", help="GPUs they ran on, if the runs do not know it."
)
@click.option(
    "--any-model", is_flag=True, help="Take runs that were submitted as another model too."
)
@click.option("--unnamed", is_flag=True, help="Take runs that name no model too.")
@click.option("--force", is_flag=True, help="Take figures that are more than three times off, too.")
@click.option("--dry-run", is_flag=True, help="Show the difference; write nothing.")
@_DIR
@CONFIG
@AS_JSON
def learn(
    *,
    run_dirs: tuple[Path, ...],
    model: str,
    gpu_type: str,
    any_model: bool,
    unnamed: bool,
    force: bool,
    dry_run: bool,
    directory: Path | None,
    config_path: Path | None,
    as_json: bool,
) -> None:
    """Write what real runs have shown into the model's profile.

    RUN_DIR is a job's run directory (slurm_dl-JOBID), by default the one you stand in. Jobs under
    dlrun that call slurm_dl.job.report leave there how fast their steps were and on which nodes
    and GPUs, and dlrun what they used of a GPU, alone and beside another job. Each owner has one
    vote, and the median of the votes is joined with earlier runs by their number; give each run
    directory once. Of speeds beside another model give the directories of both jobs.

    A figure that is more than three times off the profile is refused, and where that has none, so
    is one of two owners whose votes are that far apart.

    \b
    Examples:
      dlctl profile learn --model resnet50 --dry-run runs/slurm_dl-17 runs/slurm_dl-18
      dlctl profile learn --model resnet50 runs/slurm_dl-* && dlctl reload
    """  # noqa: D301 - \b is click's mark
    site = _site_directory(directory, config_path)
    before = _before(model, site)
    names = {model, before.name, *before.aliases, *((None,) if unnamed else ())}
    # Whatever a shell expanded to, each directory counts once. A loop of links is no place.
    places = dict.fromkeys(Path(os.path.realpath(place)) for place in run_dirs or (Path(),))
    read: Counter[int] = Counter()
    reports = [read_reports(place, None if any_model else names, read) for place in places]
    found = votes(reports, gpu_type=_plain_type(gpu_type))
    loads = [run for report in reports for run in report.loads]
    known = _all(site)
    sampled = learning.find(
        loads,
        before,
        names=None if any_model else names,
        gpu_type=gpu_type,
        canonical=lambda name: known[name][1].name if name in known else name,
    )
    after = replace(
        learned(before, found),
        load=learning.with_load(before.load, sampled),
        beside=learning.with_pairs(before.beside, sampled.beside),
    )
    changes = _changes(before, after)
    refused = [] if force else list(_far_off(before, found, sampled))
    remarks = [remark for report in reports for remark in report.remarks]
    runs = sum(len(report.speeds) for report in reports)
    has_told = bool(runs or sampled.load or sampled.beside)
    path = None
    if has_told and not refused and not dry_run:
        path, _ = add_profile(_ready(site), after, comment="Written by dlctl profile learn.")
    if as_json:
        where = None if path is None else str(path)
        done = {"name": before.name, "runs": runs, "changes": changes, "left_out": remarks}
        print_json({**done, "refused": refused, "file": where})
    else:
        for line in (*remarks, *changes):
            click.echo(safe(line, 500))
        if path is not None:
            click.echo(f"{before.name}: written to {safe(str(path), 1000)}")
    if refused:
        told = "nothing is written: look at these runs, name those of more owners, or take --force"
        raise click.ClickException("\n".join([*refused, told]))
    if not has_told:
        msg = "no run told enough to learn from; does the script call slurm_dl.job.report?"
        raise click.ClickException(msg)


def _before(model: str, site: Path) -> Profile:
    """The profile to be continued: the site's, else the shipped one, else an empty one.

    Raises:
        ConfigError: *model* is no name for a new profile, or the site's files are not in order.
    """
    found = _all(site)
    if model in found:
        return found[model][1]
    return profile_of(Document({"name": model}), "--model")


def _plain_type(text: str) -> str:
    if text and not (text.isascii() and text.replace("-", "a").replace("_", "a").isalnum()):
        msg = "--gpu-type: must be letters, digits, - and _"
        raise ConfigError(msg)
    return text


def _far_off(
    before: Profile, found: Mapping[Place, Votes], sampled: learning.Found
) -> Iterator[str]:
    """A line about each figure that is more than `_FARTHEST` times off the profile's.

    Where that has none, one or two owners must agree: of two, neither is a majority.
    """
    speeds = (*before.speeds, *before.hinted)
    known = {(s.shape, s.gpu_type, s.hints): s.steps_per_s for s in speeds}
    for place, by_owner in found.items():
        if isinstance(place, tuple):
            was, name = known.get(place), " ".join(("speed", *filter(None, map(str, place))))
        else:
            was, name = getattr(before.checkpoint, place), f"checkpoint {place}"
        yield from _if_far_off(name, was, by_owner)
    for figure, by_owner in sampled.load.items():
        yield from _if_far_off(f"load {figure}", getattr(before.load, figure), by_owner)
    beside = {one.pair: one.rate for one in before.beside}
    for pair, by_owner in sampled.beside.items():
        yield from _if_far_off(_beside(pair), beside.get(pair), by_owner)


def _if_far_off(name: str, was: float | None, by_owner: Votes) -> Iterator[str]:
    now, counts = median_vote(by_owner), [*map(len, by_owner.values())]
    against = [] if was is None else [was]
    if was is None and len(counts) < _MAJORITY:
        against = [statistics.median(own) for own in by_owner.values()]
    if any(max(one, now) > _FARTHEST * min(one, now) for one in against):
        told = f"{'unknown' if was is None else f'{was:g}'} -> {now:g}, owners: {len(counts)}"
        yield f"{name}: {told}, values: {sum(counts)}: more than {_FARTHEST:g} times off"


def _beside(pair: Pair) -> str:
    return " ".join(("beside", *filter(None, pair)))


def _changes(before: Profile, after: Profile) -> list[str]:
    """One line for each figure that is another than before."""
    lines = []
    old = {(s.shape, s.gpu_type, s.hints): s for s in (*before.speeds, *before.hinted)}
    for speed in (*after.speeds, *after.hinted):
        known = old.get((speed.shape, speed.gpu_type, speed.hints))
        if speed != known:
            was = "unknown" if known is None else _speed(known)
            where = " ".join(filter(None, (str(speed.shape), speed.gpu_type, speed.hints)))
            lines.append(f"speed {where}: {was} -> {_speed(speed)}")
    for part, units in (("checkpoint", _CHECKPOINT), ("load", _LOAD)):
        for key, unit in units.items():
            was, now = (getattr(getattr(one, part), key) for one in (before, after))
            if was != now:
                lines.append(f"{part} {key}: {_number(was)} -> {now:g} {unit}".rstrip())
    if before.load.gpu_type != after.load.gpu_type:
        lines.append(f"load gpu_type: {before.load.gpu_type or 'any'} -> {after.load.gpu_type}")
    paired = {one.pair: one for one in before.beside}
    for one in after.beside:
        if one != (old_one := paired.get(one.pair)):
            rate, runs = None if old_one is None else old_one.rate, _runs(one.observations)
            lines.append(f"{_beside(one.pair)}: {_number(rate)} -> {one.rate:g} ({runs})")
    return lines


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:g}"


def _speed(speed: Speed) -> str:
    text = f"{speed.steps_per_s:g} steps/s"
    if speed.origin != "measured":
        return f"{text} ({speed.origin})"
    spread = "" if speed.spread is None else f" ± {speed.spread:.1%}"
    return f"{text}{spread} ({_runs(speed.observations)})"


def _runs(count: int) -> str:
    return f"{count} run{'s' if count > 1 else ''}"


def _all(site: Path) -> dict[str, tuple[str, Profile]]:
    """Every profile by name and alias, with whose it is."""
    own: Mapping[str, Profile] = load_profiles(site, reader="user") if _is_seen(site) else {}
    ours = {one.name for one in own.values()}
    merged = site_over(shipped_profiles(), own)
    return {key: (_SITE if one.name in ours else _SHIPPED, one) for key, one in merged.items()}


def _once(found: Mapping[str, tuple[str, Profile]]) -> Sequence[tuple[str, Profile]]:
    return list({one.name: (owner, one) for owner, one in found.values()}.values())


def _site_directory(directory: Path | None, config_path: Path | None) -> Path:
    if directory is not None:
        return directory

    # Users and simulations have none that they may read, and need none for this.
    is_open = os.access(DEFAULT_PATH, os.R_OK)
    if config_path is None and not os.environ.get(ENVIRONMENT) and not is_open:
        return DEFAULT_DIRECTORY
    return load(config_path).paths.profile_dir


def _is_seen(path: Path) -> bool:
    """*path* is there, as far as we may see: users know no more than what comes with slurm_dl."""
    try:
        return path.exists()
    except OSError:
        return False


def _ready(site: Path) -> Path:
    try:
        site.mkdir(mode=0o755, exist_ok=True)
    except OSError as err:
        msg = f"{safe(str(site), 1000)}: cannot be made: {err.strerror}; name another with --dir"
        raise ConfigError(msg) from None
    return site
