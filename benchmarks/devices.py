"""Benchmark of the device ledger on one simulated cluster: what it says after many jobs.

python benchmarks/devices.py                     100 jobs with three bad devices, 200 healthy jobs
python benchmarks/devices.py --seed 1 --network nic    with a bad adapter instead of its cable
python benchmarks/devices.py --ranks 10240             instead: how long the answer takes

The cluster has 32 hosts of four GPUs under four leaf switches. Each job runs on four random hosts
of each of two random leaves, in one of five layouts, and is diagnosed by all default methods. Bad
are a GPU (1.3 times slower), the cable between an adapter and its leaf (4 times slower) and the
processors of a host (other processes use them); each is bad in four of five jobs that use it. In
three of ten jobs something else happens that is no lasting fault of a device: garbage collection,
compilation, slow storage, uneven inputs, or other processes on a random host.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import numpy as np

from stepscope.devices import JobEvidence, Shelf, Standing, Used, evidence_of, standings
from stepscope.devices.constants import DRAIN
from stepscope.devices.evidence import healthy
from stepscope.devices.record import to_bytes
from stepscope.devices.text import render
from stepscope.diagnose.run import diagnose
from stepscope.simulate import Hardware, Parallelism, Scenario, Workload, parse_fault, simulate
from stepscope.store.location import Location
from stepscope.trace import Fabric
from stepscope.window import Strings, Table, Window

LEAVES, HOSTS_OF_LEAF, GPUS = 4, 8, 4
LEAVES_OF_JOB, HOSTS_OF_JOB = 2, 4
"""A job runs under so many leaves, on so many hosts of each."""
EVERY_NS = 3 * 3600 * 10**9
BEGIN_NS = 1_790_000_000 * 10**9
SHOWN, PASSING = 0.8, 0.3
MOE = Workload(kind="moe")
LAYOUTS: Sequence[tuple[Parallelism, Workload]] = (
    (Parallelism(), Workload()),
    (Parallelism(tp=2), Workload()),
    (Parallelism(tp=4, pp=2, microbatches=4), Workload()),
    (Parallelism(sharding="fsdp"), Workload()),
    (Parallelism(ep=2), MOE),
)


@dataclass(frozen=True)
class Bad:
    """A bad device of the cluster: its name, where it is, and the fault that it causes."""

    name: str
    host: int
    fault: str
    """With `{rank}` and `{host}` of the job that uses it."""
    gpu: int = 0


def bad_devices(link: str) -> tuple[Bad, ...]:
    """A GPU, a cable or an adapter, and a host; each under another leaf."""
    cable = {"link": "node-13/nic-1--leaf-1", "nic": "node-13/nic-1"}[link]
    return (
        Bad("node-05/gpu-2", 5, "gpu_slow:rank={rank},factor=1.3", 2),
        Bad(cable, 13, link + "_slow:rank={rank},factor=4", 1),
        Bad("node-22/cpu", 22, "cpu_contention:host={host}"),
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--healthy", type=int, default=200)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--network", choices=("link", "nic"), default="link")
    parser.add_argument("--hours", type=float, default=0.0, help="as if each job had run so long")
    parser.add_argument("--ranks", type=int, default=0)
    asked = parser.parse_args()
    if asked.ranks:
        print_scale(asked.ranks, asked.jobs)
        return
    began = time.perf_counter()
    bad = bad_devices(asked.network)
    jobs = played(asked.jobs, asked.steps, asked.seed, bad)
    print_bad(jobs, bad)
    if asked.hours:
        print(f"\nas if each job had run for {asked.hours:g} hours:\n")
        print_bad([lasting(one, asked.hours) for one in jobs], bad)
    print_healthy(played(asked.healthy, asked.steps, asked.seed + 1, ()))
    seconds = time.perf_counter() - began
    print(f"\n{asked.jobs + asked.healthy} jobs of {LEAVES_OF_JOB * HOSTS_OF_JOB * GPUS} ranks and "
          f"{asked.steps} steps simulated and diagnosed in {seconds:.0f} s")  # fmt: skip


def print_scale(ranks: int, count: int) -> None:
    """Time of an answer from the store; the baseline only parses the same files as JSON."""
    devices = tuple(chain.from_iterable(
        (Used("gpu", f"node-{host}/gpu-{at}", f"GPU-{host:08x}-{at:04x}-0000-0000-000000000000"),
         Used("pcie", f"node-{host}/pcie-{at}"), Used("nic", f"node-{host}/nic-{at}"),
         Used("link", f"node-{host}/nic-{at}--leaf-{host // 16}"))
        for host, at in (divmod(rank, 8) for rank in range(ranks))
    ))  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        shelf = Shelf(Location.parse(folder))
        for at in range(count):
            until = BEGIN_NS + at * EVERY_NS
            shelf.put(JobEvidence(f"job-{at}", "node-0", until, until - EVERY_NS, until, ranks,
                                  "healthy", (), healthy(devices, 36_000.0), ()))  # fmt: skip
        files = [*Path(folder).rglob("*.json")]
        began = time.process_time()
        jobs = shelf.read().jobs
        read = time.process_time()
        standings(jobs, jobs[-1].until_ns)
        added = time.process_time()
        for file in files:
            json.loads(file.read_bytes())
        parsed = time.process_time() - added
    took = added - began
    print(f"{count} jobs of {ranks} ranks, {len(devices)} devices, "
          f"{len(to_bytes(jobs[0])) / 1e6:.2f} MB "
          f"each: read {read - began:.2f} s, added up {added - read:.2f} s of CPU time; "
          f"{took / parsed:.1f} times as long as json.loads ({parsed:.2f} s)")  # fmt: skip


def print_bad(jobs: Sequence[JobEvidence], bad: Sequence[Bad]) -> None:
    now = jobs[-1].until_ns
    found = standings(jobs, now)
    print(f"## {len(jobs)} jobs, three bad devices\n\n{render(found, len(jobs), now, 100, 8)}")
    order = [one.device.name for one in found]
    for one in bad:
        used, drained = first_drained(jobs, one.name)
        print(f"{one.name}: rank {order.index(one.name) + 1} of {len(found)}, used by "
              f"{found[order.index(one.name)].used} jobs, above {DRAIN} after "
              f"{drained or 'none'} of {used} jobs that used it")  # fmt: skip
    ever = {one.device.name for end in range(1, len(jobs) + 1)
            for one in above(standings(jobs[:end], jobs[end - 1].until_ns), bad)}  # fmt: skip
    print(f"healthy devices above {DRAIN}: {len(above(found, bad))} at the end, {len(ever)} at any "
          "time")  # fmt: skip


def lasting(job: JobEvidence, hours: float) -> JobEvidence:
    """The same job, as if it had gone on for so long as it began."""
    well = healthy((one for some in job.healthy for one in some.devices), 3600 * hours)
    return replace(job, from_ns=job.until_ns - int(3600e9 * hours), healthy=well)


def print_healthy(jobs: Sequence[JobEvidence]) -> None:
    """The devices above the limit at the end, and at any time in between."""
    found = standings(jobs, jobs[-1].until_ns)
    ever = {one.device.name for end in range(1, len(jobs) + 1)
            for one in above(standings(jobs[:end], jobs[end - 1].until_ns), ())}  # fmt: skip
    named = sum(bool(one.blames) for one in jobs)
    print(f"\n## {len(jobs)} healthy jobs\n\ndevices: {len(found)}, jobs in which one is blamed: "
          f"{named}, most likely bad: {found[0].device.name} ({found[0].probability:.3f})\n"
          f"devices above {DRAIN}: {len(above(found, ()))} at the end, {len(ever)} at any "
          "time")  # fmt: skip


def above(found: Sequence[Standing], bad: Sequence[Bad]) -> list[Standing]:
    """Healthy devices that the ledger calls bad."""
    names = {one.name for one in bad}
    return [one for one in found if one.probability >= DRAIN and one.device.name not in names]


def first_drained(jobs: Sequence[JobEvidence], name: str) -> tuple[int, int | None]:
    """By how many jobs a device was used, and after how many of them it was above the limit."""
    used, drained = 0, None
    for end, job in enumerate(jobs, 1):
        standing = {one.device.name: one for one in standings(jobs[:end], job.until_ns)}.get(name)
        if standing is None or standing.used == used:
            continue
        used = standing.used
        if drained is None and standing.probability >= DRAIN:
            drained = used
    return used, drained


def played(count: int, steps: int, seed: int, bad: Sequence[Bad]) -> Sequence[JobEvidence]:
    """The evidence of jobs that ran one after the other, through a store."""
    with tempfile.TemporaryDirectory() as folder:
        shelf = Shelf(Location.parse(folder))
        for at in range(count):
            shelf.put(evidence(at, steps, seed, bad))
        read = shelf.read()
    assert not read.problems, read.problems
    return read.jobs


def evidence(at: int, steps: int, seed: int, bad: Sequence[Bad]) -> JobEvidence:
    """One job: where it runs, what happens to it, and what its diagnosis says."""
    random = np.random.default_rng([seed, at])
    leaves = sorted(random.choice(LEAVES, LEAVES_OF_JOB, replace=False).tolist())
    under = [sorted(random.choice(HOSTS_OF_LEAF, HOSTS_OF_JOB, replace=False).tolist())
             for _ in leaves]  # fmt: skip
    hosts = [leaf * HOSTS_OF_LEAF + host for leaf, chosen in zip(leaves, under, strict=True)
             for host in chosen]  # fmt: skip
    faults = [*faults_of(bad, hosts, random), *(passing(hosts, bad, random) if bad else ())]
    parallelism, workload = LAYOUTS[int(random.integers(len(LAYOUTS)))]
    scenario = Scenario(
        name=f"job-{at:03d}", ranks=len(hosts) * GPUS, steps=steps, seed=1000 * seed + at,
        parallelism=parallelism, workload=workload, faults=tuple(map(parse_fault, faults)),
        hardware=Hardware(gpus_per_host=GPUS, nics_per_host=GPUS, hosts_per_leaf=HOSTS_OF_JOB,
                          spines=2),
    )  # fmt: skip
    window = placed(simulate(scenario).window, hosts, leaves)
    one = evidence_of(window, diagnose(window), scenario.name, ended=True)
    until = BEGIN_NS + at * EVERY_NS
    return replace(one, from_ns=until - (one.until_ns - one.from_ns), until_ns=until)


def faults_of(
    bad: Sequence[Bad], hosts: Sequence[int], random: np.random.Generator
) -> Iterator[str]:
    for one in bad:
        shows = random.random() < SHOWN
        if one.host in hosts and shows:
            at = hosts.index(one.host)
            yield one.fault.format(rank=at * GPUS + one.gpu, host=f"host-{at:03d}")


def passing(hosts: Sequence[int], bad: Sequence[Bad], random: np.random.Generator) -> Iterator[str]:
    """Something that no device has done, or that is over after the job."""
    if random.random() >= PASSING:
        return
    rank = int(random.integers(len(hosts) * GPUS))
    others = [at for at, host in enumerate(hosts) if host not in {one.host for one in bad}]
    host = int(random.choice(others))
    yield str(random.choice([
        "gc", f"jit_compile:rank={rank},microbatch=3", f"data_slow:ranks={rank}", "uneven_inputs",
        f"cpu_contention:host=host-{host:03d}",
    ]))  # fmt: skip


def placed(window: Window, hosts: Sequence[int], leaves: Sequence[int]) -> Window:
    """The window of a job on these hosts of the cluster, under their names there."""
    names = {f"host-{at:03d}": f"node-{host:02d}" for at, host in enumerate(hosts)}
    switches = {f"leaf-{at}": f"leaf-{leaf}" for at, leaf in enumerate(leaves)}
    job, fabric = window.job, window.job.fabric
    assert fabric is not None
    moved = [replace(one, name=switches.get(one.name, one.name),
                     children=tuple(_moved(child, names, switches) for child in one.children))
             for one in fabric.switches]  # fmt: skip
    job = replace(job, hosts=tuple(replace(one, name=names[one.name]) for one in job.hosts),
                  fabric=Fabric(tuple(moved)))  # fmt: skip
    tables = {name: _renamed(table, names) for name, table in window.tables.items()}
    return Window(job, tables)


def _moved(child: str, names: Mapping[str, str], switches: Mapping[str, str]) -> str:
    host, slash, nic = child.partition("/")
    return f"{names[host]}/{nic}" if slash else switches.get(child, child)


def _renamed(table: Table, names: Mapping[str, str]) -> Table:
    if not table.has("host"):
        return table
    hosts = table.strings("host")
    return table.with_column(
        "host", Strings(hosts.codes, tuple(names[one] for one in hosts.values))
    )


if __name__ == "__main__":
    main()
