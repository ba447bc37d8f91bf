"""Hearing from a real processor, and from none."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepscope.cli.notifications import Notifications
from tests.processor.daemons import Daemon, wait_for
from tests.processor.producers import Producer


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path / "processor.sock")
    yield daemon
    daemon.terminate()


def _train(daemon: Daemon, store: Path, job: str) -> socket.socket:
    producer = Producer(0, job=job, store=str(store))
    return daemon.connect(producer.hello(), producer.tell("loader", "optimizer"))


def _is_notified(news: Notifications) -> bool:
    descriptor = news.descriptor
    if descriptor is None or not select.select([descriptor], [], [], 0)[0]:
        return False
    return news.received()


def test_a_follower_is_notified_when_rows_are_stored(daemon: Daemon, tmp_path: Path) -> None:
    news, of_another = Notifications(daemon.path, "mine"), Notifications(daemon.path, "another")
    with _train(daemon, tmp_path, "mine"):
        assert of_another.descriptor is not None
        wait_for(lambda: _is_notified(news), "news")
        assert (tmp_path / "mine").exists()
        assert not of_another.received(), "no job of that name was stored"
    news.close()
    of_another.close()


def test_a_follower_finds_the_next_processor(daemon: Daemon, tmp_path: Path) -> None:
    news = Notifications(daemon.path, "job")
    with _train(daemon, tmp_path, "job"):
        wait_for(lambda: _is_notified(news), "news")
        daemon.kill()
        wait_for(lambda: not news.received() and news.descriptor is None, "end of the connection")
        daemon.start()
        with _train(daemon, tmp_path, "job"):
            wait_for(lambda: _is_notified(news), "news of the next processor")
    news.close()


def test_without_a_processor_nothing_is_heard(tmp_path: Path) -> None:
    news = Notifications(tmp_path / "nobody.sock", "job")
    assert news.descriptor is None and not news.received()
    news.close()
