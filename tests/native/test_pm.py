"""Counters of a GPU's units by a CUPTI that is made up: what it has is told, to the sample."""

from __future__ import annotations

import ctypes
import time
from pathlib import Path

import numpy as np
import pytest

from stepscope.processor.counters import sampler
from stepscope.processor.counters.frames import Frames, Metrics, Samples
from tests.processor.daemons import wait_for

from .compiling import ADDRESSES, THREADS
from .driver import END_SECONDS
from .pm import INTERVAL_NS, Program, program, told

EVERY = (
    "sm_active", "tensor_active", "dram_active", "nvlink_rx_bytes_per_s", "nvlink_tx_bytes_per_s",
    "pcie_rx_bytes_per_s", "pcie_tx_bytes_per_s", "sm_clock_mhz",
)  # fmt: skip


@pytest.fixture(scope="session")
def racing(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Program:
    """Finds races."""
    return program(pytestconfig, tmp_path_factory.mktemp("threads"), THREADS)


@pytest.fixture(scope="session")
def addressed(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Program:
    """Finds wrong accesses."""
    return program(pytestconfig, tmp_path_factory.mktemp("addresses"), ADDRESSES)


def test_every_sample_but_the_first_is_told_with_its_true_period(racing: Program) -> None:
    now_ns = time.time_ns()
    run = racing.sample(MOCK_PM_SAMPLES="5000")
    assert run.status == 0 and run.trouble is None and run.lost == 0
    assert run.metrics == EVERY
    samples = run.samples.of
    assert len(samples) == 4999
    assert set(samples["end_ns"] - samples["start_ns"]) == {INTERVAL_NS}
    assert (samples["start_ns"][1:] == samples["end_ns"][:-1]).all()
    assert abs(samples["start_ns"][0] - now_ns) < 60e9, "on the host's clock"


def test_values_have_our_units(addressed: Program) -> None:
    (first, *_) = addressed.sample().samples.of["value"]
    per_second = 1000 / (INTERVAL_NS / 1e9)
    # tensor's counter is the second, memory's are the third and fourth; a clock is in Hz
    assert first == pytest.approx([0.01, 0.02, 0.07, *[per_second] * 4, 9e-6])


def test_what_the_hardware_had_no_room_for_is_counted(addressed: Program) -> None:
    run = addressed.sample(MOCK_PM_SAMPLES="5000", MOCK_PM_GAP="37")
    assert len(run.samples.of) == 4999
    assert run.lost == 37
    assert "the GPU's buffer overflowed 1 times" in run.notes


def test_what_waits_for_a_slow_reader_is_bounded_and_counted(addressed: Program) -> None:
    """More than the queue holds, all decoded before somebody reads on."""
    process = addressed.window(0.05, MOCK_PM_SAMPLES="200000")
    assert process.stdout is not None
    begun = process.stdout.read(1000)
    wait_for(lambda: threads(process.pid) == 1, "end of the thread that decodes")
    run = told(process, begun)
    assert len(run.samples.of) + run.lost == 199_999
    assert run.lost > 200_000 - 3 * (1 << 16)


def threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def test_a_chip_lacks_some(addressed: Program) -> None:
    run = addressed.choose("AD102", MOCK_PM_UNKNOWN="nvl")
    assert run.metrics == tuple(name for name in EVERY if "nvlink" not in name)
    assert run.notes == ["AD102 has no nvlink_rx_bytes_per_s, nvlink_tx_bytes_per_s"]


@pytest.mark.parametrize("unknown", ["dram__", "dramc__", "Triage"])
def test_some_go_by_two_names(addressed: Program, unknown: str) -> None:
    run = addressed.choose("GH100", MOCK_PM_UNKNOWN=unknown)
    assert run.metrics == EVERY and not run.notes


def test_where_one_name_needs_another_pass_the_other_is_taken(addressed: Program) -> None:
    run = addressed.choose("GB100", MOCK_PM_EXTRA="dram__")
    assert run.metrics == EVERY and not run.notes


def test_what_takes_another_pass_is_left_out_and_what_comes_after_it_is_not(
    addressed: Program,
) -> None:
    run = addressed.sample(MOCK_PM_EXTRA="tensor")
    assert run.metrics == tuple(name for name in EVERY if name != "tensor_active")
    assert run.notes == ["not sampled, no room in one pass: tensor_active"]
    assert np.isnan(run.samples.of["value"][:, len(run.metrics) :]).all()


def test_a_chip_of_which_nothing_is_known(addressed: Program) -> None:
    run = addressed.choose("XX100", MOCK_PM_UNKNOWN="_")
    assert run.status == 1
    assert run.trouble == "CUPTI has none of our metrics for XX100"


@pytest.mark.parametrize("version", ["24", "26", "130001", "130202"])
def test_each_cupti_gets_structures_of_its_size(addressed: Program, version: str) -> None:
    assert addressed.sample(MOCK_PM_VERSION=version).trouble is None


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"MOCK_PM_REFUSES": "35"}, "this user may not read counters"),
        ({"MOCK_PM_REFUSES": "26"}, "another profiler has the counters"),
        ({"MOCK_PM_REFUSES": "7"}, "dcgmi profile --pause"),
        ({"MOCK_PM_REFUSES": "999"}, "cuptiPmSamplingEnable says 999"),
        ({"MOCK_PM_VERSION": "23"}, "at least 24 (CUDA 12.6) is needed"),
        ({"MOCK_PM_CHIP": "TU102"}, "TU102 cannot sample its counters at a fixed rate"),
        ({"MOCK_PM_CHIP": "GA100"}, "GA100 cannot sample its counters at a fixed rate"),
        ({"MOCK_PM_CHIP": "GB100", "MOCK_PM_UNKNOWN": "GB"}, "does not know GB100: a newer one"),
        ({"MOCK_PM_CUINIT": "100"}, "cuInit returned 100"),
        ({"MOCK_PM_FAILS": "0"}, "cuptiPmSamplingDecodeData says 999"),
    ],
)
def test_trouble_is_one_line(addressed: Program, env: dict[str, str], said: str) -> None:
    run = addressed.sample(**env)
    assert run.status == 1
    assert run.trouble is not None and said in run.trouble and "\n" not in run.trouble


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("libcupti.so.", "pip install nvidia-cuda-cupti"),
        ("libnvperf_host.so", "there is no libnvperf_host.so beside"),
        ("libcuda.so.1", "there is no NVIDIA driver"),
    ],
)
def test_what_is_not_there_is_named(
    addressed: Program, tmp_path_factory: pytest.TempPathFactory, missing: str, said: str
) -> None:
    """Of no use and in front of those that this machine may have."""
    folder = tmp_path_factory.mktemp("some")
    for name in ("libcupti.so.12", *(path.name for path in addressed.folder.iterdir())):
        if name.startswith(missing):
            (folder / name).touch()
        else:
            (folder / name).symlink_to((addressed.folder / "libcupti.so.13").resolve())
    run = Program(addressed.path, folder).sample()
    assert run.trouble is not None and said in run.trouble


