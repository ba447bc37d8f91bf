"""Scores diagnosis against simulated jobs whose faults are known.

chosen = choose(SUITES["smoke"], range(3))
results = run(chosen.cases, fast=True, jobs=2)
"""

from stepscope.evaluate.runner import ReportedVerdict, Result, run
from stepscope.evaluate.score import Score, score
from stepscope.evaluate.suite import Case, Suite
from stepscope.evaluate.suites import SUITES, Chosen, choose

__all__ = [
    "SUITES",
    "Case",
    "Chosen",
    "ReportedVerdict",
    "Result",
    "Score",
    "Suite",
    "choose",
    "run",
    "score",
]
