"""Whether a job has become slower than it was, from its step times: arithmetic only.

`published` is the rule that EROICA prints, `robust` the one that runs by default. The processor
uses them on steps as they end, and `diagnose` on steps that were stored.
"""
