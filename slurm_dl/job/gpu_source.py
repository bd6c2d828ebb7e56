"""Samples of a job's GPUs by NVML, where the package nvidia-ml-py is installed beside dlrun.

NVML is loaded when the first sample is due, and from dlrun's own environment alone: no module of
the user's is imported. Costs on an H200: 4 to 5 ms of CPU a sample, no effect on the training.

Sources: NVML API reference, "Device Queries" and "GPM Functions"; sbatch(1), CUDA_VISIBLE_DEVICES.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from statistics import fmean
from typing import Any, NamedTuple

from slurm_dl.job.child import read_proc

_MIB = 2**20
_MOST_ANCESTORS = 64
_MPS_SERVER = b"(nvidia-cuda-mps)"  # In /proc/PID/stat, which all may read: the kernel cuts names
_PARENT = 1  # Of the fields of /proc/PID/stat after the name

MPS_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"


class Sample(NamedTuple):
    """The job's GPUs on this node at one instant, means over them unless it is said otherwise."""

    busy: float  # Share of the last moments in which kernels ran, 0 to 1
    memory_busy: float  # Share in which they read or wrote GPU memory, 0 to 1
    sm_active: float | None  # Share of busy multiprocessors since the sample before; None: unknown
    own_mb: float | None  # Memory of the job's processes on the fullest GPU; None if not known
    is_shared: bool  # A process of another job is on one of them
    clock_mhz: float  # Of the multiprocessors
    power_w: float


class GpuSource:
    """The GPUs of this job on this node.

    Args:
        environ: The job's environment, which names them.

    Raises:
        ImportError: nvidia-ml-py is not installed.
        ValueError: The job's GPUs are not among those that NVML shows.
        Exception: NVML's own, as where there is no driver.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._nvml: Any = import_module("pynvml")
        self._nvml.nvmlInit()
        self._handles = [*map(self._handle, named_in(environ))]
        self.devices = [*map(self._nvml.nvmlDeviceGetUUID, self._handles)]
        memory = map(self._nvml.nvmlDeviceGetMemoryInfo, self._handles)
        self.total_mb = min(info.total for info in memory) / _MIB
        self._is_mps = bool(environ.get(MPS_VARIABLE))
        self._mark = os.fsencode(f"SLURM_JOB_ID={environ.get('SLURM_JOB_ID', '')}")
        self._has_gpm = all(map(self._measures_sm, self._handles))
        self._gpm: list[Any] = []
        """A GPM sample of each GPU, of the sample before."""

    def sample(self) -> Sample:
        """The GPUs now.

        Raises:
            Exception: NVML's own.
        """
        nvml, gpus = self._nvml, self._handles
        use = [*map(nvml.nvmlDeviceGetUtilizationRates, gpus)]
        seen = [self._processes(gpu) for gpu in gpus]
        own = [mb for mb, _ in seen]
        return Sample(
            busy=fmean(u.gpu for u in use) / 100,
            memory_busy=fmean(u.memory for u in use) / 100,
            sm_active=self._sm_active(),
            own_mb=None if None in own else max(mb or 0.0 for mb in own),
            is_shared=any(shared for _, shared in seen),
            clock_mhz=fmean(nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM) for gpu in gpus),
            power_w=fmean(map(nvml.nvmlDeviceGetPowerUsage, gpus)) / 1000,
        )

    def close(self) -> None:
        """Give back what NVML holds for us."""
        with suppress(Exception):
            for one in self._gpm:
                self._nvml.nvmlGpmSampleFree(one)
            self._nvml.nvmlShutdown()
        self._gpm = []

    def _handle(self, name: str) -> Any:  # noqa: ANN401 -- pynvml's
        nvml = self._nvml
        if name.isdigit():
            if int(name) >= nvml.nvmlDeviceGetCount():
                msg = f"NVML shows no GPU {name}"
                raise ValueError(msg)
            return nvml.nvmlDeviceGetHandleByIndex(int(name))
        return nvml.nvmlDeviceGetHandleByUUID(name)

    def _processes(self, gpu: Any) -> tuple[float | None, bool]:  # noqa: ANN401 -- pynvml's
        """MB of the job's processes on *gpu*, None if not known, and whether there are others."""
        listed = self._nvml.nvmlDeviceGetComputeRunningProcesses(gpu)
        found = {process.pid: process.usedGpuMemory for process in listed}
        if self._is_mps:
            # It holds the GPU for the processes of one user, and those are listed beside it.
            servers = [pid for pid in found if _MPS_SERVER in read_proc(pid, "stat")]
            found = {pid: used for pid, used in found.items() if pid not in servers}
        own = {pid: used for pid, used in found.items() if self._is_ours(pid)}
        if found and not any(read_proc(pid, "stat") for pid in found):
            # Numbers of another pid namespace, as in a container: one process is taken for ours.
            return None, len(found) > 1
        known = None if None in own.values() else sum(own.values()) / _MIB
        return known, len(own) < len(found)

    def _is_ours(self, pid: int) -> bool:
        """True of a descendant of dlrun, and of a process of this job that srun has started."""
        above = pid
        for _ in range(_MOST_ANCESTORS):
            if above == os.getpid():
                return True
            fields = read_proc(above, "stat").rpartition(b")")[2].split()
            above = int(fields[_PARENT]) if len(fields) > _PARENT else 0
            if above <= 1:
                break
        return self._mark[-1:] != b"=" and self._mark in read_proc(pid, "environ").split(b"\0")

    def _measures_sm(self, gpu: Any) -> bool:  # noqa: ANN401 -- pynvml's
        # Older drivers have no GPM, and older GPUs none of its counters.
        with suppress(Exception):
            return bool(self._nvml.nvmlGpmQueryDeviceSupport(gpu).isSupportedDevice)
        return False

    def _sm_active(self) -> float | None:
        if not self._has_gpm:
            return None
        nvml, before = self._nvml, self._gpm
        self._gpm, active = [], []
        try:
            for gpu in self._handles:
                self._gpm.append(nvml.nvmlGpmSampleAlloc())
                nvml.nvmlGpmSampleGet(gpu, self._gpm[-1])
            active = [self._between(*pair) for pair in zip(before, self._gpm)]
        finally:
            for one in before:
                nvml.nvmlGpmSampleFree(one)
        return None if not active or None in active else fmean(a or 0.0 for a in active)

    def _between(self, first: Any, last: Any) -> float | None:  # noqa: ANN401 -- pynvml's
        nvml = self._nvml
        asked = nvml.c_nvmlGpmMetricsGet_t()
        asked.version, asked.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, 1
        asked.sample1, asked.sample2 = first, last
        asked.metrics[0].metricId = nvml.NVML_GPM_METRIC_SM_UTIL
        nvml.nvmlGpmMetricsGet(asked)
        told = asked.metrics[0]
        return told.value / 100 if told.nvmlReturn == 0 else None


def named_in(environ: Mapping[str, str]) -> list[str]:
    """Indices or UUIDs of the job's GPUs on this node; empty if there are none.

    Where cgroups hide those of other jobs Slurm numbers the rest from 0, as NVML does then.
    """
    text = environ.get("CUDA_VISIBLE_DEVICES") or environ.get("SLURM_JOB_GPUS") or ""
    is_list = re.fullmatch(r"[\w-]+(,[\w-]+)*", text) and text != "NoDevFiles"
    return text.split(",") if is_list else []
