"""The names of files in a store.

    <root>/<job>/job.json                                    the job as a whole
    <root>/<job>/topology/<host>.json                        what one host knows of the job
    <root>/<job>/<table>/recorder=<host>/<file>.parquet      rows that this host recorded
    <root>/<job>/<table>/sorted/recorder=<host>/….parquet    several of them, merged by this host
    <root>/<job>/<table>/sorted/together/….parquet           the same of several hosts
    <root>/<job>/control/profile-<window>.json               what all processors are asked to do
    <root>/<job>/torch-traces/host=<host>/<window>/…         what profilers of its ranks wrote
    <root>/_devices/<job>/<host>.json                        what a job says about its devices

The Hive key is `recorder`, not `host`, because the table `hardware` has a column `host`: a query
engine that reads keys as columns would find two, possibly contradicting ones.
"""

from __future__ import annotations

import hashlib
import re
from datetime import datetime, timezone
from functools import lru_cache
from urllib.parse import unquote

from stepscope.store.location import Entry, Location

JOB_FILE = "job.json"
TOPOLOGY = "topology"
PARTITION_KEY = "recorder"
SORTED = "sorted"
"""Sorts after `recorder=…` in a listing by name, as `listing` needs."""
TRACES = "traces"
CONTROL = "control"
DEVICES = "_devices"
"""No job has this name: `safe_name` gives none that begins with `_`."""

_MOMENT = "%Y%m%dT%H%M%SZ"
_GROWING = re.compile(r"/(\d{8}T\d{6}Z)-[0-9a-f]{8}-\d{6}\.parquet$")
_MERGED = re.compile(
    rf"^[^/]+/{SORTED}/.+/(\d{{8}}T\d{{6}}Z)-(\d{{8}}T\d{{6}}Z)-[0-9a-f]{{8}}\.parquet$"
)

GROWS_S = 120.0
"""A growing file gains rows for at most this long: its writer closes it after a minute, or after
two if few rows come."""
_MAX_NAME = 100


def safe_name(text: str) -> str:
    """A valid file or folder name; different texts get different names.

    No name starts with `.` or `_`, because most Parquet readers ignore those.
    """
    name = re.sub(r"[^A-Za-z0-9._-]", "_", text)[:_MAX_NAME]
    if name == text and name[:1] not in ("", ".", "_"):
        return name
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{name.lstrip('._') or 'x'}-{digest}"


def job_location(root: Location | str, job_id: str) -> Location:
    """The folder of one job in a store."""
    location = Location.parse(root) if isinstance(root, str) else root
    return location.child(safe_name(job_id))


def table_folder(table: str, host: str) -> str:
    return f"{table}/{PARTITION_KEY}={safe_name(host)}"


def trace_folder(rank: int) -> str:
    """The folder of one rank's Perfetto traces."""
    return f"{TRACES}/rank={rank}"


def host_trace_folder(host: str) -> str:
    """The folder of the Perfetto traces of a host's counters."""
    return f"{TRACES}/host={safe_name(host)}"


def torch_trace_folder(host: str) -> str:
    """The folder of a host's traces by torch.profiler. They stay on the host: a bucket has none."""
    return f"torch-traces/host={safe_name(host)}"


def trace_name(start_s: float, session: str) -> str:
    """The name of a window's trace file; sorts by time and is unique per processor."""
    return f"{_moment(start_s)}-{session}.perfetto-trace.gz"


def fragment_path(host: str) -> str:
    return f"{TOPOLOGY}/{safe_name(host)}.json"


def file_name(now_s: float, session: str, number: int) -> str:
    """The name of a growing file; sorts by time and is unique, as each processor has a session."""
    return f"{_moment(now_s)}-{session}-{number:06d}.parquet"


def merged_folder(table: str, host: str | None) -> str:
    """The folder of files merged from one host's, or from several hosts' (None)."""
    who = "together" if host is None else f"{PARTITION_KEY}={safe_name(host)}"
    return f"{table}/{SORTED}/{who}"


def merged_name(now_s: float, until_s: float, tag: str) -> str:
    """The name of a merged file: when it was merged, until when rows were added to its parts, and a
    unique tag of eight hexadecimal digits."""
    return f"{_moment(now_s)}-{_moment(until_s)}-{tag}.parquet"


def hive_keys(path: str) -> dict[str, str]:
    """The `key=value` folders of a path; partitioned files lack these columns."""
    folders = (folder.partition("=") for folder in path.split("/")[1:-1])
    return {key: unquote(value) for key, equals, value in folders if equals}


def is_growing(path: str) -> bool:
    """Whether a file is named by `file_name` and only ever gains rows."""
    return _GROWING.search(path) is not None


def series(path: str) -> str:
    """The key of growing files of one table and writer: folder and session."""
    folder, _, name = path.rpartition("/")
    return f"{folder}/{name.split('-')[1]}"


def is_merged(path: str) -> bool:
    """Whether a file is named by `merged_name`."""
    return _MERGED.search(path) is not None


def begun_s(path: str) -> float:
    """When a growing file was created: seconds since 1970 by its host's clock."""
    match = _GROWING.search(path)
    assert match is not None, path
    return _seconds(match[1])


def merged_s(path: str) -> tuple[float, float]:
    """When a merged file was written, and until when rows were added to its parts."""
    match = _MERGED.search(path)
    assert match is not None, path
    return _seconds(match[1]), _seconds(match[2])


def added_until_s(entry: Entry) -> float:
    """Until when rows were added to a growing or merged file, in seconds since 1970."""
    return merged_s(entry.path)[1] if is_merged(entry.path) else entry.modified_ns / 1e9


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime(_MOMENT)


@lru_cache(10_000)  # a large job's files begin at the same few moments
def _seconds(moment: str) -> float:
    return datetime.strptime(moment, _MOMENT).replace(tzinfo=timezone.utc).timestamp()
