"""How long ranks waited in an operator, and the numbers of operators."""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.prepare.operator_waits import with_operator_waits
from stepscope.trace import Job
from stepscope.window import NULL, Ints, Table, Window

from .jobs import START, a_job, a_table, without


def met(*rows: tuple[object, ...], job_id: str = "job") -> Table:
    names = "rank group seq op peer enqueue_ns start_ns end_ns"
    window = Window(Job(job_id, 4), {"comm_ops": a_table(names, rows)})
    return with_operator_waits(window).tables["comm_ops"]


def collective(rank: int, seq: int, at: int, op: str = "AllReduce") -> tuple[object, ...]:
    return rank, "dp-0", seq, op, -1, START + at, START + at, START + 100


def test_the_last_arrival_does_not_wait() -> None:
    comm = met(collective(0, 0, 7), collective(1, 0, 30), collective(2, 0, 10))
    assert comm.ints("waited_ns").tolist() == [23, 0, 20]


def test_waiting_is_unknown_if_members_may_leave_early_or_are_not_recorded() -> None:
    comm = met(collective(0, 0, 7, "Broadcast"), collective(1, 0, 30, "Broadcast"),
               collective(0, 1, 50))  # fmt: skip
    assert comm.ints("waited_ns").tolist() == [NULL] * 3


def test_rows_of_one_operator_share_a_number_that_no_other_has() -> None:
    comm = with_operator_waits(a_job(ranks=3, steps=40)).tables["comm_ops"]
    numbers: dict[int, Ints] = {seq: comm.ints("operator")[comm.ints("seq") == seq]
                                for seq in np.unique(comm.ints("seq")).tolist()}  # fmt: skip
    assert all(len(set(same)) == 1 for same in numbers.values())
    assert len({same[0] for same in numbers.values()}) == len(numbers)


def test_a_send_and_its_receive_share_a_number() -> None:
    comm = met((0, "pp-0", 0, "Send", 1, START, START, START + 5),
               (1, "pp-0", 0, "Recv", 0, START, START, START + 5),
               (1, "pp-0", 1, "Send", 0, START, START, START + 5))  # fmt: skip
    sent, received, answer = comm.ints("operator")
    assert sent == received != answer


def test_the_number_is_the_same_in_every_part_of_a_job_and_another_in_other_jobs() -> None:
    rows = [collective(rank, seq, 7) for seq in range(3) for rank in range(2)]
    assert met(*rows).ints("operator")[2] == met(*rows[2:4]).ints("operator")[0]
    assert met(*rows).ints("operator")[2] != met(*rows, job_id="other").ints("operator")[2]


def test_a_job_without_operators_is_unchanged() -> None:
    window = without(a_job(ranks=2, steps=5), "comm_ops")
    assert with_operator_waits(window) is window
