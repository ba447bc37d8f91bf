"""Hooks every collective and P2P operator of torch.distributed in one place.

All communication (by a script, DDP's C++ reducer, FSDP, functional collectives) ends in an operator
`c10d::*` of torch's dispatcher. Our kernel runs before each of them at the key `BackendSelect`, the
last one before the backend. It notes the time, passes the unchanged arguments to the backend's
kernel, and returns what that returned. It wraps nothing, replaces no process group and touches no
result; our own failures are swallowed.

The kernels are C++ if the library was compiled for this torch (`native_operators`), else Python
(`python_operators`), which costs 0.1 ms per operator. Both report starts and ends to `in_flight`.

With NCCL, `wait` and the future describe the host, not the GPU: only the call is recorded.
"""

from __future__ import annotations

from typing import Protocol

from stepscope.collect.guard import report
from stepscope.collect.hooks import native_operators, python_operators
from stepscope.collect.hooks.groups import GroupRegistry
from stepscope.collect.hooks.work_wait import watch_broadcasts
from stepscope.collect.session import Session


class OperatorWatch(Protocol):
    """What the C++ hooks and the Python hooks have in common."""

    def backward_ended(self, since_ns: int, only_buckets: bool) -> None:
        """A backward that began then is over: DDP waited for its buckets in C++, unseen by us."""


def install(session: Session, registry: GroupRegistry) -> OperatorWatch:
    """Starts to hook operators.

    Raises:
        AttributeError, RuntimeError: this torch has no such operators or no such dispatcher call.
    """
    watch_broadcasts(session)
    try:
        watch = native_operators.install(session, registry)
        if watch is not None:
            return watch
    except Exception as error:  # noqa: BLE001 - whatever the error, Python can do the same
        report("the compiled operators", error)
    return python_operators.install(session, registry)
