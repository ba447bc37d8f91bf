"""`DataLoader` iteration: the data-load phase, and one of EROICA's two step events.

Loaders are distinguished by a signature (dataset type and length, batch size), not by identity,
because scripts build a new `DataLoader` every epoch. Iteration on a thread other than the main one
(a prefetcher) is not in step with the training, and is left out. `StopIteration` is no batch.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

from stepscope.collect.guard import guarded
from stepscope.collect.phases import Moment
from stepscope.collect.session import Session


def install(session: Session) -> None:
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    original = _BaseDataLoaderIter.__next__

    @functools.wraps(original)
    def __next__(self: Any) -> Any:  # noqa: N807 - replaces the method of that name
        if not session.enabled or threading.get_ident() != session.training_thread:
            return original(self)
        start = session.now()
        batch = original(self)
        _loaded(session, self, start)
        return batch

    _BaseDataLoaderIter.__next__ = __next__


@guarded
def _loaded(session: Session, iterator: Any, start: Moment) -> None:
    end = session.mark()
    session.note(session.phases.loaded, session.shared.ordinal, _signature(iterator), start, end)


def _signature(iterator: Any) -> str:
    cached: str | None = iterator.__dict__.get("_stepscope_signature")
    if cached is None:
        dataset = iterator._dataset
        sampler = getattr(iterator, "_index_sampler", None)
        size = getattr(sampler, "batch_size", None)
        cached = f"loader {type(dataset).__qualname__}[{_length(dataset)}] batch {size}"
        iterator._stepscope_signature = cached
    return cached


def _length(dataset: Any) -> str:
    """The length as text; many iterable datasets have a `__len__` that only raises."""
    try:
        return str(len(dataset))
    except Exception:  # noqa: BLE001 - user code, not a fault of ours
        return "?"
