"""C++ versions of work on whole columns; None if not compiled, and then numpy is used."""

from __future__ import annotations

try:
    from stepscope._native import gather, stable_order
except ImportError:  # installed without a compiler
    gather = stable_order = None  # type: ignore[assignment]

__all__ = ["gather", "stable_order"]
