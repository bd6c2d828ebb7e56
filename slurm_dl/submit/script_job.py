"""A batch script of the user's as a job that can be preempted and resumed.

The script itself stays as it is. What is submitted keeps its ``#SBATCH`` lines, writes the script
into the run directory and runs it there by its own interpreter under dlrun, which passes the
checkpoint signal to the process that handles it. The contract is on sbatch's command line, which
wins over the script and over ``SBATCH_*`` variables.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import math
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from slurm_dl.model.contract import DEFAULT_GRACE_S, Contract, Requeuer
from slurm_dl.model.errors import ConfigError
from slurm_dl.submit import job_comment, option_values, script_templates, submit_checks
from slurm_dl.submit.data_flag import FIRST_LOOK_S
from slurm_dl.submit.hints import Given
from slurm_dl.submit.hints import read as read_hints
from slurm_dl.submit.job_environment import SETUP, read_setup
from slurm_dl.submit.job_request import DATA_OF_AN_ARRAY, DEFAULT_LEAD_S, DEFAULT_SIGNAL
from slurm_dl.submit.shell_quoting import UserText, quote, word
from slurm_dl.submit.user_script import GPU_OPTIONS, ScriptRequest, UserScript, named, variable_of
from slurm_dl.text import shown

_OF_A_COMMAND = (
    *("gpu_type", "share", "sizes", "batch", "in_place", "cpus", "launcher", "template", "when"),
    "container",
)
"""Options of dlsubmit for which it writes the script itself."""

_SIGNAL = re.compile(r"(?:[RB]+:)?(?:SIG)?([A-Z0-9]+)(?:@(\d+))?", re.ASCII)
_NUMBERS = {"1": "HUP", "2": "INT", "10": "USR1", "12": "USR2", "15": "TERM"}
_STOPS_WITH = "0"  # A shell hides the status of the training that it ran before its last command


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptJob:
    """All that is submitted."""

    args: tuple[str, ...]  # Arguments of sbatch, without the program
    script: str  # What sbatch reads from its standard input
    environ: Mapping[str, str]  # sbatch's environment
    notes: tuple[str, ...]  # For the user, one line each
    contract: Contract | None  # How the job may be preempted; None if it may not
    original: UserScript  # The user's script

    def diff(self) -> str:
        """The changes in the script as a unified diff; empty if there are none."""
        lines = difflib.unified_diff(
            self.original.text.splitlines(keepends=True),
            self.script.splitlines(keepends=True),
            self.original.name,
            "submitted",
        )
        return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


def compose(
    request: ScriptRequest, where: Sequence[script_templates.TemplateDirectory]
) -> ScriptJob:
    """The job of a script.

    Raises:
        ConfigError: An option has no meaning for a script, or a value is wrong.
    """
    wrong = [name for name in _OF_A_COMMAND if name in request.typed]
    if wrong:
        option = f"--{wrong[0].replace('_', '-')}"
        msg = (
            f"{option} is for dlsubmit -- COMMAND; for a batch script give sbatch's own options, on"
            " the line or in the script"
        )
        raise ConfigError(msg)
    script = request.script
    if request.sweep is not None:
        array = request.said("array")
        request.typed = {**request.typed, "array": request.sweep.array(array and array[1])}
    environ = {k: v for k, v in request.environ.items() if k != "SBATCH_WAIT"}
    args = ["--parsable", *request.as_usual(), *request.options()]
    if request.said("job-name") is None:
        args.append(f"--job-name={option_values.job_name(script.name)}")
    if script.unread:
        request.notes.append(f"{named(script.unread)}: not understood here, left to sbatch")
    why_not = _why_no_contract(request)
    if why_not is not None:
        if request.sweep or {"hint", "wait_for_data", *SETUP} & request.typed.keys():
            names = ", --".join(("sweep", "hint", "wait-for-data", *SETUP))
            what = f"--{names} have no effect on a script that is submitted as it is"
            msg = f"{what}: {why_not or '--no-preempt'}"
            raise ConfigError(msg)
        if why_not:
            request.notes.append(f"submitted as it is, and never preempted: {why_not}")
        return ScriptJob(
            # The file itself: from standard input sbatch takes no arguments for the script.
            args=(*args, str(script.path.absolute()), *request.script_args),
            script=script.text,
            environ=environ,
            notes=tuple(request.notes),
            contract=None,
            original=script,
        )
    if request.given("wait_for_data") and request.said("array") is not None:
        raise ConfigError(DATA_OF_AN_ARRAY)
    contract, lead_s = _contract(request)
    args += [
        "--requeue",
        "--open-mode=append",
        f"--signal=B:{contract.signal}@{lead_s}",
        f"--comment={_comment(request, contract)}",
        *_of_site(request),
    ]
    if "gpus" in request.typed:
        environ = {k: v for k, v in environ.items() if k not in set(map(variable_of, GPU_OPTIONS))}
    _tell(request, contract)
    return ScriptJob(
        args=tuple(args),
        script=_wrapped(request, contract, lead_s, where),
        environ=environ,
        notes=tuple(request.notes),
        contract=contract,
        original=script,
    )


def _why_no_contract(request: ScriptRequest) -> str | None:
    """The reason why the job cannot be preempted; empty if that was asked for; None if it can."""
    script = request.script
    requeue = request.said("requeue", "no-requeue")
    comment = request.said("comment")
    has_own = comment is not None and f'"{job_comment.KEY}"' in (comment[1] or "")
    reasons = {
        "": request.given("no_preempt"),
        "heterogeneous jobs cannot be put back into the queue as a whole": script.is_het,
        "--container runs the batch script in a container, where dlrun is not": request.said(
            "container", "container-id"
        ),
        "it is not to be requeued (--no-requeue); dlsubmit --requeue opts in all the same": (
            request.given("no_requeue") or (requeue and requeue[0] == "no-requeue")
        ),
        "its comment has a contract of its own": has_own and "comment" not in request.typed,
        "it calls dlrun itself, so the contract belongs into its --comment": script.calls("dlrun"),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _contract(request: ScriptRequest) -> tuple[Contract, int]:
    """The contract and the seconds before the time limit at which Slurm sends the signal."""
    typed = request.given("signal")
    if isinstance(typed, str):
        signal, lead_s = option_values.signal_and_lead(typed, DEFAULT_LEAD_S)
    else:
        signal, lead_s = _signal_of_script(request)
    limit = request.said("time")
    limit_s = math.inf
    if limit and limit[1]:
        with contextlib.suppress(ConfigError):  # sbatch judges it.
            limit_s = option_values.time_limit_s(limit[1])
    if lead_s >= limit_s:
        lead_s = int(limit_s // 2)
        request.notes.append(f"Slurm sends {signal} {lead_s} s before the time limit, half of it")
    grace_s = option_values.grace(request.text("grace", f"{DEFAULT_GRACE_S:g}"))
    if grace_s > request.site.max_grace_s:
        grace_s = request.site.max_grace_s
        request.notes.append(f"grace cut to {grace_s:g} s, the site's limit")
    by = request.text("requeued_by", "daemon")
    if by not in {"daemon", "job"}:
        msg = f"--requeued-by: {shown(by)} is not daemon or job"
        raise ConfigError(msg)
    contract = Contract(
        signal=signal, target="batch", grace_s=grace_s, requeued_by=cast("Requeuer", by)
    )
    return contract, lead_s


def _signal_of_script(request: ScriptRequest) -> tuple[str, int]:
    said = request.said("signal")
    match = _SIGNAL.fullmatch((said[1] or "").upper()) if said else None
    if match is None:
        return option_values.signal_and_lead(DEFAULT_SIGNAL, DEFAULT_LEAD_S)
    name = _NUMBERS.get(match[1], match[1])
    try:
        return option_values.signal_and_lead(f"{name}@{match[2] or DEFAULT_LEAD_S}", DEFAULT_LEAD_S)
    except ConfigError:
        signal, lead_s = option_values.signal_and_lead(DEFAULT_SIGNAL, DEFAULT_LEAD_S)
        request.notes.append(
            f"--signal={said and said[1]} cannot ask for a checkpoint: {signal} does"
        )
        return signal, lead_s


def _comment(request: ScriptRequest, contract: Contract) -> str:
    said = request.said("comment")
    typed = request.given("comment")
    theirs = typed if isinstance(typed, str) else said[1] if said else None
    model, due = request.given("model"), request.given("by")
    due_s, curve = option_values.due_by(due, time.time()) if isinstance(due, str) else (None, None)
    text = job_comment.comment(
        theirs,
        contract=contract,
        model=option_values.model_name(model) if isinstance(model, str) else None,
        due_s=due_s,
        curve=curve,
        data_ready=not request.given("wait_for_data"),
        hints=_hints(request),
    )
    if request.sweep is not None:
        return text
    content = os.fsencode(request.script.text)
    return job_comment.with_more(text, {"tag": job_comment.digits(request.script_args, content)})


def _hints(request: ScriptRequest) -> Given:
    typed = request.given("hint")
    hints = read_hints(typed.split(",") if isinstance(typed, str) else ())
    if hints.parts or (hints.locked and request.said("array")):
        name = "heterog" if hints.parts else "shape_locked"
        msg = f"--hint: {name} is for one job of dlsubmit -- COMMAND"
        raise ConfigError(msg)
    return hints


def _of_site(request: ScriptRequest) -> list[str]:
    """The site's QOS, and time for the scheduler to look at the job before Slurm starts it."""
    site, args = request.site, []
    if site.qos and request.said("qos") is None:
        args.append(f"--qos={site.qos}")
    partition = request.said("partition")
    names = (partition[1] or "").split(",") if partition else []
    settle_s = FIRST_LOOK_S if request.given("wait_for_data") else site.settle_s
    if settle_s and request.said("begin") is None and set(names) & set(site.partitions):
        args.append(f"--begin=now+{math.ceil(settle_s)}")
    return args


