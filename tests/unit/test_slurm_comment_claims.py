from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_dl.model.contract import NO_CLAIM, SIGNALS, Claim, Contract
from slurm_dl.model.shape import Shape
from slurm_dl.model.step_report import BatchLimits, StepReport
from slurm_dl.model.value_curve import ValueCurve
from slurm_dl.slurm.read.comment_claims import LONGEST_COMMENT, ClaimReader, with_wckey

MAX_GRACE_S = 600.0


def read(comment: object, *, models: set[str] | None = None) -> Claim:
    text = comment if isinstance(comment, str) else json.dumps(comment)
    return ClaimReader(max_grace_s=MAX_GRACE_S, models=models).read(text)


def ours(**fields: object) -> dict[str, object]:
    return {"slurm_dl": {"v": 1, "sig": "USR1"} | fields}


STEPS: list[object] = [2, 4, 32, 1, 0.31, 950, 128, 4096, 8, 64]


def with_one(at: int, wrong: object) -> list[object]:
    return [*STEPS[:at], wrong, *STEPS[at + 1 :]]


def test_whole_claim_is_read() -> None:
    """Every field of the documented form arrives, beside keys of others."""
    comment = ours(
        to="full",
        grace_s=90,
        by="job",
        model="resnet50",
        ack=3,
        nodes=4,
        rate=7.5,
        unhandled=[3, 2],
        final=1,
        preempted=[3, 1],
        saved=1_790_000_000,
        due=1_790_090_000,
        values=[[1_790_090_000, 10], [1_790_150_000, 2.5]],
        or_else="cancel",
        bid=0,
        sizes="2x2,1x2,4x1,1x1,1x2",
        asked="1x2",
        batch="gpu",
        in_place=1,
        steps=STEPS,
        use=[37, 1156],
    )
    comment["theirs"] = [1]

    assert read(comment) == Claim(
        contract=Contract(signal="USR1", target="full", grace_s=90.0, requeued_by="job"),
        model="resnet50",
        most_nodes=4,
        rate=7.5,
        acked_run=3,
        unhandled_run=2,
        unhandled_asked=True,
        final_run=1,
        preempted_run=1,
        saved_s=1_790_000_000,
        due_s=1_790_090_000,
        curve=ValueCurve((1_790_090_000.0, 1_790_150_000.0), (10.0, 2.5)),
        or_else="cancel",
        bid=0,
        sizes=(Shape(1, 1), Shape(1, 2), Shape(2, 2), Shape(4, 1)),
        asked=Shape(1, 2),
        batch="gpu",
        in_place=True,
        steps=StepReport(2, 4, 32, 1, 0.31, 950.0, BatchLimits(128, 4096, 8, 64)),
        gpu_busy=0.37,
        gpu_mem_mb=1156,
    )


@pytest.mark.parametrize(
    ("data", "ready"),
    [(0, False), *((other, True) for other in (1, 0.0, False, None, "0", [0], -1))],
)
def test_only_a_plain_0_says_that_the_data_is_not_there(data: object, *, ready: bool) -> None:
    assert read(ours(data=data)) == Claim(contract=Contract(), data_ready=ready)


@pytest.mark.parametrize(
    ("use", "busy", "mem_mb"),
    [
        ([0, 0], 0.0, 0),
        ([100, 10**12 - 1], 1.0, 10**12 - 1),
        ([250, 1], 1.0, 1),
        ([-3, 1], 0.0, 1),
        ([2.5, 1], 0.025, 1),
        *((wrong, None, None) for wrong in (None, 5, "x", {}, [], [37], [37, 1, 1], [None, 1])),
        *(([busy, 1], None, None) for busy in ("37", True, [1], 10**400, math.nan, math.inf)),
        *(([37, mem], None, None) for mem in (-1, 1.5, "1", True, None, 10**13, math.nan)),
    ],
)
def test_use_of_the_gpu_is_read_whole_or_not_at_all(
    use: object, busy: float | None, mem_mb: int | None
) -> None:
    """A share beyond either end is that end; the rest of the claim stands."""
    claim = read(ours(model="m", use=use))

    assert claim == Claim(contract=Contract(), model="m", gpu_busy=busy, gpu_mem_mb=mem_mb)


