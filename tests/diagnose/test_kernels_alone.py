"""Jobs of which a profiler recorded every kernel, and neither phases nor who arrived when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from stepscope.diagnose.finding import Diagnosis, Verdict
from stepscope.diagnose.run import diagnose
from stepscope.diagnose.views.breakdown import is_communicating, passes_on
from stepscope.trace import Host, Job, ProcessGroup
from stepscope.window import Floats, Strings, Table, Window, joined

from .jobs import MS, START

MATMUL, ATTENTION, ADAM = "MatMulV2", "FlashAttentionScore", "ApplyAdamW"
REDUCE, RECEIVE = "hcom_reduceScatter_", "hcom_receive_"
USUAL_MS = {MATMUL: 60.0, ATTENTION: 20.0, ADAM: 10.0}
TRANSFER_MS = 10.0


@dataclass
class Kernels:
    """Rows of table `kernels`, and the steps that they make."""

    rows: list[tuple[int, int, str, int, int, int]] = field(default_factory=list)
    steps: list[tuple[int, int, int, int]] = field(default_factory=list)

    def add(self, rank: int, step: int, kernel: str, begin: float, lasted: float) -> float:
        stream = 2 if is_communicating(kernel) else 7
        self.rows.append((rank, step, kernel, stream, int(begin), int(lasted)))
        return begin + lasted

    def window(self, job: Job) -> Window:
        rank, step, kernel, stream, begin, lasted = zip(*self.rows, strict=True)
        columns = {"rank": rank, "step": step, "stream": stream, "start_ns": begin,
                   "duration_ns": lasted}  # fmt: skip
        kernels = Table({**{name: np.array(one) for name, one in columns.items()},
                         "kernel": Strings.of([*kernel])})  # fmt: skip
        numbers = np.array(self.steps).T
        names = ("rank", "step", "start_ns", "duration_ns")
        steps = Table(dict(zip(names, numbers, strict=True)))
        return Window(job, {"kernels": kernels, "steps": steps})


SECOND = 1000 * MS


def drawn(ranks: int, steps: int, seed: int = 0, noise: float = 0.01) -> dict[str, Floats]:
    """How long each rank computes, `[rank, step]` in ms."""
    random = np.random.default_rng(seed)
    chips = np.exp(0.003 * random.normal(size=(ranks, 1)))
    return {name: usual * chips * np.exp(noise * random.normal(size=(ranks, steps)))
            for name, usual in USUAL_MS.items()}  # fmt: skip


def a_job(ranks: int, groups: Sequence[ProcessGroup] = (), per_host: int = 8) -> Job:
    hosts = [Host(f"host-{first // per_host:03}", tuple(range(first, first + per_host)))
             for first in range(0, ranks, per_host)]  # fmt: skip
    return Job("kernels", ranks, tuple(hosts), {}, tuple(groups))


def replicas(
    times: Mapping[str, Floats], job: Job | None = None, idle: Floats | None = None,
    numbers: Sequence[int] = (), reduce: str = REDUCE,
) -> Window:  # fmt: skip
    """All ranks compute, and reduce gradients when the last of them has; devices may stand idle."""
    ranks, steps = times[MATMUL].shape
    played, clock = Kernels(), np.full(ranks, float(START))
    idle = np.zeros((ranks, steps)) if idle is None else idle
    for at in range(steps):
        step, begin = numbers[at] if numbers else at, clock.copy()
        for rank in range(ranks):
            clock[rank] = played.add(rank, step, MATMUL, clock[rank], times[MATMUL][rank, at] * MS)
            clock[rank] += idle[rank, at] * MS
            lasted = times[ATTENTION][rank, at] * MS
            clock[rank] = played.add(rank, step, ATTENTION, clock[rank], lasted)
        end = clock.max() + TRANSFER_MS * MS
        for rank in range(ranks):
            played.add(rank, step, reduce, clock[rank], end - clock[rank])
            clock[rank] = played.add(rank, step, ADAM, end, times[ADAM][rank, at] * MS)
            lasted = int(clock[rank] - begin[rank])
            played.steps.append((rank, step, int(begin[rank]), lasted))
    return played.window(job or a_job(ranks))


def pipelines(times: Mapping[str, Floats], microbatches: int = 8) -> Window:
    """Even ranks are the first stage and odd ones the second: each microbatch passes both."""
    ranks, steps = times[MATMUL].shape
    groups = [ProcessGroup(f"pp-{one}", "pp", (one, one + 1)) for one in range(0, ranks, 2)]
    groups += [ProcessGroup(f"dp-{at}", "dp", tuple(range(at, ranks, 2))) for at in range(2)]
    played, clock = Kernels(), np.full(ranks, float(START))
    each = {name: one * MS / microbatches for name, one in times.items()}
    for step in range(steps):
        begin = clock.copy()
        for first in range(0, ranks, 2):
            for _ in range(microbatches):
                arrived = clock[first]
                for rank in (first, first + 1):
                    waited = max(arrived - clock[rank], 0.0)
                    clock[rank] = played.add(rank, step, RECEIVE, clock[rank], waited)
                    for name in (MATMUL, ATTENTION):
                        lasted = each[name][rank, step]
                        clock[rank] = played.add(rank, step, name, clock[rank], lasted)
                    arrived = clock[rank]
        end = clock.max() + TRANSFER_MS * MS
        for rank in range(ranks):
            played.add(rank, step, REDUCE, clock[rank], end - clock[rank])
            clock[rank] = played.add(rank, step, ADAM, end, times[ADAM][rank, step] * MS)
            played.steps.append((rank, step, int(begin[rank]), int(clock[rank] - begin[rank])))
    return played.window(a_job(ranks, groups))


def without_starts(window: Window) -> Window:
    """Durations are real, starts are laid one after another from the start of the step."""
    kernels, steps = window.tables["kernels"], window.tables["steps"]
    begins = dict(zip(zip(steps.ints("rank").tolist(), steps.ints("step").tolist(), strict=True),
                      steps.ints("start_ns").tolist(), strict=True))  # fmt: skip
    start = []
    for rank, step, lasted in zip(*(kernels.ints(name).tolist() for name in
                                    ("rank", "step", "duration_ns")), strict=True):  # fmt: skip
        start.append(begins[rank, step])
        begins[rank, step] += lasted
    kernels = kernels.with_column("start_ns", np.array(start))
    return Window(window.job, {**window.tables, "kernels": kernels})


def the_verdict(diagnosis: Diagnosis) -> Verdict:
    (verdict,) = diagnosis.verdicts
    return verdict


def test_what_runs_beside_other_kernels_on_a_second_stream_counts_once() -> None:
    window = replicas(drawn(8, 60))
    kernels = window.tables["kernels"]
    beside = kernels.take(kernels.strings("kernel").equals(MATMUL) & (kernels.ints("rank") == 2))
    beside = beside.with_column("stream", np.full(len(beside), 9))
    tables = {**window.tables, "kernels": joined([kernels, beside])}
    assert diagnose(Window(window.job, tables)).verdicts == ()


@pytest.mark.parametrize("reduce", [REDUCE, "reduce-scatter.11", "ncclDevKernel_ReduceScatter"])
def test_a_slow_device_by_what_it_computes_whatever_waiting_is_called(reduce: str) -> None:
    times = drawn(8, 60)
    for one in times.values():
        one[2, 30:] *= 1.2
    verdict = the_verdict(diagnose(without_starts(replicas(times, reduce=reduce))))
    assert (verdict.cause, verdict.ranks, verdict.kernels[0]) == ("compute", (2,), MATMUL)
    assert verdict.steps == (30, 59)
    assert verdict.lost_fraction == pytest.approx(18 / 118, abs=0.03)


def test_a_host_whose_devices_stand_idle_and_compute_as_long_as_others() -> None:
    idle = np.zeros((16, 40))
    idle[8:] = 40.0 * np.exp(0.1 * np.random.default_rng(1).normal(size=(8, 40)))
    verdict = the_verdict(diagnose(replicas(drawn(16, 40), idle=idle)))
    assert (verdict.cause, verdict.ranks) == ("host", tuple(range(8, 16)))


def test_a_stage_with_more_work_waits_least() -> None:
    times = drawn(8, 40)
    times[MATMUL][1::2] *= 1.6
    verdict = the_verdict(diagnose(pipelines(times)))
    assert (verdict.cause, verdict.ranks) == ("load_imbalance", (1, 3, 5, 7))
    assert 0.05 < (verdict.lost_fraction or 0.0) < 0.2  # balanced, both would have the mean


def summaries(kernels: Table) -> Table:
    """Kernels by second of the rank's own clock, as a recorder sums them up."""
    names = kernels.strings("kernel")
    cells: dict[tuple[int, int, str], list[int]] = {}
    columns = (kernels.ints(name).tolist() for name in ("rank", "start_ns", "duration_ns"))
    for at, (rank, start, lasted) in enumerate(zip(*columns, strict=True)):
        cells.setdefault((rank, start // SECOND * SECOND, str(names[at])), []).append(lasted)
    rank, begin, kernel = zip(*cells, strict=True)
    middle = np.array([int(np.median(one)) for one in cells.values()])
    return Table({
        "rank": np.array(rank), "window_start_ns": np.array(begin),
        "window_ns": np.full(len(cells), SECOND), "kernel": Strings.of([*kernel]),
        "stream": np.full(len(cells), 7), "cluster": np.zeros(len(cells), np.int64),
        "count": np.array([len(one) for one in cells.values()]), "p50_ns": middle,
        "p99_ns": middle,
    })  # fmt: skip


def test_a_stage_with_more_work_is_found_though_clocks_of_hosts_differ() -> None:
    times = drawn(8, 40)
    times[MATMUL][1::2] *= 1.6
    window = pipelines(times)
    ahead = {name: table.with_column("start_ns", table.ints("start_ns")
                                     + table.ints("rank") % 2 * 3 * SECOND)
             for name, table in window.tables.items()}  # fmt: skip
    ahead["kernel_summaries"] = summaries(ahead["kernels"])
    verdict = the_verdict(diagnose(Window(window.job, ahead)))
    assert (verdict.cause, verdict.ranks) == ("load_imbalance", (1, 3, 5, 7))


def test_stages_that_nobody_listed_are_no_slow_ranks() -> None:
    times = drawn(8, 40)
    times[MATMUL][1::2] *= 1.2
    window = pipelines(times)
    assert diagnose(replace(window, job=a_job(8))).verdicts == ()


def test_a_slow_device_in_a_pipeline_costs_less_than_it_takes_longer() -> None:
    times = drawn(16, 40)
    times[MATMUL][1::2] *= 1.1
    for one in times.values():
        one[4] *= 1.3
    verdict = the_verdict(diagnose(pipelines(times)))
    assert (verdict.cause, verdict.ranks) == ("compute", (4,))
    excess = 0.3 * 90 / 150
    assert 0.5 * excess < (verdict.lost_fraction or 0.0) < excess


def test_stages_that_take_turns_on_one_microbatch_add_up() -> None:
    """The slow device is in the shorter stage: the busiest rank of the job is another one."""
    times = drawn(16, 40)
    times[MATMUL][1::2] *= 1.4
    times[MATMUL][4] *= 1.3
    verdict = the_verdict(diagnose(pipelines(times, microbatches=1)))
    assert (verdict.cause, verdict.ranks) == ("compute", (4,))
    assert (verdict.lost_fraction or 0.0) > 0.05


@pytest.mark.parametrize(
    ("slow", "cause"), [((MATMUL,), "load_imbalance"), ((MATMUL, ATTENTION), "compute")]
)
def test_experts_with_more_tokens_leave_attention_as_it_is(
    slow: tuple[str, ...], cause: str
) -> None:
    times = drawn(16, 40)
    for name in slow:
        times[name][5] *= 1.5
    groups = [ProcessGroup("dp-0", "dp", tuple(range(16)))]
    groups += [ProcessGroup(f"ep-{at}", "ep", tuple(range(4 * at, 4 * at + 4))) for at in range(4)]
    verdict = the_verdict(diagnose(replicas(times, a_job(16, groups))))
    assert (verdict.cause, verdict.ranks) == (cause, (5,))


def test_three_steps_of_dozens_of_kernels_are_plenty() -> None:
    times = drawn(8, 3)
    for one in times.values():
        one[1] *= 1.2
    window = replicas(times, numbers=(8, 9, 10))
    verdict = the_verdict(diagnose(window))
    assert (verdict.cause, verdict.ranks) == ("compute", (1,))


@pytest.mark.parametrize("seed", range(4))
def test_one_long_step_of_three_is_a_moment(seed: int) -> None:
    times = drawn(8, 3, seed)
    for one in times.values():
        one[6, 2] *= 1.4
    diagnosis = diagnose(replicas(times, numbers=(8, 9, 10)))
    assert (diagnosis.verdicts, diagnosis.state) == ((), "unknown")


@pytest.mark.parametrize("seed", range(4))
def test_a_healthy_job_is_healthy(seed: int) -> None:
    for window in (replicas(drawn(16, 40, seed)), pipelines(drawn(8, 40, seed))):
        diagnosis = diagnose(window)
        assert (diagnosis.verdicts, diagnosis.state) == ((), "healthy")


def test_every_fifth_step_loses_as_much_as_every_step() -> None:
    times = drawn(16, 13)
    for one in times.values():
        one[3] *= 1.09
    verdict = the_verdict(diagnose(replicas(times, numbers=range(9, 74, 5))))
    assert (verdict.cause, verdict.ranks, verdict.steps) == ("compute", (3,), (14, 69))
    assert verdict.lost_fraction == pytest.approx(0.09 * 90 / 108, abs=0.02)


def test_steps_are_those_of_the_kernels_where_nobody_recorded_them() -> None:
    times = drawn(8, 60)
    for one in times.values():
        one[2] *= 1.2
    window = replicas(times)
    kernels = {"kernels": window.tables["kernels"]}
    verdict = the_verdict(diagnose(replace(window, tables=kernels)))
    assert (verdict.cause, verdict.ranks) == ("compute", (2,))


def without_steps(kernels: Table) -> Table:
    names = ("rank", "kernel", "stream", "start_ns", "duration_ns")
    return Table({name: kernels.strings(name) if name == "kernel" else kernels.ints(name)
                  for name in names})  # fmt: skip


def test_kernels_without_steps_show_nothing_step_by_step() -> None:
    window = replicas(drawn(8, 60))
    bare = without_steps(window.tables["kernels"])
    diagnosis = diagnose(replace(window, tables={"kernels": bare}))
    assert (diagnosis.state, diagnosis.unaccounted) == ("unknown", "no steps were recorded")


def test_a_kernel_that_takes_longer_on_all_ranks_is_code_and_more_samples_are_a_suspicion() -> None:
    times, more = drawn(8, 80), drawn(8, 80)
    times[ATTENTION][:, 40:] *= 3
    verdict = the_verdict(diagnose(replicas(times)))
    assert (verdict.cause, verdict.ranks, verdict.is_suspect) == ("code", (), False)
    assert ATTENTION in verdict.evidence[0].detail
    for name in (MATMUL, ATTENTION):
        more[name][:, 40:] *= 1.5
    assert all(one.is_suspect for one in diagnose(replicas(more)).verdicts)


def test_nor_do_collectives_beside_them() -> None:
    """Nothing is known of any rank's own time, so nobody calls it healthy."""
    window = replicas(drawn(8, 60))
    bare = without_steps(window.tables["kernels"])
    comm = Table({
        "rank": np.arange(8), "group": Strings.of(["dp-0"] * 8), "seq": np.zeros(8, np.int64),
        "op": Strings.of(["AllReduce"] * 8), "peer": np.full(8, -1), "bytes": np.full(8, 1000),
        "start_ns": np.full(8, 1000), "end_ns": np.full(8, 2000),
    })  # fmt: skip
    diagnosis = diagnose(replace(window, tables={"kernels": bare, "comm_ops": comm}))
    assert diagnosis.state == "unknown"


def test_names_of_kernels_that_wait_for_other_ranks() -> None:
    waiting = ("hcom_allReduce_", "hcom_alltoallv_", "all-to-all.3", "all-gather.5", "recv-done.2",
               "collective-permute.7", "send", "ncclDevKernel_SendRecv", RECEIVE)  # fmt: skip
    assert all(map(is_communicating, waiting))
    without_library = ("void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*)",
                       "void deep_ep::internode::notify_dispatch<false, 2>(int const*)",
                       "c10d::symmetric_memory::barrier_kernel(unsigned int**, int)",
                       "void (anonymous namespace)::multimem_all_reduce_kernel<float, 8>(float*)",
                       "userbuffers_fp16_sum_inplace_gpu_rr_rs_oop<8>(int, int)")  # fmt: skip
    assert all(map(is_communicating, without_library))
    computing = ("reduce_kernel", "vectorized_gather_kernel", "scatter.3", "fusion.12", "sender",
                 "indexSelect", MATMUL, "triton_poi_fused_all_reduce_add_3")  # fmt: skip
    assert not any(map(is_communicating, computing))
    assert [one for one in waiting if passes_on(one)] == [*waiting[4:]]
