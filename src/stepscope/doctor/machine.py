"""The machine as the checks see it; tests make up others."""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pynvml

from stepscope.processor.sampling.stacks import find_py_spy
from stepscope.processor.settings import default_socket

SYS_PTRACE = 19
"""linux/capability.h: may look into any process."""


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
    """Where to look, and whom to ask.

    Args:
        root: of the file system; /proc and /sys are below.
        packages: where the Python of the training keeps its packages; None: it finds no torch.
        store: where job folders go; None: in a bucket.
        free_bytes: of the file system that a folder is in.
        library_version: of a libcupti by its path or name; None: there is none.
        gpu_count: by NVML, which raises NVMLError.
        why_no_compiler: None where collectives can be watched from C++.
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
        """A small file's content; None where it is not there or not ours to read."""
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
        """Whether we hold a capability of the kernel's."""
        for line in (self.text("proc/self/status") or "").splitlines():
            if line.startswith("CapEff:"):
                return bool(int(line.split()[1], 16) >> capability & 1)
        return False


def this_machine(python: str, store: str) -> Machine:
    """The one we run on.

    Args:
        python: the interpreter that training runs in.
        store: as `stepscope run --store` takes it.
    """
    from stepscope.collect.native import build

    torch = build.torch_folder(python)
    return Machine(
        packages=None if torch is None else torch.parent,
        store=None if "://" in store else Path(store).absolute(),
        why_no_compiler=build.why_not,
    )
