"""What `pipeline_job` runs: known without importing torch, which takes seconds."""

WORLD = 4
MICROBATCHES = 8
SCHEDULES = {"ScheduleGPipe": 1, "Schedule1F1B": 1, "ScheduleInterleaved1F1B": 2,
             "ScheduleInterleavedZeroBubble": 2}  # fmt: skip
"""Torch's names, and stages per rank."""
