"""Hooks the operators of torch.distributed with kernels in Python.

How the end of an operator is found (with gloo and other backends whose `wait` blocks the host):
- if it was called with `async_op=False`, `Work.wait` follows at once, and its return is the end;
- otherwise, in every eighth step: a callback on the work's future, run by the backend's thread (20
  to 40 µs later, more while the main thread holds the GIL);
- otherwise, in the other steps: a `Work.wait` that blocked. DDP's buckets are known to be done when
  backward is, but their exact ends are unknown;
- P2P works (and reduce-scatter on gloo) have no future: the return of `Work.wait`, or of
  `wait_tensor` for functional collectives. If nothing waits for them, the end is unknown.

An operator that failed or timed out has not ended: it stays open, unless the script then calls
another one.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from stepscope.collect.guard import guarded, report
from stepscope.collect.hooks.groups import GroupRegistry
from stepscope.collect.hooks.in_flight import BLOCKED_NS, InFlight, Operator
from stepscope.collect.hooks.operators import OPERATORS, Call, address, blocks_host, size_bytes
from stepscope.collect.hooks.reducer import take_wait_ns, watch_reducers
from stepscope.collect.hooks.work_wait import watch_wait
from stepscope.collect.session import Session
from stepscope.wire.records import UNKNOWN

FOLLOW_EVERY = 8
"""Futures are followed in every eighth step: a callback on the backend's thread takes the GIL from
the training thread and costs 60 µs, three times as much as all the rest. All ranks choose the same
steps, because clocks and transfer times are computed from matching ends."""
_MOST_IN_FLIGHT = 1024
_NO_GRAPH_TASK = -1
"""What torch returns outside of any backward."""


class PythonWatch:
    """Follows operators from call to end."""

    def __init__(self, session: Session, registry: GroupRegistry) -> None:
        self._session = session
        self._registry = registry
        self._in_flight = InFlight(session, registry, self._is_over)
        session.open_since = self.open_since
        self._by_work: dict[int, Operator] = {}
        self._failed: deque[Operator] = deque()
        self._reducers: set[str] = set()
        self._bucket_works: list[Any] = []
        self._buckets: list[Operator] = []
        from torch._C import _current_graph_task_id
        from torch._C._distributed_c10d import ProcessGroup, Work
        from torch.autograd import Variable

        self._unbox_group, self._unbox_work = ProcessGroup.unbox, Work.unbox
        self._engine: Any = Variable._execution_engine
        self._graph_task = _current_graph_task_id
        self.libraries: list[Any] = []
        """Our kernels; they live as long as this object does."""

    # --- on the threads that communicate -----------------------------------------------------

    def started(self, call: Call, args: tuple[Any, ...], out: Any, enqueue_ns: int) -> None:
        """An operator was passed to its backend, which returned `out`."""
        if self._failed:
            self._give_up_failed()
        session, tensors = self._session, args[call.tensors_at]
        session.shared.calls += 1
        registry = self._registry
        group = registry.sole() or registry.name(self._unbox_group(args[call.group_at]))
        is_bucket = self._is_bucket(call, args, group)
        session.shared.buckets += is_bucket
        size, ordinal = size_bytes(tensors) if call.moves_data else 0, session.shared.ordinal
        op = Operator(call, group, call.peer(args), size, enqueue_ns, ordinal, call.is_async(args))
        if not blocks_host(tensors):
            session.note(self._in_flight.launched, op)
            return
        if is_bucket:
            self._bucket_called(out, enqueue_ns)
            if ordinal % FOLLOW_EVERY:
                session.note(self._bucket_begun, op)
                return
        session.note(self._in_flight.begun, op)
        self._remember(op, self._work(out))
        if op.is_async:
            self._follow(op, args[0])

    def waited(self, work: Any, start_ns: int, finished: bool) -> None:
        """A `work.wait()` returned, or raised: then the operator never finished."""
        now = time.monotonic_ns()
        if threading.get_ident() == self._session.training_thread:
            self._session.shared.blocked_ns += now - start_ns
        op = self._by_work.get(id(work))
        if op is None or op.work is not work:
            return
        if not finished:
            self._failed.append(op)
        elif op.is_async and now - start_ns < BLOCKED_NS:
            self._finish(op, UNKNOWN, now - start_ns)  # it ended before the wait
        else:
            self._finish(op, now, now - start_ns)

    def waited_for(self, tensor: Any, start_ns: int) -> None:
        """A functional collective's result is ready; most of them have a future, too."""
        now = time.monotonic_ns()
        if threading.get_ident() == self._session.training_thread:
            self._session.shared.blocked_ns += now - start_ns
        at = address(tensor)
        for op in list(self._by_work.values()):
            if at and op.output == at:
                self._finish(op, now, now - start_ns)

    def backward_ended(self, since_ns: int, only_buckets: bool) -> None:
        """DDP waits for its buckets before backward returns: counts that as blocked."""
        shared = self._session.shared
        if shared.last_bucket_ns > since_ns:
            now = time.monotonic_ns()
            shared.blocked_ns += take_wait_ns(shared, since_ns, now, only_buckets)
            self._session.note(self._buckets_ended)
        self._bucket_works.clear()

    def open_since(self, since_ns: int) -> int:
        """How many operators on CPUs that began since then have not ended as far as is known."""
        known = [op.work for op in list(self._by_work.values()) if op.enqueue_ns >= since_ns]
        return sum(work is not None and not work.is_completed() for work in known)

    def reducer_made(self, group: str) -> None:
        """DDP of a model calls all-reduces from within backward, on this group."""
        self._reducers.add(group)

    def _is_bucket(self, call: Call, args: tuple[Any, ...], group: str) -> bool:
        in_backward = group in self._reducers and self._graph_task() != _NO_GRAPH_TASK
        return in_backward and call.is_async(args)

    def _bucket_called(self, out: Any, enqueue_ns: int) -> None:
        self._session.shared.last_bucket_ns = enqueue_ns
        self._bucket_works.append(out)
        self._engine.queue_callback(self._all_computed)

    @guarded
    def _all_computed(self) -> None:
        """All gradients are computed. If buckets are still under way, backward waits from now on.

        Only then is a future followed: its callback takes the GIL when nobody needs it.
        """
        shared, now = self._session.shared, time.monotonic_ns()
        if shared.last_bucket_ns <= shared.computed_ns:
            return  # another reducer's callback was before
        shared.computed_ns = shared.reduced_ns = now
        works = [self._work(out) for out in self._bucket_works]
        under_way = [work for work in works if not work.is_completed()]
        future = _future(under_way[-1]) if under_way else None
        if future is not None:
            future.add_done_callback(self._all_reduced)
        elif not under_way:
            shared.reduced = shared.buckets

    def _all_reduced(self, _future: Any) -> None:
        shared = self._session.shared
        shared.reduced_ns, shared.reduced = time.monotonic_ns(), shared.buckets

    def _work(self, out: Any) -> Any:
        return self._unbox_work(out[-1] if isinstance(out, tuple | list) else out)

    def _remember(self, op: Operator, work: Any) -> None:
        if len(self._by_work) >= _MOST_IN_FLIGHT:
            self._finish(next(iter(self._by_work.values())), UNKNOWN, UNKNOWN)
        op.work = work
        self._by_work[id(work)] = op

    def _follow(self, op: Operator, output: Any) -> None:
        """Gets the end of an asynchronous operator from its future, in some of the steps."""
        future = None if op.ordinal % FOLLOW_EVERY else _future(op.work)
        if future is None:
            op.output = address(output)
            return
        future.add_done_callback(lambda completed: self._completed(op, completed))

    @guarded
    def _completed(self, op: Operator, future: Any) -> None:
        now = time.monotonic_ns()
        if _has_failed(future):
            self._failed.append(op)
        else:
            self._finish(op, now, UNKNOWN)

    def _give_up_failed(self) -> None:
        """The script has gone on after a failed operator: nothing waits for that one any more."""
        while self._failed:
            self._finish(self._failed.popleft(), UNKNOWN, UNKNOWN)

    def _finish(self, op: Operator, end_ns: int, blocked_ns: int) -> None:
        """Records the end; only the first of several sources counts."""
        self._forget(op)
        self._session.note(self._in_flight.ended, op, end_ns, blocked_ns)

    def _forget(self, op: Operator) -> None:
        self._by_work.pop(id(op.work), None)
        op.work = None

    # --- on the sender's thread --------------------------------------------------------------

    def _bucket_begun(self, op: Operator) -> None:
        """A bucket of DDP's reducer, in a step in which no futures are followed."""
        # bounded like the operators in flight: we may never see the end of a backward
        if len(self._buckets) >= _MOST_IN_FLIGHT:
            self._in_flight.ended(self._buckets.pop(0), UNKNOWN, UNKNOWN)
        self._buckets.append(op)
        self._in_flight.begun(op)

    def _buckets_ended(self) -> None:
        for op in self._buckets:
            self._in_flight.ended(op, UNKNOWN, UNKNOWN)
        self._buckets.clear()

    def _is_over(self, op: Operator) -> bool:
        work = op.work
        if not op.is_async or work is None or op in self._failed or not work.is_completed():
            return False
        self._forget(op)
        return True


