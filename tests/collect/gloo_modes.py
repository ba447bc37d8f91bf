"""How `gloo_job` runs: known without importing torch, which takes seconds."""

WORLD = 4
MODES = ("plain", "python", "native", "faulty")
