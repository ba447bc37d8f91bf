"""The patterns of functions of all kinds, from a profiler's events."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.patterns import Activity, Span, summarize, table_of
from stepscope.patterns.frames import LOADER_WAIT
from stepscope.patterns.rows import LEAST_BETA, MOST_BYTES
from stepscope.patterns.use import Series, in_order
from stepscope.trace import TABLES
from stepscope.window import NULL
from tests.patterns.events import US, patterns, table

MAIN = "train.py(10): main"
LOADER = "torch/utils/data/dataloader.py"


def test_on_a_device_its_kernels_come_first_and_python_last() -> None:
    activity = Activity(
        kernels=table(("gemm", 100, 400)),
        copies=table(("Memcpy HtoD (Pinned -> Device)", 80, 120)),
        collectives=table(("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 350, 600)),
        operators=(table(("aten::mm", 50, 150), ("aten::item", 550, 700)),),
        python=table((MAIN, 0, 1000)),
    )
    found = patterns(activity, 1000)
    assert {name: round(one.beta, 3) for name, one in found.items()} == {
        "gemm": 0.3,
        "Memcpy HtoD (Pinned -> Device)": 0.02,
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL": 0.2,
        "aten::mm": 0.03,
        "aten::item": 0.1,
        "main": 0.35,
    }
    kinds = [found[name].kind for name in ("gemm", "Memcpy HtoD (Pinned -> Device)", "main")]
    assert kinds == ["kernel", "copy", "python"]


def test_on_processors_the_operators_are_the_computation() -> None:
    """Communication behind them costs nothing; what it adds is more than Python."""
    activity = Activity(
        collectives=table(("gloo:all_reduce", 300, 700)),
        operators=(table(("aten::linear", 100, 500), ("aten::addmm", 150, 450)),),
        python=table((MAIN, 0, 1000)),
    )
    found = patterns(activity, 1000)
    assert {name: round(one.beta, 3) for name, one in found.items()} == {
        "aten::addmm": 0.3, "aten::linear": 0.1, "gloo:all_reduce": 0.2, "main": 0.4,
    }  # fmt: skip
    assert found["aten::addmm"].caller == "train.py:10 main"


def test_an_operator_in_which_others_communicate_may_wait_itself() -> None:
    activity = Activity(
        collectives=table(("gloo:all_reduce", 200, 800)),
        operators=(table(("CopyToBackward", 100, 900), ("aten::contiguous", 110, 150),
                         ("c10d::allreduce_", 180, 200), ("aten::mul", 300, 400)),),
        python=table((MAIN, 0, 1000)),
    )  # fmt: skip
    found = patterns(activity, 1000)
    assert {name: round(one.beta, 3) for name, one in found.items()} == {
        "CopyToBackward": 0.14, "aten::contiguous": 0.04, "gloo:all_reduce": 0.5,
        "c10d::allreduce_": 0.02, "aten::mul": 0.1, "main": 0.2,
    }  # fmt: skip
    assert found["CopyToBackward"].kind == "operator"


def test_an_operator_that_calls_for_communication_counts_as_such() -> None:
    activity = Activity(operators=(table(("c10d::allreduce_", 0, 50), ("aten::mm", 50, 100)),))
    found = patterns(activity, 100)
    assert found["c10d::allreduce_"].kind == "collective"
    assert found["aten::mm"].kind == "operator"


def test_a_python_function_has_its_own_time_and_where_it_is() -> None:
    python = table(
        (MAIN, 0, 1000),
        ("data.py(5): __getitem__", 100, 700),
        ("<built-in function sleep>", 150, 650),
    )
    found = patterns(Activity(python=python), 1000)
    sleep, load = found["<built-in function sleep>"], found["__getitem__"]
    assert (sleep.beta, sleep.location, sleep.caller) == (0.5, None, "data.py:5 __getitem__")
    assert load.beta == pytest.approx(0.1)
    assert (load.location, load.caller, load.calls) == ("data.py:5", "train.py:10 main", 1)
    assert found["main"].beta == pytest.approx(0.4)


def test_the_caller_is_the_nearest_in_the_users_own_code() -> None:
    python = table(
        (MAIN, 0, 100),
        ("mine/augment.py(7): flip", 10, 90),
        ("numpy/lib/function_base.py(1): rot90", 20, 80),
        ("threading.py(9): wait", 30, 70),
        ("<built-in method acquire of _thread.lock object at 0x7f2a>", 30, 70),
    )
    found = patterns(Activity(python=python), 100)
    assert found["<built-in method acquire of _thread.lock object>"].caller == (
        "mine/augment.py:7 flip"
    )


def test_layers_and_objects_of_one_class_are_one_function() -> None:
    events = [(MAIN, 0.0, 1000.0)]
    for at in range(10):
        events += [(f"nn.Module: Block_{at}", at * 100.0, at * 100 + 90.0),
                   ("model.py(3): forward", at * 100.0 + 1, at * 100 + 81.0)]  # fmt: skip
    found = patterns(Activity(python=table(*events)), 1000)
    assert found["forward"].beta == pytest.approx(0.8) and found["forward"].calls == 10


def test_tiny_functions_in_c_count_for_the_loop_that_calls_them() -> None:
    events = [(MAIN, 0.0, 2000.0), ("prepare.py(4): pairs", 0.0, 1000.0)]
    events += [(f"<built-in method append of list object at 0x{at:x}>", at * 5.0, at * 5 + 4.0)
               for at in range(200)]  # fmt: skip
    found = patterns(Activity(python=table(*events)), 2000)
    assert found["pairs"].beta == 0.5 and set(found) == {"pairs", "main"}


def test_a_clock_that_stepscope_reads_counts_for_stepscope() -> None:
    """On a crowded host a thread loses its processor in such a call."""
    python = table(
        (MAIN, 0, 1000), ("stepscope/collect/session.py(93): now", 100, 220),
        ("<built-in function thread_time_ns>", 110, 210), ("<built-in function sorted>", 300, 500),
    )  # fmt: skip
    found = patterns(Activity(python=python), 1000)
    assert set(found) == {"main", "now", "<built-in function sorted>"}
    assert found["now"].beta == pytest.approx(0.12)


def test_waiting_for_the_loader_is_the_loaders_time() -> None:
    python = table(
        (MAIN, 0, 1000),
        (f"{LOADER}(720): __next__", 100, 600),
        (f"{LOADER}(1278): _try_get_data", 150, 550),
        ("queue.py(154): get", 160, 540),
        ("<built-in function poll>", 170, 530),
    )
    found = patterns(Activity(python=python), 1000)
    waits = found[LOADER_WAIT]
    assert waits.beta == pytest.approx(0.4) and waits.location == f"{LOADER}:1278"
    assert waits.caller == "train.py:10 main" and set(found) == {LOADER_WAIT, "__next__", "main"}


def test_one_function_is_one_row_for_each_caller() -> None:
    python = table(
        ("a.py(1): a", 0, 100), ("copy.py(5): deepcopy", 0, 50),
        ("b.py(1): b", 100, 200), ("copy.py(5): deepcopy", 100, 200),
    )  # fmt: skip
    rows = summarize(Activity(python=python), Span(0, 200 * US)).rows
    assert {(one.function, one.caller): one.beta for one in rows} == {
        ("deepcopy", "b.py:1 b"): 0.5, ("deepcopy", "a.py:1 a"): 0.25, ("a", None): 0.25,
    }  # fmt: skip


def test_kernels_copies_and_the_thread_have_their_own_resources() -> None:
    def use(resource: str, value: float) -> Series:
        end = 10 * US * (1 + np.arange(100))
        return in_order(Series(resource, end - 10 * US, end, np.full(100, value)))

    activity = Activity(
        kernels=table(("gemm", 0, 300)),
        copies=table(("Memcpy HtoD", 300, 400), ("Memcpy DtoD", 400, 500)),
        collectives=table(("ncclDevKernel_AllReduce", 500, 700)),
        python=table((MAIN, 0, 1000)),
    )
    series = [use("sm", 0.9), use("pcie_rx", 0.5), use("pcie_tx", 0.25), use("cpu", 1.0)]
    found = patterns(activity, 1000, *series)
    assert {name: (one.resource, one.mu) for name, one in found.items()} == {
        "gemm": ("sm", pytest.approx(0.9)), "Memcpy HtoD": ("pcie", 0.5),
        "Memcpy DtoD": (None, None), "ncclDevKernel_AllReduce": ("pcie", 0.25),
        "main": ("cpu", 1.0),
    }  # fmt: skip


def test_a_worker_sends_at_most_thirty_kilobytes_of_what_matters() -> None:
    python = [(f"part{at}.py(1): {'f' * 150}", at * 100.0, at * 100 + 100.0) for at in range(900)]
    found = summarize(Activity(python=table(*python)), Span(0, 90_000 * US))
    assert sum(one.size_bytes for one in found.rows) <= MOST_BYTES
    assert found.left_out + len(found.rows) == 900
    assert found.left_out_beta + sum(one.beta for one in found.rows) == pytest.approx(1)
    assert all(one.beta >= LEAST_BETA for one in found.rows)


def test_rows_have_the_columns_of_the_table() -> None:
    found = summarize(Activity(kernels=table(("gemm", 0, 50))), Span(0, 100 * US))
    rows = table_of(found, 3, 7)
    assert [*rows.columns] == [name for name in TABLES["patterns"].columns if name != "rank"]
    assert rows.ints("window_ns").tolist() == [100 * US] and rows.ints("last_step")[0] == 7
    assert np.isnan(rows.floats("mu")).all() and table_of(found).ints("first_step")[0] == NULL


def test_nothing_happened() -> None:
    assert summarize(Activity(), Span(0, 100)).rows == ()
    assert summarize(Activity(python=table((MAIN, 0, 10))), Span(5, 5)).rows == ()


def test_operators_beside_python_functions_of_no_length() -> None:
    activity = Activity(operators=(table(("aten::mm", 0, 100)),), python=table((MAIN, 10, 10)))
    found = patterns(activity, 100)
    assert (found["aten::mm"].beta, found["aten::mm"].caller) == (1.0, None)
