"""Numbers for dashboards and alerts, sent by Prometheus Remote Write 1.0 to whatever speaks it.

`encode` draws the bytes, `outbox` decides what waits and what is dropped, `sender` posts.
"""

from stepscope.store.remote_write.encode import Sample
from stepscope.store.remote_write.sender import RemoteWriter

__all__ = ["RemoteWriter", "Sample"]
