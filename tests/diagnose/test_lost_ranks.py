"""A rank whose phases were lost makes nothing known of its host, and nobody slower elsewhere."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.diagnose.run import diagnose
from stepscope.trace import ProcessGroup
from stepscope.window import Window

from .jobs import put
from .meetings import Slower, a_job_that_meets, phase

PROGRAM = [phase("lookup", (30.0, None)), phase("exchange", (2.0, "mp")), phase("top", (9.0, None)),
           phase("exchange", (2.0, "mp"))]  # fmt: skip
UNEVEN = [Slower(rank, "lookup", 2.0) for rank in (1, 2, 3, 5, 6, 7)]


def with_tables_of_several_sizes(*lost: int) -> Window:
    """On both hosts all ranks but one look up a little more, and nobody marks waiting."""
    group = ProcessGroup("mp-0", "mp", tuple(range(8)))
    window = a_job_that_meets(PROGRAM, [group], 8, faults=UNEVEN, noise=0.005)
    phases = window.tables["phases"]
    return put(window, phases=phases.take(~np.isin(phases.ints("rank"), lost)))


@pytest.mark.parametrize("lost", [(), (7,), (4, 5, 6, 7)])
def test_nobody_is_slower_than_ranks_of_which_nothing_is_known(lost: tuple[int, ...]) -> None:
    assert diagnose(with_tables_of_several_sizes(*lost)).accused == ()
