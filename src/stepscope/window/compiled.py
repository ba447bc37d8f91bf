"""C++ versions of work on whole columns; None if not compiled, and then numpy is used."""

from __future__ import annotations

try:
    from stepscope._native import gather
except ImportError:  # installed without a compiler
    gather = None  # type: ignore[assignment]

__all__ = ["gather"]
