"""A sampler of counters, under sanitizers or as the processor loads it, and a CUPTI for it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from stepscope.processor.counters.frames import Failure, Frame, Frames, Lost, Metrics, Note, Samples

from .compiling import HERE, LIBRARY, compiled, sources
from .driver import END_SECONDS, SANITIZERS

INTERVAL_NS = 100_000
_NAMES = ("libcupti.so.13", "libcuda.so.1", "libnvperf_host.so")


def mocks(config: pytest.Config, folder: Path, sanitizer: Sequence[str] = ()) -> Path:
    """A folder with all that CUPTI's wheel and the driver bring."""
    mock = compiled(config, "mock-pm.so", [HERE / "mock_pm.cpp"], (*LIBRARY, *sanitizer))
    for name in _NAMES:
        (folder / name).symlink_to(mock)
    return folder


def library(config: pytest.Config) -> Path:
    """As the package's build makes it."""
    return compiled(config, "libstepscope_pm.so", sources("pm"), LIBRARY)


@dataclass(frozen=True)
class Run:
    """What a sampler told until it ended."""

    frames: tuple[Frame, ...]
    status: int

    @property
    def metrics(self) -> tuple[str, ...]:
        return next((one.names for one in self.frames if isinstance(one, Metrics)), ())

    @property
    def samples(self) -> Samples:
        pieces = [one.of for one in self.frames if isinstance(one, Samples)]
        return Samples(np.concatenate(pieces))

    @property
    def lost(self) -> int:
        return sum(one.samples for one in self.frames if isinstance(one, Lost))

    @property
    def trouble(self) -> str | None:
        return next((one.why for one in self.frames if isinstance(one, Failure)), None)

    @property
    def notes(self) -> list[str]:
        return [one.text for one in self.frames if isinstance(one, Note)]


@dataclass(frozen=True)
class Program:
    """A driver, and where its CUPTI is."""

    path: Path
    folder: Path

    def start(self, *words: object, **env: str) -> subprocess.Popen[bytes]:
        """It runs as long as its standard input is open."""
        return subprocess.Popen(
            [str(self.path), *map(str, words)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **SANITIZERS, "LD_LIBRARY_PATH": str(self.folder), **env},
        )  # fmt: skip

    def window(self, seconds: float, **env: str) -> subprocess.Popen[bytes]:
        """Of one GPU at 10 kHz."""
        return self.start("sample", self.folder, 0, INTERVAL_NS, int(seconds * 1e9), **env)

    def sample(self, seconds: float = 0.05, /, **env: str) -> Run:
        """What a window told."""
        return told(self.window(seconds, **env))

    def choose(self, chip: str, **env: str) -> Run:
        return told(self.start("choose", self.folder, chip, **env))


def told(process: subprocess.Popen[bytes], before: bytes = b"") -> Run:
    """All that it writes until it ends, which it must do without a complaint of a sanitizer."""
    assert process.stdout is not None and process.stderr is not None
    everything = before + process.stdout.read()
    complaint = process.stderr.read().decode()
    assert process.wait(END_SECONDS) in (0, 1), complaint
    return Run(tuple(Frames().feed(everything)), process.returncode)


def program(config: pytest.Config, folder: Path, sanitizer: Sequence[str]) -> Program:
    """All of it with the same sanitizer."""
    parts = [HERE / "pm_driver.cpp", *sources("pm")]
    return Program(
        compiled(config, "pm-driver", parts, sanitizer), mocks(config, folder, sanitizer)
    )
