"""Functions in samples that py-spy takes at random times, also in few steps."""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.run import diagnose
from stepscope.window import Strings, Window

from .jobs import Fault, a_job, a_table, put

SAVE = "save (train.py:70)"
EVALUATE = "evaluate (train.py:80)"
EVERY = 40


def sampled_at_random(job: Window) -> Window:
    """The job whose ranks were sampled at random times, one row for each run of equal samples."""
    random = np.random.default_rng(0)
    rows = []
    for rank, own in job.tables["stacks"].per_rank():
        start, frames = own.ints("start_ns"), own.strings("frames")
        times = start[0] + np.cumsum(random.exponential(1e8, start.size)).astype(np.int64)
        code = frames.codes[np.clip(np.searchsorted(start, times) - 1, 0, start.size - 1)]
        begins = np.flatnonzero(np.diff(code, prepend=-1))
        ends = np.append(times[begins[1:]], times[-1])
        rows += [(rank, int(times[at]), int(end - times[at]), frames.values[code[at]])
                 for at, end in zip(begins, ends, strict=True)]  # fmt: skip
    table = a_table("rank start_ns duration_ns frames", rows)
    return put(job, stacks=table.with_column("thread", Strings.of(["MainThread"] * len(rows))))


def test_a_function_of_few_steps_is_named_by_the_samples_of_all_of_them() -> None:
    pause = Fault((0,), "forward-compute", EVERY, ms=900.0, every=EVERY, computes=False,
                  function=SAVE)  # fmt: skip
    (verdict,) = diagnose(sampled_at_random(a_job(steps=240, faults=[pause]))).verdicts
    assert (verdict.ranks, verdict.function) == ((0,), SAVE)


def test_the_caller_that_peers_do_not_run_is_named_not_what_everybody_runs() -> None:
    slower = Fault((0,), "forward-compute", EVERY, ms=900.0, every=EVERY, computes=False,
                   function=f"{EVALUATE};forward (model.py:31)")  # fmt: skip
    (verdict,) = diagnose(sampled_at_random(a_job(steps=240, faults=[slower]))).verdicts
    assert (verdict.ranks, verdict.function) == ((0,), EVALUATE)


def test_where_the_excess_ends_is_named_not_the_modules_that_lie_further_in_elsewhere() -> None:
    """A module calls others in most of its time, and itself sleeps on one rank."""
    module = "Module._call_impl (/lib/python3.11/site-packages/torch/nn/modules/module.py:1789)"
    linear = "Linear.forward (/lib/python3.11/site-packages/torch/nn/modules/linear.py:134)"
    usual, sleeps = "mlp (model.py:10)", "mlp (model.py:9)"
    slow = Fault((0,), "forward-compute", 0, ms=30.0, computes=False, function=f"{module};{sleeps}")
    job = a_job(faults=[slow])
    frames = job.tables["stacks"].strings("frames")
    nested = tuple(
        one.replace("hook (train.py:77);", "").replace(
            "forward (model.py:31)", f"{module};{usual};{module};{linear}"
        )
        for one in frames.values
    )
    stacks = job.tables["stacks"].with_column("frames", Strings(frames.codes, nested))
    (verdict,) = diagnose(put(job, stacks=stacks)).verdicts
    assert (verdict.ranks, verdict.function) == ((0,), sleeps)
