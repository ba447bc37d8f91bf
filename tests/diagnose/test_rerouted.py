"""A NIC that its ranks abandoned is found from the NICs that they send through."""

from __future__ import annotations

from stepscope.diagnose.network.rerouted import abandoned_nics
from stepscope.trace import Host, Job
from stepscope.window import Window

from .jobs import a_table

HOSTS, PER_HOST, ROWS = 4, 4, 60


def a_job_where(moved: dict[int, str], since: int = 30) -> Window:
    """Four ranks per host, each with its own NIC; some send through another one from a row on."""
    hosts = tuple(
        Host(f"h{host}", tuple(range(PER_HOST * host, PER_HOST * host + PER_HOST)),
             tuple(f"mlx5_{at}" for at in range(PER_HOST + 1)))
        for host in range(HOSTS)
    )  # fmt: skip
    rows = [
        (rank, f"mlx5_{rank % PER_HOST}" if row < since or rank not in moved else moved[rank], row)
        for rank in range(HOSTS * PER_HOST) for row in range(ROWS)
    ]  # fmt: skip
    job = Job("detour", HOSTS * PER_HOST, hosts)
    return Window(job, {"transfers": a_table("rank nic start_ns", rows)})


def test_a_rank_that_uses_its_neighbours_nic_abandoned_its_own() -> None:
    assert abandoned_nics(a_job_where({6: "mlx5_0"})) == {6: "h1/mlx5_2"}


def test_a_nic_unused_from_the_start_is_found_by_comparison_with_other_hosts() -> None:
    assert abandoned_nics(a_job_where({6: "mlx5_0"}, since=0)) == {6: "h1/mlx5_2"}


def test_another_nic_of_its_own_is_no_reroute() -> None:
    assert abandoned_nics(a_job_where({6: "mlx5_4"})) == {}
    assert abandoned_nics(a_job_where({})) == {}


def test_ranks_that_swapped_nics_abandoned_none() -> None:
    assert abandoned_nics(a_job_where({4: "mlx5_1", 5: "mlx5_0"})) == {}
