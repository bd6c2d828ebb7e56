"""The daemon's answer to ``status``, for people."""

from __future__ import annotations

from datetime import UTC, datetime

from slurm_dl.daemon.control.client import stale_note
from slurm_dl.forecast.start_time_text import score_text
from slurm_dl.json_types import Json, JsonObject, as_list, number
from slurm_dl.text import ago

_CLOCKS_APART_S = 2.0
"""By less than this clocks differ that are kept by NTP and told in whole seconds."""

RESET = "dlctl breakers reset"  # The command that resets a breaker
_CHECKS_LATE_S = 1200.0  # Two intervals of the checks that the daemon makes
_MOST_JOBS = 8  # Jobs that are named in one line


def status_lines(answer: JsonObject) -> list[tuple[str, str]]:
    """Headings and their lines, most important first; the text is not made safe yet."""
    now_s = number(answer["now_s"])
    up = ago(now_s - number(answer["started_s"]))
    lines = [
        *([("STALE", note)] if (note := stale_note(answer)) else []),
        ("dlschedd", f"{answer['doing']}"),
        *(
            ("PROBLEM", f"{p['check']}: {p['found']}; {p['advice']}")
            for p in as_list(answer.get("problems"))
            if isinstance(p, dict)
        ),
        *_checks_lines(answer, now_s),
        ("process", f"pid {answer['pid']}, version {answer['version']}, up {up}"),
        ("config", f"{answer['config_file']}, policy {answer['policy']}"),
        ("preemption", f"{answer['preemption']}"),
        *(("preemption", text) for text in tripped_texts(answer)),
        ("placement", f"{answer['placement']}"),
    ]
    if isinstance(paused := answer["paused"], dict):
        since = f"{ago(now_s - number(paused['since_s']))} ago ({utc(paused['since_s'])})"
        because = f": {paused['reason']}" if paused["reason"] else ""
        lines.append(("paused", f"by {paused['by']} {since}{because}"))
    if answer["seen_s"] is None:
        lines.append(("last look", "none yet"))
    else:
        took = answer["durations_ms"]
        assert isinstance(took, dict)  # noqa: S101 - narrows the type
        when = f"{ago(now_s - number(answer['seen_s']))} ago, number {answer['cycles']}"
        parts = ", ".join(f"{part} {ms} ms" for part, ms in took.items())
        lines.append(("last look", f"{when}; {parts}"))
        lines += _seen_lines(answer)
    lines += _slurmctld_lines(answer, now_s)
    if isinstance(reader := answer["reader"], dict):
        lines.append(("reader", f"{reader['name']}: {reader['reason']}"))
    if isinstance(actions := answer["actions"], dict):
        lines.append(("actions", f"{actions['done']} done, {actions['failed']} failed since start"))
    if text := _steers_text(answer):
        lines.append(("steers", text))
    if isinstance(score := answer.get("forecasts"), dict) and (text := score_text(score)):
        lines.append(("forecasts", text))
    if isinstance(reloaded := answer["reloaded"], dict):
        first = str(reloaded["message"]).splitlines()[0]
        ok = "" if reloaded["ok"] else "REFUSED: "
        lines.append(("reload", f"{ago(now_s - number(reloaded['at_s']))} ago: {ok}{first}"))
    if isinstance(trouble := answer["trouble"], dict):
        when = ago(now_s - number(trouble["at_s"]))
        lines.append(("last error", f"{when} ago: {trouble['message']}"))
    if isinstance(audit := answer["audit"], dict) and audit["error"]:
        lines.append(("audit log", f"CANNOT BE WRITTEN: {audit['error']}"))
    return lines


def _checks_lines(answer: JsonObject, now_s: float) -> list[tuple[str, str]]:
    late_s = now_s - (number(answer.get("checked_s")) or number(answer["started_s"]))
    if "checked_s" not in answer or late_s <= _CHECKS_LATE_S:
        return []
    return [("CHECKS", f"none ended for {ago(late_s)}: one hangs, or polls fail; see dlctl doctor")]


def tripped_texts(answer: JsonObject) -> list[str]:
    """Each breaker that has tripped: since when, why, and how that ends."""
    texts = []
    for breaker in as_list(answer.get("breakers")):
        if not isinstance(breaker, dict) or breaker["tripped_s"] is None:
            continue
        jobs = [str(job) for job in as_list(breaker["jobs"])]
        more = " ..." if len(jobs) > _MOST_JOBS else ""
        noun = "job" if len(jobs) == 1 else "jobs"
        which = f" ({noun} {', '.join(jobs[:_MOST_JOBS])}{more})" if jobs else ""
        name = breaker["breaker"]
        texts.append(
            f"STOPPED by the breaker {name} since {utc(breaker['tripped_s'])}: {breaker['why']}"
            f"{which}; {ends_text(breaker)}"
        )
    return texts


