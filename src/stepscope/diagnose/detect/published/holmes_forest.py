"""Holmes as published, with its random forest: algorithm 1 from operators that the forest calls
abnormal.

Fault: a GPU, adapter, link or switch that makes some steps longer.
Paper: Holmes (Yao et al., 2025), section 4.2.2: features of `holmes_features`, trees and drift
tuning of `holmes_model`; all else as `holmes`. Runs by `--method holmes-forest-published` only.
As in the paper, only logs are judged that the search arrives at. The shipped forest was trained on
simulated jobs; the paper trains one on each training, by labels that people set.
Cost: 2 microseconds per operator of the logs that are visited, and irregular step.
Cannot see: what `holmes` cannot, either; and what no job was trained on looked like.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from stepscope.diagnose.detect.published.holmes import Case, located
from stepscope.diagnose.detect.published.holmes_features import Log
from stepscope.diagnose.detect.published.holmes_model import Model, shipped
from stepscope.diagnose.finding import Finding
from stepscope.diagnose.method import Needs, SoFar
from stepscope.diagnose.observed import Observed
from stepscope.window import Mask


class HolmesForestPublished:
    """The device that irregular steps go back to by algorithm 1, if the random
    forest judges operators."""

    name = "holmes-forest-published"
    needs = Needs("comm_ops.end_ns", ranks=2, also=("steps", "transfers"))

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[Finding]:
        yield from located(job, by_forest, self.name)


def by_forest(case: Case) -> JudgedLogs:
    return JudgedLogs(case, shipped())


@dataclass
class JudgedLogs:
    """`[entry, column]`: whether an operator is abnormal, decided log by log when asked.

    Only irregular steps are judged.
    """

    case: Case
    model: Model
    logs: dict[int, Mask] = field(default_factory=dict)
    """Of each row of the grid that was asked about, `[operator, irregular step]`."""

    def __getitem__(self, at: tuple[int, int], /) -> bool:
        entry, column = at
        row = int(self.case.graph.rank[entry])
        if row not in self.logs:
            self.logs[row] = self.judged(row)
        which = int(np.searchsorted(self.case.irregular, column))
        return bool(self.logs[row][entry - int(self.case.graph.logs[row]), which])

    def judged(self, row: int) -> Mask:
        """`[operator, irregular step]` of one log."""
        case = self.case
        return self.model.abnormal(Log.of(case.graph, row), case.irregular, case.regular)
