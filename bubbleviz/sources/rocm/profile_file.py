"""The profile in a file of ROCm's profilers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from bubbleviz.conventions.kinds import COPIES, GRAPH_LAUNCHES, KERNEL_LAUNCHES
from bubbleviz.errors import ProfileError
from bubbleviz.model import profile
from bubbleviz.model.columns import NONE, Codes, Ints
from bubbleviz.model.copies import Copies
from bubbleviz.model.grouping import find_distinct, invert_permutation, sort_columns_by_group
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.texts import format_count, replace_surrogates
from bubbleviz.progress import Watch
from bubbleviz.sources import in_memory
from bubbleviz.sources.activities import ActivitiesBuilder, has_times
from bubbleviz.sources.rocm.database_parts import RECORD_WITH_ROCPROF, RECORD_WITH_RPD
from bubbleviz.sources.rocm.host_events import HostEventKind
from bubbleviz.sources.rocm.rocpd import RocmRecording, read_recording
from bubbleviz.timing import step

#: What records more, by format.
_RECORD_AGAIN = {"rocpd": RECORD_WITH_ROCPROF, "rpd": RECORD_WITH_RPD}
#: The tables that hold kernels, and copies, by format.
_TABLES = {"rocpd": ("rocpd_kernel_dispatch", "rocpd_memory_copy"), "rpd": ("rocpd_op", "rocpd_op")}
#: Index of the stream in a block of kernels, and in a block of copies.
_STREAM, _COPY_STREAM = 6, 5
#: What an inspection counts.
_INSPECTED_KINDS = ("kernels", "copies and fills", "HIP API calls", "ROCTx ranges")


def _subtract_start(block: Ints, zero_ns: int) -> Ints:
    """Return work with times since the file's first event; 0 stays, which is no time.

    Work with a start of 0 or less, and an end, ends before it starts.
    """
    times = block[:2] - zero_ns
    times[:, block[0] <= 0] = [[0], [NONE]]
    times[:, (block[:2] == 0).all(axis=0)] = 0
    return np.vstack((times, block[2:]))


def _keep_valid_times(blocks: list[tuple[Ints, ...]], zero_ns: int) -> list[Ints]:
    """Return the columns of calls or ranges whose times can be, since the file's first event."""
    columns = [np.concatenate(each) for each in zip(*blocks, strict=True)]
    keep = profile.mask_possible(columns[0], columns[1])
    timed = columns[0] > 0
    if keep is not None or not timed.all():
        columns = [column[timed if keep is None else timed & keep] for column in columns]
    columns[0] -= zero_ns
    columns[1] -= zero_ns
    return columns


def _build_activities(
    recording: RocmRecording, zero_ns: int, thread: Ints
) -> tuple[profile.Activities, list[Limitation], Codes, Copies]:
    """Build the activities of devices.

    Args:
        recording: The recording.
        zero_ns: Time from which the activities count.
        thread: Thread of each call.

    Returns:
        activities: Kernels, then copies.
        notes: Limitations.
        streams: Stream of each activity, or -1 if unknown.
        copies: Sizes and directions of copies.
    """
    path = recording.path
    builder = ActivitiesBuilder(_count_rows((*recording.kernels, *recording.copies)))
    try:
        for kernels in recording.kernels:
            builder.add_kernels(_subtract_start(kernels[: _STREAM + 1], zero_ns))
        for copies in recording.copies:
            *columns, stream = _subtract_start(copies[: _COPY_STREAM + 1], zero_ns)
            builder.add_copies(np.stack((*columns, np.full(len(stream), NONE), stream)))
    except ValueError as error:
        raise ProfileError(
            f"{path}: is damaged or was edited ({error}); {_RECORD_AGAIN[recording.format]}"
        ) from error
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
        reason = f"{path} does not record it"
        reason += "; the only process that made calls is taken" if len(processes) == 1 else ""
        notes.append(Limitation("the process of kernels", reason, orphans, LimitationKind.COSTS))
    copied = _join_copies(recording, zero_ns, activities, builder.group)
    return activities, notes, builder.streams, copied


def _join_copies(
    recording: RocmRecording, zero_ns: int, activities: profile.Activities, group: Codes | None
) -> Copies:
    """Return the sizes and directions of copies, without fills.

    Args:
        recording: The recording.
        zero_ns: Time from which the activities count.
        activities: The activities, kernels first.
        group: Group of each activity if they were sorted by groups, or None if not.
    """
    columns = [np.empty((2, 0), np.int64)]
    for block, moved in zip(recording.copies, recording.copy_details, strict=True):
        times = _subtract_start(block[:2], zero_ns)
        columns.append(moved.compress(has_times(*times), axis=1))
    size, direction = np.concatenate(columns, axis=1)
    copies = Copies.unknown(activities.kernels + np.arange(len(size)))
    copies = copies.replace_columns(size=size, direction=direction).take(direction != NONE)
    if group is None:
        return copies
    (order,) = sort_columns_by_group(group, (np.arange(len(activities), dtype=np.int32),))
    return copies.reorder(invert_permutation(order))


