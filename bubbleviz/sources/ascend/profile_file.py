"""Builds a profile from a database written by one of Ascend's profilers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bubbleviz.errors import ProfileError
from bubbleviz.model import profile as model
from bubbleviz.model.collectives import Collectives
from bubbleviz.model.columns import NONE, Bools, Codes, Ints
from bubbleviz.model.copies import Copies, Direction
from bubbleviz.model.grouping import find_distinct, invert_permutation, sort_columns_by_group
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.numbering import Numbering
from bubbleviz.progress import Watch
from bubbleviz.sources import in_memory
from bubbleviz.sources.activities import ActivitiesBuilder, has_times
from bubbleviz.sources.ascend.collectives import find_collectives
from bubbleviz.sources.ascend.recording import RECORD_AGAIN, AscendRecording, read_recording
from bubbleviz.timing import time_step

#: Kinds of rows in ``PYTORCH_API``: queue entries and Python functions.
_QUEUE, _PYTHON = 50002, 50003
#: Kind of start/end ranges in ``MSTX_EVENTS``.
_START_END = 2
#: Name given to the ranges of garbage collections.
_COLLECTION = "gc: collection"
#: Name prefix of Python functions that are module calls.
_MODULE_PREFIX = "nn.Module: "
#: Matches the numbers at the end of a communication operation's name: the last digits of its group,
#: its number in the group, and its number of streams.
_INSTANCE = re.compile(r"_\d+_\d+_\d+\Z")
#: Direction of a copy, keyed by ``ENUM_MEMCPY_OPERATION.id``.
_DIRECTIONS = {
    0: Direction.HOST_TO_HOST,
    1: Direction.HOST_TO_DEVICE,
    2: Direction.DEVICE_TO_HOST,
    3: Direction.DEVICE_TO_DEVICE,
    5: Direction.DEVICE_TO_DEVICE,
    6: Direction.HOST_TO_DEVICE,
    7: Direction.DEVICE_TO_HOST,
}


def build_decoded(recording: AscendRecording) -> in_memory.Decoded:
    """Build a recording's profile. Time 0 is the earliest recorded time.

    Raises:
        ProfileError: The recording contains impossible numbers.
    """
    zero_ns = _find_zero(recording)
    calls, ranges = _build_calls(recording, zero_ns), _build_ranges(recording, zero_ns)
    process = _find_process(recording)
    recording, notes = _fill_devices(recording)
    work = _build_work(recording, zero_ns, process)
    n_ranges = recording.pytorch.shape[1] + recording.mstx.shape[1]
    n_ranges += recording.collections.shape[1]
    impossible = {
        "CANN API calls": recording.calls.shape[1]
        + recording.operators.shape[1]
        - len(calls.calls),
        "ranges": n_ranges - len(ranges),
    }
    profile = model.Profile(
        source=_describe_source(recording, zero_ns),
        activities=work.activities,
        calls=calls,
        ranges=ranges,
        all_ranges=in_memory.InMemoryRanges(ranges),
        overheads=model.Overheads.make_empty(),
        threads=(),
        devices=tuple(model.Device(None, *device, None) for device in recording.devices),
        limitations=(
            *recording.limitations,
            *notes,
            *work.limitations,
            *model.report_impossible_times(recording.path, impossible),
        ),
        global_rank=_find_rank(recording),
        collectives=work.collectives,
        streams=lambda: work.streams,
        copies=lambda: work.copies,
    )
    is_named, is_annotation = _classify_ranges(recording, ranges)
    return in_memory.Decoded(
        profile,
        {
            "compute tasks": recording.compute.shape[1],
            "communication operations": recording.communication.shape[1],
            "copies": recording.copies.shape[1],
            "CANN API calls": recording.calls.shape[1],
            "PyTorch ranges": recording.pytorch.shape[1],
            "mstx ranges": recording.mstx.shape[1],
        },
        "" if len(work.activities) else f"no work of devices was recorded; {RECORD_AGAIN}",
        "" if len(calls.calls) else f"no CANN API calls were recorded; {RECORD_AGAIN}",
        is_named=is_named,
        other_prefix=_MODULE_PREFIX,
        is_sampled=is_annotation if is_annotation.any() else None,
    )


def _find_zero(recording: AscendRecording) -> int:
    """Return the UTC time that becomes time 0: 1 ns before the earliest positive start."""
    tables = (
        *(recording.compute, recording.communication, recording.copies, recording.calls),
        *(recording.operators, recording.pytorch, recording.mstx),
    )
    starts = (table[0][table[0] > 0] for table in tables)
    return min((int(start_ns.min()) for start_ns in starts if len(start_ns)), default=1) - 1


def _number_threads(recording: AscendRecording, global_tid: Ints) -> Ints:
    """Return the number of each thread, coded as in nsys.

    Raises:
        ProfileError: A process id is out of range.
    """
    pid, tid = global_tid >> 32, global_tid & 0xFFFFFFFF
    if len(pid) and not 0 <= pid.min() <= pid.max() <= model.PID_MASK:
        raise ProfileError(
            f"{recording.path}: a process id is below 0 or above 16,777,215, so the file is "
            f"damaged or was edited; copy it again, or {RECORD_AGAIN}"
        )
    return in_memory.number_threads(pid, tid)


def _find_process(recording: AscendRecording) -> int:
    """Return the process id that made most calls, or 0 if there are no calls.

    A database contains the work of one process.
    """
    global_tid = np.concatenate((recording.operators[1], recording.calls[2], recording.pytorch[2]))
    if len(global_tid) == 0:
        return 0
    processes, counts = np.unique(global_tid >> 32, return_counts=True)
    return int(processes[counts.argmax()]) & model.PID_MASK


def _fill_devices(recording: AscendRecording) -> tuple[AscendRecording, tuple[Limitation, ...]]:
    """Fill in the devices of work whose device is unknown.

    Older databases do not contain the devices of communication operations. The device of the
    recorded rank is used instead, or the device that executed most compute tasks, or device 0.

    Returns:
        recording: The recording without unknown devices.
        limitations: A limitation if the device of a compute task or copy was unknown, or if the
            file contains several devices.
    """
    compute, communication = recording.compute, recording.communication
    devices = compute[2][compute[2] >= 0]
    of_rank = [number for _, number in recording.ranks if number >= 0]
    main_device = of_rank[0] if len(of_rank) == 1 else 0
    if len(of_rank) != 1 and len(devices):
        main_device = int(np.bincount(np.minimum(devices, 1 << 16)).argmax())
    n_unknown = int((compute[2] < 0).sum() + (recording.copies[2] < 0).sum())
    if len(find_distinct(devices)) > 1:
        n_unknown += int((communication[2] < 0).sum())
    filled = [
        np.vstack((table[:2], np.where(table[2] < 0, main_device, table[2]), table[3:]))
        for table in (compute, communication, recording.copies)
    ]
    recording = replace(recording, compute=filled[0], communication=filled[1], copies=filled[2])
    if not n_unknown:
        return recording, ()
    reason = f"{recording.path}: device {main_device} is used for this work"
    note = Limitation("work without a device", reason, n_unknown, LimitationKind.COSTS)
    return recording, (note,)


class _Work(NamedTuple):
    """The work of all devices.

    Attributes:
        activities: The activities: compute tasks and communication operations, then copies.
        limitations: Limitations for activities that were left out.
        streams: Stream of each activity, or -1 if unknown.
        copies: Copy sizes and directions.
        collectives: Communicators and sizes of the communication operations.
    """

    activities: model.Activities
    limitations: tuple[Limitation, ...]
    streams: Codes
    copies: Copies
    collectives: Collectives


def _build_work(recording: AscendRecording, zero_ns: int, process: int) -> _Work:
    """Build the tables of the work of all devices.

    Args:
        recording: The contents of the file.
        zero_ns: UTC time of time 0.
        process: Process id of all work.

    Raises:
        ProfileError: A device number is out of range.
    """
    names = Numbering[str]()
    compute, communication, copies = recording.compute, recording.communication, recording.copies
    plain_names = [_INSTANCE.sub("", name) for name in recording.names]
    blocks = [
        (compute, names.numbers(recording.names)[compute[4]], compute[5]),
        (
            communication,
            names.numbers(plain_names)[communication[4]],
            np.full(communication.shape[1], NONE),
        ),
    ]
    builder = ActivitiesBuilder(sum(table.shape[1] for table in (compute, communication, copies)))
    try:
        for table, name, stream in blocks:
            builder.add_kernels(_make_block(table, zero_ns, process, name, stream))
        unnamed = np.full(copies.shape[1], NONE)
        builder.add_copies(_make_block(copies, zero_ns, process, unnamed, copies[4]))
    except ValueError as error:
        raise ProfileError(
            f"{recording.path}: the file is damaged or was edited ({error}); copy it again, or "
            f"{RECORD_AGAIN}"
        ) from error
    texts = names.values
    activities = builder.build(
        lambda numbers: tuple(texts[number] for number in numbers.tolist()), ()
    )
    notes = (
        *model.report_untimed_work(recording.path, builder.untimed),
        *model.report_impossible_times(recording.path, builder.impossible),
    )
    row: Codes = np.arange(len(activities), dtype=np.int32)
    if builder.group is not None:
        (order,) = sort_columns_by_group(builder.group, (row,))
        row = invert_permutation(order)
    is_timed = _mask_timed(communication, zero_ns)
    n_compute = int(_mask_timed(compute, zero_ns).sum())
    return _Work(
        activities=activities,
        limitations=notes,
        streams=builder.streams,
        copies=_list_copies(copies, zero_ns, activities, row),
        collectives=find_collectives(
            recording, communication[:, is_timed], row[n_compute : activities.kernels]
        ),
    )


def _mask_timed(table: Ints, zero_ns: int) -> Bools:
    """Return a mask of the rows of a table of work that are in the activity table."""
    return has_times(*np.where(table[0] > 0, table[:2] - zero_ns, [[0], [NONE]]))


def _make_block(table: Ints, zero_ns: int, process: int, name: Ints, stream: Ints) -> Ints:
    """Return a block of work for :class:`ActivitiesBuilder`.

    Args:
        table: Columns of the work; the first four are start, end, device, and connection.
        zero_ns: UTC time of time 0.
        process: Process id.
        name: Name number of each row, or -1 if unknown.
        stream: Stream of each row, or -1 if unknown.
    """
    start_ns, end_ns, device, connection = table[:4]
    times = np.stack((start_ns, end_ns)) - zero_ns
    # An end before the start marks a row as invalid.
    times[:, start_ns <= 0] = [[0], [NONE]]
    global_pid = np.full(len(start_ns), process << 24)
    return np.stack((*times, device, global_pid, connection, name, stream))


def _list_copies(table: Ints, zero_ns: int, activities: model.Activities, row: Codes) -> Copies:
    """Return the size and direction of each copy in the activity table.

    Args:
        table: Copies of the recording.
        zero_ns: UTC time of time 0.
        activities: All activities, kernels first.
        row: Row in the activity table of each activity, in recording order.
    """
    size, operation = table[5:].compress(_mask_timed(table, zero_ns), axis=1)
    direction = np.full(len(operation), Direction.UNKNOWN, np.int64)
    for number, known_direction in _DIRECTIONS.items():
        direction[operation == number] = known_direction
    copies = Copies.unknown(activities.kernels + np.arange(len(size)))
    copies = copies.replace_columns(size=size, direction=direction)
    return copies.reorder(row)


def _build_calls(recording: AscendRecording, zero_ns: int) -> in_memory.InMemoryCalls:
    """Return the calls that have valid times, including a call for each launch by an operator.

    PyTorch's operators queue work, which another thread launches. The call of an operator has a
    duration of 0 and starts with the operator. It starts before the launch, so it is the launching
    call of the work, and the work belongs to the ranges on the operator's thread.
    """
    start_ns, end_ns, global_tid, connection, name = recording.calls
    operator_start_ns, operator_tid, operator_connection, operator_name = recording.operators
    columns = (
        np.append(start_ns, operator_start_ns),
        np.append(end_ns, operator_start_ns),
        _number_threads(recording, np.append(global_tid, operator_tid)),
        np.append(connection, operator_connection),
        np.append(name, operator_name),
    )
    is_valid = _mask_valid(columns[0], columns[1])
    start_ns, end_ns, thread, connection, name = (column[is_valid] for column in columns)
    return in_memory.make_calls(
        start_ns - zero_ns, end_ns - zero_ns, thread, connection, name, recording.names
    )


def _mask_valid(start_ns: Ints, end_ns: Ints) -> Bools:
    """Return a mask of the rows with a positive start that is not after the end."""
    return np.asarray((start_ns > 0) & (end_ns >= start_ns), bool)


def _stack_ranges(recording: AscendRecording) -> Ints:
    """Return all ranges with the columns start, end, global thread id, name, and kind.

    The kind of mstx ranges is 1 or 2, and that of garbage collections is 0. The name of garbage
    collections is one more than the last index of ``recording.names``.
    """
    collections = recording.collections
    n_collections = collections.shape[1]
    name, kind = np.full(n_collections, len(recording.names)), np.zeros(n_collections, np.int64)
    return np.hstack((recording.pytorch, recording.mstx, np.stack((*collections, name, kind))))


def _build_ranges(recording: AscendRecording, zero_ns: int) -> model.Ranges:
    """Return the ranges that have valid times."""
    columns = _stack_ranges(recording)
    columns = columns.compress(_mask_valid(columns[0], columns[1]), axis=1)
    start_ns, end_ns, global_tid, name, kind = columns
    ranges = in_memory.make_ranges(
        start_ns - zero_ns,
        end_ns - zero_ns,
        _number_threads(recording, global_tid),
        name,
        (*recording.names, _COLLECTION),
    )
    return replace(ranges, start_end=kind == _START_END)


def _classify_ranges(recording: AscendRecording, ranges: model.Ranges) -> tuple[Bools, Bools]:
    """Classify the ranges of :func:`_build_ranges`.

    Returns:
        is_named: Mask of the ranges that any name pattern may select: all except queue entries and
            Python functions.
        is_annotation: Mask of the ranges among them that are no operators. The names of operators
            contain ``::``.
    """
    columns = _stack_ranges(recording)
    kind = columns[4][_mask_valid(columns[0], columns[1])]
    is_named = np.asarray((kind != _QUEUE) & (kind != _PYTHON), bool)
    is_operator_name = np.array(["::" in name for name in ranges.names], bool)
    return is_named, np.asarray(is_named & ~is_operator_name[ranges.name_id], bool)


def _find_rank(recording: AscendRecording) -> int | None:
    """Return the rank in the run, or None if the file contains no rank or several ranks."""
    ranks = [rank for rank, _ in recording.ranks if rank >= 0]
    return ranks[0] if len(ranks) == 1 else None


def _describe_source(recording: AscendRecording, zero_ns: int) -> model.Source:
    """Describe the source of a recording. An unknown host is named after the file."""
    return model.Source(
        path=recording.path,
        host=recording.host or Path(recording.path).name,
        host_known=recording.host != "",
        format="ascend",
        schema_version=recording.schema_version,
        session_utc_ns=model.validate_utc(zero_ns),
        device="NPU",
        machine=recording.machine or None,
        api="CANN",
    )


@contextmanager
def open_file(path: str, jobs: int, watch: Watch) -> Iterator[in_memory.DecodedFile]:  # noqa: ARG001 - one thread reads it
    """Open a database of Ascend's profilers.

    Args:
        path: Path to the file.
        jobs: Ignored, because a single thread reads the file.
        watch: Callback that receives the fraction of the file that has been read.
    """
    with time_step("read tables") as rows:
        recording = read_recording(path, watch)
        rows.count = recording.compute.shape[1] + recording.calls.shape[1]
    yield in_memory.DecodedFile(lambda: build_decoded(recording))
