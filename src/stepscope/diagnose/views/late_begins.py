"""Ranks whose first phase of a step begins late although nobody holds them up.

Where transfers between stages were not recorded, a gap between phases may be waiting for another
rank, so it says nothing about the rank. Its begin may: whoever is held up by a collective is so
together with others, and whoever waits for a sample of an earlier stage waits for a rank that is
late itself. A rank that alone begins late, while all of its stage and all that usually begin before
it are in time, is late by itself: its process was stopped, or blocked. All times are those of the
rank's own clock, since the begin of its step. Loading is a phase of its own and does not count.
Cost: two passes over the phases. Cannot see: a rank that holds up others of its stage before they
begin; delays later in a step.
"""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.numeric import stats
from stepscope.diagnose.thresholds import HALF
from stepscope.diagnose.views.hidden_work import largest_other
from stepscope.diagnose.views.peers import stage_numbers
from stepscope.diagnose.views.phase_rows import PhaseRows
from stepscope.diagnose.views.unnamed import OUTSIDE, Named, is_staged
from stepscope.trace import DATA_LOAD
from stepscope.window import NULL, Floats, Ints, Window

PEERS = 2
"""Ranks of its stage that must be in time: of two ranks that begin at different times nobody knows
which is usual. Statistics."""


def late_begins(window: Window, rows: PhaseRows) -> Named:
    """How much later than usual each rank of a pipeline alone begins its steps, `[rank, step]`, as
    time outside of phases; NaN where that is unknown, and nothing where it is nowhere known."""
    if rows.made_up or not is_staged(window):
        return []
    lead = _lead_ns(rows)
    if not np.isfinite(lead).any():
        return []
    usual = stats.row_medians(lead)
    late = np.maximum(lead - usual[:, None], 0.0)
    stage = stage_numbers(window, rows.line.ranks)
    others = np.full(late.shape, np.inf)
    for one in np.unique(stage):
        own = np.flatnonzero(stage == one)
        if own.size > PEERS:
            latest = largest_other(np.nan_to_num(late[own]))
            others[own] = np.maximum(latest, _latest_before(late, usual, own))
    if not np.isfinite(others).any():
        return []
    alone = np.where(others < HALF * late, late, 0.0)
    return [(OUTSIDE, np.where(np.isfinite(lead), alone, np.nan))]


def _lead_ns(rows: PhaseRows) -> Floats:
    """The time from the begin of each rank's step to its first phase that is no loading, without
    loading."""
    line, loads = rows.line, rows.names.equals(DATA_LOAD)
    first: Ints = np.full(line.start_ns.size, np.iinfo(np.int64).max)
    np.minimum.at(first, rows.cell[~loads], rows.start[~loads])
    known = (first < np.iinfo(np.int64).max) & (line.start_ns.ravel() != NULL)
    cell, begin, lasted = (column[loads] for column in (rows.cell, rows.start, rows.duration))
    before = np.clip(first[cell] - begin, 0, lasted)
    loading = stats.sums(cell, before, first.size)
    lead = np.where(known, first - np.where(known, line.start_ns.ravel(), 0), 0) - loading
    return np.asarray(np.where(known, np.maximum(lead, 0.0), np.nan).reshape(line.shape))


def _latest_before(late: Floats, usual: Floats, own: Ints) -> Floats:
    """The same among ranks of other stages that usually begin before the rank: it may wait for one
    of them."""
    others = np.setdiff1d(np.arange(len(late)), own)
    others = others[np.argsort(usual[others], kind="stable")]
    latest = np.maximum.accumulate(np.nan_to_num(late[others]), axis=0)
    latest = np.concatenate((np.zeros((1, late.shape[1])), latest))
    return np.asarray(latest[np.searchsorted(usual[others], usual[own], side="right")])
