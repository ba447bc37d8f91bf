"""Puts the description of the job into a trace, for whoever reads the trace back.

    0A n 50 01 68 01 62 n EA 01 n 08 01 12 n "stepscope job {…}"

It is an interned string that no slice uses: Perfetto shows nothing of it.
"""

from __future__ import annotations

import json

from stepscope.perfetto import fields
from stepscope.perfetto.protobuf import field
from stepscope.trace import Job

MARK = "stepscope job "
"""How the string begins; the contents of `job.json` follow."""


def description_packet(job: Job, sequence: int) -> bytes:
    """The packet, which clears the strings of its sequence."""
    text = MARK + json.dumps(job.to_json(), separators=(",", ":"))
    entry = field(fields.ANNOTATION_STRINGS, field(1, 1) + field(2, text))
    body = field(fields.SEQUENCE, sequence) + field(fields.FLAGS, fields.STATE_CLEARED)
    return field(fields.PACKET, body + field(fields.INTERNED, entry))
