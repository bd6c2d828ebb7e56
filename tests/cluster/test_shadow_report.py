"""Shadow mode on a real Slurm: the report names what it would have done, and nothing was done."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from schedd import Schedd, schedd_in

from slurm_dl.daemon.assembly import LEDGER_FILE
from slurm_dl.ledger.sqlite.reader import LedgerReader, PastError
from slurm_dl.ledger.store_protocol import PlannedHandover
from slurm_dl.sandbox import Sandbox

pytestmark = [pytest.mark.slurm, pytest.mark.full("watches a cluster for a report")]

FACTS = ("JobState", "Restarts", "StartTime", "Reservation", "ExcNodeList", "AdminComment")


@pytest.fixture
def place(sandbox: Sandbox, short_directory: Path) -> Iterator[Schedd]:
    """A daemon that only looks."""
    with schedd_in(sandbox, short_directory) as daemon:
        daemon.configure(daemon={"shadow": True})
        daemon.start(mode="--shadow")
        yield daemon


def wishes(place: Schedd) -> tuple[PlannedHandover, ...]:
    """Those that are kept so far."""
    try:
        return LedgerReader(place.home / "state" / LEDGER_FILE).shadow_since(0.0, ()).planned
    except PastError:
        return ()


def test_the_wish_is_reported_and_nothing_is_done(place: Schedd) -> None:
    """A large training holds all GPUs; small ones wait for it, and would not have to.

    A second daemon goes on where the first was killed and does not count the wish again.
    """
    big = place.toy(16, 2000)
    place.until_state(big, "RUNNING")
    before = place.job(big, *FACTS)
    small = [place.toy(1, 4) for _ in range(3)]

    place.until("the wish", lambda: wishes(place))
    place.kill()
    place.start(mode="--shadow")
    so_far = place.cycles()
    place.until("more looks", lambda: place.cycles() > so_far + 3)

    told = place.ask("dlctl", "shadow-report", "--simulate", "0", "--json")
    (wish,) = json.loads(told.stdout)["wishes"]
    assert [str(v["job_id"]) for v in wish["victims"]] == [big]
    assert str(wish["lead"]) == small[0]
    assert {str(b) for b in wish["beneficiaries"]} <= set(small)
    assert wish["gpus"] == 16.0
    assert wish["why"]

    assert place.job(big, *FACTS) == before
    assert [place.state(job) for job in small] == ["PENDING"] * 3
    factors = place.box.run(["sprio", "-h", "-o", "%i %S"]).stdout.split()
    assert set(factors[1::2]) == {"0"}
    assert place.reservations() == []
    assert {line["action"] for line in place.audit(actor="dlschedd")} == {"start"}
    assert place.open_handovers() == 0

    # Once the large one is over the small ones start, and the report says when.
    place.box.run(["scancel", big])
    for job in small:
        place.until_state(job, "COMPLETED")
    place.until("the end of the wish", lambda: wishes(place)[0].end == "started")
    page = place.home / "report.html"
    told = place.ask("dlctl", "shadow-report", "--html", str(page))
    assert "simulating" in told.stderr
    reader = HTMLParser()
    reader.feed(page.read_text("utf-8"))
    assert "In reality the jobs" in page.read_text("utf-8")
