"""Orders name steps, ranks count optimizer calls: requests and replies are converted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stepscope.processor.instructions import RankProfiled, Refuse
from stepscope.processor.state.host_state import HostState
from stepscope.processor.state.profiling import requests_for
from stepscope.wire.frames import PacketKind, pack
from stepscope.wire.profiling import Profiled, RankProfile, decode_profile, encode_profiled

from .test_state import Story

FOLDER = Path("/traces")


@pytest.fixture
def state() -> HostState:
    """Two ranks, whose iterations have been recognised."""
    state = HostState()
    for rank in (0, 1):
        story = Story(rank, state, at=rank + 5)
        story.begin()
        story.tell("loader", "optimizer")
        story.train(12)
    return state


def asked(state: HostState, first: int, last: int, *ranks: int) -> dict[int, RankProfile]:
    requests = requests_for(state, "job-1", first, last, ranks, 60.0, "w", FOLDER)
    found = {at: decode_profile(memoryview(payload)) for at, payload in requests}
    return {at: request for at, request in found.items() if request is not None}


def test_every_rank_is_asked_for_the_same_steps_and_has_a_path_of_its_own(state: HostState) -> None:
    assert asked(state, 20, 24) == {
        5: RankProfile("w", 20, 24, 60.0, "/traces/w/rank0.json.gz"),
        6: RankProfile("w", 20, 24, 60.0, "/traces/w/rank1.json.gz"),
    }


def test_some_ranks_may_be_chosen(state: HostState) -> None:
    assert list(asked(state, 20, 24, 1, 7)) == [6]
    assert not requests_for(state, "other", 20, 24, (), 60.0, "w", FOLDER)


def test_a_window_of_a_stuck_job_begins_at_once(state: HostState) -> None:
    request = asked(state, -1, -1)[5]

    assert (request.first_ordinal, request.last_ordinal) == (-1, -1)


def test_two_optimizer_steps_in_a_step_are_both_profiled(state: HostState) -> None:
    story = Story(0, state, at=5)
    story.begin()
    story.tell("loader", "optimizer")
    for _ in range(12):
        story.records(*story.rank.iteration(1, optimizers=2))

    assert asked(state, 20, 24, 0)[5].first_ordinal == 40
    assert asked(state, 20, 24, 0)[5].last_ordinal == 49


def test_a_reply_names_the_rank_and_the_steps(state: HostState) -> None:
    reply = Profiled("w", "/traces/w/rank1.json.gz", 20, 24, 5_000, 9_000)
    packet = pack(PacketKind.CONTROL, encode_profiled(reply), os.getpid(), 0)

    [said] = state.packet(6, packet, 0)

    assert said == RankProfiled("job-1", "host-0", 1, os.getpid(), reply, 20, 24)


def test_a_reply_of_nobody_is_refused(state: HostState) -> None:
    packet = pack(PacketKind.CONTROL, encode_profiled(Profiled("w", "/t", 0, 0, 0, 0)), 1, 0)

    assert isinstance(state.packet(99, packet, 0)[0], Refuse)