def test_times_of_a_foreign_clock_are_placed_by_first_notice(addressed: Program) -> None:
    now_ns = time.time_ns()
    run = addressed.sample(MOCK_PM_TICKS="1", MOCK_PM_SAMPLES="100")
    assert any("not on CUPTI's clock" in note for note in run.notes)
    assert abs(run.samples.of["end_ns"][-1] - now_ns) < 60e9


def test_it_ends_when_its_processor_does(racing: Program) -> None:
    process = racing.window(3600.0, MOCK_PM_SAMPLES="50")
    assert process.stdin is not None
    process.stdin.close()
    run = told(process)
    assert run.status == 0 and len(run.samples.of) == 49


def test_it_ends_when_nobody_reads(racing: Program) -> None:
    process = racing.window(3600.0, MOCK_PM_SAMPLES="200000")
    assert process.stdout is not None and process.stderr is not None
    process.stdout.read(100)
    process.stdout.close()
    assert process.wait(END_SECONDS) == 0, process.stderr.read()


def test_frames_come_in_pieces() -> None:
    """However a pipe cuts them."""
    bytes_of = b"\x02\0\0\0\x03\0\0\0a\nb" + b"\x05\0\0\0\x02\0\0\0ok"
    frames = Frames()
    found = [one for at in range(len(bytes_of)) for one in frames.feed(bytes_of[at : at + 1])]
    assert found[0] == Metrics(("a", "b")) and len(found) == 2
    assert not any(isinstance(one, Samples) for one in found)


def test_the_library_shows_its_entries_only() -> None:
    """As the package's build made it."""
    if not sampler.LIBRARY.exists():
        pytest.skip("it was not built")
    library = ctypes.CDLL(str(sampler.LIBRARY))
    assert library.stepscope_pm_sample and library.stepscope_pm_choose
    assert not hasattr(library, "_ZN9stepscope2pm4findERKNSt7__cxx1112basic_stringIcSt11char_"
                                "traitsIcESaIcEEE")  # fmt: skip
