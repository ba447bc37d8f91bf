"""A script may close our descriptors; what gets their numbers then is left alone."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from stepscope.collect.descriptors import LostSocketError, OwnSocket, Wake
from stepscope.wire.records import RecordKind

from .listener import Listener, rows

_SCRIPT = """
import os, socket, sys
from stepscope.collect.identity import Identity
from stepscope.collect.session import Session

session = Session(sys.argv[1], Identity("job", "", "host"))

def work(count):
    for _ in range(count):
        session.phase("work", (0, 0, 0, 0, None), (1, 1, 0, 0, None))

work(1)
input()
os.closerange(3, 256)
pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(20)]
ends = [end for pair in pairs for end in pair]
for end in ends:
    end.send(b"theirs")
work(5)
input()
session.close()
for end in ends:
    assert end.recv(100, socket.MSG_DONTWAIT) == b"theirs"
for one, other in pairs:
    one.close()
    assert other.recv(100) == b""
"""


@pytest.mark.usefixtures("unowned")
def test_a_script_that_closes_all_descriptors_keeps_its_own(
    socket_path: Path, listener: Listener
) -> None:
    """Nothing is written to, read from or closed in its place, and recording goes on."""
    command = [sys.executable, "-c", _SCRIPT, str(socket_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as script:
        assert script.stdin is not None
        listener.accept().read_until(rows(1))
        print("closerange", file=script.stdin, flush=True)
        heard = listener.accept().read_until(rows(5))
        assert len(heard.records(RecordKind.PHASE)) == 5
        print("end", file=script.stdin, flush=True)
    assert script.returncode == 0


def test_a_number_that_belongs_to_another_file_is_not_closed() -> None:
    ours, peer = socket.socketpair()
    own, number = OwnSocket(ours), ours.fileno()
    os.close(number)
    theirs = os.dup2(os.open(os.devnull, os.O_RDONLY), number)
    with pytest.raises(LostSocketError):
        own.get()
    own.close()
    os.fstat(theirs)
    os.close(theirs)
    peer.close()


def test_a_socket_that_nobody_holds_any_more_is_closed_only_if_it_is_ours() -> None:
    for taken in (False, True):
        ours, peer = socket.socketpair()
        own, number = OwnSocket(ours), ours.fileno()
        if taken:
            os.close(number)
            os.dup2(os.open(os.devnull, os.O_RDONLY), number)
        del own, ours
        assert _is_open(number) == taken
        peer.close()
        if taken:
            os.close(number)


def test_a_thread_can_be_woken_after_the_script_closed_what_woke_it() -> None:
    wake = Wake()
    first = wake.descriptor
    assert first is not None
    os.close(first)
    wake.set()
    heard = wake.descriptor
    assert heard is not None
    wake.set()
    with socket.socket(fileno=os.dup(heard)) as line:
        line.settimeout(30)
        assert line.recv(10)
    wake.close()
    assert not _is_open(heard)


def _is_open(number: int) -> bool:
    return Path(f"/proc/self/fd/{number}").exists()


@pytest.fixture
def unowned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STEPSCOPE_OWNER", raising=False)
