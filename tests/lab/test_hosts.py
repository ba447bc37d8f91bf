"""Hosts in a box reach each other, have names and clocks of their own, and leave nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lab.groups import Groups
from lab.hosts import PREFIX, Cluster, Host, remove_leftovers

pytestmark = pytest.mark.usefixtures("permitted")


def said(host: Host, *command: str) -> str:
    environment = {**os.environ, **host.environment()}
    done = subprocess.run(
        host.enter(*command), env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_hosts_have_names_processes_and_folders_of_their_own() -> None:
    with Cluster(2, 1000.0) as cluster:
        names = [said(host, "hostname") for host in cluster.hosts]
        folders = {said(host, "sh", "-c", "echo $TMPDIR") for host in cluster.hosts}
        processes = said(cluster.hosts[0], "sh", "-c", "echo /proc/[0-9]*").split()
    assert names == ["host-0", "host-1"]
    assert len(folders) == 2
    assert len(processes) < 10


SERVER = """
import socket
with socket.create_server(("", 4000)) as server:
    print("up", flush=True)
    server.accept()[0].sendall(b"hello")
"""
CLIENT = """
import socket
with socket.create_connection(("host-0", 4000), 10) as connection:
    print(connection.recv(100).decode())
"""


def test_hosts_reach_each_other_by_name_until_a_link_is_gone() -> None:
    with Cluster(2, 1000.0) as cluster:
        first, second = cluster.hosts
        command = first.enter(sys.executable, "-c", SERVER)
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            server.stdout.readline()
            assert said(second, sys.executable, "-c", CLIENT) == "hello"
        cluster.lose_packets(second, 1.0)
        with pytest.raises(subprocess.CalledProcessError):
            said(second, sys.executable, "-c", CLIENT.replace("10)", "0.2)"))


def test_wall_clocks_differ_and_sleeping_does_not() -> None:
    script = "import time; b = time.monotonic(); t = time.time(); time.sleep(0.05)"
    script += "; print(t, time.monotonic() - b)"
    with Cluster(2, 1000.0, clocks_ms=(0.0, 3_600_000.0)) as cluster:
        texts = [said(host, sys.executable, "-c", script) for host in cluster.hosts]
    (ours, slept_here), (theirs, slept_there) = (map(float, text.split()) for text in texts)
    assert 3_600 <= theirs - ours < 3_700
    assert min(slept_here, slept_there) >= 0.05


def test_a_cluster_leaves_nothing_behind() -> None:
    with Cluster(1, 1000.0) as cluster:
        folder, process = cluster.folder, cluster.hosts[0].pid
        assert folder.exists()
    assert not folder.exists()
    assert not Path(f"/proc/{process}").exists()
    assert not [group for group in Groups.all(PREFIX) if group.name.endswith(str(os.getpid()))]


MAKER = """
import time
from lab.hosts import Cluster
with Cluster(1, 1000.0) as cluster:
    print(cluster.hosts[0].pid, cluster.folder, flush=True)
    time.sleep(600)
"""


def test_hosts_of_a_killed_process_die_with_it_and_are_cleared_away_by_the_next() -> None:
    root = str(Path(__file__).parents[2])
    maker = subprocess.Popen(
        [sys.executable, "-c", MAKER], stdout=subprocess.PIPE, text=True, cwd=root
    )
    assert maker.stdout is not None
    pid, folder = maker.stdout.readline().split()
    maker.send_signal(signal.SIGKILL)
    maker.wait()
    maker.stdout.close()
    until = time.monotonic() + 10
    while Path("/proc", pid).exists():
        assert time.monotonic() < until, "a host outlives its maker"
        time.sleep(0.02)
    remove_leftovers()
    assert not Path(folder).exists()
    assert not [group for group in Groups.all(PREFIX) if group.name.endswith(f"-{maker.pid}")]
