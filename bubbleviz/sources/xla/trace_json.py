"""Reads the JSON traces written by XLA's profiler (``*.trace.json.gz``).

In this format, a process represents a plane, and a thread represents a line in the plane. An
event's ``args`` contain its statistics, all of them as texts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import msgspec
import numpy as np

from bubbleviz.errors import ProfileError
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import group_rows, list_rows_by_value
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.profile import Source
from bubbleviz.model.texts import replace_surrogates
from bubbleviz.progress import Watch
from bubbleviz.sources.in_memory import Decoded
from bubbleviz.sources.trace_events import MISSING, ThreadName, TraceEvents, TraceFile
from bubbleviz.sources.xla.planes import (
    HOST,
    NOTHING,
    STAT_COLUMNS,
    STREAM,
    Planes,
    classify_lines,
    get_device_number,
    get_instruction_path,
    number_recordings,
)
from bubbleviz.sources.xla.profile import join_processes, make_process_number, make_profile

#: Process id of an event, as written in the trace.
ProcessName: TypeAlias = "int | str | None"


class XlaArgs(msgspec.Struct, gc=False):
    """The event arguments that this reader uses. Missing arguments are None."""

    name: str | None = None
    tf_op: str | None = None
    hlo_op: str | None = None
    hlo_module: str | None = None
    memcpy_details: str | None = None
    # Fields that contain numbers have the names in ``STAT_COLUMNS``.
    program: int | None = msgspec.field(default=None, name="program_id")
    run: int | None = msgspec.field(default=None, name="run_id")
    correlation: int | None = msgspec.field(default=None, name="correlation_id")
    device: int | None = msgspec.field(default=None, name="device_ordinal")
    step: int | None = msgspec.field(default=None, name="step_num")


class TraceJsonPlanes:
    """Collects the events in a trace, and builds planes after all events have been read.

    Planes are built at the end, because the name of a process or thread may come after its events.

    Args:
        file: Trace that is being read.

    Attributes:
        processes: Names of the processes, which are the plane names, keyed by process id.
    """

    def __init__(self, file: TraceFile[XlaArgs]) -> None:
        self.processes: dict[ProcessName, str] = {}
        self._file = file
        self._lines: dict[ThreadName, str] = {}
        self._streams: dict[ThreadName, int] = {}
        self._blocks: list[Ints] = []

    def add(self, events: TraceEvents[XlaArgs]) -> None:
        """Add a block of events.

        Metadata events ("M") set process and thread names. The last name wins. Complete events
        ("X") are stored if they have a start. All other events are ignored.
        """
        texts, threads = self._file.texts, self._file.threads.values
        event_name_arg, words = events.arguments["name"], texts.values
        for row in np.flatnonzero(
            (events.ph == texts.number("M")) & (event_name_arg != NONE)
        ).tolist():
            thread = threads[events.thread[row]]
            name = replace_surrogates(words[event_name_arg[row]])
            event_name = words[events.name[row]]
            if event_name == "process_name":
                self.processes[thread[0]] = name
            elif event_name == "thread_name":
                self._lines[thread] = name
        rows = (events.ph == texts.number("X")) & (events.start_ns != MISSING)
        columns = (events.thread, events.start_ns, events.duration_ns, events.name)
        arguments = (events.arguments[field] for field in XlaArgs.__struct_fields__)
        block = np.stack((*columns, *arguments))
        self._blocks.append(block[:, rows])

    def build_planes(self) -> tuple[list[Planes], int]:
        """Build the planes of all recordings in the trace. Unused lines are left out.

        Returns:
            recordings: The planes of each recording. There is at least one recording.
            n_strays: Number of events that were left out because their process has no name.
        """
        recording_of = self._number_processes()
        columns = self._join_blocks()
        threads = self._file.threads.values
        rows_of_thread = {
            threads[number]: rows for number, rows in list_rows_by_value(columns["thread"])
        }
        roles = self._find_roles(list(rows_of_thread))
        recordings = self._make_planes(recording_of)
        n_strays = 0
        for thread, rows in rows_of_thread.items():
            process_recording = recording_of.get(thread[0])
            if process_recording is None:
                n_strays += len(rows)
            elif roles[thread] is not NOTHING:
                events = {name: column[rows] for name, column in columns.items()}
                self._add_events(recordings[process_recording], roles[thread], thread, events)
        return recordings, n_strays

    def _number_processes(self) -> dict[ProcessName, int]:
        """Divide the processes into recordings. Return the recording indices, keyed by process id.

        Process ids consist of a label and a number, and are sorted by label, then by number. A new
        recording starts when the label changes, or when a device or host occurs again, see
        :func:`~bubbleviz.sources.xla.planes.number_recordings`.
        """
        processes = sorted(self.processes, key=_make_process_sort_key)
        labels = [_get_process_label(process) for process in processes]
        starts = [index for index in range(1, len(labels)) if labels[index] != labels[index - 1]]
        names = [self.processes[process] for process in processes]
        return dict(zip(processes, number_recordings(names, starts), strict=True))

    def _make_planes(self, recording_of: Mapping[ProcessName, int]) -> list[Planes]:
        """Create each recording's planes. The planes contain devices, but no events yet.

        There is at least one recording.

        Args:
            recording_of: Recording index of each process, keyed by process id.
        """
        recordings = [Planes() for _ in range(max(recording_of.values(), default=0) + 1)]
        for process, recording in recording_of.items():
            device = get_device_number(self.processes[process])
            if device is not None:
                recordings[recording].add_device(self.processes[process], device, "")
        return recordings

    def _join_blocks(self) -> dict[str, Ints]:
        """Join the stored event blocks, and return their columns, keyed by name.

        The names of the columns for arguments start with ``args.``. The stored blocks are dropped.
        """
        arguments = [f"args.{field}" for field in XlaArgs.__struct_fields__]
        names = ("thread", "start_ns", "duration_ns", "name", *arguments)
        blocks, self._blocks = self._blocks, []
        columns = np.concatenate([np.empty((len(names), 0), np.int64), *blocks], axis=1)
        return dict(zip(names, columns, strict=True))

    def _find_roles(self, threads: Sequence[ThreadName]) -> Mapping[ThreadName, str]:
        """Return the role of each thread that has a name or events, keyed by thread.

        Args:
            threads: Threads that have events.
        """
        threads_of_process: dict[ProcessName, list[ThreadName]] = defaultdict(list)
        for thread in dict.fromkeys((*self._lines, *threads)):
            threads_of_process[thread[0]].append(thread)
        roles: dict[ThreadName, str] = {}
        for process, members in threads_of_process.items():
            lines = [self._lines.get(thread, "") for thread in members]
            plane_roles = classify_lines(self.processes.get(process, ""), lines)
            roles.update(zip(members, plane_roles, strict=True))
        return roles

    def _add_events(
        self, planes: Planes, role: str, thread: ThreadName, events: Mapping[str, Ints]
    ) -> None:
        """Add the events on a thread to the planes of its recording.

        The path of an instruction is the argument ``name``, or ``tf_op`` if there is no ``name``. A
        missing duration is replaced with 0.

        Args:
            planes: The recording's planes.
            role: The thread's role, such as ``HOST`` or ``STREAM``.
            thread: Process id and thread id of the thread.
            events: Columns of the thread's events, keyed by name.
        """
        line = NONE
        if role == HOST:
            tid = thread[1]
            is_number = isinstance(tid, int) and not abs(tid) >> 63
            number = tid if is_number and isinstance(tid, int) else len(planes.lines)
            line = planes.add_line(number, self._lines.get(thread, ""))
        elif role == STREAM:
            line = self._streams.setdefault(thread, len(self._streams))
        start_ns, duration_ns = events["start_ns"], events["duration_ns"]
        end_ns = start_ns + np.where(duration_ns == MISSING, 0, duration_ns)
        name = self._convert_text_numbers(planes, events["name"])
        if (name == NONE).any():
            name[name == NONE] = planes.texts.number("")
        has_name = events["args.name"] > 0
        stats = {
            "op": self._convert_text_numbers(planes, events["args.hlo_op"]),
            "path": np.where(
                has_name,
                self._convert_text_numbers(planes, events["args.name"]),
                self._convert_text_numbers(planes, events["args.tf_op"], get_instruction_path),
            ),
            "module": self._convert_text_numbers(planes, events["args.hlo_module"]),
            "copy": self._convert_text_numbers(planes, events["args.memcpy_details"]),
        }
        for column in STAT_COLUMNS:
            if column not in stats:
                values = events[f"args.{column}"]
                stats[column] = np.where(values == MISSING, NONE, values)
        planes.add(role, self.processes[thread[0]], line, (start_ns, end_ns), name, stats)

    def _convert_text_numbers(
        self, planes: Planes, numbers: Ints, part: Callable[[str], str] = str
    ) -> Ints:
        """Convert text numbers in the file to text numbers in planes. Empty texts become -1.

        New texts are added to ``planes.texts``.

        Args:
            planes: Planes that number the texts.
            numbers: Text numbers in the file. Values of 0 or less mean that there is no text.
            part: Function that selects the part of a text to use.
        """
        words = self._file.texts.values
        groups = group_rows(numbers).order_by_appearance()
        used = numbers[groups.first].tolist()
        texts = (replace_surrogates(part(words[number])) if number > 0 else "" for number in used)
        text_number = [planes.texts.number(text) if text else NONE for text in texts]
        return np.array(text_number, np.int64)[groups.of_row]


def _get_process_label(process: ProcessName) -> str:
    """Return the text before the number in a process id, or "" if the id is not a text."""
    return process.rstrip("0123456789") if isinstance(process, str) else ""


def _make_process_sort_key(process: ProcessName) -> tuple[str, int]:
    """Return a key that sorts process ids by their label, then by their number."""
    label = _get_process_label(process)
    digits = process[len(label) :] if isinstance(process, str) else str(process or 0)
    return label, int(digits[-18:] or 0)


def read_profile(path: str, watch: Watch) -> Decoded:
    """Read a JSON trace from XLA's profiler. All recordings in the file are joined.

    A limitation reports that the hostname and the session start are unknown.

    Raises:
        ProfileError: The file is not a trace from XLA's profiler, or cannot be read.
    """
    file = TraceFile(path, XlaArgs, watch)
    trace = TraceJsonPlanes(file)
    for events in file.blocks():
        trace.add(events)
    if not trace.processes:
        raise ProfileError(
            f"{path}: the file is cut short before the first XLA process; copy it again"
            if file.cut
            else f"{path}: no process has a name that XLA uses; pass the original file from "
            "the profiler"
        )
    source = Source(path, Path(path).name, host_known=False, format="xla-trace")
    recordings, n_strays = trace.build_planes()
    processes = [make_process_number(number, 0) for number in range(len(recordings))]
    decoded = join_processes(
        [
            (process, make_profile(source, planes, process, cut=file.cut))
            for process, planes in zip(processes, recordings, strict=True)
        ]
    )
    limitations = [
        *file.limitations(),
        Limitation(
            "the hostname and the session start time, which are used to align profiles",
            f"{path}: this format records neither of them; the .xplane.pb of the same run does",
        ),
    ]
    if n_strays:
        reason = f"{path}: it is unknown where these events ran, so they are left out"
        subject = "events of unnamed processes"
        limitations.append(Limitation(subject, reason, n_strays))
    limitations += decoded.profile.limitations
    return replace(decoded, profile=replace(decoded.profile, limitations=tuple(limitations)))
