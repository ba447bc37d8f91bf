"""Local folders and prefixes in S3 buckets behind one small class.

Every error of obstore becomes a `StoreError` (writing) or a `SourceError` (reading) with a message
of one line. A put is atomic on both: S3 shows an object only when it is complete, and a local file
is written under another name and renamed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import BaseError
from obstore.store import LocalStore, ObjectStore, S3Store

from stepscope.errors import SourceError, StoreError, UsageError

# An unreachable bucket must fail while the caller still waits: two attempts of three seconds to
# connect, at most five seconds without data, and one minute for a large object.
_CONNECT_TIMEOUT = "3s"
_SILENCE_TIMEOUT = "5s"
_REQUEST_TIMEOUT = "60s"
_RETRIES = 1
_RETRY_TIMEOUT = timedelta(seconds=8)

# RuntimeError: `~` of an unknown user, a loop of links
_FAILURES = (BaseError, OSError, ValueError, RuntimeError)


@dataclass(frozen=True)
class Entry:
    """One listed file; files with equal entries have equal contents."""

    path: str
    size_bytes: int
    etag: str | None
    modified_ns: int


@dataclass(frozen=True)
class Location:
    """A folder that may not exist yet. Paths are relative to it, with `/` between names."""

    url: str
    _store: ObjectStore
    _prefix: str

    @classmethod
    def parse(cls, text: str) -> Location:
        """Reads a folder name, `file:///folder` or `s3://bucket/prefix`.

        S3 credentials, region and endpoint come from the environment (`AWS_ACCESS_KEY_ID`,
        `AWS_SECRET_ACCESS_KEY`, `AWS_REGION`, `AWS_ENDPOINT_URL`, …).
        """
        scheme, separator, _ = text.partition("://")
        if not separator:
            return cls._local(Path(text))
        scheme = scheme.lower()
        if scheme == "file":
            return cls._local(Path(unquote(urlsplit(text).path)))
        if scheme in ("s3", "s3a"):
            return cls._bucket(text)
        raise UsageError(f"cannot open {text}: use a folder, file:///folder or s3://bucket/prefix")

    @classmethod
    def _local(cls, folder: Path) -> Location:
        with _failing_as(UsageError, "open", str(folder)):
            folder = folder.expanduser().absolute()
            # obstore does not support `..`
            return cls(str(folder), LocalStore(), folder.resolve().as_posix().strip("/"))

    @classmethod
    def _bucket(cls, url: str) -> Location:
        parts = urlsplit(url)
        if not parts.netloc:
            raise UsageError(f"cannot open {url}: it has no bucket name; use s3://bucket/prefix")
        prefix = "/".join(name for name in parts.path.split("/") if name)
        with _failing_as(UsageError, "configure", url):
            store = S3Store(
                parts.netloc,
                client_options={
                    "allow_http": True,
                    "connect_timeout": _CONNECT_TIMEOUT,
                    "read_timeout": _SILENCE_TIMEOUT,
                    "timeout": _REQUEST_TIMEOUT,
                },
                retry_config={"max_retries": _RETRIES, "retry_timeout": _RETRY_TIMEOUT},
            )
        return cls(f"s3://{parts.netloc}/{prefix}".rstrip("/"), store, prefix)

    def __str__(self) -> str:
        return self.url

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.url.rstrip("/").rpartition("/")[2]

    @property
    def is_local(self) -> bool:
        return isinstance(self._store, LocalStore)

    def child(self, name: str) -> Location:
        return Location(f"{self.url.rstrip('/')}/{name}", self._store, self._full(name))

    def put(self, path: str, data: bytes) -> None:
        """Writes a file completely or not at all.

        Raises:
            StoreError: the disk is full, the bucket unreachable, …
        """
        with _failing_as(StoreError, "write", f"{self.url}/{path}"):
            obstore.put(self._store, self._full(path), data, use_multipart=False)

    def get(self, path: str) -> bytes | None:
        """Reads a file; None if it does not exist (any more).

        Raises:
            SourceError: the store cannot be read.
        """
        with _failing_as(SourceError, "read", f"{self.url}/{path}"):
            try:
                return obstore.get(self._store, self._full(path)).bytes().to_bytes()
            except FileNotFoundError:
                return None

    def get_end(self, entry: Entry, size_bytes: int) -> bytes | None:
        """The last bytes of a file as it was listed; None if it does not exist (any more).

        Raises:
            SourceError: the store cannot be read.
        """
        start = max(entry.size_bytes - size_bytes, 0)
        with _failing_as(SourceError, "read", f"{self.url}/{entry.path}"):
            try:
                end = entry.size_bytes
                return obstore.get_range(
                    self._store, self._full(entry.path), start=start, end=end
                ).to_bytes()
            except FileNotFoundError:
                return None

    def delete(self, path: str) -> None:
        """Deletes a file if it is there."""
        with _failing_as(StoreError, "delete", f"{self.url}/{path}"):
            try:
                obstore.delete(self._store, self._full(path))
            except FileNotFoundError:
                return

    def files(self, folder: str = "") -> list[Entry]:
        """All files below a folder, at any depth, by path; none if there is no such folder."""
        start = self._full(folder)
        with _failing_as(SourceError, "list", f"{self.url}/{folder}".rstrip("/")):
            listed = [meta for batch in obstore.list(self._store, start) for meta in batch]
        return sorted((self._entry(meta) for meta in listed), key=lambda entry: entry.path)

    def top(self) -> tuple[list[str], list[Entry]]:
        """The names of the folders, and the files, directly at this location."""
        with _failing_as(SourceError, "list", self.url):
            result = obstore.list_with_delimiter(self._store, self._prefix or None)
        folders = sorted(prefix.rpartition("/")[2] for prefix in result["common_prefixes"])
        return folders, [self._entry(meta) for meta in result["objects"]]

    def _full(self, path: str) -> str:
        return "/".join(part for part in (self._prefix, path) if part)

    def _entry(self, meta: obstore.ObjectMeta) -> Entry:
        path = meta["path"][len(self._prefix) :].lstrip("/")
        modified_ns = int(meta["last_modified"].timestamp() * 1e9)
        return Entry(path, meta["size"], meta["e_tag"], modified_ns)


@contextmanager
def _failing_as(error: type[Exception], verb: str, what: str) -> Iterator[None]:
    try:
        yield
    except _FAILURES as cause:
        raise error(f"cannot {verb} {what}: {_reason(cause)}") from cause


_HINTS = (
    ("NoSuchBucket", "there is no such bucket; create it or correct the name"),
    (
        "error sending request",
        "no response from {endpoint}; check AWS_ENDPOINT_URL and the network",
    ),
    ("169.254.169.254", "no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
    ("403 Forbidden", "access denied; check AWS_ACCESS_KEY_ID and the bucket's policy"),
    ("No space left", "the disk is full; free some space or choose another store"),
    ("timed out", "no response in time from {endpoint}; check the network"),
)


def _reason(cause: BaseException) -> str:
    """Reduces obstore's message to one line, with a hint if we have one."""
    text = str(cause)
    if isinstance(cause, FileExistsError | NotADirectoryError):
        return "there is a file where a folder should be"
    endpoint = re.search(r"https?://[^/\s]+", text)
    for sign, hint in _HINTS:
        if sign in text:
            return hint.format(endpoint=endpoint[0] if endpoint else "the endpoint")
    line = text.split("\n", 1)[0].strip()
    return re.sub(r"^Generic \w+ error: ", "", line)[:300] or type(cause).__name__
