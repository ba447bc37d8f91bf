"""All ranks get slower together: the code is blamed, and no rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from stepscope.diagnose.decide.everyone import (
    charged,
    charged_once,
    is_after_effect,
    is_of_trend,
    with_turns,
)
from stepscope.diagnose.decide.same_loss import victims_beside
from stepscope.diagnose.finding import Cause, Regression, Slowdown, SlowLink, Waste
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.run import diagnose
from stepscope.diagnose.suspect import Suspect
from stepscope.trace import Host, Job, ProcessGroup
from stepscope.window import Floats, Strings, Table, Window

from .jobs import MS, PHASES, START, Fault, a_job, a_table, put, with_samples, without

ALL = (0, 1, 2, 3)
SLOW = Fault(ALL, "forward-compute", 100, ms=60, function="tokenize (text.py:12)")


@pytest.mark.parametrize("noise", [0.05, 0.3])
def test_a_function_slow_on_all_ranks(noise: float) -> None:
    diagnosis = diagnose(a_job(noise=noise, faults=[SLOW]))
    (verdict,) = diagnosis.verdicts
    assert (verdict.cause, verdict.ranks) == ("code", ())
    assert verdict.function == "tokenize (text.py:12)"
    assert verdict.steps is not None
    assert abs(verdict.steps[0] - 100) <= 5
    assert (diagnosis.state, diagnosis.windows[0].kind) == ("regression", "regression")
    assert verdict.lost_fraction == pytest.approx(60 / 148, abs=0.08)


def test_without_stacks_the_phase_is_named() -> None:
    (verdict,) = diagnose(without(a_job(faults=[SLOW]), "stacks")).verdicts
    assert (verdict.cause, verdict.phase, verdict.function) == ("code", "forward-compute", None)
    assert verdict.confidence <= 0.6


def test_all_loaders_slow_is_data_loading() -> None:
    fault = Fault(ALL, "data-load", 100, ms=60, computes=False)
    (verdict,) = diagnose(without(a_job(faults=[fault]), "stacks")).verdicts
    assert (verdict.cause, verdict.ranks) == ("data_loading", ())


def test_collections_on_all_ranks_are_gc() -> None:
    fault = Fault(ALL, "forward-compute", 100, ms=60, gc=True)
    (verdict,) = diagnose(a_job(faults=[fault])).verdicts
    assert (verdict.cause, verdict.ranks) == ("gc", ())


def test_a_machine_that_got_busy_is_not_code() -> None:
    """Everything takes 1.6 times as long and no processor time is added: no function grew."""
    fault = Fault(ALL, None, 100, times=1.6, computes=False)
    job = with_samples(a_job(noise=0.1, faults=[fault]), "run_delay", lambda *_: 0.5)
    assert diagnose(job).verdicts == ()
    assert diagnose(job).state == "regression"


def crowded(before: float, after: float, waits: float = 0.1) -> Window:
    """Everything takes 1.6 times as long, beside other processes that use so many cores; ranks wait
    for a processor for this share of the time from then on."""
    fault = Fault(ALL, None, 100, times=1.6, computes=False)
    job = a_job(noise=0.05, faults=[fault], stacks=False)
    at = int(job.tables["steps"].ints("start_ns")[job.tables["steps"].ints("step") == 100].min())
    job = with_samples(job, "run_delay", lambda _, time: waits if time >= at else 0.1)
    return with_samples(job, "stranger_cpu_util", lambda _, time: after if time >= at else before)


def test_other_processes_are_named_if_they_came_when_steps_got_longer() -> None:
    (verdict,) = diagnose(crowded(before=0.0, after=1.0)).verdicts
    assert (verdict.cause, verdict.ranks) == ("contention", ())


def test_other_processes_that_were_there_before_explain_nothing() -> None:
    assert diagnose(crowded(before=0.6, after=0.5)).verdicts == ()


def test_other_processes_are_named_if_ranks_begin_to_wait_for_a_processor() -> None:
    (verdict,) = diagnose(crowded(before=0.6, after=0.6, waits=0.5)).verdicts
    assert (verdict.cause, verdict.ranks) == ("contention", ())


def test_a_machine_on_which_steps_double_deserves_a_careful_word() -> None:
    fault = Fault(ALL, None, 100, times=2.5, computes=False)
    (verdict,) = diagnose(a_job(noise=0.1, faults=[fault])).verdicts
    assert (verdict.cause, verdict.ranks) == ("host", ())
    assert verdict.confidence < 0.5


def communicating(hosts: int, times: float, step: int = 50) -> Window:
    """Eight ranks that meet once a step, of which only the operators are recorded. From `step` on
    all compute for `times` as long."""
    random, clock, rows = np.random.default_rng(2), START, []
    for at in range(100):
        lasts = 40 * MS * (times if at >= step else 1.0)
        arrive = [clock + int(lasts * random.normal(1, 0.01)) for _ in range(8)]
        end = max(arrive) + 2 * MS
        rows += [(rank, at, "dp-0", at, "AllReduce", begin, begin, end)
                 for rank, begin in enumerate(arrive)]  # fmt: skip
        clock = end
    each = 8 // hosts
    job = Job("operators", 8, tuple(Host(f"h{at}", tuple(range(at * each, (at + 1) * each)))
                                    for at in range(hosts)),
              groups=(ProcessGroup("dp-0", "dp", tuple(range(8))),))  # fmt: skip
    comm = a_table("rank step group seq op enqueue_ns start_ns end_ns", rows)
    return Window(job, {"comm_ops": comm})


def test_what_begins_on_several_hosts_at_once_is_of_the_job() -> None:
    """No other job comes to two machines at one step; to a single one it may."""
    (verdict,) = diagnose(communicating(hosts=2, times=1.3)).verdicts
    assert (verdict.cause, verdict.ranks) == ("unknown", ())
    assert verdict.lost_fraction == pytest.approx(12 / 54, abs=0.03)
    assert diagnose(communicating(hosts=1, times=1.3)).verdicts == ()
    assert diagnose(communicating(hosts=2, times=1.0)).verdicts == ()


def test_a_rank_that_stands_still_now_and_then_does_not_explain_a_lasting_rise() -> None:
    now_and_then = Fault((2,), "backward-compute", 40, ms=200, every=20)
    found = diagnose(without(a_job(steps=200, faults=[now_and_then, SLOW]), "stacks")).verdicts
    assert {verdict.ranks for verdict in found} == {(), (2,)}
    cost = {verdict.ranks: verdict.lost_fraction for verdict in found}
    assert (cost[(2,)] or 0) < 0.15


def test_one_slow_rank_is_not_everyones_regression() -> None:
    fault = Fault((2,), "forward-compute", 100, ms=60, function="tokenize (text.py:12)")
    (verdict,) = diagnose(a_job(faults=[fault])).verdicts
    assert verdict.ranks == (2,)


def test_a_slow_rank_within_a_slow_job() -> None:
    """Once the rank is healed the job is still slower than before: two verdicts."""
    own = Fault((2,), "backward-compute", 60, ms=40)
    verdicts = diagnose(a_job(steps=240, faults=[own, SLOW])).verdicts
    assert {verdict.ranks for verdict in verdicts} == {(2,), ()}


@pytest.mark.parametrize("ms", [30, 60])
def test_what_began_at_once_costs_no_more_than_steps_got_longer(ms: float) -> None:
    own = Fault((2,), "backward-compute", 100, ms=60)
    faults = [own, Fault(ALL, "forward-compute", 100, ms=ms, function="tokenize (text.py:12)")]
    verdicts = diagnose(a_job(steps=240, faults=faults)).verdicts
    assert {verdict.ranks for verdict in verdicts} == {(2,), ()}
    lost = sum(verdict.lost_fraction or 0.0 for verdict in verdicts)
    assert lost == pytest.approx((60 + ms) / (88 + 60 + ms), abs=0.03)


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        (Fault((1,), "forward-compute", 100, ms=60, gc=True), "gc"),
        (Fault((1,), "forward-compute", 100, ms=60, function="tokenize (text.py:12)"), "compute"),
    ],
)
def test_what_a_culprit_does_is_not_everyones_reason(fault: Fault, cause: str) -> None:
    """The machine got busier at the same time: its pauses and its function explain only itself."""
    busy = Fault(ALL, None, 100, times=1.4, computes=False)
    job = with_samples(a_job(noise=0.1, faults=[fault, busy]), "run_delay", lambda *_: 0.5)
    verdicts = diagnose(job).verdicts
    assert [(verdict.cause, verdict.ranks) for verdict in verdicts] == [(cause, (1,))]


def test_where_others_wait_for_a_culprit_is_no_code_of_theirs() -> None:
    """As in a DDP job on CPUs, whose backward pass computes and waits in one frame."""
    slow = Fault((1,), "forward-compute", 100, ms=150, gc=True)
    busy = Fault(ALL, None, 100, times=1.2, computes=False)
    job = with_samples(a_job(noise=0.03, faults=[slow, busy]), "run_delay", lambda *_: 0.5)
    frames = job.tables["stacks"].strings("frames")
    inside = tuple(one.removesuffix(";wait (distributed.py:5)") for one in frames.values)
    assert inside != frames.values
    waiting = job.tables["stacks"].with_column("frames", Strings(frames.codes, inside))
    verdicts = diagnose(put(job, stacks=waiting)).verdicts
    assert [(verdict.cause, verdict.ranks) for verdict in verdicts] == [("gc", (1,))]


def hidden(job: Window, ranks: tuple[int, ...], ms: float) -> Window:
    """The job as a device times it: what a host does before a forward pass is in no phase."""
    phases = job.tables["phases"]
    late = phases.strings("phase").equals("forward-compute") & (phases.ints("step") >= 100)
    late &= np.isin(phases.ints("rank"), ranks)
    host = np.where(late, int(ms * MS), 0)
    timed = phases.with_column("start_ns", phases.ints("start_ns") + host)
    timed = timed.with_column("duration_ns", phases.ints("duration_ns") - host)
    kept = {name: column for name, column in timed.columns.items() if name != "cpu_ns"}
    return put(job, phases=Table(kept))


def test_a_function_on_all_ranks_that_devices_hide() -> None:
    """No phase grew and no rank is late: only the stacks tell."""
    (verdict,) = diagnose(hidden(a_job(faults=[SLOW]), ALL, SLOW.ms)).verdicts
    assert (verdict.cause, verdict.ranks) == ("code", ())
    assert verdict.function == "tokenize (text.py:12)"


def test_a_function_of_one_rank_is_not_everyones_where_devices_hide_it() -> None:
    one = Fault((2,), "forward-compute", 100, ms=60, function="tokenize (text.py:12)")
    verdicts = diagnose(hidden(a_job(faults=[one]), (2,), 60)).verdicts
    assert all(verdict.ranks == (2,) for verdict in verdicts)


def test_a_function_that_only_waits_longer_carries_no_rise() -> None:
    """The loop stands in `step`, whose innermost call waits for the device."""
    slow = Fault(ALL, "optimizer", 100, ms=60, function="synchronize (streams.py:92)")
    verdicts = diagnose(a_job(faults=[slow])).verdicts
    assert all(verdict.function is None for verdict in verdicts)


def test_collections_on_a_different_rank_each_time_are_gc() -> None:
    turns = [Fault((step % 4,), "forward-compute", step, step + 1, ms=60, gc=True)
             for step in range(100, 200)]  # fmt: skip
    (verdict,) = diagnose(a_job(faults=turns, stacks=False)).verdicts
    assert (verdict.cause, verdict.ranks) == ("gc", ())
    assert "because of garbage collection" in verdict.summary


def test_a_slight_rise_is_reported_with_its_cause_or_not_at_all() -> None:
    slight = Fault(ALL, "forward-compute", 100, ms=6, gc=True)
    job = a_job(noise=0.01, faults=[slight], stacks=False)
    (verdict,) = diagnose(job).verdicts
    assert (verdict.cause, verdict.ranks) == ("gc", ())
    assert verdict.lost_fraction == pytest.approx(6 / 94, abs=0.01)
    untold = diagnose(without(job, "pauses"))
    assert (untold.verdicts, untold.state) == ((), "healthy")


def uneven(spread: float, together: bool) -> Callable[[Floats], Floats]:
    """From step 100 on every rank's passes take another time in every step."""

    def edit(own: Floats) -> Floats:
        random = np.random.default_rng(1)
        steps = own.shape[2] - 100
        drawn = random.normal(size=(2, own.shape[1], steps))
        factors = np.exp(spread * (drawn[:1] if together else drawn))
        passes = [PHASES.index("forward-compute"), PHASES.index("backward-compute")]
        out = own.copy()
        out[passes, :, 100:] *= factors
        return out

    return edit


