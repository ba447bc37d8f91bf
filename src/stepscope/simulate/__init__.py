"""A seeded simulator of large training jobs with known faults.

fault = parse_fault("gpu_slow:rank=37,factor=1.5,from=50")
simulation = simulate(Scenario(ranks=64, faults=(fault,)))
simulation.window   # what `diagnose` reads
simulation.truth    # what `diagnose` should find
"""

from stepscope.simulate.faults import FAULTS, Fault
from stepscope.simulate.parse import parse_fault, parse_scenario
from stepscope.simulate.run import Simulation, simulate
from stepscope.simulate.scenario import (
    Hardware,
    Noise,
    Parallelism,
    Scenario,
    Workload,
    default_parallelism,
)
from stepscope.simulate.truth import FaultTruth, Truth

__all__ = [
    "FAULTS",
    "Fault",
    "FaultTruth",
    "Hardware",
    "Noise",
    "Parallelism",
    "Scenario",
    "Simulation",
    "Truth",
    "Workload",
    "default_parallelism",
    "parse_fault",
    "parse_scenario",
    "simulate",
]