def install(session: Session, registry: GroupRegistry) -> PythonWatch:
    """Registers our kernels and hooks `Work.wait`.

    Raises:
        AttributeError, RuntimeError: this torch has no such operators or no such dispatcher call.
    """
    import torch

    watch = PythonWatch(session, registry)
    library = torch.library.Library("c10d", "IMPL")
    for name, op in OPERATORS.items():
        overload = getattr(getattr(torch.ops.c10d, name, None), "default", None)
        if overload is not None:
            kernel = _kernel(watch, session, overload, Call(op, overload._schema))
            library.impl(name, kernel, "BackendSelect", with_keyset=True)
    watch.libraries.append(library)
    watch_wait(watch.waited)
    watch_reducers(watch.reducer_made)
    _watch_functional_wait(watch)
    return watch


def _kernel(watch: PythonWatch, session: Session, overload: Any, call: Call) -> Callable[..., Any]:
    import torch

    below = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
    redispatch = overload.redispatch

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        enqueue_ns = time.monotonic_ns()
        out = redispatch(keys & below, *args, **kwargs)
        if session.enabled:
            try:
                watch.started(call, args, out, enqueue_ns)
            except Exception as error:  # noqa: BLE001 - the guest's promise
                report(f"collective {call.op}", error)
        return out

    return kernel


@guarded
def _watch_functional_wait(watch: PythonWatch) -> None:
    """Hooks `wait_tensor`, which waits in C++: DTensor and functional collectives block there."""
    import torch
    import torch.distributed._functional_collectives  # defines the operator

    overload = torch.ops._c10d_functional.wait_tensor.default
    below = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)

    def kernel(keys: Any, tensor: Any) -> Any:
        start_ns = time.monotonic_ns()
        out = overload.redispatch(keys & below, tensor)
        try:
            watch.waited_for(tensor, start_ns)
        except Exception as error:  # noqa: BLE001 - the guest's promise
            report("wait_tensor", error)
        return out

    library = torch.library.Library("_c10d_functional", "IMPL")
    library.impl("wait_tensor", kernel, "BackendSelect", with_keyset=True)
    watch.libraries.append(library)


def _future(work: Any) -> Any:
    """The future; None for P2P and reduce-scatter on gloo: "getFuture not implemented"."""
    try:
        return work.get_future()
    except RuntimeError:
        return None


def _has_failed(future: Any) -> bool:
    """Whether an operator ended with an error: the peer is gone, or it timed out."""
    try:
        future.value()
    except Exception:  # noqa: BLE001 - the backend's error, which the caller gets from `wait`
        return True
    return False
