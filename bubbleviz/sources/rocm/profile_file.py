"""Builds a profile from a file written by one of ROCm's profilers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from bubbleviz.conventions.kinds import COPIES, GRAPH_LAUNCHES, KERNEL_LAUNCHES
from bubbleviz.errors import RECORD_WITH_ROCPROF, ProfileError
from bubbleviz.model import profile
from bubbleviz.model.columns import NONE, Codes, Ints
from bubbleviz.model.copies import Copies
from bubbleviz.model.grouping import find_distinct, invert_permutation, sort_columns_by_group
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.texts import format_count, replace_surrogates
from bubbleviz.progress import Watch
from bubbleviz.sources import in_memory
from bubbleviz.sources.activities import ActivitiesBuilder, has_times
from bubbleviz.sources.rocm.database_parts import RECORD_WITH_RPD
from bubbleviz.sources.rocm.host_events import HostEventKind
from bubbleviz.sources.rocm.rocpd import RocmRecording, read_recording
from bubbleviz.timing import time_step

#: Advice in messages on how to record missing data, keyed by format.
_RECORD_AGAIN = {"rocpd": RECORD_WITH_ROCPROF, "rpd": RECORD_WITH_RPD}
#: Names of the kernel table and the copy table, keyed by format.
_TABLES = {"rocpd": ("rocpd_kernel_dispatch", "rocpd_memory_copy"), "rpd": ("rocpd_op", "rocpd_op")}
#: Index of the stream column in a block of kernels, and in a block of copies.
_STREAM, _COPY_STREAM = 6, 5


def _subtract_start(block: Ints, zero_ns: int) -> Ints:
    """Make the times of kernels or copies relative to ``zero_ns``.

    If start and end are both 0, the times are missing and stay 0. In all other rows, a start of 0
    or less is invalid. The row's start becomes 0 and its end becomes -1, so that the row is later
    rejected as invalid.

    Args:
        block: Columns of kernels or copies. The first two columns are start and end.
        zero_ns: Time on the node's clock to subtract from all times (see :func:`_find_zero`).
    """
    times = block[:2] - zero_ns
    times[:, block[0] <= 0] = [[0], [NONE]]
    times[:, (block[:2] == 0).all(axis=0)] = 0
    return np.vstack((times, block[2:]))


def _keep_valid_times(blocks: list[tuple[Ints, ...]], zero_ns: int) -> list[Ints]:
    """Concatenate blocks of calls or ranges, leaving out rows with invalid times.

    The times of the kept rows are then made relative to ``zero_ns``. A row is kept if its start is
    positive and :func:`~bubbleviz.model.profile.mask_possible` accepts its times.

    Args:
        blocks: At least one block of columns. The first two columns are start and end.
        zero_ns: Time on the node's clock to subtract from all times.

    Returns:
        The columns of the kept rows.
    """
    columns = [np.concatenate(parts) for parts in zip(*blocks, strict=True)]
    is_possible = profile.mask_possible(columns[0], columns[1])
    has_start = columns[0] > 0
    if is_possible is not None:
        has_start &= is_possible
    if not has_start.all():
        columns = [column[has_start] for column in columns]
    columns[0] -= zero_ns
    columns[1] -= zero_ns
    return columns


def _build_activities(
    recording: RocmRecording, zero_ns: int, thread: Ints
) -> tuple[profile.Activities, list[Limitation], Codes, Copies]:
    """Build the activity table: the kernels, copies and fills that devices executed.

    If the process of an activity is unknown and exactly one process made calls, the activity is
    assigned to that process.

    Args:
        recording: The file's contents.
        zero_ns: Time on the node's clock to subtract from all times.
        thread: Thread of each call.

    Returns:
        activities: Kernels, followed by copies and fills.
        notes: Limitations for activities that were left out or whose process is unknown.
        streams: Stream of each activity, or -1 if unknown.
        copies: Copy sizes and directions.

    Raises:
        ProfileError: The recording is damaged.
    """
    path = recording.path
    builder = _collect_work(recording, zero_ns)
    names = [replace_surrogates(name) for name in recording.kernel_names.values]
    orphans = builder.count_without_process()
    processes = find_distinct(thread >> 24).tolist() if orphans else ()
    activities = builder.build(
        lambda numbers: tuple(names[number] for number in numbers.tolist()), processes
    )
    notes = [
        *profile.report_untimed_work(path, builder.untimed),
        *profile.report_impossible_times(path, builder.impossible),
    ]
    if orphans:
        reason = f"{path}: the file does not record which process launched some kernels"
        reason += (
            ", so they are assigned to the only process that made calls"
            if len(processes) == 1
            else ""
        )
        notes.append(Limitation("the process of kernels", reason, orphans, LimitationKind.COSTS))
    copied = _join_copies(recording, zero_ns, activities, builder.group)
    return activities, notes, builder.streams, copied


def _collect_work(recording: RocmRecording, zero_ns: int) -> ActivitiesBuilder:
    """Add a recording's kernels, and then its copies, to a new builder, and return the builder.

    Args:
        recording: The file's contents.
        zero_ns: Time on the node's clock to subtract from all times.

    Raises:
        ProfileError: The recording is damaged.
    """
    builder = ActivitiesBuilder(_count_rows((*recording.kernels, *recording.copies)))
    try:
        for kernels in recording.kernels:
            builder.add_kernels(_subtract_start(kernels[: _STREAM + 1], zero_ns))
        for copies in recording.copies:
            *columns, stream = _subtract_start(copies[: _COPY_STREAM + 1], zero_ns)
            builder.add_copies(np.stack((*columns, np.full(len(stream), NONE), stream)))
    except ValueError as error:
        remedy = _RECORD_AGAIN[recording.format]
        raise ProfileError(
            f"{recording.path}: the file is damaged or was edited ({error}); {remedy}"
        ) from error
    return builder


def _join_copies(
    recording: RocmRecording, zero_ns: int, activities: profile.Activities, group: Codes | None
) -> Copies:
    """Return the size and direction of each copy in the activity table.

    Fills, and copies without valid times, are left out.

    Args:
        recording: The file's contents.
        zero_ns: Time on the node's clock to subtract from all times.
        activities: All activities, kernels first.
        group: Sort key of each activity, in recording order. None if the activities were not
            sorted.
    """
    columns = [np.empty((2, 0), np.int64)]
    for block, details in zip(recording.copies, recording.copy_details, strict=True):
        times = _subtract_start(block[:2], zero_ns)
        columns.append(details.compress(has_times(*times), axis=1))
    size, direction = np.concatenate(columns, axis=1)
    copies = Copies.unknown(activities.kernels + np.arange(len(size)))
    copies = copies.replace_columns(size=size, direction=direction).take(direction != NONE)
    if group is None:
        return copies
    (order,) = sort_columns_by_group(group, (np.arange(len(activities), dtype=np.int32),))
    return copies.reorder(invert_permutation(order))


def build_decoded(recording: RocmRecording) -> in_memory.Decoded:
    """Build a recording's profile. Its times are relative to the result of :func:`_find_zero`.

    A recording that contains copies but no kernels can only be read with ``partial=True``.

    Raises:
        ProfileError: The recording is damaged.
    """
    zero_ns = _find_zero(recording)
    calls, ranges = _build_calls(recording, zero_ns), _build_ranges(recording, zero_ns)
    work, notes, streams, copies = _build_activities(recording, zero_ns, calls.calls.thread)
    impossible = {
        "HIP API calls": _count_rows(recording.calls) - len(calls.calls),
        "ranges": _count_rows(recording.ranges) - len(ranges),
    }
    no_kernels = _explain_missing_kernels(recording, work, notes, len(calls.calls))
    no_links = _explain_missing_links(recording, len(calls.calls), len(ranges))
    return in_memory.Decoded(
        profile.Profile(
            source=_describe_source(recording, zero_ns),
            activities=work,
            calls=calls,
            ranges=ranges,
            all_ranges=in_memory.InMemoryRanges(ranges, recording.range_texts),
            overheads=profile.Overheads.make_empty(),
            threads=tuple(recording.threads),
            devices=_list_devices(recording),
            limitations=(
                *notes,
                *_iter_limitations(recording, work.kernels, calls.texts),
                *profile.report_impossible_times(recording.path, impossible),
            ),
            streams=lambda: streams,
            copies=lambda: copies,
        ),
        {
            "kernels": _count_rows(recording.kernels),
            "copies and fills": _count_rows(recording.copies),
            "HIP API calls": _count_rows(recording.calls),
            "ROCTx ranges": len(ranges) + recording.n_unnamed_ranges,
        },
        # A profile that contains only copies can be analyzed.
        no_kernels if not len(work) else "",
        no_kernels or no_links,
        names=recording.range_texts,
    )


def _build_calls(recording: RocmRecording, zero_ns: int) -> in_memory.InMemoryCalls:
    """Return the calls in a recording that have valid times.

    Args:
        recording: The file's contents.
        zero_ns: Time on the node's clock to subtract from all times.
    """
    columns = _keep_valid_times(recording.calls, zero_ns)
    start_ns, end_ns, thread, correlation_id, name_id = columns
    names = tuple(map(replace_surrogates, recording.call_names.values))
    return in_memory.make_calls(start_ns, end_ns, thread, correlation_id, name_id, names)


def _build_ranges(recording: RocmRecording, zero_ns: int) -> profile.Ranges:
    """Return the ranges in a recording that have valid times.

    ``names`` of the result is empty, and ``name_id`` contains indices into
    ``recording.range_texts``.

    Args:
        recording: The file's contents.
        zero_ns: Time on the node's clock to subtract from all times.
    """
    start_ns, end_ns, thread, kind, name_id = _keep_valid_times(recording.ranges, zero_ns)
    ranges = in_memory.make_ranges(start_ns, end_ns, thread, name_id, ())
    return replace(ranges, start_end=kind == HostEventKind.STARTED)


def _find_zero(recording: RocmRecording) -> int:
    """Return the time on the node's clock that becomes time 0 of the profile.

    The result is 1 ns before the earliest positive start in the file, or 0 if no start is positive.
    """
    tables = (recording.kernels, recording.copies, recording.calls, recording.ranges)
    starts = (block[0][block[0] > 0] for blocks in tables for block in blocks)
    return min((int(start_ns.min()) for start_ns in starts if len(start_ns)), default=1) - 1


def _describe_source(recording: RocmRecording, zero_ns: int) -> profile.Source:
    """Describe the source of a recording: its file, host, format and session clock.

    If the hostname is unknown, the file name is used as the host.
    """
    return profile.Source(
        path=recording.path,
        host=replace_surrogates(recording.host or Path(recording.path).name),
        host_known=recording.host is not None,
        format=recording.format,
        schema_version=recording.schema_version,
        session_clock_ns=zero_ns,
        machine=recording.machine,
        api="HIP",
    )


def _list_devices(recording: RocmRecording) -> tuple[profile.Device, ...]:
    """Return the distinct GPUs, sorted by process id, device number and name."""
    devices = {
        replace(device, name=replace_surrogates(device.name)) for device in recording.devices
    }
    return tuple(sorted(devices, key=lambda d: (d.pid or 0, d.device_id, d.name)))


def _explain_missing_kernels(
    recording: RocmRecording,
    work: profile.Activities,
    notes: Sequence[Limitation],
    n_calls: int,
) -> str:
    """Explain why there are no kernels and what to do. Return "" if there are kernels.

    Args:
        recording: The file's contents.
        work: Kernels and copies of the recording.
        notes: Limitations that report omitted kernels.
        n_calls: Number of calls.
    """
    if work.kernels:
        return ""
    recorded_calls = f", only {format_count(n_calls, 'HIP API call')}" if n_calls else ""
    reason = in_memory.describe_invalid_times(notes)
    reason = reason or f"no kernels were recorded{recorded_calls}"
    return f"{reason}; {_RECORD_AGAIN[recording.format]}"


def _explain_missing_links(recording: RocmRecording, n_calls: int, n_ranges: int) -> str:
    """Explain why kernels cannot be linked to ranges and what to do. Return "" if they can.

    Kernels can be linked to ranges if there are both calls and ranges.

    Args:
        recording: The file's contents.
        n_calls: Number of calls.
        n_ranges: Number of ranges, excluding ROCTx ranges without a text.
    """
    again = _RECORD_AGAIN[recording.format]
    if not n_calls:
        return f"no HIP API calls were recorded, so kernels cannot be linked to ranges; {again}"
    if n_ranges:
        return ""
    if recording.n_unnamed_ranges:
        return (
            "no ROCTx range has a name, because the recorded events contain no text "
            f"(rocpd_event.extdata); {again}"
        )
    return f"no ROCTx ranges were recorded; enable ranges in the training framework, then {again}"


def _iter_limitations(
    recording: RocmRecording, n_kernels: int, call_names: Sequence[str]
) -> Iterator[Limitation]:
    """Yield the limitations that apply to a recording.

    The limitations in ``recording.limitations`` come first, followed by limitations for unnamed
    ranges, unnamed calls and missing work. Kernels are reported as missing if the recording has no
    kernels but has calls that launch kernels. Missing copies are reported in the same way.

    Args:
        recording: The file's contents.
        n_kernels: Number of kernels.
        call_names: Distinct names of the calls.
    """
    path, (kernel_table, copy_table) = recording.path, _TABLES[recording.format]
    yield from recording.limitations
    lost_names = LimitationKind.RANGE_NAMES_LOST
    if recording.n_unnamed_ranges:
        reason = f"{path}: the file contains no text for some ranges"
        yield Limitation("names of ranges", reason, recording.n_unnamed_ranges, lost_names)
    if recording.n_unnamed_calls:
        reason = f"{path}: rocpd_string contains no text for some calls"
        subject = "names of calls, and possibly of ranges"
        yield Limitation(subject, reason, recording.n_unnamed_calls, lost_names)
    has_launches = any(name.startswith((*KERNEL_LAUNCHES, *GRAPH_LAUNCHES)) for name in call_names)
    if has_launches and not n_kernels:
        reason = f"{path}: some calls launch kernels, but {kernel_table} contains none"
        yield Limitation(profile.KERNELS, reason, kind=LimitationKind.COSTS)
    has_copy_calls = any(name.startswith(COPIES) for name in call_names)
    if has_copy_calls and not recording.n_copies:
        reason = f"{path}: some calls start copies, but {copy_table} contains none"
        yield Limitation("copies", reason, kind=LimitationKind.OTHER)


def _count_rows(blocks: Sequence[Ints | tuple[Ints, ...]]) -> int:
    """Return the total number of rows in all blocks."""
    return sum(len(block[0]) for block in blocks)


@contextmanager
def open_file(path: str, jobs: int, watch: Watch, kind: str) -> Iterator[in_memory.DecodedFile]:  # noqa: ARG001 - one thread reads it
    """Open a file written by rocprofv3 (rocpd) or rocmProfileData (rpd).

    Args:
        path: Path to the file.
        jobs: Ignored, because a single thread reads the file.
        watch: Callback that receives the fraction of the file that has been read.
        kind: File format, "rocpd" or "rpd".
    """
    with time_step("read tables") as rows:
        recording = read_recording(path, kind, watch)
        rows.count = _count_rows((*recording.kernels, *recording.calls))
    yield in_memory.DecodedFile(lambda: build_decoded(recording))
