"""Sends samples for dashboards and alerts by Prometheus Remote Write 1.0.

`encode` builds requests, `outbox` queues samples and decides which to drop, `sender` posts.
"""

from stepscope.store.remote_write.encode import Sample
from stepscope.store.remote_write.sender import RemoteWriter

__all__ = ["RemoteWriter", "Sample"]