def _tell(request: ScriptRequest, contract: Contract) -> None:
    """Notes on the contract and on what of the script it changes."""
    script, notes = request.script, request.notes
    if request.said(*GPU_OPTIONS) is None:
        notes.append("it asks for no GPUs; give --gpus=N if it needs some")
    notes.append(
        f"it can be preempted: {contract.signal} goes to the process that handles it, then there"
        f" are {contract.grace_s:g} s to save; --no-preempt submits it without"
    )
    if contract.requeued_by == "daemon" and request.given("stops_with") is None:
        notes.append(
            "if it ends with status 0 after a process of it got the signal it is run again, as a"
            " shell hides the training's own status (--stops-with 75: only what ends with 75 is)"
        )
    if script.calls("sbatch"):
        notes.append(
            "it calls sbatch: a successor that it submits when it is asked to save would run"
            " besides, as the job itself comes back"
        )
    mode = request.said("open-mode")
    if mode and (mode[1] or "").startswith("t"):
        notes.append("--open-mode=append instead of truncate: a requeued job would lose its log")
    if request.said("wait"):
        notes.append("--wait is left out: a job that comes back ends more than once")


def _wrapped(
    request: ScriptRequest,
    contract: Contract,
    lead_s: int,
    where: Sequence[script_templates.TemplateDirectory],
) -> str:
    """The batch script: the user's lines for sbatch, the header, and the script as a document."""
    from slurm_dl.submit.template_rendering import render  # noqa: PLC0415 - Jinja costs 20 ms

    script = request.script
    setup = read_setup({n: request.given(n) for n in SETUP}, request.cwd, request.environ)
    wrong = [*setup.problems, submit_checks.run_base(Path(request.run_base()))]
    if any(wrong) and not (request.given("no_check") or request.given("dry_run")):
        msg = f"{'; '.join(filter(None, wrong))} (--no-check submits it all the same)"
        raise ConfigError(msg)
    hints, stops_with = _hints(request), request.given("stops_with")
    model, sweep = request.given("model"), request.sweep
    case = None if sweep is None else sweep.case()
    args = sweep.quoted() if sweep else map(UserText, request.script_args)
    header = render(
        "_script",
        {
            "directives": (),
            "launcher": "script",
            "signal": contract.signal,
            "grace_s": f"{contract.grace_s:g}",
            "stops_with": option_values.statuses(stops_with)
            if isinstance(stops_with, str)
            else ""
            if contract.requeued_by == "job"
            else _STOPS_WITH,
            "array": request.said("array") is not None,
            "by_allocation": False,
            "shared": False,
            "nccl": [],
            "hints": list(hints.variables.items()),
            "sweep": case,
            **setup.values(),
            "dlrun": UserText(request.dlrun),
            "run_base": UserText(option_values.clean_text(request.run_base(), "--run-dir")),
            "model": UserText(model) if isinstance(model, str) else None,
            "batch": None,
        },
        where,
    )
    setup.check_used(header, "_script", case, hints)
    first, _, rest = header.partition("\n")
    without = {"wait": "left out by dlsubmit"}
    if "gpus" in request.typed:
        without |= dict.fromkeys(GPU_OPTIONS, "replaced by dlsubmit --gpus")
    body = script.text if script.text.endswith("\n") else f"{script.text}\n"
    mark = (
        f"END_OF_SCRIPT_{hashlib.sha256(body.encode('utf-8', 'surrogateescape')).hexdigest()[:8]}"
    )
    path = '"$SLURM_DL_RUN_DIR"/slurm_script'
    # Who requeues itself may do so after the training.
    ours = contract.requeued_by == "daemon"
    lead = f"SLURM_DL_SCRIPT_LEAD_S={lead_s}" if ours else "SLURM_DL_HOLD=no"
    lines = [
        first,
        *script.sbatch_lines(without),
        f"{rest.rstrip()}\nexport {lead}\n",
        f"# {script.name if script.name.isprintable() else 'The script'}, as it is.",
        f"cat >| {path} <<'{mark}' || exit 1\n{body}{mark}\n",
        f"exec {quote(UserText(request.dlrun))} --launcher plain --grace {contract.grace_s:g} -- "
        + " ".join([*map(word, script.interpreter), path, *map(quote, args)]),
    ]
    return "\n".join(lines) + "\n"
