"""The job folder: where observations lie between the host that recorded them and whoever asks.

`JobWriter` is one host's pen: it never raises for a store that is full or gone. `JobReader` reads a
folder or bucket into a `Window`, once or again and again while the job runs. `layout` names files.
"""

from stepscope.store.encode import Rows
from stepscope.store.layout import job_location
from stepscope.store.location import Location
from stepscope.store.reader import JobReader
from stepscope.store.topology import merge_jobs
from stepscope.store.writer import FlushStatus, JobWriter

__all__ = [
    "FlushStatus",
    "JobReader",
    "JobWriter",
    "Location",
    "Rows",
    "job_location",
    "merge_jobs",
]
