"""Whether a phase is communication, by its name: the contract's, or a common word for it."""

from __future__ import annotations

import re

_WORD = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")
_WORDS = frozenset((
    "reduce", "allreduce", "gather", "allgather", "scatter", "reducescatter", "alltoall", "a2a",
    "broadcast", "bcast", "barrier", "send", "recv", "receive", "sendrecv", "p2p", "comm",
    "communicate", "communication", "exchange", "wait", "waiting", "sync",
    "synchronize", "nccl", "gloo",
))  # fmt: skip
"""Words of operators and of waiting, in lower case."""
_INPUT = frozenset(("data", "dataloader", "loader", "load", "batch", "input", "dataset"))
"""Words for loading data: waiting for a batch is no waiting for other ranks."""
_KINDS = frozenset(("tp", "cp", "dp", "pp", "ep", "edp", "mp"))
"""Group kinds that begin the name of a phase of communication (`dp-sync`)."""


def communicates(phase: str) -> bool:
    """Whether a phase is communication: `<group kind>-<operator>`, or a word for it in its name.

    >>> communicates("ep-alltoall"), communicates("embedding_grads_all_reduce")
    (True, True)
    >>> communicates("forward-backward"), communicates("wait_for_batch")
    (False, False)
    """
    words = [word.lower() for word in _WORD.findall(phase)]
    if not _INPUT.isdisjoint(words):
        return False
    return not _WORDS.isdisjoint(words) or (len(words) > 1 and words[0] in _KINDS)