def test_samples_whose_length_changes_each_step() -> None:
    job = a_job(ranks=8, edit=uneven(0.4, together=True), stacks=False)
    (verdict,) = diagnose(job).verdicts
    assert (verdict.cause, verdict.ranks) == ("load_imbalance", ())
    assert "tokens" in verdict.advice


def test_passes_that_stall_apart_are_no_uneven_work() -> None:
    job = a_job(ranks=8, edit=uneven(0.4, together=False), stacks=False)
    assert all(verdict.cause != "load_imbalance" for verdict in diagnose(job).verdicts)


EXCHANGE_MS, PASS_MS, BATCHES = 20.0, 50.0, 3


def a_job_that_exchanges(
    serial_from: int, everywhere: bool = False, slower: int = 1, ranks: int = 4, steps: int = 120
) -> Window:
    """Gradients are exchanged in the last backward pass: beside it, and later instead of it.

    Everywhere: in all passes, and it is known how long ranks stood; `slower`: the exchange takes so
    many times longer when computing waits for it.
    """
    random = np.random.default_rng(0)
    phases: list[tuple[object, ...]] = []
    comm: list[tuple[object, ...]] = []
    done: list[tuple[object, ...]] = []
    now = START
    for step in range(steps):
        begin = now
        for batch in range(BATCHES):
            meets, late = everywhere or batch == BATCHES - 1, step >= serial_from
            exchange = EXCHANGE_MS * (slower if late else 1)
            extra = exchange if meets and late else 0.0
            took = [int((PASS_MS * random.normal(1, 0.01) + extra) * MS) for _ in range(ranks)]
            phases += [(rank, step, "backward-compute", batch, now, took[rank])
                       for rank in range(ranks)]  # fmt: skip
            if meets:
                end = now + max(took)
                comm += [(rank, step, BATCHES * step + batch, end - int(exchange * MS), end - MS,
                          int(extra * MS)) for rank in range(ranks)]  # fmt: skip
            now += max(took)
        done += [(rank, step, begin, now - begin) for rank in range(ranks)]
    table = a_table("rank step seq start_ns end_ns blocked_ns", comm)
    if not everywhere:
        table = Table({name: table.columns[name] for name in table.columns if name != "blocked_ns"})
    table = table.with_column("enqueue_ns", table.ints("start_ns"))
    for name, text in (("group", "dp-0"), ("op", "ReduceScatter")):
        table = table.with_column(name, Strings.of([text] * len(table)))
    members = tuple(range(ranks))
    job = Job("exchange", ranks, (Host("h", members),),
              groups=(ProcessGroup("dp-0", "dp", members),))  # fmt: skip
    return Window(job, {
        "steps": a_table("rank step start_ns duration_ns", done), "comm_ops": table,
        "phases": a_table("rank step phase microbatch start_ns duration_ns", phases),
    })  # fmt: skip


