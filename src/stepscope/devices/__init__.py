"""The device ledger: how likely each device of a cluster is bad, by all jobs that used it.

`used` lists the devices of a job, `blame` what its verdicts say about them, `evidence` both
together as one record per job, `record` is its JSON, `shelf` its place in the store, and
`posterior` adds up the records of all jobs.
"""

from stepscope.devices.evidence import JobEvidence, evidence_of
from stepscope.devices.posterior import Standing, standings
from stepscope.devices.shelf import Shelf
from stepscope.devices.used import Used

__all__ = ["JobEvidence", "Shelf", "Standing", "Used", "evidence_of", "standings"]
