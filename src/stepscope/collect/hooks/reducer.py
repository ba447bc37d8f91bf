"""How long backward waits for the buckets of DDP's reducer.

The reducer enqueues a bucket when its last gradient is ready, and waits for all of them in a
callback that autograd's engine runs after backward has computed everything. Backward may still
compute after the last bucket: parts of the model without parameters, input gradients, hooks. So the
wait begins in a callback of ours, which is queued with each bucket and hence before the reducer's.
It ends when the last bucket has, or when backward does if that is not known: copying the results,
or callbacks of others, may follow.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from stepscope.collect.shared import Shared


def watch_reducers(made: Callable[[str], None]) -> None:
    """Calls `made` with the name of the group of each DDP model, whose reducer is then active."""
    from torch.nn.parallel import DistributedDataParallel

    original = DistributedDataParallel.__init__

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        original(self, *args, **kwargs)
        made(self.process_group.group_name)

    DistributedDataParallel.__init__ = __init__


def take_wait_ns(shared: Shared, since_ns: int, now_ns: int, only_buckets: bool) -> int:
    """How long a backward from `since_ns` to `now_ns` waited for its buckets; counts once.

    Args:
        only_buckets: no other operator was called meanwhile. Otherwise a bucket may take several
            (a communication hook such as PowerSGD), and no end of one is the end of the wait.
    """
    last_ns = shared.last_bucket_ns
    if last_ns <= since_ns:
        return 0
    shared.last_bucket_ns = 0
    all_ended = only_buckets and shared.reduced == shared.buckets
    end_ns = shared.reduced_ns if all_ended else now_ns
    return max(end_ns - max(last_ns, shared.computed_ns), 0)
