"""Two users of one host, each with a job and the default socket. Only root can be two users."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from .conftest import BIN, HERE, TIMEOUT_SECONDS, kill_tree
from .test_healthy import losses

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can start jobs of other users"),
    pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv (util-linux) is missing"),
]
READS = "+dac_read_search"
"""The one right of root that is left: an interpreter below /root may be root's alone."""


@dataclass(frozen=True)
class User:
    """Another user, with a home folder; the folder for temporary files is everybody's."""

    number: int
    home: Path
    ranks: int

    def start(self, *words: str) -> subprocess.Popen[str]:
        number = str(self.number)
        become = ["setpriv", "--reuid", number, "--regid", number, "--clear-groups",
                  "--inh-caps", READS, "--ambient-caps", READS]  # fmt: skip
        around = {k: v for k, v in os.environ.items() if not k.startswith(("STEPSCOPE_", "XDG_"))}
        ours = {"HOME": str(self.home), "TMPDIR": str(self.home.parent), "OMP_NUM_THREADS": "1",
                "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "STEPSCOPE_RAISE": "",
                "STEPSCOPE_NATIVE": "0"}  # fmt: skip
        return subprocess.Popen(
            [*become, *words], env={**around, **ours}, cwd=self.home, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def trains(self, *under: str) -> subprocess.Popen[str]:
        launch = [sys.executable, str(HERE / "launch.py"), "--fork", str(self.ranks)]
        return self.start(*under, *launch, str(HERE / "fsdp.py"))

    def trains_recorded(self) -> subprocess.Popen[str]:
        """Where nobody says otherwise, but for the name: both jobs have the same one."""
        return self.trains(str(BIN / "stepscope"), "run", "--job", "same", "--")

    def diagnosis(self) -> dict[str, Any]:
        """Of five ranks on few processors, one may well be late: status 1."""
        folder = str(self.home / "stepscope-runs" / "same")
        asked = self.start(str(BIN / "stepscope"), "diagnose", folder, "--json")
        found: dict[str, Any] = json.loads(ended(asked, 0, 1)[0])
        return found

    @property
    def socket(self) -> Path:
        return self.home.parent / f"stepscope-{self.number}" / "processor.sock"


def ended(process: subprocess.Popen[str], *statuses: int) -> tuple[str, str]:
    """Standard output and error of a command that has succeeded, or ended with one of these."""
    try:
        stdout, stderr = process.communicate(timeout=TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        kill_tree(process.pid)
        raise
    assert process.returncode in (statuses or (0,)) and "internal error" not in stderr, stderr
    return stdout, stderr


@pytest.fixture
def users() -> Iterator[list[User]]:
    """In a folder with a short name: the path of a socket has at most a hundred bytes."""
    with tempfile.TemporaryDirectory(prefix="sscp-") as folder:
        yield from _users(Path(folder))


def _users(folder: Path) -> Iterator[list[User]]:
    folder.chmod(0o1777)
    users = [User(64_001, folder / "ann", ranks=2), User(64_002, folder / "bob", ranks=3)]
    for user in users:
        user.home.mkdir(mode=0o700)
        os.chown(user.home, user.number, user.number)
    if users[0].start(sys.executable, "-c", "import stepscope").wait(TIMEOUT_SECONDS):
        pytest.skip("another user cannot run this interpreter")
    yield users
    sockets = {str(user.socket) for user in users}
    for process in psutil.process_iter(["cmdline"]):
        if sockets & set(process.info["cmdline"] or []):
            process.kill()


def test_two_users_record_at_once_and_each_sees_their_own_job(users: list[User]) -> None:
    jobs = [user.trains_recorded() for user in users]
    recorded = [ended(job) for job in jobs]
    assert [user.socket.parent.stat().st_uid for user in users] == [64_001, 64_002]
    plain = [ended(job)[0] for job in [user.trains() for user in users]]
    for user, (stdout, stderr), expected in zip(users, recorded, plain, strict=True):
        assert "internal fault" not in stderr
        assert losses(stdout) == losses(expected) != []
        found = user.diagnosis()
        assert (found["ranks"], found["steps"]) == (user.ranks, [0, 29])
    assert plain[0] != plain[1], "nobody was given the other's output"
