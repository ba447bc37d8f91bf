"""`stepscope watch`, asked of a real processor that has a rank."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stepscope.cli import main
from stepscope.cli.watch import mask
from stepscope.errors import UsageError
from stepscope.wire.control import AS_USUAL
from stepscope.wire.frames import MAX_PACKET_BYTES, unpack
from tests.processor.daemons import Daemon
from tests.processor.producers import Producer


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path / "processor.sock")
    yield daemon
    daemon.terminate()


def test_ranks_get_the_events(
    daemon: Daemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    python = Producer(0, job="mine", store=str(tmp_path))
    plugin = Producer(0, job="mine", store=str(tmp_path), source="nccl")
    with daemon.connect(python.hello()), daemon.connect(plugin.hello()) as line:
        daemon.flush("mine")  # by now both are known
        assert main(["watch", "mine", "collectives,kernels", "--socket", str(daemon.path)]) == 0
        _, payload = unpack(line.recv(MAX_PACKET_BYTES))
    assert b'"nccl_events": 66' in bytes(payload)
    assert capsys.readouterr().out == "1 rank of mine set to record collectives,kernels\n"


def test_no_rank_of_the_job(daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", "other", "nothing", "--socket", str(daemon.path)]) == 2
    assert "no rank of other on this host was started with --native nccl" in capsys.readouterr().err


def test_no_processor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", "mine", "as-usual", "--socket", str(tmp_path / "none.sock")]) == 2
    assert "no answer from a processor on" in capsys.readouterr().err


def test_words_of_events() -> None:
    assert mask("collectives,point-to-point,collectives") == 6
    assert mask("proxies") == 24 and mask("nothing") == 0 and mask("as-usual") == AS_USUAL
    with pytest.raises(UsageError, match="unknown NCCL events 'all'; known: collectives"):
        mask("all")