@pytest.mark.parametrize(
    "wrong",
    [
        *(None, 5, "x", {}, [], STEPS[:-1], [*STEPS, 1]),
        # Run, GPUs, local batch, passes, seconds, noise, and the limits of the batch.
        *(with_one(0, x) for x in (-1, 0.0, True, "2", None, 10**10)),
        *(with_one(1, x) for x in (0, -1, 4.0, [4])),
        *(with_one(2, x) for x in (0, 32.0, 10**300)),
        *(with_one(3, x) for x in (0, 1025)),
        *(with_one(4, x) for x in (0, -0.3, 1e-7, 1e7, 10**400, math.nan, math.inf, True, "1")),
        *(with_one(5, x) for x in (-1, 1e13, 10**400, math.nan, math.inf, None)),
        *(with_one(6, x) for x in (0, 5000)),
        *(with_one(8, x) for x in (0, 65, 8.0)),
    ],
)
def test_a_wrong_report_of_steps_is_none_and_loses_nothing_else(wrong: object) -> None:
    assert read(ours(model="m", steps=wrong)) == Claim(contract=Contract(), model="m")


@pytest.mark.parametrize(
    ("said", "until"),
    [(0.8, 0.8), (1, 1.0), (0.5, 0.5), (0.01, 0.5), (0, None), (-1, None), (1.01, None)]
    + [(wrong, None) for wrong in ("0.8", None, True, [0.8], float("nan"))],
)
def test_no_job_is_protected_for_most_of_its_time_limit(said: object, until: float | None) -> None:
    """A share below a half counts as a half; what is no share is not believed."""
    assert read(ours(until=said)).until == until


@pytest.mark.parametrize(
    ("wckey", "claimed", "limit_min", "until_min"),
    [
        ("submitit", None, 100, 80),
        ("*submitit", None, 100, 80),
        ("submitit", None, 40, 30),
        ("submitit", None, 15, 7.5),
        ("submitit", None, 5, 2.5),
        ("submitit", 0.9, 100, 90),
        ("submitit2", None, 100, None),
        ("(null)", None, 100, None),
        ("", 0.9, 100, 90),
    ],
)
def test_submitits_jobs_are_known_by_their_wckey(
    wckey: str, claimed: float | None, limit_min: float, until_min: float | None
) -> None:
    """Its time-out window, 80 % or 10 min before the end, unless the job says another share."""
    claim = read(ours() if claimed is None else ours(until=claimed))

    until = with_wckey(claim, wckey, limit_min * 60).until

    assert (until and until * limit_min) == (until_min and pytest.approx(until_min))
    assert with_wckey(NO_CLAIM, wckey, limit_min * 60) == NO_CLAIM
    assert with_wckey(read(ours()), "submitit", float("inf")).until == 0.8


@pytest.mark.parametrize(
    ("key", "wrong"),
    [
        *(("due", value) for value in (-1, 0, 1e9, 1e300, 10**13, "Fri 18:00", True, None, [1])),
        *(("due", float(word)) for word in ("nan", "inf", "-inf")),
        *(("bid", value) for value in (-1, 0.5, 10**13, "5", True, None, {})),
        *(("or_else", value) for value in ("", "RUN", "hold", 1, None, ["run"])),
    ],
)
def test_a_wrong_deadline_or_bid_is_none_and_loses_nothing_else(key: str, wrong: object) -> None:
    assert read(ours(model="m", **{key: wrong})) == Claim(contract=Contract(), model="m")


@pytest.mark.parametrize(
    "wrong",
    [
        *(None, 5, True, "", {}, [], [[]], [100, 10], "[[100, 10]]", [{"100": 10}], [[100]]),
        *([[100, 10, 1]], [[100, 10], None], [["100", 10]], [[100.0, 10]], [[True, 10]]),
        *([[100, worth]] for worth in ("10", None, True, 0, -1, [1], math.nan, math.inf, 10**400)),
        *([[at_s, 10]] for at_s in (0, -100, 10**13, 10**400, 101, math.inf)),
        *([[100, 10], step] for step in ([200, 10], [200, 11], [100, 5], [50, 5], [200, 0])),
        [[50, 20], [100, 10]],
        [[100 + i, 10 - i] for i in range(9)],
    ],
)
def test_unclear_values_leave_the_deadline_alone(wrong: object) -> None:
    """Also such as are not in order, or do not begin with the deadline."""
    assert read(ours(due=100, values=wrong)) == Claim(contract=Contract(), due_s=100)


