"""The processor's settings: its socket, its intervals, and what it records and keeps."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

SOCKET_NAME = "processor.sock"
COUNTERS_SECONDS = 20.0
"""The length of a profiling window of EROICA (section 4.1)."""

PROFILE_GB = 2.0
"""Traces kept per host and job: a window of eight ranks takes some hundred MB. Our choice."""


def default_socket() -> Path:
    """The default socket: one per user and host, accessible to that user only."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.access(runtime, os.W_OK):
        return Path(runtime) / "stepscope" / SOCKET_NAME
    return Path(tempfile.gettempdir()) / f"stepscope-{os.getuid()}" / SOCKET_NAME


FINISH_SECONDS = 30.0
"""How long traces of windows may still be summarized when their job has ended, or the processor is
told to stop. Our choice."""


@dataclass(frozen=True)
class Settings:
    """How a processor runs.

    Args:
        flush_seconds: how often rows are written to a local folder; the live view reads as often.
        remote_flush_seconds: the same for an object store, where every write costs a request.
        hardware_seconds: how often counters are sampled.
        idle_seconds: with `exit_when_idle`, how long after the last producer left it stops.
        sample_stacks: whether py-spy samples the ranks' call stacks.
        traces: whether Perfetto traces are written, too.
        keep_kernels: whether every kernel becomes a row of table `kernels`, besides the summaries.
        keep_hours: rows and traces older than this are deleted; None: never.
        keep_gb: size limit of this host's files per job; the oldest are deleted; None: no limit.
        remote_write: URL that series are sent to; None: they are not sent.
        counters_hz: sampling rate of GPU counters in windows; None: they are not sampled.
        counters_seconds: length of such a window.
        profile: whether all ranks profile a few steps when their job becomes slower or stuck; by
            hand they do so in any case.
        profile_gb: size limit of the traces of these profiles, per host and job; 10⁹ bytes each.
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
    profile: bool = True
    profile_gb: float = PROFILE_GB

    def keep_options(self) -> list[str]:
        """The retention options of `stepscope compact` for these settings."""
        hours = [] if self.keep_hours is None else ["--keep-hours", str(self.keep_hours)]
        return hours + ([] if self.keep_gb is None else ["--keep-gb", str(self.keep_gb)])

    def options(self) -> list[str]:
        """The options of `stepscope processor` for these settings."""
        remote = [] if self.remote_write is None else ["--remote-write", self.remote_write]
        some = self._record_options() + self._counters_options() + self._profile_options()
        return some + self.keep_options() + remote

    def _profile_options(self) -> list[str]:
        off = [] if self.profile else ["--profile", "off"]
        return off + (
            [] if self.profile_gb == PROFILE_GB else ["--profile-gb", str(self.profile_gb)]
        )

    def _counters_options(self) -> list[str]:
        if self.counters_hz is None:
            return []
        seconds = ["--counters-seconds", str(self.counters_seconds)]
        return ["--counters", str(self.counters_hz), *seconds]

    def _record_options(self) -> list[str]:
        """Only those that differ from the default."""
        switches = {"--no-stacks": not self.sample_stacks, "--no-traces": not self.traces,
                    "--kernels": self.keep_kernels}  # fmt: skip
        return [name for name, switched in switches.items() if switched]
