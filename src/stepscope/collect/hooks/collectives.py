"""Every collective and P2P operator of torch.distributed, seen at one narrow waist.

Whoever communicates (a script, DDP's C++ reducer, FSDP, functional collectives) ends up in an
operator `c10d::*` of torch's dispatcher. A kernel of ours stands before each of them at the key
`BackendSelect`, the last stop before the backend: it notes the time, hands the very same arguments
on to the backend's kernel and returns what that returned. Nothing is wrapped, no process group is
replaced, no result is touched; what fails on our side of the call is swallowed.

The kernels are C++ where the library was compiled for this torch (`native_operators`), else Python
(`python_operators`), which costs 0.1 ms per operator. Both tell `in_flight` what began and ended.

With NCCL, `wait` and the future speak of the host, not of the GPU: only the call is recorded.
"""

from __future__ import annotations

from typing import Protocol

from stepscope.collect.guard import report
from stepscope.collect.hooks import native_operators, python_operators
from stepscope.collect.hooks.groups import GroupRegistry
from stepscope.collect.session import Session


class OperatorWatch(Protocol):
    """Whoever sees the operators."""

    def backward_ended(self, since_ns: int) -> None:
        """A backward that began then is over: DDP waited for its buckets in C++, out of sight."""


def install(session: Session, registry: GroupRegistry) -> OperatorWatch:
    """Sees operators from now on.

    Raises:
        AttributeError, RuntimeError: this torch has no such operators or no such dispatcher call.
    """
    try:
        watch = native_operators.install(session, registry)
        if watch is not None:
            return watch
    except Exception as error:  # noqa: BLE001 - whatever it is, Python can do the same
        report("the compiled operators", error)
    return python_operators.install(session, registry)
