"""Whether a job of the same name was recorded on this host before: both would become one job."""

from __future__ import annotations

from stepscope.errors import StepscopeError
from stepscope.store.layout import TOPOLOGY, job_location, safe_name
from stepscope.trace.host import host_name


def why_mixed(root: str, job: str) -> str | None:
    """A warning in one line; None if this host has recorded no job of that name.

    Other hosts of the same job may have begun already: they do not count. A store that cannot be
    read is reported where it is written.
    """
    location = job_location(root, job)
    try:
        known = location.get(f"{TOPOLOGY}/{safe_name(host_name())}.json")
    except StepscopeError:
        return None
    if known is None:
        return None
    return (
        f"{location} has rows of an earlier run on this host: both are judged as one job, which is "
        "right only if this run continues it; give another --job or --store otherwise"
    )
