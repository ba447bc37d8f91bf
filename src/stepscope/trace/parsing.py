"""Reads descriptions of jobs, which other programs may have written."""

from __future__ import annotations

import json
from collections.abc import Iterable

from stepscope.errors import FormatError
from stepscope.trace.job import Job

MOST_RANKS = 1 << 18
"""More than twice the largest training jobs that were published (100,000 GPUs)."""
_MOST_INT64 = (1 << 63) - 1


def parse_job(data: bytes) -> Job:
    """Reads job.json, a fragment of it, or the description in a timeline.

    Raises:
        FormatError: it is not JSON, or a required key is missing or of the wrong kind.
    """
    try:
        return _checked(Job.from_json(json.loads(data)))
    except KeyError as cause:
        raise FormatError(f"lacks the key {cause}") from None
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as cause:
        raise FormatError(f"is not a job description ({str(cause)[:200]})") from None


def _checked(job: Job) -> Job:
    """The job itself.

    Raises:
        FormatError: it has more ranks than any job, or impossible numbers.
    """
    _check("world_size", (job.world_size,), MOST_RANKS)
    _check("ranks of hosts", (rank for host in job.hosts for rank in host.ranks))
    _check("ranks of groups", (rank for group in job.groups for rank in group.ranks))
    _check("recorded_ranks", job.recorded_ranks or ())
    _check("parallelism", job.parallelism.values(), MOST_RANKS)
    _check("observed_until_ns", (job.observed_until_ns or 0,), _MOST_INT64)
    if job.schedule is not None:
        sizes = (job.schedule.microbatches, job.schedule.virtual_stages)
        _check("schedule", sizes, MOST_RANKS)
    if job.fabric is not None:
        _check("tiers of switches", (switch.tier for switch in job.fabric.switches))
    return job


def _check(what: str, numbers: Iterable[int], most: int = MOST_RANKS - 1) -> None:
    for number in numbers:
        if not 0 <= number <= most:
            raise FormatError(f"has {number} among {what}; possible are 0 to {most}")
