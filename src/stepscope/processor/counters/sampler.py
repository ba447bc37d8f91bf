"""Starts and ends one child process, and interprets its exit status."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

LIBRARY = Path(__file__).parents[2] / "lib" / "libstepscope_pm.so"
_IN_PACKAGES = ("nvidia/cu13/lib", "nvidia/cuda_cupti/lib")
_OF_CUDA = Path("/usr/local/cuda/extras/CUPTI/lib64")


@dataclass(frozen=True)
class Wanted:
    """The sampling rate and the window's length."""

    hz: float
    seconds: float

    @property
    def interval_ns(self) -> int:
        return round(1e9 / self.hz)


class Sampler:
    """Samples one GPU, given by its index in PCI bus order, as in NVML."""

    def __init__(self, gpu: int, command: Sequence[str]) -> None:
        self.gpu = gpu
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=_environment(os.environ)
        )

    @property
    def output(self) -> int:
        assert self.process.stdout is not None
        return self.process.stdout.fileno()

    def end(self) -> None:
        """Asks the child to exit."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def why_ended(self, patience_seconds: float) -> str | None:
        """A message if the child failed. It is killed if it has not exited in time, and abandoned
        if the driver keeps it even then."""
        try:
            status = self.process.wait(patience_seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return "CUPTI does not respond; its process was killed"
        if status < 0:
            return f"its process was killed by signal {-status}"
        return f"its process exited with status {status}" if status else None


def command(wanted: Wanted, gpu: int, library: Path = LIBRARY) -> list[str]:
    """The command line of a child."""
    module = [sys.executable, "-m", "stepscope.processor.counters.child", str(library)]
    numbers = (gpu, wanted.interval_ns, int(wanted.seconds * 1e9))
    return [*module, ":".join(map(str, cupti_folders())), *map(str, numbers)]


def cupti_folders() -> list[Path]:
    """The folders of CUPTI's wheels and CUDA's installer: here, torch has not loaded it."""
    packages = [Path(path) / folder for path in sys.path for folder in _IN_PACKAGES]
    return [path for path in (*packages, _OF_CUDA) if path.is_dir()]


def _environment(of_ours: Mapping[str, str]) -> dict[str, str]:
    """The child's environment: all GPUs, numbered as in NVML, and no other profiler."""
    hidden = ("CUDA_VISIBLE_DEVICES", "CUDA_INJECTION64_PATH")
    kept = {name: value for name, value in of_ours.items() if name not in hidden}
    return {**kept, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
