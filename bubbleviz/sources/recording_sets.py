"""Joins the recordings of several processes in one file into one profile.

Some tools merge the traces of a job's ranks into one file. The ranks' devices, correlation ids and
threads are still separate, so each recording is first decoded as a separate profile. Ranks remain
separate in the joined profile, because they have different processes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from bubbleviz.model import profile as model
from bubbleviz.model.collectives import Collectives
from bubbleviz.model.columns import NONE, Bools, Codes, Ints, join_tables
from bubbleviz.model.copies import Copies
from bubbleviz.model.grouping import group_rows, invert_permutation
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.numbering import Numbering, merge_tables
from bubbleviz.model.profile import Profile
from bubbleviz.model.synchronization import Synchronization
from bubbleviz.sources import in_memory
from bubbleviz.sources.in_memory import Decoded


def join_recordings(parts: Sequence[Decoded], labels: Sequence[str]) -> Decoded:
    """Join the recordings of one file into one profile.

    A recording without device work still contributes its host threads and limitations. The result
    has a ``no_work_reason`` only if every recording has such a reason. In this case, the first
    recording's reason is used. ``no_links_reason`` is determined in the same way.

    Args:
        parts: At least two recordings, decoded from one file. Two recordings must not share a
            process, and the attribute ``names`` of every recording must be None.
        labels: Label for the processes of each recording, or "" for no label.
    """
    profiles = [part.profile for part in parts]
    activities, rows = _join_activities([profile.activities for profile in profiles])
    ranges = merge_tables([profile.ranges for profile in profiles], names=["name_id"])
    path = profiles[0].source.path
    limitations = (
        *_sum_limitations(profiles),
        _make_one_clock_limitation(path, len(parts), labels),
    )
    profile = replace(
        profiles[0],
        activities=activities,
        calls=_join_calls(profiles),
        ranges=ranges,
        all_ranges=in_memory.InMemoryRanges(ranges),
        overheads=join_tables([profile.overheads for profile in profiles]),
        threads=tuple(dict.fromkeys(thread for p in profiles for thread in p.threads)),
        devices=tuple(_iter_devices_by_process(profiles)),
        limitations=limitations,
        global_rank=None,
        launches_known=any(profile.launches_known for profile in profiles),
        collectives=_join_collectives(profiles, rows),
        synchronization=_join_synchronization(profiles),
        streams=_join_streams(profiles, rows, len(activities)),
        copies=_join_copies(profiles, rows),
        is_merged=True,
        process_labels=_label_processes(profiles, labels),
    )
    working = [part for part in parts if not part.no_work_reason]
    linked = [part for part in parts if not part.no_links_reason]
    return Decoded(
        profile,
        _add_counts([part.tables for part in parts]),
        "" if working else parts[0].no_work_reason,
        "" if linked else parts[0].no_links_reason,
        is_named=_join_masks(parts, [part.is_named for part in parts], missing=True),
        other_prefix=parts[0].other_prefix,
        is_sampled=_join_masks(parts, [part.is_sampled for part in parts], missing=False),
    )


def _make_one_clock_limitation(path: str, n_parts: int, labels: Sequence[str]) -> Limitation:
    """Return a limitation that states that all recordings are assumed to share one clock."""
    known_labels = [label for label in labels if label]
    shown_labels = ", ".join(known_labels[:4]) + (", ..." if len(known_labels) > 4 else "")
    label_list = f" ({shown_labels})" if shown_labels else ""
    reason = (
        f"{path}: {n_parts} recordings{label_list} were merged into this file, and are assumed to "
        "come from one host with one clock; if they come from several hosts, pass the original "
        "files"
    )
    return Limitation("the hosts of merged recordings", reason, n_parts)


def _join_activities(
    tables: Sequence[model.Activities],
) -> tuple[model.Activities, list[Ints]]:
    """Join activity tables. The kernels from all tables come first, followed by the copies.

    Ranks are numbered by ascending (process, device number) across all tables. Names are renumbered
    so that equal names have the same number.

    Returns:
        activities: The joined table.
        rows: For each table, an array that maps its rows to rows of the joined table.
    """
    names = Numbering[str]()
    renumbered = []
    n_ranks = 0
    for table in tables:
        name_number = np.append(names.numbers(table.names), NONE)
        columns = {
            "rank": table.rank.astype(np.int64) + n_ranks,
            "name_id": name_number[table.name_id],
        }
        renumbered.append(table.replace_columns(**columns))
        n_ranks += len(table.ranks)
    order = _order_kernels_first(tables)
    bounds = np.cumsum([len(table) for table in tables])[:-1]
    rows = np.split(invert_permutation(order), bounds)

    ranks = np.concatenate([table.ranks for table in tables]).reshape(-1, 2)
    groups = group_rows(ranks[:, 0], ranks[:, 1])
    activities = join_tables(renumbered).take(order)
    activities = replace(
        activities,
        rank=groups.of_row[activities.rank].astype(np.int32),
        name_id=activities.name_id.astype(np.int32),
        kernels=sum(table.kernels for table in tables),
        names=names.values,
        ranks=ranks[groups.first],
    )
    return activities, rows


def _order_kernels_first(tables: Sequence[model.Activities]) -> Ints:
    """Return the row order that puts all kernels in concatenated tables before all copies."""
    is_copy = np.concatenate([np.arange(len(table)) >= table.kernels for table in tables])
    return np.argsort(is_copy, kind="stable")


def _join_calls(profiles: Sequence[Profile]) -> in_memory.InMemoryCalls:
    """Join the call logs of recordings, sorted by thread and start. All logs must be in memory."""
    logs = [p.calls for p in profiles if isinstance(p.calls, in_memory.InMemoryCalls)]
    names = Numbering[str]()
    name_id = [names.numbers(log.texts)[log.name_id] for log in logs]
    calls = join_tables([log.calls for log in logs])
    return in_memory.make_calls(
        calls.start_ns,
        calls.end_ns,
        calls.thread,
        calls.correlation_id.astype(np.int64),
        np.concatenate(name_id),
        names.values,
    )


def _join_collectives(profiles: Sequence[Profile], rows: Sequence[Ints]) -> Collectives | None:
    """Join the collectives of recordings, or return None if no recording has collectives.

    In the result, the column ``kernel`` contains rows of the joined activities. The numbers in the
    column ``operation`` are shifted, so that no two recordings share a number.

    Args:
        profiles: The recordings.
        rows: For each recording, an array that maps its activities to rows of the joined table.
    """
    tables = []
    n_operations = 0
    for profile, of_activity in zip(profiles, rows, strict=True):
        table = profile.collectives
        if table is None:
            continue
        kernel, operation = of_activity[table.kernel], table.operation + n_operations
        tables.append(table.replace_columns(kernel=kernel, operation=operation))
        n_operations = int(operation.max(initial=n_operations - 1)) + 1
    if not tables:
        return None
    return merge_tables(tables, names=["name", "datatype"], groups=["group"])


def _join_synchronization(profiles: Sequence[Profile]) -> model.SynchronizationReader | None:
    """Return a function that reads and joins the synchronization events of all recordings.

    The result is None if no recording has such a function. The function also returns the
    limitations of all recordings, even of recordings without events.
    """
    if all(profile.synchronization is None for profile in profiles):
        return None

    def read() -> tuple[Synchronization | None, tuple[Limitation, ...]]:
        """Return the joined synchronization (None if there is none), and all limitations."""
        records, waits = [], []
        notes: list[Limitation] = []
        for profile in profiles:
            part, part_notes = profile.synchronization() if profile.synchronization else (None, ())
            notes += part_notes
            if part is not None:
                records.append(part.records)
                waits.append(part.waits)
        if not waits:
            return None, tuple(notes)
        return Synchronization(join_tables(records), join_tables(waits)), tuple(notes)

    return read


def _join_streams(
    profiles: Sequence[Profile], rows: Sequence[Ints], n_activities: int
) -> Callable[[], Codes]:
    """Return a function that returns the stream of each joined activity, or -1 if unknown.

    Args:
        profiles: The recordings.
        rows: For each recording, an array that maps its activities to rows of the joined table.
        n_activities: Number of rows in the joined table.
    """

    def read() -> Codes:
        streams = np.full(n_activities, NONE, np.int64)
        for profile, of_activity in zip(profiles, rows, strict=True):
            if profile.streams is not None:
                streams[of_activity] = profile.streams()
        return streams

    return read


def _join_copies(profiles: Sequence[Profile], rows: Sequence[Ints]) -> Callable[[], Copies] | None:
    """Return a function that returns the joined copies, or None if no recording has copies.

    The returned copies are sorted by ``activity``.

    Args:
        profiles: The recordings.
        rows: For each recording, an array that maps its activities to rows of the joined table.
    """
    readers = [
        (profile.copies, of_activity)
        for profile, of_activity in zip(profiles, rows, strict=True)
        if profile.copies is not None
    ]
    if not readers:
        return None

    def read() -> Copies:
        copies = join_tables(
            [read_part().reorder(of_activity) for read_part, of_activity in readers]
        )
        return copies.take(np.argsort(copies.activity, kind="stable"))

    return read


def _iter_devices_by_process(profiles: Sequence[Profile]) -> Iterator[model.Device]:
    """Yield each device of each recording together with its process.

    If a recording does not specify a device's process, the device is yielded once for each process
    in the recording.
    """
    for profile in profiles:
        processes = dict.fromkeys(profile.activities.ranks[:, 0].tolist())
        for device in profile.devices:
            for process in processes if device.pid is None else ():
                yield replace(device, pid=model.get_pid(process))
            if device.pid is not None:
                yield device


def _label_processes(profiles: Sequence[Profile], labels: Sequence[str]) -> Mapping[int, str]:
    """Return the process labels, keyed by process, for all recordings that have a label."""
    return {
        process: label
        for profile, label in zip(profiles, labels, strict=True)
        for process in profile.activities.ranks[:, 0].tolist()
        if label
    }


def _sum_limitations(profiles: Sequence[Profile]) -> Iterator[Limitation]:
    """Yield the limitations of all recordings.

    Limitations with the same subject and reason are merged, and their counts are added.
    """
    notes = [note for profile in profiles for note in profile.limitations]
    counts = Counter[tuple[str, str]]()
    for note in notes:
        counts[note.what, note.reason] += note.count
    first = {(note.what, note.reason): note for note in reversed(notes)}
    for key, count in counts.items():
        yield replace(first[key], count=count)


def _add_counts(tables: Sequence[Mapping[str, int | None]]) -> Mapping[str, int | None]:
    """Sum each table's row counts over all recordings. If no count is known, the sum is None."""
    return {
        name: sum(table[name] or 0 for table in tables)
        if any(table[name] is not None for table in tables)
        else None
        for name in tables[0]
    }


def _join_masks(
    parts: Sequence[Decoded], masks: Sequence[Bools | None], *, missing: bool
) -> Bools | None:
    """Concatenate the masks of all recordings, or return None if no recording has a mask.

    Args:
        parts: The recordings.
        masks: For each recording, a mask of its ranges, or None if it has no mask.
        missing: Mask value for the ranges of a recording that has no mask.
    """
    if all(mask is None for mask in masks):
        return None
    lengths = [len(part.profile.ranges) for part in parts]
    filled = [
        np.full(length, missing) if mask is None else mask
        for mask, length in zip(masks, lengths, strict=True)
    ]
    return np.concatenate(filled)
