"""C++ versions of the detectors' arithmetic; None if not compiled, and then numpy is used."""

from __future__ import annotations

try:
    from stepscope._native import (
        imbalances,
        largest_rise,
        mean_distances,
        mean_divergences,
        on_one_clock,
        pass_slacks,
        peer_medians,
        unlike,
        wide_windows,
    )
except ImportError:  # installed without a compiler
    imbalances = largest_rise = mean_distances = None  # type: ignore[assignment]
    peer_medians = unlike = wide_windows = None  # type: ignore[assignment]
    mean_divergences = pass_slacks = on_one_clock = None  # type: ignore[assignment]

__all__ = [
    "imbalances",
    "largest_rise",
    "mean_distances",
    "mean_divergences",
    "on_one_clock",
    "pass_slacks",
    "peer_medians",
    "unlike",
    "wide_windows",
]