def test_communication_that_computing_no_longer_hides() -> None:
    (verdict,) = diagnose(a_job_that_exchanges(serial_from=60)).verdicts
    assert (verdict.cause, verdict.ranks) == ("code", ())
    assert verdict.phase == "backward-compute"
    assert "waits for ReduceScatter" in verdict.summary
    assert "overlap" in verdict.advice


def test_communication_that_never_overlapped_is_no_change() -> None:
    assert diagnose(a_job_that_exchanges(serial_from=0)).verdicts == ()


def test_where_all_passes_exchange_it_shows_in_how_long_ranks_stand() -> None:
    (verdict,) = diagnose(a_job_that_exchanges(serial_from=60, everywhere=True)).verdicts
    assert (verdict.cause, verdict.ranks, verdict.phase) == ("code", (), None)
    assert "computing waits for ReduceScatter" in verdict.summary
    assert "overlap" in verdict.advice


def test_an_exchange_that_itself_takes_longer_is_not_badly_hidden() -> None:
    job = a_job_that_exchanges(serial_from=60, everywhere=True, slower=3)
    assert all(verdict.cause != "code" for verdict in diagnose(job).verdicts)


@pytest.mark.parametrize(("since", "less"), [(100, 0.2), (20, 0.0)])
def test_a_rise_is_not_charged_for_what_all_ranks_waste_since_then(since: int, less: float) -> None:
    """The model of the step says 0.2, and the rise about 0.5, of which all ranks waste 0.2, unless
    they did so before, too."""
    job = Observed(a_job(steps=240, faults=[Fault((2,), "backward-compute", 100, ms=88)]))
    rise = Regression("regression", "unknown", "", split=100, lost_ns=1e9)
    slow = Slowdown("argus-l2", "compute", "", (2,), steps=(100, 239), lost_fraction=0.2)
    wasted = Waste("user-code", "code", "", steps=(since, 239), lost_fraction=0.2)
    (with_rise,) = charged(job, rise, [slow])
    (once, _) = charged_once(job, rise, [with_rise, wasted])
    assert with_rise.lost_fraction == pytest.approx(0.5, abs=0.03)
    assert once.lost_fraction == pytest.approx((with_rise.lost_fraction or 0.0) - less)


