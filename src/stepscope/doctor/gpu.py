"""Checks of what can be recorded from GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pynvml

from stepscope.doctor.finding import Check, Subject
from stepscope.doctor.machine import Machine

OLDEST_CUPTI = 22
"""cuptiGetVersion of CUDA 12.4, the oldest supported one."""
OLDEST_SAMPLING = 24
"""cuptiGetVersion of CUDA 12.6, the first version that can sample counters."""
OLDEST_NCCL = (2, 27)
"""The first with version 4 of the profiler interface, which reports times of channels."""
INJECTOR = "libstepscope_cupti.so"
INJECTION = "CUDA_INJECTION64_PATH"
SAMPLER, EVALUATOR = "libstepscope_pm.so", "libnvperf_host.so"
PLUGIN = "libnccl-profiler-stepscope.so"
PLUGIN_VARIABLE = "NCCL_PROFILER_PLUGIN"
PROFILERS = ("nsys", "nsys-agent", "ncu", "compute-sanitizer")
"""Programs that use CUPTI exclusively."""
SAMPLERS = ("nv-hostengine", "dcgm-exporter", "ncu", "nsys")
"""Programs that may use a GPU's counters exclusively."""

PROFILING = "RmProfilingAdminOnly"
"""Driver parameter: whether only an administrator may read a GPU's hardware counters."""
_PROFILING_CAPABILITIES = (21, 38)
"""linux/capability.h: SYS_ADMIN, and PERFMON from driver 565 on."""

_NVIDIA, _DISPLAY = "0x10de", "0x03"
_CUPTI_FILES = ("nvidia/cu13/lib/libcupti.so.13", "nvidia/cuda_cupti/lib/libcupti.so.12")
_CUPTI_NAMES = ("libcupti.so.13", "libcupti.so.12")
_NO_DRIVER = "no NVIDIA driver"
_NO_CUPTI = "found neither libcupti.so.13 nor libcupti.so.12"
_GET_CUPTI = (
    "pip install nvidia-cuda-cupti-cu12, or add CUDA's extras/CUPTI/lib64 to LD_LIBRARY_PATH"
)


def driver(machine: Machine) -> Check:
    subject = Subject("driver", "all GPU checks below")
    version = _driver_version(machine)
    if version is not None:
        return subject.works(f"NVIDIA driver {version}")
    if not _has_gpu(machine):
        return subject.absent("no NVIDIA GPU")
    return subject.blocked(
        "there is an NVIDIA GPU, but no driver for it",
        "install the driver; in a container: docker run --gpus all …",
    )


def nvml(machine: Machine) -> Check:
    """NVML in a container needs `utility` in NVIDIA_DRIVER_CAPABILITIES."""
    subject = Subject("nvml", "GPU clocks, temperature, power, errors, links and processes")
    if _driver_version(machine) is None:
        return subject.absent(_NO_DRIVER)
    try:
        return subject.works(f"{machine.gpu_count()} GPUs")
    except pynvml.NVMLError as error:
        return subject.blocked(
            f"the driver is loaded, but NVML fails: {error}",
            "in a container: docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility …",
        )


def kernels(machine: Machine) -> Check:
    subject = Subject("kernels", "every kernel, copy and memset, by CUPTI")
    if _driver_version(machine) is None:
        return subject.absent(_NO_DRIVER)
    if not (machine.library_folder / INJECTOR).exists():
        return subject.blocked(f"{INJECTOR} was not built", _built_by(INJECTOR))
    other = _other_profiler(machine)
    if other is not None:
        return subject.blocked(other, "stop it: only one profiler at a time can record kernels")
    return _by_version(machine, subject)


def nccl(machine: Machine) -> Check:
    subject = Subject("nccl", "collectives and transfers between GPUs, by NCCL's profiler plugin")
    if _driver_version(machine) is None:
        return subject.absent(_NO_DRIVER)
    if not (machine.library_folder / PLUGIN).exists():
        return subject.blocked(f"{PLUGIN} was not built", _built_by(PLUGIN))
    other = machine.env.get(PLUGIN_VARIABLE)
    if other:
        return subject.blocked(f"{PLUGIN_VARIABLE} is {other}", f"unset {PLUGIN_VARIABLE}")
    return _by_release(machine, subject)


