"""``dlctl advice nodes`` on a real Slurm: idle nodes are its own, the history is a program's.

Four nodes are busy from 8 to 20 o'clock of a clock that is set so that it is evening or morning.
"""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest
from patience import PATIENCE
from schedd import BIN, schedd_in

from slurm_dl.estimates.boosted_trees import is_available
from slurm_dl.sandbox import Sandbox
from slurm_dl.slurm.accounting.node_runs import FIELDS

pytestmark = [pytest.mark.slurm, pytest.mark.full("half a minute; units show the forecast")]

SACCT = '#!/bin/sh\nexec cat "$(dirname "$0")/records"\n'
DAY_S, HOUR_S = 86_400, 3600


def records(hour: int, days: int) -> str:
    """Runs of the last days if it is *hour* o'clock now; one job goes on on n1 all the time."""
    now_s = int(time.time())
    midnight_s = now_s - hour * HOUR_S
    told = [("1", now_s - days * DAY_S, "Unknown", "n1"), ("2", 0, now_s - 5, "None assigned")]
    for day in range(days):
        start_s = midnight_s - day * DAY_S + 8 * HOUR_S
        if start_s < now_s:
            told.append((f"{10 + day}", start_s, min(start_s + 12 * HOUR_S, now_s), "n[2-4]"))
    lines = ["|".join(map(str, run)) for run in told]
    assert all(len(line.split("|")) == len(FIELDS) for line in lines)
    return "\n".join(lines) + "\n"


def test_idle_nodes_can_be_powered_down_in_the_evening_and_not_in_the_morning(
    sandbox: Sandbox, module_directory: Path
) -> None:
    """One node runs a job; three idle ones are not needed before 8 o'clock, then all are."""
    assert is_available()
    tools = module_directory / "tools"
    tools.mkdir()
    (tools / "sacct").write_text(SACCT, encoding="utf-8")
    (tools / "sacct").chmod(0o755)

    with schedd_in(sandbox, module_directory) as place:
        job = place.box.run(
            ["sbatch", "--parsable", "-wn1", "-N1", "-o/dev/null", "--wrap=sleep 600"]
        ).stdout.strip()
        place.until_state(job, "RUNNING")

        def told(hour: int, days: int, *more: str) -> tuple[int, str, str]:
            (tools / "records").write_text(records(hour, days), encoding="utf-8")
            done = subprocess.run(
                [str(BIN / "dlctl"), "advice", "nodes", "--days", "30", *more],
                env=place.env | {"PATH": f"{tools}:{place.env['PATH']}"},
                capture_output=True,
                text=True,
                timeout=60 * PATIENCE,
                check=False,
            )
            return done.returncode, done.stdout, done.stderr

        status, out, err = told(21, 24, "--json")
        assert status == 0, err
        evening = json.loads(out)
        status, out, err = told(6, 24, "--json")
        assert status == 0, err
        morning = json.loads(out)

        assert evening["idle"] == morning["idle"] == ["n2", "n3", "n4"]
        assert (evening["in_use"], morning["in_use"]) == (1, 1)
        assert (evening["expected_most"], evening["can_power_down"]) == (1, 3)
        assert (morning["expected_most"], morning["can_power_down"]) == (4, 0)
        assert evening["error"] < evening["last_value_error"]
        metrics = module_directory / "nodes.prom"
        status, out, _ = told(21, 24, "--metrics", str(metrics))
        assert status == 0
        figures = dict(
            line.rsplit(" ", 1)
            for line in metrics.read_text("utf-8").splitlines()
            if not line.startswith("#")
        )
        assert float(figures["slurm_dl_nodes_idle"]) == 3
        assert float(figures["slurm_dl_nodes_can_power_down"]) == 3
        assert float(figures["slurm_dl_nodes_expected_in_use"]) == 1
        assert float(figures["slurm_dl_nodes_forecast_error"]) < evening["last_value_error"]
        status, _, err = told(21, 24, "--metrics", str(module_directory / "not-there" / "n.prom"))
        assert (status, "cannot be written" in err) == (2, True)
        assert out.splitlines()[-1] == "can be powered down until then: 3 of the idle nodes"
        status, out, err = told(21, 9)
        assert (status, out) == (2, "")
        assert "14 days of history are needed" in err
        place.box.run(["scancel", job])
