"""Methods run by name: the published forms, what lacks its data, and the list of all."""

from __future__ import annotations

import pytest

from stepscope.cli import main
from stepscope.diagnose.method import Detector, Explanation, Needs
from stepscope.diagnose.registry import DETECTORS, EXPLANATIONS, PUBLISHED, chosen, listed, tables
from stepscope.diagnose.run import diagnose
from stepscope.diagnose.settings import Settings
from stepscope.errors import UsageError

from .jobs import Fault, a_job, without
from .kernel_jobs import a_job_of_kernels, healthy, modes_of

SLOW = Fault((2,), "forward-compute", 100, ms=60)


def alone(*methods: str) -> Settings:
    return Settings(methods=methods)


def test_level_one_as_published_sees_the_rise_and_accuses_nobody() -> None:
    diagnosis = diagnose(a_job(faults=[SLOW]), alone("argus-l1-published"))
    assert (diagnosis.state, diagnosis.verdicts) == ("regression", ())
    assert [one.steps[0] for one in diagnosis.windows] == [100]


def test_level_two_as_published_never_fires_in_a_small_group() -> None:
    """z <= (n - 1) / sqrt(n): 3 is out of reach for up to ten ranks, and in reach for 16."""
    assert diagnose(a_job(faults=[SLOW]), alone("argus-l2-published")).verdicts == ()
    (verdict,) = diagnose(a_job(ranks=16, faults=[SLOW]), alone("argus-l2-published")).verdicts
    assert (verdict.ranks, verdict.phase) == ((2,), "forward-compute")
    assert verdict.evidence[0].method == "argus-l2-published"


def test_level_three_as_published_names_the_slow_device() -> None:
    typical_ns = healthy(16)
    typical_ns[5] *= 1.3
    job = a_job_of_kernels(modes_of("gemm", typical_ns), 16, count=100_000)
    (verdict,) = diagnose(job, alone("argus-l3-published")).verdicts
    assert (verdict.ranks, verdict.evidence[0].method) == ((5,), "argus-l3-published")


def test_one_method_alone_runs_no_other() -> None:
    job = a_job(faults=[SLOW])
    assert diagnose(job, alone("argus-l2")).verdicts[0].ranks == (2,)
    assert diagnose(job, alone("hang")).verdicts == ()
    both = diagnose(job, alone("default", "argus-l1-published"))
    assert both.verdicts == diagnose(job).verdicts


def test_published_forms_alone_say_what_they_find_and_nothing_is_added() -> None:
    job = a_job(ranks=16, faults=[SLOW])
    (verdict,) = diagnose(job, alone("argus-l2-published")).verdicts
    assert {one.method for one in verdict.evidence} == {"argus-l2-published"}
    assert not verdict.agreement
    both = diagnose(job, alone("argus-l2-published", "argus-l2")).verdicts[0]
    assert len(both.evidence) > 1


def test_of_a_job_folder_only_the_tables_are_read_that_all_chosen_methods_say_they_use() -> None:
    assert tables(("holmes-published",)) == frozenset({"steps", "comm_ops", "transfers"})
    assert tables(("holmes-published", "kair-published")) is None, "the second may use any"
    assert tables(("holmes-published", "default")) is None
    assert tables(()) is None
    with pytest.raises(UsageError):
        tables(("no-such-method",))


def test_what_a_method_lacks_is_reported_from_its_needs() -> None:
    skipped = {one.method: one.why for one in diagnose(without(a_job(), "stacks")).skipped}
    assert skipped["slow-function"] == "no table stacks"
    assert skipped["gpu-clock"] == "no metric sm_clock_mhz in table hardware"
    assert "argus-l2" not in skipped


def test_needs_speak_of_tables_columns_metrics_and_ranks() -> None:
    window = a_job()
    assert Needs("steps", "comm_ops.end_ns", ranks=2).missing(window) is None
    assert Needs("transfers").missing(window) == "no table transfers"
    assert Needs("kernels|transfers").missing(window) == "no table kernels or transfers"
    assert Needs("comm_ops.nonsense").missing(window) == "no column nonsense in table comm_ops"


def test_names_are_unique_and_every_method_has_the_interface() -> None:
    detectors = [one.name for one in (*DETECTORS, *PUBLISHED)]
    assert len(set(detectors)) == len(detectors)
    assert all(isinstance(one, Detector) for one in (*DETECTORS, *PUBLISHED))
    assert all(isinstance(one, Explanation) for one in EXPLANATIONS)
    assert len({one.name for one in EXPLANATIONS}) == len(EXPLANATIONS)
    assert all(one.finds and one.needs for one in listed())


def test_an_unknown_name_is_a_mistake_of_the_user() -> None:
    with pytest.raises(UsageError, match="no method is called argus-l9"):
        chosen(["argus-l9"])


def test_the_command_lists_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods"]) == 0
    shown = capsys.readouterr().out
    for one in (*DETECTORS, *PUBLISHED):
        assert f"  {one.name}" in shown
    assert "cost: " in shown and "(ARGUS)" in shown
    assert "  6. not-everyone\n" in shown
