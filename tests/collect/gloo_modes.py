"""How `gloo_job` runs: known without importing torch, which takes seconds."""

WORLD = 4
MODES = ("plain", "python", "native", "faulty")
LATE, LATE_SECONDS = 2, 0.3
"""The rank that is late at the end of backward, and by how much."""
