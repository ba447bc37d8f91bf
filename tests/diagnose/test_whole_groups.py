"""All members of a group slow by the same: the group is named once, and no device."""

from __future__ import annotations

from dataclasses import replace

from stepscope.diagnose.run import diagnose
from stepscope.trace import Host, ProcessGroup
from stepscope.window import Floats, Table, Window

from .jobs import Fault, a_job

RANKS, SHARD = 16, 4
SLOW = (4, 5, 6, 7)


def sharded(level: bool) -> Window:
    """Four groups on eight hosts; members of one take 60 ms longer in the forward pass, in each
    step by the same, or each by itself. Nothing marks waiting."""

    def together(own: Floats) -> Floats:
        if level:
            own[:, SLOW] = own[:, SLOW[:1]]
        return own

    fault = Fault(SLOW, "forward-compute", 0, ms=60)
    window = a_job(RANKS, 60, faults=[fault], stacks=False, edit=together)
    hosts = tuple(Host(f"host-{at:03d}", (2 * at, 2 * at + 1)) for at in range(RANKS // 2))
    shards = tuple(ProcessGroup(f"shard-{at}", "dp", tuple(range(SHARD * at, SHARD * at + SHARD)))
                   for at in range(RANKS // SHARD))  # fmt: skip
    phases = window.tables["phases"]
    names = [name for name in phases.columns if name not in ("wait_ns", "cpu_ns")]
    phases = Table({name: phases.columns[name] for name in names})
    tables = {"steps": window.tables["steps"], "phases": phases}
    job = replace(window.job, hosts=hosts, groups=(*window.job.groups, *shards))
    return Window(job, tables)


def test_members_that_are_level_in_each_step_wait_for_one_of_them_or_the_network() -> None:
    (found,) = diagnose(sharded(level=True)).verdicts
    assert (found.ranks, found.group, found.cause) == (SLOW, "shard-1", "unknown")
    assert found.confidence < 0.65
    assert "shard-1" in found.summary and "network" in found.summary


def test_devices_that_each_scatter_are_no_group() -> None:
    verdicts = diagnose(sharded(level=False)).verdicts
    assert all(one.group is None for one in verdicts)
    assert {rank for one in verdicts for rank in one.ranks} == set(SLOW)
