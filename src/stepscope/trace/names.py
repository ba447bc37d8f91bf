"""Values that appear in tables: phases, communication operators, peers."""

from __future__ import annotations

DATA_LOAD = "data-load"
FORWARD = "forward-compute"
BACKWARD = "backward-compute"
WEIGHT = "backward-weight"
"""Gradients of the weights, where a zero-bubble schedule computes them in a pass of their own."""
OPTIMIZER = "optimizer"

COLLECTIVES = (
    "AllReduce",
    "AllGather",
    "ReduceScatter",
    "AllToAll",
    "Broadcast",
    "Reduce",
    "Gather",
    "Scatter",
    "Barrier",
)
OPERATORS = (*COLLECTIVES, "Send", "Recv")

NO_PEER = -1
"""`peer` of a collective."""
UNKNOWN_PEER = -2
"""`peer` of a P2P operator that matched any source."""

ALLOCATION = "memory allocation (calls of the runtime)"
"""The function, in patterns, of calls for memory of a device or pinned memory that take long."""
GIL = "GIL: "
"""Begins the name in place of a thread whose samples are of holding the GIL: `GIL: MainThread`."""

FAULTS = "stepscope_internal_faults"
"""The counter of internal faults in a rank; with a colon and a place behind it, of one place."""
