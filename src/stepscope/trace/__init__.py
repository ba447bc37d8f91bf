"""The vocabulary of stepscope: jobs, hosts, ranks, groups, steps, phases, operators, tables.

Plain values with little behaviour. Standard library only, so that the collectors inside a training
process can import it.
"""

from stepscope.trace.job import Fabric, Host, Job, ProcessGroup, Rank, Schedule, Switch
from stepscope.trace.names import (
    ALLOCATION,
    BACKWARD,
    COLLECTIVES,
    DATA_LOAD,
    FORWARD,
    GIL,
    NO_PEER,
    OPERATORS,
    OPTIMIZER,
    UNKNOWN_PEER,
    WEIGHT,
)
from stepscope.trace.tables import TABLES, TableSpec

__all__ = [
    "ALLOCATION",
    "BACKWARD",
    "COLLECTIVES",
    "DATA_LOAD",
    "FORWARD",
    "GIL",
    "NO_PEER",
    "OPERATORS",
    "OPTIMIZER",
    "TABLES",
    "UNKNOWN_PEER",
    "WEIGHT",
    "Fabric",
    "Host",
    "Job",
    "ProcessGroup",
    "Rank",
    "Schedule",
    "Switch",
    "TableSpec",
]
