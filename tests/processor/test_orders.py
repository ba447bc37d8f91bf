"""Which of many orders every processor obeys, and when one may be written."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from stepscope.processor.state.orders import (
    COOL_DOWN_SECONDS,
    MOST_PER_HOUR,
    MOST_RANKS,
    PEERS,
    WINDOW_STEPS,
    Orders,
    Timing,
    order,
    ranks_to_profile,
)
from stepscope.processor.state.pace import SOON, Now
from stepscope.wire.profiling import ProfileOrder

SECOND = 1_000_000_000
NOW_NS = 1_766_000_000 * SECOND
FOLDER = Timing.of(is_local=True, world_size=8)
AT = Now(step=100, ended_ns=NOW_NS, step_s=1.0, slow_step_s=1.5)


def ordered(window: str = "a", first: int = 110, **changes: object) -> ProfileOrder:
    one = ProfileOrder(window, first, first + 19, (), 30.0, "degradation", NOW_NS)
    return replace(one, **changes)  # type: ignore[arg-type]


def fates(orders: Orders, step: int = 100, now_s: float = 10.0) -> dict[str, str]:
    """After another listing that shows nothing new."""
    orders.see([], now_s)
    found = orders.decided(step, FOLDER.settle_s, NOW_NS)
    return {one.order.window: one.fate for one in found}


def test_an_order_is_obeyed_once_rivals_must_have_been_seen() -> None:
    orders = Orders()
    orders.see([ordered()], 10.0)
    assert fates(orders, now_s=10.0 + FOLDER.settle_s - 0.1) == {}
    assert fates(orders, now_s=10.0 + FOLDER.settle_s) == {"a": "obeyed"}
    assert fates(orders, now_s=100.0) == {}, "once"


def test_of_two_at_once_the_first_by_name_counts_everywhere() -> None:
    """Whichever of them a processor saw first."""
    for seen in ("ab", "ba"):
        orders = Orders()
        for at, window in enumerate(seen):
            orders.see([ordered(window, 110 + at)], 10.0 + at)
        assert fates(orders, now_s=20.0) == {"a": "obeyed"}
        assert fates(orders, now_s=40.0) == {}


def test_one_by_hand_comes_first() -> None:
    orders = Orders()
    orders.see([ordered("a"), ordered("z", why="user")], 0.0)
    assert fates(orders) == {"z": "obeyed"}


def test_windows_one_after_the_other_are_two() -> None:
    orders = Orders()
    orders.see([ordered("a", 110), ordered("b", 200)], 0.0)
    assert fates(orders) == {"a": "obeyed", "b": "obeyed"}


def test_an_order_whose_steps_have_begun_is_late() -> None:
    orders = Orders()
    orders.see([ordered(first=110)], 0.0)
    assert fates(orders, step=110) == {"a": "late"}
    assert not orders.is_pending(110, NOW_NS)


def test_at_once_means_now_and_not_in_ten_minutes() -> None:
    orders = Orders()
    at_once = ordered(first_step=-1, last_step=-1, why="stall")
    orders.see([at_once, replace(at_once, window="old", asked_ns=NOW_NS - 600 * SECOND)], 0.0)
    assert fates(orders) == {"a": "obeyed", "old": "late"}


def test_all_ranks_begin_after_all_hosts_know() -> None:
    """Even if steps are as short as they may become."""
    asked = order("degradation", AT, FOLDER, "host-0", (), NOW_NS)
    assert asked.first_step - (AT.step + 1) >= FOLDER.lead_s / AT.step_s
    assert asked.first_step < AT.step + 10
    assert asked.last_step - asked.first_step + 1 == 13, "20 s of steps of 1.5 s"
    assert asked.window == "20251217T193320.000Z-host-0"


def test_begun_within_ten_seconds_where_steps_allow() -> None:
    """However much slower the job has become."""
    for local in (True, False):
        assert Timing.of(is_local=local, world_size=1_024).lead_s / SOON <= 10


def test_short_steps_get_twenty_of_them_and_long_ones_two() -> None:
    def steps(step_s: float) -> tuple[int, float]:
        one = order("degradation", Now(100, NOW_NS, step_s, step_s), FOLDER, "h", (), NOW_NS)
        return one.last_step - one.first_step + 1, one.seconds

    assert steps(0.01) == (WINDOW_STEPS, 20.0)
    assert steps(60.0) == (2, 240.0)


def test_cool_down_and_budget() -> None:
    orders = Orders()
    assert orders.may_write("degradation", NOW_NS)
    orders.see([ordered()], 0.0)
    rested = NOW_NS + round(COOL_DOWN_SECONDS * 1e9) + 1
    assert not orders.may_write("degradation", rested - 2)
    assert orders.may_write("stall", NOW_NS), "for another reason"
    assert orders.may_write("degradation", rested)
    orders.see([ordered(f"w{i}", 1_000 * i, asked_ns=NOW_NS + i) for i in range(MOST_PER_HOUR)], 0)
    assert not orders.may_write("degradation", rested)
    assert orders.may_write("degradation", NOW_NS + 3_601 * SECOND)


def test_what_is_asked_by_hand_uses_no_budget() -> None:
    orders = Orders()
    orders.see([ordered(f"w{i}", 1_000 * i, why="user") for i in range(50)], 0.0)
    assert orders.may_write("degradation", NOW_NS)


def test_large_jobs_profile_the_host_that_detected_and_random_peers() -> None:
    assert ranks_to_profile(MOST_RANKS, range(8), "job 100") == ()
    chosen = ranks_to_profile(10_240, range(800, 808), "job 100")
    assert set(range(800, 808)) <= set(chosen) and PEERS <= len(chosen) <= PEERS + 8
    assert chosen == ranks_to_profile(10_240, range(800, 808), "job 100")


def test_large_jobs_in_buckets_poll_less_often() -> None:
    assert Timing.of(is_local=False, world_size=8).poll_s == 2.0
    assert Timing.of(is_local=False, world_size=10_240).poll_s == 2.0
    assert Timing.of(is_local=False, world_size=65_536).poll_s == 8.0


_DELAYS = st.floats(0, FOLDER.delay_s)
_PROCESSORS = st.lists(
    st.tuples(st.floats(0, FOLDER.poll_s), st.floats(0, 3)), min_size=2, max_size=4
)


@given(_PROCESSORS, st.data())
def test_all_processors_obey_the_same_order(
    processors: list[tuple[float, float]], data: st.DataObject
) -> None:
    """They poll out of phase and detect at any time; orders are visible with any delay."""
    orders = [Orders() for _ in processors]
    written: list[tuple[ProfileOrder, list[float]]] = []
    obeyed: list[set[str]] = [set() for _ in processors]
    moments = sorted(
        [(phase + turn * FOLDER.poll_s, at, "list")
         for at, (phase, _) in enumerate(processors) for turn in range(14)]
        + [(detects_s, at, "detect") for at, (_, detects_s) in enumerate(processors)]
    )  # fmt: skip
    for now_s, at, what in moments:
        if what == "list":
            seen = [one for one, visible in written if visible[at] <= now_s]
            orders[at].see(seen, now_s)
            found = orders[at].decided(100, FOLDER.settle_s, NOW_NS)
            obeyed[at] |= {one.order.window for one in found if one.fate == "obeyed"}
        elif not orders[at].is_pending(100, NOW_NS):
            name = data.draw(st.text("abc", min_size=1)) + str(at)
            visible = [now_s + data.draw(_DELAYS) for _ in processors]
            written.append((ordered(name, 110 + at), visible))
    assert len(obeyed[0]) == 1
    assert all(one == obeyed[0] for one in obeyed)
