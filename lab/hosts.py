"""Hosts in a box: namespaces for network, names, processes and mounts, joined by a switch.

Everything hangs on the process that made it. If that ends, however it ends, the kernel kills the
first process of every host, with it all others there, and the network goes with them. Only folders
and control groups stay; the next cluster removes those of makers that are gone.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO

from lab.groups import Groups

PREFIX = "stepscope-lab-"
RANK_NICE = -10
"""Of processes that would have a processor for themselves on a real host."""

_HOST = """
mount --bind "$1/etc-hosts" /etc/hosts
hostname "$2"
ip link set lo up
touch "$1/up"
trap : TERM INT
while :; do sleep 3600 & wait $!; done
"""
_CLOCK = Path(__file__).with_name("clock.c")
_NEEDED = ("unshare", "nsenter", "setpriv", "ip", "tc", "iptables")


class NotPermittedError(Exception):
    """Hosts cannot be made here; the message says why."""


@dataclass(frozen=True)
class Host:
    """One host; `pid` is its first process, as seen from outside."""

    name: str
    address: str
    pid: int
    folder: Path
    groups: Groups
    clock: dict[str, str]

    def enter(self, *command: str) -> list[str]:
        """The command line that runs a command on this host."""
        inside = ["nsenter", "-t", str(self.pid), "--net", "--uts", "--mount", "--pid"]
        return [*self.groups.joining(self.name), *inside, *command]

    def environment(self) -> dict[str, str]:
        """What differs from host to host."""
        return {"TMPDIR": str(self.folder / "tmp"), "XDG_RUNTIME_DIR": str(self.folder / "run"),
                "HOSTNAME": self.name, **self.clock}  # fmt: skip

    def start(
        self, command: Sequence[str], environment: Mapping[str, str], output: IO[bytes]
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.enter(*command), env={**environment, **self.environment()},
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip


@dataclass
class Cluster:
    """Hosts on one switch, for as long as the `with` block lasts."""

    count: int
    rate_mbit: float
    clocks_ms: Sequence[float] = ()
    folder: Path = field(init=False)
    hosts: list[Host] = field(default_factory=list)
    _groups: Groups = field(init=False)
    _processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __enter__(self) -> Cluster:
        check()
        remove_leftovers()
        self.folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
        self._groups = Groups(f"{PREFIX}{os.getpid()}")
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._remove()

    def set_rate(self, host: Host, mbit: float) -> None:
        """Limits a host's link in both directions."""
        shape = ["root", "tbf", "rate", f"{mbit:.0f}mbit", "burst", "128k", "latency", "100ms"]
        _call(*_in_network(host.pid), "tc", "qdisc", "replace", "dev", "eth0", *shape)
        _call(*_in_network(self._switch), "tc", "qdisc", "replace", "dev", host.name, *shape)

    def lose_packets(self, host: Host, share: float) -> None:
        """Drops this share of what arrives at a host, at random; 1 is a link that is gone."""
        match = [] if share >= 1 else ["-m", "statistic", "--mode", "random",
                                       "--probability", f"{share:.5f}"]  # fmt: skip
        for chain, flag in (("INPUT", "-i"), ("OUTPUT", "-o")):
            rule = [chain, flag, "eth0", *match, "-j", "DROP"]
            _call(*_in_network(host.pid), "iptables", "-w", "-A", *rule)

    def restore(self, host: Host) -> None:
        """The link and the processors as they were."""
        _call(*_in_network(host.pid), "iptables", "-w", "-F")
        self.set_rate(host, self.rate_mbit)
        host.groups.lift_quota(host.name)

    @property
    def _switch(self) -> int:
        return self._processes[0].pid

    def _make(self) -> None:
        self._processes.append(_first_process("--net", "sleep", "infinity"))
        _await(lambda: _own_network(self._switch), "the switch")
        _call(*_in_network(self._switch), "ip", "link", "add", "switch", "type", "bridge")
        _call(*_in_network(self._switch), "ip", "link", "set", "switch", "up")
        names = [f"host-{number}" for number in range(self.count)]
        addresses = [f"10.77.0.{number + 1}" for number in range(self.count)]
        known = "".join(
            f"{address} {name}\n" for address, name in zip(addresses, names, strict=True)
        )
        of_hosts = zip(names, addresses, self._clocks(), strict=True)
        self.hosts = [self._made(name, address, known, clock) for name, address, clock in of_hosts]
        for host in self.hosts:
            self._plug_in(host)

    def _made(self, name: str, address: str, known: str, clock: dict[str, str]) -> Host:
        folder = self.folder / name
        for part in ("tmp", "run"):
            (folder / part).mkdir(parents=True)
        (folder / "run").chmod(0o700)
        (folder / "etc-hosts").write_text(f"127.0.0.1 localhost\n{known}")
        self._groups.make(name)
        unshared = ["--net", "--uts", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc"]
        process = _first_process(*unshared, "bash", "-c", _HOST, name, str(folder), name)
        self._processes.append(process)
        _await((folder / "up").exists, name)
        return Host(name, address, _child(process.pid), folder, self._groups, clock)

    def _plug_in(self, host: Host) -> None:
        _call("ip", "link", "add", host.name, "netns", str(self._switch),
              "type", "veth", "peer", "name", "eth0", "netns", str(host.pid))  # fmt: skip
        switch, inside = _in_network(self._switch), _in_network(host.pid)
        _call(*switch, "ip", "link", "set", host.name, "master", "switch", "up")
        _call(*inside, "ip", "address", "add", f"{host.address}/24", "dev", "eth0")
        _call(*inside, "ip", "link", "set", "eth0", "up")
        self.set_rate(host, self.rate_mbit)

    def _clocks(self) -> list[dict[str, str]]:
        """The environment that sets each host's wall clock apart from ours."""
        if not any(self.clocks_ms):
            return [{}] * self.count
        library = self.folder / "clock.so"
        _call("cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(_CLOCK), "-ldl")
        shifts = [round(ms * 1_000_000) for ms in self.clocks_ms]
        return [{"LD_PRELOAD": str(library), "LAB_CLOCK_NS": str(shift)} for shift in shifts]

    def _remove(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
        for host in self.hosts:
            _await(lambda pid=host.pid: not Path("/proc", str(pid)).exists(), f"{host.name}'s end")
        self._groups.remove()
        shutil.rmtree(self.folder, ignore_errors=True)


def check() -> None:
    """Raises NotPermittedError unless hosts can be made here."""
    missing = [name for name in _NEEDED if shutil.which(name) is None]
    if missing:
        raise NotPermittedError(
            f"{', '.join(missing)} not found (Debian: iproute2, iptables, util-linux)"
        )
    flags = ["--net", "--uts", "--pid", "--mount", "--fork", "--mount-proc"]
    trial = "ip link set lo up && tc qdisc add dev lo root tbf rate 1gbit burst 64k latency 50ms"
    tried = subprocess.run(
        ["unshare", *flags, "sh", "-c", trial], capture_output=True, text=True, check=False
    )
    if tried.returncode:
        raise NotPermittedError(
            tried.stderr.strip().splitlines()[-1] if tried.stderr else "unshare failed"
        )
    if not Groups.are_there():
        raise NotPermittedError("no control group of processors can be made")


def remove_leftovers() -> None:
    """What clusters of processes that are gone have left on the disk."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*-*"):
        maker = folder.name.removeprefix(PREFIX).partition("-")[0]
        if maker.isdecimal() and not Path("/proc", maker).exists():
            shutil.rmtree(folder, ignore_errors=True)
    for group in Groups.all(PREFIX):
        if not Path("/proc", group.name.removeprefix(PREFIX)).exists():
            group.remove()


def kill_tree(process: subprocess.Popen[bytes]) -> None:
    """For what was started on a host and does not end by itself."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _first_process(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", "unshare", *arguments],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip


def _child(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def _own_network(pid: int) -> bool:
    return Path(f"/proc/{pid}/ns/net").readlink() != Path("/proc/self/ns/net").readlink()


def _in_network(pid: int) -> list[str]:
    return ["nsenter", "-t", str(pid), "--net"]


def _await(ready: object, what: str) -> None:
    assert callable(ready)
    until = time.monotonic() + 10
    while not ready():
        if time.monotonic() > until:
            raise NotPermittedError(f"{what} did not come up in 10 s")
        time.sleep(0.01)


def _call(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotPermittedError(f"{' '.join(command)}: {done.stderr.strip()}")