@pytest.mark.parametrize(("first", "cause", "echoes"), [
    (100, "unknown", True), (60, "unknown", False), (100, "code", False),
])  # fmt: skip
def test_what_rises_with_a_culprit_for_no_known_reason_is_its_effect(
    first: int, cause: Cause, echoes: bool
) -> None:
    job = Observed(a_job(faults=[Fault(ALL, None, 100, times=1.5)], stacks=False))
    stop = len(job.line.steps)
    rise = Regression("regression", cause, "", steps=(100, stop - 1), split=100, lost_ns=40 * MS)
    culprit = Suspect(2, None, PHASES, first, stop, 0.3, 20.0, 5.0, 30.0 * MS, 1.3, 4)
    assert is_after_effect(job, rise, [culprit], []) == echoes


@pytest.mark.parametrize(("since", "lost", "is_echo"), [
    (38, 0.05, True), (38, 0.2, False), (4, 0.05, False),
])  # fmt: skip
def test_who_is_first_in_what_grows_on_all_ranks_is_no_culprit(
    since: int, lost: float, is_echo: bool
) -> None:
    rise = Regression("regression", "unknown", "", lost_fraction=0.25, gradual=(14, 49))
    one = Slowdown("transient", "compute", "", (3,), lost_fraction=lost, steps=(since, 49))
    assert is_of_trend(rise, one) == is_echo
    assert not is_of_trend(replace(rise, gradual=None), one)


