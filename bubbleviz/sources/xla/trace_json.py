"""Planes of XLA's trace JSON (``*.trace.json.gz``), collected.

A process is a plane, a thread is a line of it, and statistics are ``args``, all of them texts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

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
    Planes,
    device_of,
    path_of,
    roles_of,
)
from bubbleviz.sources.xla.profile import profile_of


class XlaArgs(msgspec.Struct, gc=False):
    """Arguments of events, as far as they are used."""

    name: str | None = None
    tf_op: str | None = None
    hlo_op: str | None = None
    hlo_module: str | None = None
    # Numbers have the names of the planes' columns.
    program: int | None = msgspec.field(default=None, name="program_id")
    run: int | None = msgspec.field(default=None, name="run_id")
    correlation: int | None = msgspec.field(default=None, name="correlation_id")
    device: int | None = msgspec.field(default=None, name="device_ordinal")
    step: int | None = msgspec.field(default=None, name="step_num")


class TraceJsonPlanes:
    """Adds the events of a trace to planes; names of processes and threads stand before them.

    Attributes:
        processes: their names.
        strays: how many events belong to processes without a name.
    """

    def __init__(self, planes: Planes, file: TraceFile[XlaArgs]) -> None:
        self.processes: dict[int | str | None, str] = {}
        self.strays = 0
        self._planes, self._file = planes, file
        self._lines: dict[ThreadName, str] = {}
        self._roles: dict[ThreadName, str] = {}
        self._rows: dict[ThreadName, int] = {}

    def add(self, events: TraceEvents[XlaArgs]) -> None:
        """Add a block of events."""
        texts, threads = self._file.texts, self._file.threads.values
        named, words = events.arguments["name"], texts.values
        for row in np.flatnonzero((events.ph == texts.number("M")) & (named != NONE)).tolist():
            thread = threads[events.thread[row]]
            self._add_name(words[events.name[row]], thread, encodable(words[named[row]]))
        rows = np.flatnonzero((events.ph == texts.number("X")) & (events.start_ns != MISSING))
        for number, of_thread in rows_by_value(events.thread[rows]):
            thread = threads[number]
            role = self._role(thread)
            if role is not NOTHING:
                self._add_events(role, thread, events, rows[of_thread], words)
            elif thread[0] not in self.processes:
                self.strays += len(of_thread)

    def _add_name(self, what: str, thread: ThreadName, name: str) -> None:
        if what == "process_name":
            self.processes[thread[0]] = name
            device = device_of(name)
            if device is not None:
                self._planes.add_device(name, device, "")
        elif what == "thread_name":
            self._lines[thread] = name

    def _role(self, thread: ThreadName) -> str:
        """Return the role of a line; names of lines that come later change nothing."""
        if thread not in self._roles:
            threads = [other for other in {**self._lines, thread: ""} if other[0] == thread[0]]
            names = [self._lines.get(other, "") for other in threads]
            roles = roles_of(self.processes.get(thread[0], ""), names)
            self._roles = {**dict(zip(threads, roles, strict=True)), **self._roles}
        return self._roles[thread]

    def _add_events(
        self,
        role: str,
        thread: ThreadName,
        events: TraceEvents[XlaArgs],
        rows: Ints,
        words: Sequence[str],
    ) -> None:
        row = NONE
        if role == HOST:
            if thread not in self._rows:
                tid = thread[1]
                number = tid if isinstance(tid, int) and not abs(tid) >> 63 else len(self._rows)
                self._rows[thread] = self._planes.add_line(number, self._lines.get(thread, ""))
            row = self._rows[thread]
        start_ns, duration_ns = events.start_ns[rows], events.duration_ns[rows]
        end_ns = start_ns + np.where(duration_ns == MISSING, 0, duration_ns)
        told = {field: column[rows] for field, column in events.arguments.items()}
        name = self._numbers(events.name[rows], words)
        if (name == NONE).any():
            name[name == NONE] = self._planes.texts.number("")
        op = self._numbers(told["hlo_op"], words)
        named = self._numbers(told["name"], words)
        path = np.where(told["name"] > 0, named, self._numbers(told["tf_op"], words, path_of))
        stats = {"op": op, "path": path, "module": self._numbers(told["hlo_module"], words)}
        for column in STAT_COLUMNS:
            if column not in stats:
                stats[column] = np.where(told[column] == MISSING, NONE, told[column])
        self._planes.add(role, self.processes[thread[0]], row, (start_ns, end_ns), name, stats)

    def _numbers(
        self, numbers: Ints, words: Sequence[str], part: Callable[[str], str] = str
    ) -> Ints:
        """Return the planes' numbers of texts of the file; -1 for those that are empty."""
        groups = groups_of(numbers).as_they_come()
        used = numbers[groups.first].tolist()
        texts = (encodable(part(words[number])) if number > 0 else "" for number in used)
        found = [self._planes.texts.number(text) if text else NONE for text in texts]
        return np.array(found, np.int64)[groups.of_row]


def read_profile(path: str, watch: Watch) -> Decoded:
    """Read a trace.

    Raises:
        ProfileError: it is not XLA's.
    """
    planes, file = Planes(), TraceFile(path, XlaArgs, watch)
    trace = TraceJsonPlanes(planes, file)
    for events in file.blocks():
        trace.add(events)
    if not trace.processes:
        raise ProfileError(
            f"{path}: cut short before the first process of XLA; copy it again"
            if file.cut
            else f"{path}: no process is named as XLA names them; give the file that the "
            "profiler wrote"
        )
    limitations = [
        *file.limitations(),
        Limitation(
            "the hostname and the start of the session, which align profiles",
            f"{path}: this format lacks them; the .xplane.pb of the same run has them",
        ),
    ]
    if trace.strays:
        reason = f"{path}: where they ran is unknown, so they are left out"
        what = "events of processes without a name"
        limitations.append(Limitation(what, reason, trace.strays))
    source = Source(path, Path(path).name, host_known=False, format="xla-trace")
    return profile_of(source, planes, 0, limitations, cut=file.cut)
