"""What sacct says: job names and accounts of all users, of years ago too."""

from __future__ import annotations

from slurm_dl.model.errors import ClusterError, ConfigError
from slurm_dl.slurm.accounting.job_runs import read_runs
from slurm_dl.slurm.accounting.past_jobs import FetchTally, StandIns, history, past_of, run_of
from slurm_dl.slurm.accounting.query import NAMED_FIELDS, parse
from slurm_dl.traces.slurm.dumps import read_dump, read_past_dump
from tools.fuzz.said import NONCE, SaidSlurm
from tools.fuzz.target import Target, a_file, text

_PAST = {
    "JobName": "train",
    "JobID": "7_3",
    "User": "ada",
    "Account": "lab",
    "Submit": "100",
    "Start": "200",
    "End": "300",
    "State": "CANCELLED by 1000",
    "ElapsedRaw": "100",
    "ReqTRES": "cpu=1,gres/gpu=2",
    "AllocTRES": "cpu=1,gres/gpu=2",
}
_DUMP = (
    b"JobID|User|Account|Submit|Start|End|State|ElapsedRaw|ReqTRES|AllocTRES|JobName\n"
    b"7|ada|lab|100|200|300|COMPLETED|100|gres/gpu=2|gres/gpu=2|a|b\n"
    b"7.batch|ada|lab|100|200|300|COMPLETED|100|||batch\n"
)

_HISTORY_DUMP = (
    b"JobID|User|Account|Submit|Start|End|State|ElapsedRaw|ReqTRES|AllocTRES\n"
    b"16_0|ada|lab|1767225700|1767225800|1767225900|COMPLETED|100|gres/gpu=2|gres/gpu=2\n"
    b"16_[0-1]|ada|lab|1767225700|1767225800|1767225900|COMPLETED|100|gres/gpu=2|gres/gpu=2\n"
    b"17_[0-1%4]|ada|lab|1767225700|None|1767225900|COMPLETED|0|gres/gpu=2|gres/gpu=2\n"
)


def _past(data: bytes) -> object:
    runs, _ = parse(text(data), NAMED_FIELDS, run_of, nonce=NONCE)
    return past_of(run for run in runs if run is not None)


def _history(data: bytes) -> object:
    begin_s = 1_767_225_600.0
    slurm = SaidSlurm({"sacct": text(data)})
    told = history(slurm, begin_s, begin_s + 86_400, tally=FetchTally(), stand_ins=StandIns())
    return list(told)


def past_record(values: dict[str, str]) -> bytes:
    """One record as it is asked for with job names."""
    return (NONCE.join(values.get(name, "") for name in NAMED_FIELDS) + f"{NONCE}\n").encode()


TARGETS = (
    Target(
        name="sacct-runs",
        parse=lambda data: read_runs(text(data), frozenset({7})),
        own=(ClusterError,),
        source="sacct, when the ledger is rebuilt",
        parser="slurm.accounting.job_runs.read_runs",
        seeds=(
            b"7|1000|100|100|200|300|COMPLETED|100|00:00:00|cpu=1,gres/gpu=2\n",
            b"8|1000|100|Unknown|200|Unknown|CANCELLED by 1000|100|1-00:00:09|\n",
        ),
    ),
    Target(
        name="sacct-past",
        parse=_past,
        own=(ClusterError,),
        source="sacct with job names, for estimates",
        parser="slurm.accounting.query.parse",
        seeds=(past_record(_PAST), past_record(_PAST | {"JobID": "7+1", "State": "TIMEOUT"})),
    ),
    Target(
        name="sacct-dump",
        parse=lambda data: read_past_dump(a_file(data)),
        own=(ConfigError,),
        source="a file of sacct's with job names",
        parser="traces.slurm.dumps.read_past_dump",
        seeds=(_DUMP,),
    ),
    Target(
        name="sacct-history",
        parse=_history,
        own=(ClusterError,),
        source="sacct, for dlsim history",
        parser="slurm.accounting.past_jobs.history",
        seeds=(
            b"7|ada|lab|1767225700|1767225800|1767225900|CANCELLED by 1|100|gres/gpu=2|gpu=2\n",
            b"8|ada|lab|1767225700|Unknown|Unknown|PENDING|0|gres/gpu=2|\n",
        ),
    ),
    Target(
        name="sacct-history-dump",
        parse=lambda data: read_dump(a_file(data)),
        own=(ConfigError,),
        source="a dump of sacct's that a site made, for dlsim history, whatif and tune",
        parser="traces.slurm.dumps.read_dump",
        seeds=(_HISTORY_DUMP,),
    ),
)