def slower_everywhere(marked: bool) -> Observed:
    """All ranks take longer in a pass, in which they may wait for data if nobody marked waiting."""
    job = Observed(without(a_job(faults=[Fault(ALL, "backward-compute", 100, ms=60)], stacks=False),
                           "comm_ops"))  # fmt: skip
    vars(job).update(own=replace(job.own, marked=marked))
    return job


@pytest.mark.parametrize(("marked", "since", "effect"), [
    (False, 101, True), (False, 60, False), (True, 101, False),
])  # fmt: skip
def test_a_rise_in_phases_that_may_wait_is_that_of_the_network_which_became_slow_with_it(
    marked: bool, since: int, effect: bool
) -> None:
    job = slower_everywhere(marked)
    rise = Regression("regression", "code", "", steps=(100, 199), split=100, lost_ns=50 * MS)
    link = SlowLink("slow-exchange", "network", "", steps=(since, 199), lost_fraction=0.07)
    assert is_after_effect(job, rise, [], [link]) == effect
    if effect:
        (whole,) = charged(job, rise, [link])
        assert whole.lost_fraction == pytest.approx(60 / 148, abs=0.05), "before against after"


@pytest.mark.parametrize(("marked", "since", "lost", "victim"), [
    (False, 101, 0.02, True), (False, 101, 0.06, False), (False, 60, 0.02, False),
    (True, 101, 0.02, False),
])  # fmt: skip
def test_who_waits_longest_in_a_pass_since_the_network_is_slow_is_no_culprit(
    marked: bool, since: int, lost: float, victim: bool
) -> None:
    job = slower_everywhere(marked)
    link = SlowLink("slow-exchange", "network", "", steps=(100, 199), lost_fraction=0.1)
    one = Slowdown("argus-l2", "compute", "", (2,), phase="forward-compute", steps=(since, 199),
                   lost_fraction=lost, has_onset=True)  # fmt: skip
    assert bool(victims_beside(job, [link], [one])) == victim


