"""Planes of XLA's trace JSON (``*.trace.json.gz``), collected.

A process is a plane, a thread is a line of it, and statistics are ``args``, all of them texts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TypeAlias

import msgspec
import numpy as np

from bubbleviz.errors import ProfileError
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import groups_of, rows_by_value
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.profile import Source
from bubbleviz.model.texts import encodable
from bubbleviz.progress import Watch
from bubbleviz.sources.in_memory import Decoded
from bubbleviz.sources.trace_events import MISSING, ThreadName, TraceEvents, TraceFile
from bubbleviz.sources.xla.planes import (
    HOST,
    NOTHING,
    STAT_COLUMNS,
    STREAM,
    Planes,
    device_of,
    number_recordings,
    path_of,
    roles_of,
)
from bubbleviz.sources.xla.profile import join_processes, process_number, profile_of

#: A process as an event names it.
ProcessName: TypeAlias = "int | str | None"


class XlaArgs(msgspec.Struct, gc=False):
    """Arguments of events, as far as they are used."""

    name: str | None = None
    tf_op: str | None = None
    hlo_op: str | None = None
    hlo_module: str | None = None
    memcpy_details: str | None = None
    # Numbers have the names of the planes' columns.
    program: int | None = msgspec.field(default=None, name="program_id")
    run: int | None = msgspec.field(default=None, name="run_id")
    correlation: int | None = msgspec.field(default=None, name="correlation_id")
    device: int | None = msgspec.field(default=None, name="device_ordinal")
    step: int | None = msgspec.field(default=None, name="step_num")


class TraceJsonPlanes:
    """Collects the events of a trace, and adds them to planes once all have been read.

    Names of processes and threads may follow their events.

    Attributes:
        processes: Names of the processes that are planes.
        n_strays: Number of events of processes without a name, known once planes were made.
    """

    def __init__(self, file: TraceFile[XlaArgs]) -> None:
        self.processes: dict[ProcessName, str] = {}
        self.n_strays = 0
        self._file = file
        self._lines: dict[ThreadName, str] = {}
        self._streams: dict[ThreadName, int] = {}
        self._blocks: list[Ints] = []

    def add(self, events: TraceEvents[XlaArgs]) -> None:
        """Add a block of events."""
        texts, threads = self._file.texts, self._file.threads.values
        named, words = events.arguments["name"], texts.values
        for row in np.flatnonzero((events.ph == texts.number("M")) & (named != NONE)).tolist():
            thread, name = threads[events.thread[row]], encodable(words[named[row]])
            what = words[events.name[row]]
            if what == "process_name":
                self.processes[thread[0]] = name
            elif what == "thread_name":
                self._lines[thread] = name
        rows = (events.ph == texts.number("X")) & (events.start_ns != MISSING)
        columns = (events.thread, events.start_ns, events.duration_ns, events.name)
        arguments = (events.arguments[field] for field in XlaArgs.__struct_fields__)
        block = np.stack((*columns, *arguments))
        self._blocks.append(block[:, rows])

    def planes(self) -> Iterator[Planes]:
        """Yield the planes of each recording that the trace holds, at least one."""
        processes = sorted(self.processes, key=_order_of_process)
        label_of = [_label_of_process(process) for process in processes]
        ends = [at for at in range(1, len(processes)) if label_of[at] != label_of[at - 1]]
        names = [self.processes[process] for process in processes]
        numbers = number_recordings(names, ends)
        of_process = dict(zip(processes, numbers, strict=True))
        fields = ("thread", "start_ns", "duration_ns", "name")
        arguments = [f"args.{field}" for field in XlaArgs.__struct_fields__]
        width = len(fields) + len(arguments)
        blocks = np.concatenate([np.empty((width, 0), np.int64), *self._blocks], axis=1)
        self._blocks = []
        columns = dict(zip((*fields, *arguments), blocks, strict=True))
        rows_of_thread = rows_by_value(columns["thread"])
        threads = self._file.threads.values
        roles = self._roles([threads[number] for number, _ in rows_of_thread])
        for recording in range(max(numbers, default=0) + 1):
            planes = Planes()
            for process in processes:
                device = device_of(self.processes[process])
                if of_process[process] == recording and device is not None:
                    planes.add_device(self.processes[process], device, "")
            for number, rows in rows_of_thread:
                thread = threads[number]
                if of_process.get(thread[0]) == recording and roles[thread] is not NOTHING:
                    events = {name: column[rows] for name, column in columns.items()}
                    self._add_events(planes, roles[thread], thread, events)
            yield planes
        self.n_strays = sum(
            len(rows) for number, rows in rows_of_thread if threads[number][0] not in of_process
        )

    def _roles(self, threads: Sequence[ThreadName]) -> Mapping[ThreadName, str]:
        """Return the role of each line that has a name or events."""
        lines: dict[ProcessName, list[ThreadName]] = defaultdict(list)
        for thread in dict.fromkeys((*self._lines, *threads)):
            lines[thread[0]].append(thread)
        return {
            line: role
            for process, of_process in lines.items()
            for line, role in zip(
                of_process,
                roles_of(
                    self.processes.get(process, ""),
                    [self._lines.get(line, "") for line in of_process],
                ),
                strict=True,
            )
        }

    def _add_events(
        self, planes: Planes, role: str, thread: ThreadName, events: Mapping[str, Ints]
    ) -> None:
        """Add the events of a thread to planes.

        Args:
            planes: The planes of its recording.
            role: What the events are.
            thread: The thread.
            events: Columns of the events.
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
        name = self._numbers(planes, events["name"])
        if (name == NONE).any():
            name[name == NONE] = planes.texts.number("")
        has_name = events["args.name"] > 0
        stats = {
            "op": self._numbers(planes, events["args.hlo_op"]),
            "path": np.where(
                has_name,
                self._numbers(planes, events["args.name"]),
                self._numbers(planes, events["args.tf_op"], path_of),
            ),
            "module": self._numbers(planes, events["args.hlo_module"]),
            "copy": self._numbers(planes, events["args.memcpy_details"]),
        }
        for column in STAT_COLUMNS:
            if column not in stats:
                values = events[f"args.{column}"]
                stats[column] = np.where(values == MISSING, NONE, values)
        planes.add(role, self.processes[thread[0]], line, (start_ns, end_ns), name, stats)

    def _numbers(self, planes: Planes, numbers: Ints, part: Callable[[str], str] = str) -> Ints:
        """Return the planes' numbers of texts of the file; -1 for those that are empty."""
        words = self._file.texts.values
        groups = groups_of(numbers).as_they_come()
        used = numbers[groups.first].tolist()
        texts = (encodable(part(words[number])) if number > 0 else "" for number in used)
        text_number = [planes.texts.number(text) if text else NONE for text in texts]
        return np.array(text_number, np.int64)[groups.of_row]


