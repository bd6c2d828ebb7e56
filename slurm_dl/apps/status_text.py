"""The daemon's answer to ``status``, for people."""

from __future__ import annotations

from datetime import UTC, datetime

from slurm_dl.apps.commandline import ago
from slurm_dl.apps.wire import Json, JsonObject


def status_lines(answer: JsonObject) -> list[tuple[str, str]]:
    """Headings and their lines, most important first; the text is not made safe yet."""
    now_s = _number(answer["now_s"])
    up = ago(now_s - _number(answer["started_s"]))
    lines = [
        ("dlschedd", f"{answer['doing']}"),
        ("process", f"pid {answer['pid']}, version {answer['version']}, up {up}"),
        ("config", f"{answer['config_file']}, policy {answer['policy']}"),
        ("preemption", f"{answer['preemption']}"),
        ("placement", f"{answer['placement']}"),
    ]
    if isinstance(paused := answer["paused"], dict):
        since = f"{ago(now_s - _number(paused['since_s']))} ago ({_utc(paused['since_s'])})"
        because = f": {paused['reason']}" if paused["reason"] else ""
        lines.append(("paused", f"by {paused['by']} {since}{because}"))
    if answer["seen_s"] is None:
        lines.append(("last look", "none yet"))
    else:
        took = answer["durations_ms"]
        assert isinstance(took, dict)  # noqa: S101 - narrows the type
        when = f"{ago(now_s - _number(answer['seen_s']))} ago, number {answer['cycles']}"
        parts = ", ".join(f"{part} {ms} ms" for part, ms in took.items())
        lines.append(("last look", f"{when}; {parts}"))
        lines += _seen_lines(answer)
    if isinstance(reader := answer["reader"], dict):
        lines.append(("reader", f"{reader['name']}: {reader['reason']}"))
    if isinstance(actions := answer["actions"], dict):
        lines.append(("actions", f"{actions['done']} done, {actions['failed']} failed since start"))
    if text := _steers_text(answer):
        lines.append(("steers", text))
    if isinstance(reloaded := answer["reloaded"], dict):
        first = str(reloaded["message"]).splitlines()[0]
        ok = "" if reloaded["ok"] else "REFUSED: "
        lines.append(("reload", f"{ago(now_s - _number(reloaded['at_s']))} ago: {ok}{first}"))
    if isinstance(trouble := answer["trouble"], dict):
        when = ago(now_s - _number(trouble["at_s"]))
        lines.append(("last error", f"{when} ago: {trouble['message']}"))
    if isinstance(audit := answer["audit"], dict) and audit["error"]:
        lines.append(("audit log", f"CANNOT BE WRITTEN: {audit['error']}"))
    return lines


def _seen_lines(answer: JsonObject) -> list[tuple[str, str]]:
    lines = []
    if isinstance(jobs := answer.get("jobs"), dict):
        counts = ", ".join(f"{n} {letters}" for letters, n in jobs.items() if n)
        lines.append(("jobs", f"{counts or 'none'}; {answer['managed_jobs']} managed and live"))
    tiers = [t for t in as_list(answer.get("tiers")) if isinstance(t, dict)]
    if tiers:
        text = "; ".join(
            f"tier {t['tier']}: {t['running']} running, {t['pending']} pending" for t in tiers
        )
        lines.append(("tiers", text))
    if isinstance(gpus := answer.get("gpus"), dict):
        held, up = _number(gpus["held"]), _number(gpus["up"])
        text = f"{held:g} of {up:g} held, {_number(gpus['all']):g} in all"
        if stranded := _number(gpus["stranded"]):
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
        case "split":
            what = "leaves the GPU it shares"
        case "defragment":
            what = f"move, so that {best} will fit on {nodes}" if best else "move: a node is freed"
        case _:
            what = f"give way to {best} on {nodes}"
    return f"{handover['handover']}: {', '.join(victims)} {what}"


def _utc(epoch_s: Json) -> str:
    return f"{datetime.fromtimestamp(_number(epoch_s), UTC):%Y-%m-%d %H:%M:%SZ}"


def as_list(value: Json) -> list[Json]:
    """A list as it is, anything else as an empty one."""
    return value if isinstance(value, list) else []


def _number(value: Json) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