def counters(machine: Machine) -> Check:
    subject = Subject("counters", "GPU hardware counters, up to 10,000 times a second")
    if _driver_version(machine) is None:
        return subject.absent(_NO_DRIVER)
    if not (machine.library_folder / SAMPLER).exists():
        return subject.blocked(f"{SAMPLER} was not built", _built_by(SAMPLER))
    if profiling(machine) != "0" and not any(map(machine.may, _PROFILING_CAPABILITIES)):
        return subject.blocked(
            "this user has no permission to read them",
            "start the processor as root, with CAP_PERFMON (driver 565 on) or CAP_SYS_ADMIN, or "
            "load the driver with NVreg_RestrictProfilingToAdminUsers=0",
        )
    other = _other_sampler(machine)
    if other is not None:
        return subject.blocked(
            f"{other} is running and may hold the counters",
            "while you sample: dcgmi profile --pause",
        )
    return _by_sampling_version(machine, subject)


def profiling(machine: Machine) -> str | None:
    """The value of the driver parameter PROFILING; None if unknown."""
    for line in (machine.text("proc/driver/nvidia/params") or "").splitlines():
        if line.startswith(f"{PROFILING}:"):
            return line.partition(":")[2].strip()
    return None


def _by_version(machine: Machine, subject: Subject) -> Check:
    for name in _cupti_names(machine):
        version = machine.library_version(name)
        if version is None:
            continue
        if version >= OLDEST_CUPTI:
            return subject.works(f"{Path(name).name}, version {version}", _enable_with("cupti"))
        return subject.blocked(
            f"{name} is version {version}, at least {OLDEST_CUPTI} (CUDA 12.4) is needed",
            "pip install --upgrade torch",
        )
    return subject.blocked(_NO_CUPTI, _GET_CUPTI)


def _by_sampling_version(machine: Machine, subject: Subject) -> Check:
    for name in _cupti_names(machine):
        version = machine.library_version(name)
        if version is None:
            continue
        if version < OLDEST_SAMPLING:
            return subject.blocked(
                f"{name} is version {version}, at least {OLDEST_SAMPLING} (CUDA 12.6) is needed",
                "pip install --upgrade nvidia-cuda-cupti-cu12",
            )
        path = Path(name)
        if path.is_absolute() and not path.with_name(EVALUATOR).exists():
            return subject.blocked(
                f"{EVALUATOR} is missing next to {name}",
                "reinstall all of CUPTI: pip install --force-reinstall nvidia-cuda-cupti-cu12",
            )
        return subject.works(
            f"{path.name}, version {version}",
            "stepscope counters, or stepscope run --counters 10000 -- … (off by default)",
        )
    return subject.blocked(_NO_CUPTI, _GET_CUPTI)


def _by_release(machine: Machine, subject: Subject) -> Check:
    found = _nccl_release(machine)
    if found is None:
        return subject.absent("torch has no NCCL of its own, and a system NCCL is not checked")
    text = ".".join(map(str, found))
    if found >= OLDEST_NCCL:
        return subject.works(f"NCCL {text}", _enable_with("nccl"))
    least = ".".join(map(str, OLDEST_NCCL))
    return subject.blocked(
        f"NCCL {text} has no profiler interface that stepscope supports",
        f"pip install --upgrade torch, which includes NCCL {least} or newer since 2.8",
    )


def _enable_with(what: str) -> str:
    return f"stepscope run --native {what} -- … (off by default)"


def _built_by(name: str) -> str:
    return f"install g++, then install stepscope from source, which builds {name}"


def _other_profiler(machine: Machine) -> str | None:
    path = machine.env.get(INJECTION)
    if path and Path(path).name != INJECTOR:
        return f"{INJECTION} is {path}: another profiler is injected"
    running = sorted(set(PROFILERS).intersection(machine.processes()))
    return f"{running[0]} is running" if running else None


def _other_sampler(machine: Machine) -> str | None:
    running = sorted(set(SAMPLERS).intersection(machine.processes()))
    return running[0] if running else None


def _cupti_names(machine: Machine) -> Iterator[str]:
    """In the order in which the injector finds them: torch's own comes first."""
    if machine.packages is not None:
        yield from (str(machine.packages / file) for file in _CUPTI_FILES)
    yield from _CUPTI_NAMES


def _nccl_release(machine: Machine) -> tuple[int, ...] | None:
    if machine.packages is None:
        return None
    for folder in machine.packages.glob("nvidia_nccl_cu*.dist-info"):
        found = re.search(r"-(\d+(?:\.\d+)+)\.dist-info$", folder.name)
        if found:
            return tuple(map(int, found[1].split(".")))
    return None


def _driver_version(machine: Machine) -> str | None:
    found = re.search(r"\b\d{3}\.\d+[.\d]*", machine.text("proc/driver/nvidia/version") or "")
    return found[0] if found else None


def _has_gpu(machine: Machine) -> bool:
    devices = "sys/bus/pci/devices"
    return any(
        machine.text(f"{devices}/{name}/vendor") == _NVIDIA
        and (machine.text(f"{devices}/{name}/class") or "").startswith(_DISPLAY)
        for name in machine.names_in(devices)
    )
