"""What groups are for, by the names their makers gave them; the same for jobs, traces and dumps."""

from __future__ import annotations

import pytest

from stepscope.formats.kineto.calls import Group
from stepscope.formats.kineto.groups import process_group
from stepscope.trace.kinds import kind_of_words


@pytest.mark.parametrize(("words", "kind"), [
    ("mesh_dp", "dp"), ("dp_shard_cp", "dp"), ("TENSOR_MODEL_PARALLEL_GROUP", "tp"),
    ("mesh_expert_data", "edp"), ("expert_tensor_parallel", "tp"), ("my own", None),
])  # fmt: skip
def test_kinds_by_words(words: str, kind: str | None) -> None:
    assert kind_of_words(words) == kind
    assert process_group(Group("7", words, (0, 1)), 4).kind == (kind or "other")
