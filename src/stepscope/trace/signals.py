"""The names of signals that ended processes."""

from __future__ import annotations

import signal


def signal_name(number: int) -> str:
    """Like SIGKILL; most real-time signals, and numbers that are no signal, have none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