def ends_text(breaker: JsonObject) -> str:
    """How the trip of *breaker* ends."""
    reset = f"{RESET} {breaker['breaker']}"
    at_s = breaker.get("rearms_at_s")
    if at_s is None:
        return f"'{reset}' once the cause is mended"
    return f"re-arms at {utc(at_s)}, or '{reset}' once the cause is mended"


def _seen_lines(answer: JsonObject) -> list[tuple[str, str]]:
    lines = []
    if isinstance(jobs := answer.get("jobs"), dict):
        counts = ", ".join(f"{n} {letters}" for letters, n in jobs.items() if n)
        lines.append(("jobs", f"{counts or 'none'}; {answer['managed_jobs']} managed and live"))
    if answer.get("unreadable"):
        text = f"{answer['unreadable']} records of jobs and nodes; nothing was done to them"
        lines.append(("left out", text))
    tiers = [t for t in as_list(answer.get("tiers")) if isinstance(t, dict)]
    if tiers:
        text = "; ".join(
            f"tier {t['tier']}: {t['running']} running, {t['pending']} pending" for t in tiers
        )
        lines.append(("tiers", text))
    if isinstance(gpus := answer.get("gpus"), dict):
        held, up = number(gpus["held"]), number(gpus["up"])
        text = f"{held:g} of {up:g} held, {number(gpus['all']):g} in all"
        if stranded := number(gpus["stranded"]):
            text += f"; {stranded:g} free ones stranded (no CPUs or memory left beside them)"
        lines.append(("GPUs", text))
    if misfit := answer.get("misfit"):
        lines.append(("placement", f"CANNOT BE KEPT: {misfit}"))
    lines += [
        ("hand-over", _handover_text(handover))
        for handover in as_list(answer.get("handovers"))
        if isinstance(handover, dict)
    ]
    return lines


def _slurmctld_lines(answer: JsonObject, now_s: float) -> list[tuple[str, str]]:
    """What is amiss with slurmctld's clock or pace; nothing if all is well."""
    lines: list[tuple[str, str]] = []
    if not isinstance(now := answer.get("slurmctld"), dict):
        return lines
    ahead_s = number(now["ahead_s"])
    if abs(ahead_s) > _CLOCKS_APART_S or now["clock"] != "slurmctld's clock":
        way = "ahead of" if ahead_s >= 0 else "behind"
        text = f"decisions go by {now['clock']}, {ago(abs(ahead_s))} {way} this host's"
        lines.append(("clock", text))
    if now["distrust"]:
        left = ago(number(now["distrust_until_s"]) - now_s)
        lines.append(("clock", f"NO GPUS ARE TAKEN BACK for {left}: {now['distrust']}"))
    if now["slow"]:
        text = f"slurmctld is slow: {now['slow']}; looking every {number(now['poll_s']):g} s"
        lines.append(("pace", text))
    if now["writes_held"]:
        lines.append(("pace", f"the order is not written: {now['writes_held']}"))
    return lines


def _steers_text(answer: JsonObject) -> str:
    """What is steered, and whether Slurm did as it was steered; empty if nothing was."""
    now, ended = answer.get("steers"), answer.get("steers_ended")
    parts = []
    if isinstance(now, dict):
        words = {"spot": "to nodes", "wait": "to wait", "over": "let go"}
        parts = [f"{now[kind]} {text}" for kind, text in words.items() if now.get(kind)]
    if isinstance(ended, dict) and any(ended.values()):
        parts.append(
            f"{ended['honoured']} honoured, {ended['not_honoured']} not honoured since start"
        )
    return "; ".join(parts)


def _handover_text(handover: JsonObject) -> str:
    victims = [
        f"{v['job']} ({v['outcome'] or v['state']})"
        for v in as_list(handover["victims"])
        if isinstance(v, dict)
    ]
    best = ", ".join(str(b) for b in as_list(handover["beneficiaries"]))
    nodes = ",".join(str(n) for n in as_list(handover["nodes"])[:8])
    match handover["purpose"]:
        case "reshape":
            what = f"move to faster GPUs on {nodes}" if nodes else "move to faster GPUs"
        case "split":
            what = "leaves the GPU it shares"
        case "trim":
            what = f"give CPUs or memory back, so that {best} fits beside on {nodes}"
        case "defragment":
            what = f"move, so that {best} will fit on {nodes}" if best else "move: a node is freed"
        case _:
            what = f"give way to {best} on {nodes}"
    return f"{handover['handover']}: {', '.join(victims)} {what}"


def utc(epoch_s: Json) -> str:
    """An instant, to the second."""
    return f"{datetime.fromtimestamp(number(epoch_s), UTC):%Y-%m-%d %H:%M:%SZ}"