@pytest.mark.parametrize("due", [None, 99, True, 200, "100"])
def test_values_count_only_beside_their_first_deadline(due: object) -> None:
    """Earlier releases go by the deadline alone."""
    good = [[100, 10], [200, 5]]

    assert read(ours(due=100, values=good)).curve == ValueCurve((100.0, 200.0), (10.0, 5.0))
    assert read(ours(due=due, values=good)).curve is None
    assert read(ours(values=[[1, 10]], due=True)) == Claim(contract=Contract())


@pytest.mark.parametrize(
    ("said", "sizes", "asked"),
    [
        ({"sizes": "2x2,1x1"}, "1x1,2x2", None),
        ({"sizes": "1x8,2x1,1x4,4x1"}, "2x1,1x4,4x1,1x8", None),
        ({"sizes": "1x1", "asked": "1x4"}, "1x1,1x4", "1x4"),
        ({"sizes": ",".join(f"1x{n}" for n in range(1, 33))}, None, None),
        ({"asked": "1x4", "batch": "gpu"}, "", None),
    ],
)
def test_sizes_of_a_job(said: dict[str, object], sizes: str | None, asked: str | None) -> None:
    """The one it asked for, if it says so, is one of them."""
    claim = read(ours(**said))

    assert sizes is None or ",".join(map(str, claim.sizes)) == sizes
    assert (claim.asked and str(claim.asked)) == asked
    assert not claim.sizes_unreadable


@pytest.mark.parametrize(
    ("key", "wrong"),
    [
        *(
            ("sizes", text)
            for text in ("", "1", "1x", "0x1", "1x0", "-1x1", "1x-1", "1x1,", ",1x1")
        ),
        *(
            ("sizes", text)
            for text in (
                "1x1 ",
                "1x1\n",
                "1x1\0",
                "1X1",
                "\uff11x\uff11",
                "1\u0663x1",
                "1x1\u0663",
                "1x1;2x2",
            )
        ),
        *(("sizes", text) for text in ("99999999x1", "1x99999", "1e3x1", "1x1x1", "1x1" * 200)),
        *(("sizes", value) for value in (None, True, 4, 1e300, ["1x1"], {"1x1": 1})),
        ("sizes", [*range(200)]),
        ("sizes", ",".join(f"1x{n}" for n in range(1, 34))),
        *(("asked", value) for value in ("", "4", "0x1", "\uff11x\uff11", 4, True, ["1x1"], None)),
        *(("batch", value) for value in ("", "FIXED", "fixed ", 1, None, ["gpu"])),
    ],
)
def test_unclear_sizes_are_none_and_lose_nothing_else(key: str, wrong: object) -> None:
    """Such a job keeps the size it has, and its owner can be told."""
    said = {"sizes": "1x1,1x2", key: wrong}

    read_as = Claim(contract=Contract(), model="m", sizes_unreadable=True)
    if (key, wrong) == ("asked", None):  # As if it were not there.
        read_as = replace(read_as, sizes=(Shape(1, 1), Shape(1, 2)), sizes_unreadable=False)
    assert read(ours(model="m", **said)) == read_as


def test_a_hundred_thousand_sizes_are_not_looked_at() -> None:
    """Slurm passes on no such comment."""
    assert not read(ours(sizes=",".join(["1x1"] * 100_000))).sizes


@pytest.mark.parametrize(("max_grace_s", "grace_s"), [(0.5, 0.5), (1, 1), (600, 90), (60, 60)])
def test_site_may_bound_the_grace_anywhere_above_zero(max_grace_s: float, grace_s: float) -> None:
    """Whatever bound is above 0 is taken, and no grace is longer."""
    reader = ClaimReader(max_grace_s=max_grace_s)

    contract = reader.read(json.dumps(ours(grace_s=90))).contract

    assert contract == Contract(grace_s=grace_s)
    for wrong in (0, -1, float("nan")):
        with pytest.raises(ValueError, match="must be above 0"):
            ClaimReader(max_grace_s=wrong)


