"""Functions of a library do what a caller wants, so their caller is named."""

from __future__ import annotations

import pytest

from stepscope.diagnose.run import diagnose
from stepscope.diagnose.views.frames import is_librarys, is_users, users_frame

from .jobs import Fault, a_job

ENCODES = "_iterencode_list (/usr/lib/python3.11/json/encoder.py:332)"
PARSES = "parse (/usr/lib/python3.11/site-packages/yaml/composer.py:50)"


@pytest.mark.parametrize("function", [ENCODES, PARSES])
def test_the_caller_of_a_slow_function_of_a_library_is_named(function: str) -> None:
    slow = Fault((1,), "forward-compute", 0, ms=40.0, function=function)
    (verdict,) = diagnose(a_job(steps=200, faults=[slow])).verdicts
    assert verdict.function is not None and not is_librarys(verdict.function)
    assert is_users(verdict.function)
    said = next(one.detail for one in verdict.evidence if one.method == "slow-function")
    assert said.startswith((f"{function}, called in {verdict.function}, is in",
                            f"{verdict.function} is in"))  # fmt: skip


def test_a_hang_is_where_the_users_own_code_is() -> None:
    stack = ("<module> (train.py:9)", "next_batch (train.py:5)",
             "get (/usr/lib/python3.11/queue.py:171)", "wait (stepscope/collect/x.py)")  # fmt: skip
    assert users_frame(stack) == "next_batch (train.py:5)"
    assert users_frame(stack[2:]) == "get (/usr/lib/python3.11/queue.py:171)"
    assert users_frame(()) is None
