"""A clock that stands still, jobs in a folder, and a real S3 server."""

from __future__ import annotations

import itertools
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepscope.store import JobReader, JobWriter, Location, job_location

_SIGNED = {"Authorization": "AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/s3/aws4_request"}
_numbers = itertools.count()


class Clock:
    """Wall-clock seconds that move when told to."""

    def __init__(self) -> None:
        self.now_s = 1_766_000_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def job(tmp_path: Path) -> Location:
    """A job's folder on disk."""
    return job_location(str(tmp_path / "runs"), "job-1")


@pytest.fixture
def writer(job: Location, clock: Clock) -> JobWriter:
    return JobWriter(job, "host-0", clock=clock)


@pytest.fixture
def reader(job: Location) -> JobReader:
    return JobReader(job.url)


@pytest.fixture
def s3_environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    return monkeypatch


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    from moto.server import ThreadedMotoServer  # a second, for every process that runs tests

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(s3_endpoint: str, s3_environment: pytest.MonkeyPatch) -> str:
    """The URL of a fresh bucket."""
    s3_environment.setenv("AWS_ENDPOINT_URL", s3_endpoint)
    name = f"runs-{next(_numbers)}"
    request = urllib.request.Request(
        f"{s3_endpoint}/{name}", data=b"", method="PUT", headers=_SIGNED
    )
    urllib.request.urlopen(request).close()
    return f"s3://{name}/team/a"


@pytest.fixture(params=["folder", "bucket"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store, once on disk and once in a bucket."""
    if request.param == "folder":
        return str(tmp_path / "runs")
    url: str = request.getfixturevalue("bucket")
    return url