def test_signal_alone_is_the_opt_in() -> None:
    """Naming a signal is enough; the rest has defaults. Without one there is no contract."""
    assert read(ours()).contract == Contract()
    assert read({"slurm_dl": {"v": 1, "model": "m", "grace_s": 9}}) == Claim(model="m")


@pytest.mark.parametrize(
    "comment",
    [
        "",
        "(null)",
        "slurm_dl",
        "{}",
        "[]",
        '"slurm_dl"',
        '{"slurm_dl": "USR1"}',
        '{"slurm_dl": ["sig"]}',
        '{"slurm_dl": {"sig": "USR1"}',
        '{"slurm_dl": {"v": 2, "sig": "USR1"}}',
        '{"slurm_dl": {"v": true, "sig": "USR1"}}',
        '{"slurm_dl": {"v": "1", "sig": "USR1"}}',
        '{"theirs": {"slurm_dl": {"sig": "USR1"}}}',
        '{"slurm_dl": {"sig": "USR1"}} trailing',
        '{"slurm_dl": {"sig": "USR1", "deep": ' + "[" * 480 + "]" * 480 + "}}",
        '{"slurm_dl": {"sig": "USR1"}, "pad": "' + "x" * LONGEST_COMMENT + '"}',
    ],
)
def test_what_is_not_understood_is_not_believed(comment: str) -> None:
    """Other people's comments, broken JSON, other versions and oversized text claim nothing."""
    assert replace(read(comment), unreadable=False) == NO_CLAIM


@pytest.mark.parametrize(
    ("comment", "unreadable"),
    [
        # What sbatch or the shell leaves of one without quotes around it, and one that was cut.
        ("{slurm_dl:{v:1,sig:USR1}}", True),
        ("{slurm_dl:v:1}", True),
        ("{slurm_dl:", True),
        ("{lab:x,slurm_dl:{v:1,sig:USR1}}", True),
        ('{"slurm_dl":{"v":1,"sig":"USR1","grace', True),
        ('{"slurm_dl": {"v": 2, "sig": "USR1"}}', True),
        (json.dumps({"slurm_dl": {"sig": "KILL"}}), True),
        (json.dumps({"slurm_dl": {"v": 1, "sig": "USR1"}}), False),
        # No contract was meant.
        (json.dumps({"slurm_dl": {"v": 1, "model": "m"}}), False),
        (json.dumps({"lab": "slurm_dl"}), False),
        ("slurm_dl: a first try", False),
        ("{a} try of slurm_dl", False),
        ("", False),
    ],
)
def test_a_contract_that_lost_its_quotes_is_unreadable(comment: str, *, unreadable: bool) -> None:
    """Its owner can be told so; it is no contract all the same."""
    assert read(comment).unreadable is unreadable


@pytest.mark.parametrize(
    "field",
    [
        {"sig": "KILL"},
        {"sig": "STOP"},
        {"sig": "SIGUSR1"},
        {"sig": 10},
        {"sig": ["USR1"]},
        {"sig": None},
        {"to": "everyone"},
        {"to": ["batch"]},
        {"to": None},
        {"grace_s": "120"},
        {"grace_s": True},
        {"grace_s": None},
        {"grace_s": float("nan")},
        {"grace_s": float("inf")},
        {"grace_s": 10**300},
    ],
)
def test_misspelt_contract_is_none(field: dict[str, object]) -> None:
    """A job that misspells how it is to be told is not preemptible at all."""
    assert read(ours(model="m", **field)) == Claim(model="m", unreadable=True)


@pytest.mark.parametrize(
    ("claimed", "granted"), [(120, 120), (0, 1), (-5, 1), (0.2, 1), (599.5, 599.5), (1e9, 600)]
)
def test_grace_stays_inside_the_sites_bounds(claimed: float, granted: float) -> None:
    """No job can claim more grace than the site gives, nor less than a second."""
    contract = read(ours(grace_s=claimed)).contract

    assert contract is not None
    assert contract.grace_s == granted


def test_unknown_requeuer_is_ignored() -> None:
    """An unknown value of ``by`` leaves the default: the daemon requeues."""
    assert read(ours(by="nobody")).contract == Contract()
    assert read(ours(by=["job"])).contract == Contract()


