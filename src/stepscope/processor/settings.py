"""Where the processor listens, and how it paces itself."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

SOCKET_NAME = "processor.sock"
COUNTERS_SECONDS = 20.0
"""EROICA (section 4.1) profiles for so long."""


def default_socket() -> Path:
    """One place per user and host, readable by nobody else."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.access(runtime, os.W_OK):
        return Path(runtime) / "stepscope" / SOCKET_NAME
    return Path(tempfile.gettempdir()) / f"stepscope-{os.getuid()}" / SOCKET_NAME


@dataclass(frozen=True)
class Settings:
    """How a processor runs.

    Args:
        flush_seconds: how often rows reach a local folder; as often as the live view looks there.
        remote_flush_seconds: the same for an object store, where every write costs a request.
        hardware_seconds: how often counters are sampled.
        idle_seconds: with `exit_when_idle`, how long after the last producer it stops.
        sample_stacks: whether py-spy looks at the ranks.
        traces: whether what the ranks do is drawn for Perfetto, too.
        keep_kernels: whether every kernel becomes a row of table `kernels`, besides its summary.
        keep_hours: rows and traces older than that are dropped; None: never.
        keep_gb: the oldest of this host beyond that size are dropped, by job; None: never.
        remote_write: where series go; None: nowhere.
        counters_hz: how often counters of the GPUs' units are sampled, in windows; None: never.
        counters_seconds: how long such a window is.
    """

    socket: Path = field(default_factory=default_socket)
    flush_seconds: float = 4.0
    remote_flush_seconds: float = 5.0
    hardware_seconds: float = 1.0
    idle_seconds: float = 20.0
    exit_when_idle: bool = False
    sample_stacks: bool = True
    traces: bool = True
    keep_kernels: bool = False
    keep_hours: float | None = None
    keep_gb: float | None = None
    remote_write: str | None = None
    counters_hz: float | None = None
    counters_seconds: float = COUNTERS_SECONDS

    def keep_options(self) -> list[str]:
        """What is kept, as `stepscope compact` takes it."""
        hours = [] if self.keep_hours is None else ["--keep-hours", str(self.keep_hours)]
        return hours + ([] if self.keep_gb is None else ["--keep-gb", str(self.keep_gb)])

    def options(self) -> list[str]:
        """What is recorded, kept and sent, as `stepscope processor` takes it."""
        remote = [] if self.remote_write is None else ["--remote-write", self.remote_write]
        return self._record_options() + self._counters_options() + self.keep_options() + remote

    def _counters_options(self) -> list[str]:
        if self.counters_hz is None:
            return []
        seconds = ["--counters-seconds", str(self.counters_seconds)]
        return ["--counters", str(self.counters_hz), *seconds]

    def _record_options(self) -> list[str]:
        """Only what differs from the default."""
        switches = {"--no-stacks": not self.sample_stacks, "--no-traces": not self.traces,
                    "--kernels": self.keep_kernels}  # fmt: skip
        return [name for name, switched in switches.items() if switched]
