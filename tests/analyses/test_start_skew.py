"""Profilers that start at different times: waits for the last rank are not idle time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import bubbleviz
from bubbleviz.analyses.idle.advice import advice
from bubbleviz.analyses.idle.picture import draw_idle
from bubbleviz.analyses.nccl.analysis import measure_communication
from bubbleviz.interpret.start_skew import (
    RecordedDevice,
    find_common_start,
    find_common_starts,
    find_unclear_waits,
)
from tests.support.notes import find_limitation, list_limitation_subjects
from tests.support.nsys_exports import C, K, R, write_profile

MS = 1_000_000
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
UTC_NS = 1_700_000_000_000_000_000
SKEWED = "devices recorded before others"
UNCLEAR = "devices that may have waited for other recordings"


def rows_of(pid: int, begin_ms: int, waits_from_ms: int) -> tuple[list[K], list[C]]:
    """Return the rows of a rank: an all-reduce that ends at 905 ms, then compute for 100 ms.

    Args:
        pid: Process id of the rank.
        begin_ms: Start of the session, in ms.
        waits_from_ms: Time at which the rank enters the all-reduce, in ms.
    """
    spans = [(waits_from_ms, 905, ALL_REDUCE)]
    for step in range(10):
        spans += [(905 + 10 * step, 913 + 10 * step, "gemm")]
        spans += [(913 + 10 * step, 914 + 10 * step, ALL_REDUCE)]
    shifted = [((s - begin_ms) * MS, (e - begin_ms) * MS, name) for s, e, name in spans]
    kernels = [K(s, e, n + 1, name, pid=pid) for n, (s, e, name) in enumerate(shifted)]
    calls = []
    for number, (start, *_) in enumerate(shifted, 1):
        calls.append(C(max(start - 1000, 1), max(start - 500, 2), number, tid=pid, pid=pid))
    return kernels, calls


def rank_of(folder: Path, pid: int, begin_ms: int, waits_from_ms: int, *, utc: bool = True) -> Path:
    """Write the profile of a rank of :func:`rows_of`; its recording starts with a call.

    Args:
        folder: Folder to write to.
        pid: Process id of the rank.
        begin_ms: Start of the recording and the session, in ms.
        waits_from_ms: Time at which the rank enters the all-reduce.
        utc: Whether the profile contains the UTC time of its start.
    """
    kernels, calls = rows_of(pid, begin_ms, waits_from_ms)
    # The first call shows the start of the recording.
    calls = [C(0, 1, 0, tid=pid, pid=pid, name="cudaMalloc"), *calls]
    epoch_ns = UTC_NS + begin_ms * MS if utc else None
    return write_profile(folder, kernels, calls, name=f"rank{pid}.sqlite", utc_epoch_ns=epoch_ns)


def test_waiting_for_the_last_recording_is_left_out(tmp_path: Path) -> None:
    rank_of(tmp_path, 1, 0, 10)
    rank_of(tmp_path, 2, 900, 900)
    report = bubbleviz.idle(tmp_path)

    early, late_rank = report.ranks
    # From 900 ms on, the rank waits for 5 ms.
    # It then runs 10 steps of 8 and 1 ms, without the last gap.
    assert early.end_ns - early.start_ns == 104 * MS
    assert early.exposed_communication_ns == 15 * MS
    assert late_rank.exposed_communication_ns == 15 * MS
    note = find_limitation(report, SKEWED)
    assert "up to 890.0 ms before that are excluded" in note.reason


def test_waiting_for_the_last_recording_is_marked_in_communication(tmp_path: Path) -> None:
    rank_of(tmp_path, 1, 0, 10)
    rank_of(tmp_path, 2, 900, 900)
    measured = measure_communication(tmp_path)

    note = find_limitation(measured, SKEWED)
    assert "up to 890.0 ms of the waiting time is not that device's fault" in note.reason


def test_recordings_that_begin_together_have_no_mark(tmp_path: Path) -> None:
    rank_of(tmp_path, 1, 0, 10)
    rank_of(tmp_path, 2, 0, 900)

    assert SKEWED not in list_limitation_subjects(measure_communication(tmp_path))


def test_processes_of_one_file_are_recorded_from_the_same_moment(tmp_path: Path) -> None:
    """A rank whose data loader is late makes no call before its first kernel. This is a finding."""
    first, second = rows_of(1, 0, 10), rows_of(2, 0, 900)
    write_profile(tmp_path, first[0] + second[0], first[1] + second[1], utc_epoch_ns=UTC_NS)
    report = bubbleviz.idle(tmp_path)

    assert sorted(rank.exposed_communication_ns for rank in report.ranks) == [15 * MS, 905 * MS]
    assert not [note for note in report.limitations if note.what in {SKEWED, UNCLEAR}]
    measured = measure_communication(tmp_path)
    assert not [note for note in measured.limitations if note.what in {SKEWED, UNCLEAR}]


def merged_trace(path: Path, begin_ms: int, label: str, *, utc: bool) -> Path:
    """Write the ranks of :func:`rows_of` as a PyTorch trace that joins both recordings.

    Args:
        path: Path of the trace.
        begin_ms: Start of the recording of the second rank, in ms.
        label: Format string of process ids in the trace, with the rank and the id as arguments.
        utc: Whether the trace contains the UTC time of its start.
    """
    events = []
    for rank, begins_ms in ((0, 0), (1, begin_ms)):
        kernels, calls = rows_of(50, 0, 10 if rank == 0 else 900)
        calls = [C(begins_ms * MS, begins_ms * MS + 1, 0, name="cudaMalloc"), *calls]
        on_device = {"device": 0, "stream": 7}
        rows: list[tuple[str, int, C | K, dict[str, int]]]
        rows = [("cuda_runtime", 83, call, {}) for call in calls]
        rows += [("kernel", 0, kernel, on_device) for kernel in kernels]
        for category, pid, row, args in rows:
            process_name = label.format(rank, pid) if label else pid + 1_000_000 * rank
            times = {"ts": row.start / 1000, "dur": (row.end - row.start) / 1000}
            event = {
                "ph": "X",
                "name": row.name,
                "cat": category,
                "pid": process_name,
                "tid": 7,
                **times,
            }
            events.append({**event, "args": {**args, "correlation": row.correlation}})
    base = {"baseTimeNanoseconds": UTC_NS} if utc else {}
    path.write_text(json.dumps({"schemaVersion": 1, **base, "traceEvents": events}))
    return path


@pytest.mark.parametrize("utc", [True, False])
@pytest.mark.parametrize("label", ["", "rank{}_{}"])
def test_recordings_merged_into_one_file_may_begin_at_different_times(
    label: str, utc: bool, tmp_path: Path
) -> None:
    late_file = merged_trace(tmp_path / "late.json", 900, label, utc=utc)
    report = bubbleviz.idle(late_file)

    assert [rank.exposed_communication_ns // MS for rank in report.ranks] == [15, 15]
    assert SKEWED in list_limitation_subjects(report)
    assert SKEWED in list_limitation_subjects(measure_communication(late_file))
    together = merged_trace(tmp_path / "together.json", 0, label, utc=utc)
    report = bubbleviz.idle(together)
    assert sorted(rank.exposed_communication_ns for rank in report.ranks) == [15 * MS, 905 * MS]
    assert SKEWED not in list_limitation_subjects(report)


@pytest.mark.parametrize("utc", [True, False])
def test_a_range_shows_that_a_rank_was_recorded(utc: bool, tmp_path: Path) -> None:
    epoch_ns = UTC_NS if utc else None
    for pid, waits_from_ms in ((1, 10), (2, 900)):
        kernels, calls = rows_of(pid, 0, waits_from_ms)
        loading = [R(5 * MS, 890 * MS, "next batch", tid=pid, pid=pid)]
        name = f"rank{pid}.sqlite"
        write_profile(tmp_path, kernels, calls, loading, name=name, utc_epoch_ns=epoch_ns)

    for report in (bubbleviz.idle(tmp_path), measure_communication(tmp_path)):
        assert not [note for note in report.limitations if note.what in {SKEWED, UNCLEAR}]


def test_a_wait_that_a_late_recording_may_explain_is_marked_without_a_clock(
    tmp_path: Path,
) -> None:
    rank_of(tmp_path, 1, 0, 10, utc=False)
    rank_of(tmp_path, 2, 900, 900, utc=False)

    for report in (bubbleviz.idle(tmp_path), measure_communication(tmp_path)):
        note = find_limitation(report, UNCLEAR)
        assert "the first collective took 895.0 ms" in note.reason
        assert note.count == 1


def test_an_unclear_wait_is_no_reason_to_change_the_program(tmp_path: Path) -> None:
    rank_of(tmp_path, 1, 0, 10, utc=False)
    (overlap,) = advice(bubbleviz.idle(tmp_path))
    assert "overlap it with compute" in overlap

    rank_of(tmp_path, 2, 900, 900, utc=False)
    unclear, *_ = advice(bubbleviz.idle(tmp_path))
    assert "may be waiting until the recording of another rank began" in unclear
    assert "overlap" not in unclear


def test_pictures_list_limitations(tmp_path: Path) -> None:
    rank_of(tmp_path, 1, 0, 10, utc=False)
    assert UNCLEAR not in draw_idle(bubbleviz.idle(tmp_path))

    rank_of(tmp_path, 2, 900, 900, utc=False)
    picture = draw_idle(bubbleviz.idle(tmp_path))
    assert f"Limitations: {UNCLEAR}." in picture
    assert str(tmp_path) not in picture


def test_a_wait_that_another_recording_saw_needs_no_clock(tmp_path: Path) -> None:
    rank_of(tmp_path, 1, 0, 10, utc=False)
    rank_of(tmp_path, 2, 0, 900, utc=False)

    for report in (bubbleviz.idle(tmp_path), measure_communication(tmp_path)):
        assert UNCLEAR not in list_limitation_subjects(report)


def test_a_window_chosen_by_the_user_is_kept(tmp_path: Path) -> None:
    rank_of(tmp_path, 1, 0, 10)
    rank_of(tmp_path, 2, 900, 900)
    report = bubbleviz.idle(tmp_path, window="time:0s-")

    assert report.ranks[0].exposed_communication_ns == 905 * MS
    assert SKEWED not in list_limitation_subjects(report)


@pytest.mark.parametrize(
    ("waits_from_ms", "begin_ms", "utc"), [(10, 5, True), (900, 900, True), (10, 900, False)]
)
def test_waits_for_ranks_that_were_already_recorded_count(
    waits_from_ms: int, begin_ms: int, utc: bool, tmp_path: Path
) -> None:
    """A wait is idle time if the late rank was already recorded, or if UTC is unknown."""
    rank_of(tmp_path, 1, 0, waits_from_ms, utc=utc)
    rank_of(tmp_path, 2, begin_ms, 900, utc=utc)
    report = bubbleviz.idle(tmp_path)

    assert report.ranks[0].exposed_communication_ns == (915 - waits_from_ms) * MS
    assert SKEWED not in list_limitation_subjects(report)


def recorded(begin_ns: int, span_ns: tuple[int, int], wait_ns: tuple[int, int]) -> RecordedDevice:
    """Return a device that runs a single communication kernel."""
    return RecordedDevice(
        path=f"{begin_ns}.sqlite",
        has_common_clock=True,
        begin_ns=begin_ns,
        span_ns=span_ns,
        wait_ns=wait_ns,
        first_wait_ns=wait_ns,
    )


def make_devices(times: list[tuple[int, int, int, bool, bool]]) -> list[RecordedDevice]:
    """Return devices with the given recording starts and longest waits.

    Each tuple is (start of the recording, start of the longest wait, length of that wait, whether
    it is the first wait, whether the device has a common clock).
    """
    devices = []
    for number, (begin_ns, start_ns, length_ns, is_first, has_common_clock) in enumerate(times):
        wait_ns = start_ns, start_ns + length_ns
        device = RecordedDevice(
            path=f"{number // 2}.sqlite",
            has_common_clock=has_common_clock,
            begin_ns=begin_ns,
            span_ns=(begin_ns, begin_ns + 100),
            wait_ns=wait_ns,
            first_wait_ns=wait_ns if is_first else (begin_ns, begin_ns + 1),
        )
        devices.append(device)
    return devices


TIMES = st.integers(0, 40)


@given(st.lists(st.tuples(TIMES, TIMES, TIMES, st.booleans(), st.booleans()), max_size=6))
def test_recordings_that_are_waited_for_agree_with_a_slow_reference(
    times: list[tuple[int, int, int, bool, bool]],
) -> None:
    devices = make_devices(times)
    timed = [device for device in devices if device.has_common_clock]
    if len({device.path for device in devices}) == 1:
        timed = devices
    begins_ns = [
        d.begin_ns for d in timed if any(each.waits_long_for(d.begin_ns) for each in timed)
    ]
    assert find_common_start(devices) == max(begins_ns, default=None)

    unclear = [any(each.may_be_waiting_for(other) for other in devices) for each in devices]
    assert sum(note.count for note in find_unclear_waits(devices)) == sum(unclear)


def test_the_last_recording_that_is_waited_for_counts() -> None:
    waiting = recorded(0, (0, 1000), (10, 500))
    awaited = recorded(450, (450, 1000), (450, 500))
    unrelated = recorded(800, (800, 1000), (0, 0))

    assert find_common_start([waiting, awaited, unrelated]) == 450
    assert find_common_start([waiting, unrelated]) is None
    assert find_common_start([waiting]) is None
    assert find_common_start([]) is None


def test_each_capture_has_a_recording_that_is_waited_for() -> None:
    waiting = recorded(0, (0, 1000), (10, 500)), recorded(2000, (2000, 3000), (2010, 2600))
    awaited = recorded(450, (450, 1000), (450, 500)), recorded(2500, (2500, 3000), (2500, 2600))

    assert find_common_starts([*waiting, *awaited]) == [450, 2500]


@pytest.mark.parametrize("epoch_ns", [(1 << 62), (1 << 63) - 1, -(1 << 63)])
def test_a_damaged_utc_time_is_unknown(epoch_ns: int, tmp_path: Path) -> None:
    kernels, calls = rows_of(1, 0, 100)
    path = write_profile(tmp_path, kernels, calls, utc_epoch_ns=epoch_ns)

    assert bubbleviz.idle(path).ranks[0].exposed_communication_ns == 815 * MS
    # The damaged time does not stop other commands from working.
    measure_communication(path)