@pytest.mark.parametrize("model", ["", "../etc", "a b", "x" * 65, 5, None, "-m", "m\n", "m\x1b["])
def test_malformed_model_name_is_dropped(model: object) -> None:
    """A model name ends up in messages and lookups; only plain names get through."""
    assert read(ours(model=model)).model is None


@pytest.mark.parametrize(
    "nodes", [0, -1, 10_001, 10**300, 2.0, "4", True, None, [4], {"a": 1}, float("nan")]
)
def test_node_count_that_is_no_such_number_is_dropped(nodes: object) -> None:
    """The rest of the claim stands: the job lies on as many nodes as it asks for."""
    assert read(ours(nodes=nodes)) == Claim(contract=Contract())


@pytest.mark.parametrize(("nodes", "most"), [(1, 1), (10_000, 10_000)])
def test_node_count_is_read_from_end_to_end(nodes: int, most: int) -> None:
    """One node says nothing new, and is no error."""
    assert read(ours(nodes=nodes)).most_nodes == most


@pytest.mark.parametrize(
    "rate",
    [0, -1.5, 1e9, 10**400, float("nan"), float("inf"), "7.5", True, None, [7.5]],
)
def test_rate_that_is_no_such_number_is_dropped(rate: object) -> None:
    """What a job reports of itself is finite and above 0, or nothing."""
    assert read(ours(rate=rate)) == Claim(contract=Contract())


@pytest.mark.parametrize(
    ("rate", "steps_per_s"), [(3, 3.0), (1e-9, 1e-9), (999_999_999, 999999999)]
)
def test_rate_is_read_from_end_to_end(rate: float, steps_per_s: float) -> None:
    """Whole numbers too."""
    assert read(ours(rate=rate)).rate == steps_per_s


@pytest.mark.parametrize(
    ("progress", "share"),
    [(0.25, 0.25), (0, 0.0), (1, 1.0), (-3, 0.0), (7.5, 1.0), (1e11, 1.0), (1e-300, 1e-300)],
)
def test_progress_is_a_share(progress: float, share: float) -> None:
    """What is beyond either end is that end."""
    assert read(ours(progress=progress)).progress == share


@pytest.mark.parametrize(
    "progress", [10**400, float("nan"), float("inf"), "0.5", True, None, [0.5], {"a": 1}]
)
def test_progress_that_is_no_number_is_dropped(progress: object) -> None:
    """The rest of the claim stands."""
    assert read(ours(progress=progress)) == Claim(contract=Contract())


def test_model_must_be_one_the_site_has() -> None:
    """With the site's profiles given, a name outside them is no model."""
    assert read(ours(model="bert"), models={"bert"}).model == "bert"
    assert read(ours(model="gpt"), models={"bert"}).model is None


@pytest.mark.parametrize("ack", [-1, 1.0, True, "3", None, 2**40])
def test_malformed_acknowledgement_is_dropped(ack: object) -> None:
    """Only a restart count acknowledges a run."""
    assert read(ours(ack=ack, unhandled=ack)) == Claim(contract=Contract())


@pytest.mark.parametrize("saved", [0, -5, 1.5e9, True, "1790000000", None, [1], 10**13])
def test_only_a_whole_number_of_seconds_is_the_time_of_a_save(saved: object) -> None:
    """Whether it lies in the present run is for those who know the run."""
    assert read(ours(saved=saved)) == Claim(contract=Contract())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
KEYS = st.sampled_from(["v", "sig", "to", "grace_s", "by", "model", "ack", "other"])
VALUES = JSON | st.sampled_from([1, "USR1", "batch", "steps", "job", "daemon", "m"])


@settings(deadline=None)
@given(st.dictionaries(KEYS, VALUES))
def test_any_object_gives_a_claim_inside_the_bounds(fields: dict[str, object]) -> None:
    """Nothing a user writes raises, and no contract leaves the whitelist or the bounds."""
    claim = read({"slurm_dl": fields})

    if claim.contract is not None:
        assert claim.contract.signal in SIGNALS
        assert 1 <= claim.contract.grace_s <= MAX_GRACE_S


@settings(deadline=None)
@given(st.text(max_size=200))
def test_any_text_gives_a_claim(comment: str) -> None:
    """No comment raises."""
    read(comment)
    read('{"slurm_dl"' + comment)
