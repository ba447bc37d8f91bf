"""Arithmetic of the detectors in C++, where it was compiled; else None, and numpy does it."""

from __future__ import annotations

try:
    from stepscope._native import (
        imbalances,
        largest_rise,
        mean_distances,
        peer_medians,
        wide_windows,
    )
except ImportError:  # installed where nothing could be compiled
    imbalances = largest_rise = mean_distances = None  # type: ignore[assignment]
    peer_medians = wide_windows = None  # type: ignore[assignment]

__all__ = ["imbalances", "largest_rise", "mean_distances", "peer_medians", "wide_windows"]
