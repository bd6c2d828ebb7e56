"""NVML of a test: what the JSON file named by FAKE_NVML says. Stands first on a job's PYTHONPATH.

Of each GPU: ``busy`` and ``memory`` in percent, ``mb`` of the device, ``processes`` as a mapping of
pids to MB (``self`` is the process that asks), ``sm`` in percent or null.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

NVML_CLOCK_SM = 1
NVML_GPM_METRICS_GET_VERSION = 1
NVML_GPM_METRIC_SM_UTIL = 2
SAMPLES = {"open": 0}
"""GPM samples that were not freed."""


class NVMLError(Exception):
    """As pynvml has it."""


def _gpus() -> list[dict[str, Any]]:
    told: dict[str, Any] = json.loads(Path(os.environ["FAKE_NVML"]).read_text(encoding="utf-8"))
    if "error" in told:
        raise NVMLError(told["error"])
    gpus: list[dict[str, Any]] = told["gpus"]
    return gpus


def nvmlInit() -> None:  # noqa: N802 - NVML's names, here and below
    """Ready if the file is there."""
    _gpus()


def nvmlShutdown() -> None:  # noqa: N802
    """Nothing to give back."""


def nvmlDeviceGetCount() -> int:  # noqa: N802
    """GPUs that are seen."""
    return len(_gpus())


def nvmlDeviceGetHandleByIndex(index: int) -> int:  # noqa: N802
    """A handle is the index."""
    return index


def nvmlDeviceGetHandleByUUID(uuid: str) -> int:  # noqa: N802
    """The GPU that is named so."""
    return [gpu["uuid"] for gpu in _gpus()].index(uuid)


def nvmlDeviceGetUUID(handle: int) -> str:  # noqa: N802
    """Its name."""
    uuid: str = _gpus()[handle]["uuid"]
    return uuid


def nvmlDeviceGetMemoryInfo(handle: int) -> SimpleNamespace:  # noqa: N802
    """Bytes of the device."""
    return SimpleNamespace(total=_gpus()[handle]["mb"] * 2**20)


def nvmlDeviceGetUtilizationRates(handle: int) -> SimpleNamespace:  # noqa: N802
    """Percent."""
    gpu = _gpus()[handle]
    return SimpleNamespace(gpu=gpu["busy"], memory=gpu["memory"])


def nvmlDeviceGetComputeRunningProcesses(handle: int) -> list[SimpleNamespace]:  # noqa: N802
    """Processes with their bytes."""
    named = {"self": os.getpid()}
    found: dict[str, float | None] = _gpus()[handle]["processes"]
    return [
        SimpleNamespace(
            pid=named.get(pid) or int(pid), usedGpuMemory=None if mb is None else int(mb * 2**20)
        )
        for pid, mb in found.items()
    ]


def nvmlDeviceGetClockInfo(handle: int, _kind: int) -> int:  # noqa: N802
    """MHz."""
    return int(_gpus()[handle].get("clock", 1000))


def nvmlDeviceGetPowerUsage(handle: int) -> int:  # noqa: N802
    """Milliwatts."""
    return int(_gpus()[handle].get("power", 100) * 1000)


def nvmlGpmQueryDeviceSupport(handle: int) -> SimpleNamespace:  # noqa: N802
    """It has counters, or not."""
    return SimpleNamespace(isSupportedDevice=int(_gpus()[handle].get("sm") is not None))


def nvmlGpmSampleAlloc() -> list[float]:  # noqa: N802
    """Room for a sample."""
    SAMPLES["open"] += 1
    return []


def nvmlGpmSampleFree(_sample: list[float]) -> None:  # noqa: N802
    """Gives it back."""
    SAMPLES["open"] -= 1


def nvmlGpmSampleGet(handle: int, sample: list[float]) -> None:  # noqa: N802
    """Reads the counter."""
    sample[:] = [_gpus()[handle]["sm"]]


def c_nvmlGpmMetricsGet_t() -> SimpleNamespace:  # noqa: N802
    """Question and answer."""
    return SimpleNamespace(metrics=[SimpleNamespace(nvmlReturn=0, value=0.0)])


def nvmlGpmMetricsGet(asked: SimpleNamespace) -> None:  # noqa: N802
    """The mean of both samples."""
    asked.metrics[0].value = (asked.sample1[0] + asked.sample2[0]) / 2