def _label_of_process(process: ProcessName) -> str:
    """Return the text of a process id without its number."""
    return process.rstrip("0123456789") if isinstance(process, str) else ""


def _order_of_process(process: ProcessName) -> tuple[str, int]:
    """Return the sort key of a process id: its label, then its number."""
    label = _label_of_process(process)
    digits = process[len(label) :] if isinstance(process, str) else str(process or 0)
    return label, int(digits[-18:] or 0)


def read_profile(path: str, watch: Watch) -> Decoded:
    """Read a trace.

    Raises:
        ProfileError: it is not XLA's.
    """
    file = TraceFile(path, XlaArgs, watch)
    trace = TraceJsonPlanes(file)
    for events in file.blocks():
        trace.add(events)
    if not trace.processes:
        raise ProfileError(
            f"{path}: cut short before the first process of XLA; copy it again"
            if file.cut
            else f"{path}: no process is named as XLA names them; give the file that the "
            "profiler wrote"
        )
    source = Source(path, Path(path).name, host_known=False, format="xla-trace")
    processes = (process_number(number, 0) for number in count())
    decoded = join_processes(
        [
            (process, profile_of(source, planes, process, cut=file.cut))
            for process, planes in zip(processes, trace.planes(), strict=False)
        ]
    )
    limitations = [
        *file.limitations(),
        Limitation(
            "the hostname and the start of the session, which align profiles",
            f"{path}: this format lacks them; the .xplane.pb of the same run has them",
        ),
    ]
    if trace.n_strays:
        reason = f"{path}: where they ran is unknown, so they are left out"
        what = "events of processes without a name"
        limitations.append(Limitation(what, reason, trace.n_strays))
    limitations += decoded.profile.limitations
    return replace(decoded, profile=replace(decoded.profile, limitations=tuple(limitations)))