def build_decoded(recording: RocmRecording) -> in_memory.Decoded:
    """Return the profile that a recording makes.

    Raises:
        ProfileError: it is damaged.
    """
    path, again = recording.path, _RECORD_AGAIN[recording.format]
    rows = (recording.kernels, recording.copies, recording.calls, recording.ranges)
    *held, calls_held, ranges_held = (_count_rows(blocks) for blocks in rows)
    starts = (block[0][block[0] > 0] for blocks in rows for block in blocks)
    # A nanosecond before the first event of the file began, on the node's clock.
    zero_ns = min((int(start_ns.min()) for start_ns in starts if len(start_ns)), default=1) - 1
    start_ns, end_ns, thread, ids, name = _keep_valid_times(recording.calls, zero_ns)
    call_names = tuple(map(replace_surrogates, recording.call_names.values))
    calls = in_memory.make_calls(start_ns, end_ns, thread, ids, name, call_names)
    count = len(calls.calls)
    start_ns, end_ns, thread, kind, name = _keep_valid_times(recording.ranges, zero_ns)
    ranges = in_memory.make_ranges(start_ns, end_ns, thread, name, ())
    ranges = replace(ranges, start_end=kind == HostEventKind.STARTED)
    work, notes, streams, copies = _build_activities(recording, zero_ns, calls.calls.thread)
    lacking = unlinked = ""
    if not work.kernels:
        but = f", but {format_count(count, 'HIP API call')}" if count else ""
        left_out = in_memory.describe_invalid_times(notes)
        lacking = f"{left_out or f'no kernels were recorded{but}'}; {again}"
    if not count:
        unlinked = f"no HIP API calls were recorded, so kernels cannot be linked to ranges; {again}"
    elif not len(ranges) and recording.n_unnamed_ranges:
        unlinked = (
            "no range is named, since the events of the ROCTx ranges that were recorded hold no "
            f"texts (rocpd_event.extdata); {again}"
        )
    elif not len(ranges):
        unlinked = (
            f"no ROCTx ranges were recorded; {again}, with ranges switched on in the training "
            "framework"
        )
    impossible = {"HIP API calls": calls_held - count, "ranges": ranges_held - len(ranges)}
    devices = {
        replace(device, name=replace_surrogates(device.name)) for device in recording.devices
    }
    return in_memory.Decoded(
        profile.Profile(
            source=profile.Source(
                path=path,
                host=replace_surrogates(recording.host or Path(path).name),
                host_known=recording.host is not None,
                format=recording.format,
                schema_version=recording.schema_version,
                session_clock_ns=zero_ns,
                machine=recording.machine,
                api="HIP",
            ),
            activities=work,
            calls=calls,
            ranges=ranges,
            all_ranges=in_memory.InMemoryRanges(ranges, recording.range_texts),
            overheads=profile.Overheads.make_empty(),
            threads=tuple(recording.threads),
            devices=tuple(sorted(devices, key=lambda d: (d.pid or 0, d.device_id, d.name))),
            limitations=(
                *notes,
                *_iter_limitations(recording, work.kernels, calls.texts),
                *profile.report_impossible_times(path, impossible),
            ),
            streams=lambda: streams,
            copies=lambda: copies,
        ),
        dict(
            zip(
                _INSPECTED_KINDS,
                (*held, calls_held, len(ranges) + recording.n_unnamed_ranges),
                strict=True,
            )
        ),
        # Copies alone are work, too.
        lacking if not len(work) else "",
        lacking or unlinked,
        names=recording.range_texts,
    )


def _iter_limitations(
    recording: RocmRecording, kernels: int, call_names: Sequence[str]
) -> Iterator[Limitation]:
    """Yield what the file lacks, and kinds of work of which calls were recorded alone."""
    path, (of_kernels, of_copies) = recording.path, _TABLES[recording.format]
    yield from recording.limitations
    lost = LimitationKind.RANGE_NAMES_LOST
    if recording.n_unnamed_ranges:
        reason = f"{path} has no text for them"
        yield Limitation("names of ranges", reason, recording.n_unnamed_ranges, lost)
    if recording.n_unnamed_calls:
        reason = f"{path} has none for them in rocpd_string"
        what, count = "names of calls, and maybe of ranges", recording.n_unnamed_calls
        yield Limitation(what, reason, count, lost)
    launches = (*KERNEL_LAUNCHES, *GRAPH_LAUNCHES)
    for what, table, recorded, make, beginnings, kind in (
        (profile.KERNELS, of_kernels, kernels, "launch", launches, LimitationKind.COSTS),
        ("copies", of_copies, recording.n_copies, "make", COPIES, LimitationKind.OTHER),
    ):
        if not recorded and any(name.startswith(beginnings) for name in call_names):
            reason = f"{path} holds calls that {make} some, but none in {table}"
            yield Limitation(what, reason, kind=kind)


def _count_rows(blocks: Sequence[Ints | tuple[Ints, ...]]) -> int:
    return sum(len(block[0]) for block in blocks)


@contextmanager
def open_file(path: str, jobs: int, watch: Watch, kind: str) -> Iterator[in_memory.DecodedFile]:  # noqa: ARG001 - one thread reads it
    """Open a file of rocprofv3 (rocpd), or of rocmProfileData (rpd)."""
    with step("read tables") as rows:
        recording = read_recording(path, kind, watch)
        rows.count = _count_rows((*recording.kernels, *recording.calls))
    yield in_memory.DecodedFile(lambda: build_decoded(recording))
