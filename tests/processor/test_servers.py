"""Series sent to real servers, and queried from them."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stepscope.cli.series import Announcer
from stepscope.processor.reporting.reporter import Reporting
from stepscope.store.remote_write import RemoteWriter, Sample
from tests.report.samples import SAMPLES

from .daemons import command
from .daemons import wait_for as wait_until
from .producers import Producer
from .servers import NAMES, Server
from .test_metrics import kernels, phases, steps


@pytest.fixture(scope="module", params=NAMES)
def server(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[Server]:
    server = Server(request.param, tmp_path_factory.mktemp("server"))
    yield server
    server.stop()


@pytest.fixture
def writer(server: Server) -> RemoteWriter:
    return RemoteWriter(server.write_url, {})


def send(writer: RemoteWriter) -> None:
    while writer.waiting:
        assert writer.turn() == 0.0, "the server is there"
    assert writer.dropped == 0


def test_a_value_comes_back_with_its_labels(server: Server, writer: RemoteWriter) -> None:
    now = time.time()
    labels = (("host", 'näme "quoted" \\ and\nlines'), ("job", "j"))
    writer.offer([Sample("stepscope_sent", labels, 0.1 + 0.2, int(now * 1000))])
    send(writer)
    [(found, value)] = server.wait_for("stepscope_sent", now)
    assert found == {"__name__": "stepscope_sent", **dict(labels)}
    assert value == pytest.approx(0.1 + 0.2), "VictoriaMetrics keeps 15 digits"


def test_what_is_sent_twice_does_no_harm(server: Server, writer: RemoteWriter) -> None:
    """As after an answer that got lost on its way."""
    now = time.time()
    for _ in range(2):
        writer.offer([Sample("stepscope_twice", (), 7.0, int(now * 1000))])
        send(writer)
    assert server.wait_for("stepscope_twice", now)[0][1] == 7.0


def test_a_host_as_a_dashboard_sees_it(server: Server, writer: RemoteWriter) -> None:
    """A rate over a minute gives a step time, as the page of names says."""
    job = f"job-{server.place}"
    clock = [time.time() - 120.0]
    reporting = Reporting("host-0", None, clock=lambda: clock[0], writer=writer)
    for number in range(5):
        reporting.note(job, "steps", steps(*[250] * 10, rank=3))
        reporting.note(job, "phases", phases("forward-compute", rank=3))
        reporting.note(job, "kernel_summaries", kernels(("gemm<64>", 10, 2), window=number))
        clock[0] += 15.0
        reporting.turn()
    send(writer)
    at_s = clock[0]
    only = f'{{job="{job}"}}'
    server.wait_for(f"stepscope_steps_total{only} == 50", at_s)
    over = f"{only}[2m]"
    [(labels, seconds)] = server.query(
        f"sum by (rank) (rate(stepscope_step_seconds_total{over})) / "
        f"sum by (rank) (rate(stepscope_steps_total{over}))", at_s,
    )  # fmt: skip
    assert labels == {"rank": "3"} and seconds == pytest.approx(0.25)
    [(labels, p99)] = server.query(f"stepscope_kernel_p99_seconds{only}", at_s)
    assert labels["kernel"] == "gemm<64>" and p99 == 0.004
    [(labels, waited)] = server.query(f"stepscope_phase_wait_seconds_total{only}", at_s)
    assert labels["phase"] == "forward-compute" and waited == pytest.approx(0.005)
    assert labels["host"] == "host-0"


def test_an_alert_on_a_hang_begins_and_ends(server: Server, writer: RemoteWriter) -> None:
    hang = SAMPLES["hang"]()
    watcher = f"host-{server.place}"
    announcer = Announcer(writer.start(), watcher)
    announcer.show(hang)
    alert = f'stepscope_state{{state="hang",watcher="{watcher}"}} == 1'
    [(labels, _)] = server.wait_for(alert, time.time())
    assert labels["job"] == hang.job_id
    confidence = f'stepscope_verdict_confidence{{watcher="{watcher}"}}'
    found = server.wait_for(confidence, time.time())
    assert {labels["kind"] for labels, _ in found} == {"hang"}

    announcer.close()
    wait_until(lambda: not server.query(alert, time.time() + 1), "end of the series")


@pytest.mark.parametrize("server", NAMES[:1], indirect=True)
def test_a_processor_sends_the_final_values_when_it_ends(
    server: Server, socket_path: Path, tmp_path: Path
) -> None:
    job = f"job-{server.place.replace(':', '-')}"
    env = {k: v for k, v in os.environ.items() if not k.startswith("STEPSCOPE_")}
    process = subprocess.Popen(
        [*command(socket_path), "--remote-write", server.write_url],
        env={**env, "STEPSCOPE_HOST": "host-7"},
    )
    try:
        _train(socket_path, Producer(rank=5, job=job, store=str(tmp_path)))
        folder = tmp_path / job / "steps"
        wait_until(lambda: list(folder.rglob("*.parquet")) != [], "steps")
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
    [(labels, value)] = server.wait_for(f'stepscope_steps_total{{job="{job}"}}', time.time())
    assert (labels["rank"], labels["host"], value) == ("5", "host-7", 20)


def _train(path: Path, rank: Producer) -> None:
    from .daemons import Daemon

    daemon = Daemon.__new__(Daemon)
    daemon.path = path
    wait_until(path.exists, "socket")
    names = rank.tell("loader", "optimizer")
    iterations = [rank.packet(*rank.iteration()) for _ in range(20)]
    daemon.connect(rank.hello(), names, *iterations).close()
