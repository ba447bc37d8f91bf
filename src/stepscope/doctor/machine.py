"""The machine under examination; tests replace it with fakes."""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pynvml

from stepscope.processor.sampling.recorder import find_py_spy
from stepscope.processor.settings import default_socket

SYS_PTRACE = 19
"""linux/capability.h: permission to inspect any process."""


def _free_bytes(path: Path) -> int:
    return shutil.disk_usage(path).free


def _names_of_processes() -> set[str]:
    return {process.info["name"] for process in psutil.process_iter(["name"])}


def _cupti_version(name: str) -> int | None:
    version = ctypes.c_uint32()
    try:
        status = ctypes.CDLL(name).cuptiGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    return version.value if status == 0 else None


def _gpu_count() -> int:
    pynvml.nvmlInit()
    return int(pynvml.nvmlDeviceGetCount())


@dataclass(frozen=True)
class Machine:
    """Paths and functions through which the checks examine a machine.

    Args:
        root: of the file system; /proc and /sys are below.
        packages: site-packages of the training Python; None: it cannot find torch.
        store: the folder for job folders; None: a bucket.
        free_bytes: free space of the file system of a folder.
        library_version: version of a libcupti, by path or name; None: not found.
        gpu_count: from NVML; raises NVMLError.
        why_no_compiler: why collectives cannot be recorded from C++; None: they can.
    """

    packages: Path | None
    store: Path | None
    root: Path = Path("/")
    env: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    socket: Path = field(default_factory=default_socket)
    library_folder: Path = Path(__file__).parents[1] / "lib"
    py_spy: Callable[[], str | None] = find_py_spy
    free_bytes: Callable[[Path], int] = _free_bytes
    processes: Callable[[], Collection[str]] = _names_of_processes
    library_version: Callable[[str], int | None] = _cupti_version
    gpu_count: Callable[[], int] = _gpu_count
    why_no_compiler: Callable[[], str | None] = lambda: None

    def text(self, path: str) -> str | None:
        """The content of a small file; None if it does not exist or cannot be read."""
        try:
            return (self.root / path).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return None

    def names_in(self, path: str) -> list[str]:
        try:
            return sorted(entry.name for entry in (self.root / path).iterdir())
        except OSError:
            return []

    def may(self, capability: int) -> bool:
        """Whether this process has a Linux capability."""
        for line in (self.text("proc/self/status") or "").splitlines():
            if line.startswith("CapEff:"):
                return bool(int(line.split()[1], 16) >> capability & 1)
        return False


def this_machine(python: str, store: str) -> Machine:
    """The machine that we run on.

    Args:
        python: the interpreter of the training job.
        store: as `stepscope run --store` takes it.
    """
    from stepscope.collect.native import build

    torch = build.torch_folder(python)
    return Machine(
        packages=None if torch is None else torch.parent,
        store=None if "://" in store else Path(store).absolute(),
        why_no_compiler=build.why_not,
    )
