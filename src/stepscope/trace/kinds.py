"""Guesses the kind of a process group from its name."""

from __future__ import annotations

import re

# Names of mesh dimensions in torchtitan, Megatron, DeepSpeed and Hugging Face.
_KIND_WORDS = (
    (r"expert.*data|edp", "edp"),
    (r"expert_tensor|etp", "tp"),
    (r"embedding", "embedding"),
    (r"(^|_|\b)(tp|tensor)", "tp"),
    (r"(^|_|\b)(pp|pipe)", "pp"),
    (r"(^|_|\b)(cp|context|sp|sequence)", "cp"),
    (r"(^|_|\b)(ep|expert)", "ep"),
    (r"(^|_|\b)(dp|data|fsdp|ddp|hsdp|replicate|shard)", "dp"),
    (r"(^|_|\b)(mp|model)", "mp"),
)


def kind_of_words(words: str) -> str | None:
    """The group kind that the name of a mesh dimension or group suggests, if any."""
    text = words.lower()
    found = [(match.start(match.lastindex or 0), at, kind)
             for at, (pattern, kind) in enumerate(_KIND_WORDS)
             if (match := re.search(pattern, text))]  # fmt: skip
    # the first word decides: `dp_shard_cp` shards data
    return min(found)[2] if found else None
