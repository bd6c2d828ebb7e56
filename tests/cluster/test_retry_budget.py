"""Jobs that count their own retries: preemptions do not spend them, on a real Slurm."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest
from schedd import Schedd, running_schedd

pytestmark = [pytest.mark.slurm, pytest.mark.full("a minute and a half")]

CONTRACT = {"v": 1, "sig": "USR1", "to": "full", "grace_s": 2, "by": "job"}
ROOT = Path(__file__).parents[2]
DLRUN = shlex.join(["env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "slurm_dl.job.run"])

SETUP = f"""
eval "$({DLRUN} --env)"
export TORCHX_MAX_RETRIES=$((TORCHX_MAX_RETRIES + SLURM_DL_PREEMPTIONS))
trap 'TORCHX_MAX_RETRIES=$((TORCHX_MAX_RETRIES + 1))' USR1
"""
"""What the documentation tells users to add."""

WORK = """
cat > work.sh <<'END'
trap '[ -e stubborn ] || exit 75' USR1
echo "$SLURM_RESTART_COUNT $SLURM_DL_PREEMPTIONS $SLURM_DL_FAILURES" >> runs
until [ -e "crash-$SLURM_RESTART_COUNT" ]; do sleep 0.2; done
exit 1
END
export SLURM_RESTART_COUNT="${SLURM_RESTART_COUNT:-0}"
srun --ntasks=1 --nodes=1 bash work.sh
status=$?
"""

TORCHX = f"""#!/bin/bash
export TORCHX_MAX_RETRIES=1
{SETUP}{WORK}
if [ $status -ne 0 ] && [ "$TORCHX_MAX_RETRIES" -gt "$SLURM_RESTART_COUNT" ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit $status
"""
"""The rule of TorchX and of NeMo-Run: requeue while there are fewer restarts than retries."""

FT_LAUNCHER = f"""#!/bin/bash
export TORCHX_MAX_RETRIES=2
{SETUP}
spent() {{
    [ "$(tail -n "$TORCHX_MAX_RETRIES" results | grep -c '[XF]$')" -ge "$TORCHX_MAX_RETRIES" ]
}}
if [ "${{SLURM_RESTART_COUNT:-0}}" -gt 0 ] && spent; then exit 1; fi
echo "${{SLURM_RESTART_COUNT:-0}} X" >> results
{WORK}
sed -i "s/^$SLURM_RESTART_COUNT X/$SLURM_RESTART_COUNT F/" results
spent || scontrol requeue "$SLURM_JOB_ID"
exit $status
"""
"""The rule of NeMo-Run's ft_launcher: so many lines at the end of a file are failed or killed."""


place = running_schedd(policy={"parameters": {"thresholds_gpu_s": [4, 100_000]}})


@pytest.mark.parametrize("script", [TORCHX, FT_LAUNCHER], ids=["TorchX", "ft_launcher"])
def test_preemptions_spend_no_retries(place: Schedd, script: str) -> None:
    """Three preemptions, the first by force; then one crash is retried and the second is final."""
    (place.home / "job.sh").write_text(script, encoding="utf-8")
    stubborn = place.home / "stubborn"
    stubborn.touch()
    comment = json.dumps({"slurm_dl": CONTRACT})
    job = place.box.run(
        [
            *("sbatch", "--parsable", "--nodes=4", "--gres=gpu:4", "--ntasks=4", "--requeue"),
            *(f"--chdir={place.home}", "--open-mode=append", f"--output={place.home}/log"),
            *(f"--comment={comment}", str(place.home / "job.sh")),
        ]
    ).stdout.strip()

    def runs() -> list[str]:
        path = place.home / "runs"
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []

    def until_run(number: int) -> None:
        place.until(f"run {number}", lambda: len(runs()) == number + 1, 90)

    for number in range(3):
        until_run(number)
        other = place.toy(4, 1)
        place.until_state(other, "COMPLETED", within_s=90)
        stubborn.unlink(missing_ok=True)
    until_run(3)
    (place.home / "crash-3").touch()
    until_run(4)
    (place.home / "crash-4").touch()
    place.until_state(job, "FAILED", within_s=30)

    assert runs() == ["0 0 0", "1 1 0", "2 2 0", "3 3 0", "4 3 1"]
    assert place.job(job, "Restarts", "ExitCode") == ["4", "1:0"]
