"""What a job says about its devices, from its rows and its diagnosis."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stepscope.devices import Used, evidence_of
from stepscope.devices.blame import blames
from stepscope.devices.constants import SHOWS_MOVING, healthy_log_odds, host_share
from stepscope.devices.used import used_devices
from stepscope.diagnose.finding import Cause, Device, Diagnosis, Ended, Kind, State, Verdict
from stepscope.diagnose.network.devices import Devices
from stepscope.trace import Fabric, Host, Job, Switch
from stepscope.trace.host import UNNAMED
from stepscope.window import Strings, Table, Window

START = 1_766_000_000 * 10**9
HOUR = 3600 * 10**9
HOSTS = (
    Host("a", (0, 1), ("nic-0", "nic-1"), ("gpu-0", "gpu-1"), ("GPU-aa", "GPU-bb")),
    Host("b", (2, 3), ("nic-0", "nic-1"), ("gpu-0", "gpu-1")),
)
CABLES = tuple(f"{host}/nic-{at}" for host in "ab" for at in range(2))
FABRIC = Fabric((Switch("leaf-0", 0, CABLES),))


def a_window(hosts: tuple[Host, ...] = HOSTS, fabric: Fabric | None = FABRIC) -> Window:
    """An hour of a job of four ranks, whose kernels and operators were recorded."""
    ranks = np.array([rank for host in hosts for rank in host.ranks], np.int64)
    times = {"start_ns": np.full(len(ranks), START), "duration_ns": np.full(len(ranks), HOUR)}
    table = Table({"rank": ranks, "step": np.zeros(len(ranks), np.int64), **times})
    comm = Table({"rank": ranks, "start_ns": times["start_ns"], "end_ns": times["start_ns"] + 1,
                  "op": Strings.of(["AllReduce"] * len(ranks))})  # fmt: skip
    job = Job("job", len(ranks), hosts, fabric=fabric)
    return Window(job, {"steps": table, "kernels": table, "comm_ops": comm})


def a_verdict(
    cause: Cause, *ranks: int, devices: tuple[Device, ...] = (), confidence: float = 0.9,
    kind: Kind = "slowdown", function: str | None = None, ended: Ended = "",
) -> Verdict:  # fmt: skip
    hosts = tuple(dict.fromkeys(host.name for host in HOSTS for one in ranks if one in host.ranks))
    return Verdict(kind, cause, "it is slow", "", ranks, hosts, devices=devices,
                   confidence=confidence, function=function, ended=ended)  # fmt: skip


def diagnosed(*verdicts: Verdict, state: State = "slow") -> Diagnosis:
    return Diagnosis("job", 4, state, verdicts=verdicts)


def blamed(*verdicts: Verdict) -> list[dict[str, float]]:
    """The shares of all candidates, by name, of each verdict that says something."""
    window = a_window()
    found = blames(window, diagnosed(*verdicts), used_devices(window))
    return [{one.device.name: one.share for one in each.candidates} for each in found]


def test_the_devices_of_a_job() -> None:
    by_type: dict[str, list[str]] = {}
    for one in used_devices(a_window()):
        by_type.setdefault(one.type, []).append(one.key)
    assert by_type == {
        "host": ["a", "b"], "cpu": ["a/cpu", "b/cpu"],
        "gpu": ["GPU-aa", "GPU-bb", "b/gpu-0", "b/gpu-1"],
        "pcie": ["a/pcie-0", "a/pcie-1", "b/pcie-0", "b/pcie-1"], "nic": list(CABLES),
        "link": [f"{nic}--leaf-0" for nic in CABLES], "switch": ["leaf-0"],
    }  # fmt: skip


def test_a_job_on_one_host_uses_no_network() -> None:
    types = {one.type for one in used_devices(a_window(HOSTS[:1]))}
    assert types == {"host", "cpu", "gpu", "pcie"}


def test_switches_above_the_leaves_are_used_between_leaves_only() -> None:
    leaves = (Switch("leaf-0", 0, CABLES[:2]), Switch("leaf-1", 0, CABLES[2:]))
    fabric = Fabric((*leaves, Switch("spine-0", 1, ("leaf-0", "leaf-1"))))
    above = [one.name for one in used_devices(a_window(fabric=fabric)) if "spine" in one.name]
    assert above == ["spine-0", "leaf-0--spine-0", "leaf-1--spine-0"]


def test_gpus_are_known_by_their_uuid() -> None:
    assert [Devices(a_window()).gpu_uuid(rank) for rank in range(4)] == ["GPU-aa", "GPU-bb", "", ""]
    named_so = Host("a", (0,), gpus=("GPU-cc",))
    assert Devices(a_window((named_so,))).gpu_uuid(0) == "GPU-cc"
    unknown = replace(HOSTS[0], ranks=(0,))  # one rank, two GPUs: which one is not known
    assert Devices(a_window((unknown,))).gpu_uuid(0) == ""


def test_a_link_is_the_same_from_either_end() -> None:
    assert Used("link", "b/nic-0--a/nic-0").key == Used("link", "a/nic-0--b/nic-0").key
    assert (Used("link", "a/nic-0--leaf-0").host, Used("link", "leaf-0--spine-1").host) == (
        "a",
        None,
    )
    assert (Used("switch", "leaf-0").host, Used("host", "a").host) == (None, "a")


def test_the_devices_that_a_verdict_names() -> None:
    gpu = a_verdict("compute", 1, devices=(Device("gpu", "a/gpu-1", 0.9),))
    assert blamed(gpu) == [{"a/gpu-1": pytest.approx(1 / 1.04), "a": pytest.approx(0.04 / 1.04)}]
    several = (Device("link", "a/nic-0--leaf-0", 0.6), Device("nic", "a/nic-0", 0.2))
    shares = blamed(a_verdict("network", 0, devices=several))[0]
    assert shares == pytest.approx({"a/nic-0--leaf-0": 0.75, "a/nic-0": 0.25})


def test_culprits_that_are_no_alternatives_are_blamed_each() -> None:
    both = tuple(Device("gpu", name, 0.9) for name in ("a/gpu-1", "b/gpu-0"))
    shares = blamed(a_verdict("compute", 1, 2, devices=both))
    assert [list(one) for one in shares] == [["a/gpu-1", "a"], ["b/gpu-0", "b"]]


def test_a_host_is_suspected_if_several_of_its_devices_are_bad_in_one_job() -> None:
    gpus = tuple(Device("gpu", f"a/gpu-{at}", 0.9) for at in range(2))
    shares = blamed(a_verdict("compute", 0, 1, devices=gpus))
    assert [one["a"] for one in shares] == [pytest.approx(0.04 / 0.05)] * 2
    assert host_share(3) == pytest.approx(0.04 / 0.0401)


@pytest.mark.parametrize(
    ("cause", "ranks", "names"),
    [("compute", (1,), ["a/gpu-1", "a"]), ("network", (2,), ["b/nic-0", "b"]),
     ("host", (0, 1), ["a"]), ("unknown", (3,), ["b"])],
)  # fmt: skip
def test_ranks_alone_are_mapped_to_devices(
    cause: Cause, ranks: tuple[int, ...], names: list[str]
) -> None:
    assert [list(one) for one in blamed(a_verdict(cause, *ranks))] == [names]


@pytest.mark.parametrize(
    "verdict",
    [
        a_verdict("code", 1), a_verdict("load_imbalance", 1), a_verdict("gc", 1),
        a_verdict("jit_compile", 1), a_verdict("data_loading", 1), a_verdict("network"),
        a_verdict("compute", 1, function="forward (model.py:7)"),
        a_verdict("unknown", 1, kind="mismatch"),
        a_verdict("host", 1, kind="hang", ended="out of memory",
                  devices=(Device("host", "a", 0.97),)),
        a_verdict("compute", 1, confidence=0.4),
        a_verdict("network", devices=(Device("host", "a", 0.5), Device("host", "b", 0.5))),
    ],
)  # fmt: skip
def test_verdicts_that_are_no_evidence_against_a_device(verdict: Verdict) -> None:
    assert blamed(verdict) == []


def test_an_unknown_cause_is_weak_evidence_against_the_host() -> None:
    window = a_window()
    said = diagnosed(a_verdict("unknown", 3, kind="hang", confidence=0.97), state="hang")
    [one] = blames(window, said, used_devices(window))
    assert one.certainty == 0.7


def test_the_only_host_of_a_job_may_be_blamed() -> None:
    window = a_window(HOSTS[:1])
    said = diagnosed(a_verdict("unknown", 1, kind="hang"), state="hang")
    [one] = blames(window, said, used_devices(window))
    assert [candidate.device.name for candidate in one.candidates] == ["a"]


def test_the_evidence_of_a_job() -> None:
    verdict = a_verdict("compute", 1, devices=(Device("gpu", "a/gpu-1", 0.9),))
    one = evidence_of(a_window(), diagnosed(verdict), "job-1", now=START + 2 * HOUR)
    assert (one.job, one.state, one.ranks, one.ended) == ("job-1", "slow", 4, True)
    assert (one.from_ns, one.until_ns) == (START, START + HOUR)
    assert one.blames[0].candidates[0].device == Used("gpu", "a/gpu-1", "GPU-bb")
    well = {device.name for some in one.healthy for device in some.devices}
    assert {"b", "b/gpu-0", "a/gpu-0", "leaf-0", "a/nic-0"} <= well
    assert not {"a", "a/cpu", "a/gpu-1", "a/nic-1", "a/pcie-1"} & well, "they may be at fault"
    assert {"a/cpu", "a/nic-1"} <= {device.name for device in one.unjudged}
    said = {device.type: some.log_odds for some in one.healthy for device in some.devices}
    assert said["gpu"] == pytest.approx(healthy_log_odds(3600), abs=1e-4)
    assert said["nic"] == pytest.approx(healthy_log_odds(3600, SHOWS_MOVING), abs=1e-4)


def test_a_job_that_is_not_understood_clears_nobody() -> None:
    one = evidence_of(a_window(), diagnosed(state="unknown"), "job", now=START + 2 * HOUR)
    assert (one.healthy, len(one.unjudged)) == ((), len(used_devices(a_window())))


def test_a_network_that_was_not_recorded_is_not_cleared() -> None:
    window = a_window()
    silent = Window(
        window.job, {"steps": window.tables["steps"], "kernels": window.tables["kernels"]}
    )
    one = evidence_of(silent, diagnosed(state="healthy"), "job", now=START + 2 * HOUR)
    assert {device.type for some in one.healthy for device in some.devices} == {
        "host",
        "cpu",
        "gpu",
        "pcie",
    }


def test_a_job_that_may_go_on_is_marked() -> None:
    just = evidence_of(a_window(), diagnosed(), "job", now=START + HOUR + 10**9)
    assert not just.ended
    assert evidence_of(a_window(), diagnosed(), "job", now=START + HOUR, ended=True).ended


def test_a_clock_that_is_no_date_counts_as_now() -> None:
    window = a_window()
    steps = window.tables["steps"].with_column("start_ns", np.full(4, 5, np.int64))
    early = Window(window.job, {"steps": steps})
    one = evidence_of(early, diagnosed(), "job", now=START)
    assert (one.from_ns, one.until_ns) == (START - HOUR, START)


def test_hosts_that_nobody_named_are_not_those_of_another_job() -> None:
    """Profiler traces show which ranks share a host, but not what it is called."""
    hosts = tuple(replace(one, name=f"{UNNAMED}{one.ranks[0]}-{one.ranks[-1]}") for one in HOSTS)
    said = evidence_of(a_window(hosts), diagnosed(a_verdict("compute", 1)), "job")
    assert (said.blames, said.healthy, said.unjudged) == ((), (), ())
