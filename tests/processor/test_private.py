"""On a host with other users: whose folders, files and sockets are accepted."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from stepscope.cli import main
from stepscope.collect.connection import connect
from stepscope.processor.sockets.listener import take_lock

from .daemons import Daemon
from .impostor import NOBODY, as_root, impostor, received

_VISITOR = """
import os, socket, sys
os.setuid(65534)
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
    line.connect(sys.argv[1])
    line.settimeout(30)
    print(len(line.recv(100)))
"""


class Refused:
    """What a command says that does not start: one line."""

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self._capfd = capfd

    def processor(self, folder: Path) -> str:
        return self._said(folder, "processor")

    def run(self, folder: Path) -> str:
        trains = ("--", sys.executable, "-c", "print('trained')")
        return self._said(folder, "run", "--store", str(folder / "runs"), *trains)

    def _said(self, folder: Path, command: str, *words: str) -> str:
        assert main([command, "--socket", str(folder / "p.sock"), *words]) == 2
        out, err = self._capfd.readouterr()
        assert out == "" and err.count("\n") == 1 and str(folder) in err
        return err


@pytest.fixture
def refused(capfd: pytest.CaptureFixture[str]) -> Refused:
    return Refused(capfd)


def linked(folder: Path) -> str:
    real = folder.with_name("elsewhere")
    real.mkdir(mode=0o700)
    folder.symlink_to(real)
    return "is a symbolic link"


def open_to_others(folder: Path) -> str:
    folder.mkdir()
    folder.chmod(0o711)
    return "other users have access"


def of_another_user(folder: Path) -> str:
    folder.mkdir(mode=0o700)
    os.chown(folder, NOBODY, NOBODY)
    return "belongs to user 65534"


@pytest.mark.parametrize(
    "make", [linked, open_to_others, pytest.param(of_another_user, marks=as_root)]
)
def test_a_folder_that_others_have_made_or_may_enter(
    make: Callable[[Path], str], tmp_path: Path, refused: Refused
) -> None:
    folder = tmp_path / "sockets"
    says = make(folder)
    assert says in refused.processor(folder)
    assert says in refused.run(folder)
    assert not list(folder.iterdir())


def test_a_new_folder_is_for_this_user_only(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        take_lock(tmp_path / "new" / "p.sock").close()
    finally:
        os.umask(before)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "new" / "p.lock").stat().st_mode & 0o777 == 0o600


def test_a_link_as_the_lock_file_is_not_followed(tmp_path: Path, refused: Refused) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "p.lock").symlink_to(victim)
    refused.processor(tmp_path)
    assert victim.read_text() == "precious"


def test_a_link_as_the_log_is_not_followed(tmp_path: Path, refused: Refused) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "p.log").symlink_to(victim)
    refused.run(tmp_path)
    assert victim.read_text() == "precious"


@as_root
def test_a_rank_tells_another_users_process_nothing(
    socket_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with impostor(socket_path) as process:
        for _ in range(2):
            with pytest.raises(PermissionError, match="user 65534 listens on"):
                connect(str(socket_path), 0.0)
            assert received(process) == 0
    said = f"stepscope: not recorded: user 65534 listens on {socket_path}, not our processor\n"
    assert capfd.readouterr().err == said


@as_root
def test_commands_ask_another_users_process_nothing(socket_path: Path, refused: Refused) -> None:
    with impostor(socket_path) as process:
        assert "user 65534 listens on" in refused.run(socket_path.parent)
        assert received(process) == 0


@as_root
def test_a_processor_hangs_up_on_another_user(daemon: Daemon) -> None:
    daemon.path.parent.chmod(0o777)
    daemon.path.chmod(0o777)
    visit = [sys.executable, "-c", _VISITOR, str(daemon.path)]
    done = subprocess.run(visit, capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"
    assert daemon.log_of("closing a connection: it comes from user 65534")
    assert daemon.flush("job")["trouble"]