def sharded(slower_ms: float, bigger_ms: float) -> Window:
    """Each rank gathers the weights of its layers within its passes: half of what one rank needs
    longer since step 30 lies in those of the others. No recorder measured that.

    Args:
        bigger_ms: what all ranks compute longer since then.
    """
    random, rows, steps, clock = np.random.default_rng(5), [], [], START
    for step in range(60):
        slower, bigger = (ms * (step >= 30) for ms in (slower_ms, bigger_ms))
        work = 200 * (1 + 0.002 * random.normal(size=8)) + bigger
        waits = np.full(8, slower / 2)
        waits[5] = slower
        for rank in range(8):
            forward, backward = int(100 * MS), int((work[rank] + waits[rank]) * MS)
            rows.append((rank, step, "forward", clock, forward))
            rows.append((rank, step, "backward", clock + forward, backward))
            steps.append((rank, step, clock, int((300 + slower + bigger) * MS)))
        clock += int((300 + slower + bigger) * MS)
    tables = {
        "steps": a_table("rank step start_ns duration_ns", steps),
        "phases": a_table("rank step phase start_ns duration_ns", rows),
    }
    groups = (ProcessGroup("dp-0", "dp", tuple(range(8))),)
    return Window(Job("sharded", 8, groups=groups), tables)


def test_where_waiting_was_not_measured_a_rise_of_all_is_the_one_ranks_that_began_with_it() -> None:
    (verdict,) = diagnose(sharded(slower_ms=60, bigger_ms=0)).verdicts
    assert (verdict.ranks, verdict.phase) == ((5,), "backward")
    assert verdict.lost_fraction == pytest.approx(60 / 360, abs=0.03)


def test_a_rise_of_all_without_any_such_rank_is_nobodys() -> None:
    found = diagnose(sharded(slower_ms=0, bigger_ms=60))
    assert all(not verdict.ranks for verdict in found.verdicts) and found.state == "regression"


@pytest.mark.parametrize(("fault", "every", "is_part"), [
    (None, 1, True),
    (Fault((2,), None, 130, 150, ms=40), 1, False),
    (Fault((2,), None, 130, 150, ms=40, every=5), 5, False),
], ids=["as long as the others", "longer", "spikes"])  # fmt: skip
def test_who_holds_up_some_steps_of_a_rise_that_are_no_longer_than_the_others_takes_turns(
    fault: Fault | None, every: int, is_part: bool
) -> None:
    faults = [Fault(ALL, "forward-compute", 100, ms=60), *([fault] if fault else [])]
    job = Observed(a_job(faults=faults, stacks=False))
    rise = Regression("regression", "unknown", "", steps=(100, 199), split=100, score=0.3)
    one = Slowdown("argus-l2", "data_loading", "", (2,), phase="data-load", lost_fraction=0.3,
                   steps=(130, 149), columns=frozenset(range(130, 150, every)))  # fmt: skip
    whole, parts = with_turns(job, rise, [one])
    assert parts == [one] * is_part
    assert whole.cause == ("data_loading" if is_part else "unknown")
    measured, _ = with_turns(job, replace(rise, cause="gc", score=0.9), [one])
    assert measured.cause == "gc", "of turns only what nothing else explains"
