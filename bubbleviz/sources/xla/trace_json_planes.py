"""Planes of XLA's trace JSON (``*.trace.json.gz``), collected.

A process is a plane, a thread is a line of it, and statistics are ``args``, all of them texts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from operator import attrgetter
from pathlib import Path

import msgspec
import numpy as np

from bubbleviz.errors import ProfileError
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.profile import Source
from bubbleviz.model.texts import encodable
from bubbleviz.progress import Watch, unwatched
from bubbleviz.sources.trace_events.columns import ThreadName, times_ns
from bubbleviz.sources.trace_events.events import ExactTraceEvent, TraceEvent
from bubbleviz.sources.trace_events.file import TraceFile, opened_trace
from bubbleviz.sources.xla.names import Role, device_of, path_of, roles_of
from bubbleviz.sources.xla.planes import LineEvents
from bubbleviz.sources.xla.profile import PlaneCollector, XlaFile, XlaProfile, profile_of


class XlaArgs(msgspec.Struct, gc=False):
    """Arguments of events, as far as they are used."""

    name: str | None = None
    tf_op: str | None = None
    hlo_op: str | None = None
    hlo_module: str | None = None
    program_id: int | None = None
    run_id: int | None = None
    correlation_id: int | None = None
    device_ordinal: int | None = None
    step_num: int | None = None


class XlaEvent(TraceEvent, gc=False):
    """An event with the arguments that are used."""

    args: XlaArgs | None = None


class ExactXlaEvent(ExactTraceEvent, gc=False):
    """The same, with times as the decimals that the file holds."""

    args: XlaArgs | None = None


_NO_ARGS = XlaArgs()
#: Arguments that are numbers, by the column that they fill.
_NUMBERS = {
    "program": "program_id",
    "run": "run_id",
    "correlation": "correlation_id",
    "device": "device_ordinal",
    "step": "step_num",
}


class TraceJsonPlanes:
    """Adds the events of a trace to a collector; names of processes and threads stand before them.

    Attributes:
        planes: names of processes.
        strays: how many events belong to processes without a name.
    """

    def __init__(self, collector: PlaneCollector) -> None:
        self.planes: dict[int | str | None, str] = {}
        self.strays = 0
        self._collector = collector
        self._lines: dict[ThreadName, str] = {}
        self._roles: dict[ThreadName, Role] = {}
        self._rows: dict[ThreadName, int] = {}

    def add(self, events: Sequence[XlaEvent | ExactXlaEvent]) -> None:
        """Add a block of events."""
        by_thread: dict[ThreadName, list[XlaEvent | ExactXlaEvent]] = defaultdict(list)
        # JSON gives an object an event, so that each must be looked at.
        for event in events:
            if event.ph == "X" and event.ts is not None:
                by_thread[event.pid, event.tid].append(event)
            elif event.ph == "M" and event.args is not None:
                self._add_name(event, encodable(event.args.name or ""))
        for thread, events_of_thread in by_thread.items():
            role = self._role(thread)
            if role is not Role.NOTHING:
                row, columns = self._row(thread, role), self._line_events(events_of_thread)
                self._collector.add(role, self.planes[thread[0]], row, columns)
            elif thread[0] not in self.planes:
                self.strays += len(events_of_thread)

    def _add_name(self, event: XlaEvent | ExactXlaEvent, name: str) -> None:
        if event.name == "process_name":
            self.planes[event.pid] = name
            device = device_of(name)
            if device is not None:
                self._collector.add_device(name, device, "")
        elif event.name == "thread_name":
            self._lines[event.pid, event.tid] = name

    def _role(self, thread: ThreadName) -> Role:
        """Return the role of a line; names of lines that come later change nothing."""
        if thread not in self._roles:
            threads = [other for other in {**self._lines, thread: ""} if other[0] == thread[0]]
            names = [self._lines.get(other, "") for other in threads]
            roles = roles_of(self.planes.get(thread[0], ""), names)
            self._roles = {**dict(zip(threads, roles, strict=True)), **self._roles}
        return self._roles[thread]

    def _row(self, thread: ThreadName, role: Role) -> int:
        if role is not Role.HOST:
            return NONE
        if thread not in self._rows:
            known = isinstance(thread[1], int) and not abs(thread[1]) >> 63
            tid = thread[1] if known and isinstance(thread[1], int) else len(self._rows)
            self._rows[thread] = self._collector.add_line(tid, self._lines.get(thread, ""))
        return self._rows[thread]

    def _line_events(self, events: Sequence[XlaEvent | ExactXlaEvent]) -> LineEvents:
        """Return events of one line as columns."""
        args = [event.args or _NO_ARGS for event in events]
        start_ns = times_ns([event.ts for event in events])
        paths = [a.name or path_of(a.tf_op or "") for a in args]
        numbers = {
            column: _numbers(list(map(attrgetter(name), args))) for column, name in _NUMBERS.items()
        }
        return LineEvents(
            start_ns=start_ns,
            end_ns=start_ns + times_ns([event.dur for event in events]),
            name=self._collector.texts.numbers(encodable(event.name) for event in events),
            op=self._texts([a.hlo_op for a in args]),
            path=self._texts(paths),
            module=self._texts([a.hlo_module for a in args]),
            **numbers,
        )

    def _texts(self, texts: Sequence[str | None]) -> Ints:
        """Return the numbers of texts; -1 for none."""
        number = self._collector.texts.number
        return np.array([number(encodable(text)) if text else NONE for text in texts], np.int64)


def _numbers(values: Sequence[int | None]) -> Ints:
    """Return numbers of 64 bits; -1 for none, and for longer ones."""
    return np.array([NONE if n is None or abs(n) >> 63 else n for n in values], np.int64)


# An open trace JSON of XLA's profiler.


def _load(file: TraceFile[XlaEvent, ExactXlaEvent]) -> XlaProfile:
    """Read a trace.

    Raises:
        ProfileError: it is not XLA's.
    """
    collector = PlaneCollector()
    trace = TraceJsonPlanes(collector)
    for events in file.blocks():
        trace.add(events)
    if not trace.planes:
        raise ProfileError(
            f"{file.path}: cut short before the first process of XLA; copy it again"
            if file.cut
            else f"{file.path}: no process has a name that XLA gives; give the file that the "
            "profiler wrote"
        )
    source = Source(
        path=file.path,
        host=Path(file.path).name,
        host_known=False,
        format="xla-trace",
        nsys_version=None,
        schema_version=None,
        session_utc_ns=None,
        session_clock_ns=None,
    )
    limitations = tuple(_limitations(file, trace.strays))
    return profile_of(source, collector.planes(), 0, limitations, cut=file.cut)


def _limitations(file: TraceFile[XlaEvent, ExactXlaEvent], strays: int) -> Iterator[Limitation]:
    yield from file.limitations()
    yield Limitation(
        "the hostname and the start of the session, which align profiles",
        f"{file.path}: the format has none; the .xplane.pb of the same run has them",
    )
    if strays:
        reason = f"{file.path}: nothing shows where they ran; they are left out"
        yield Limitation("events of processes without a name", reason, strays)


@contextmanager
def open_file(path: str, jobs: int = 1, watch: Watch = unwatched) -> Iterator[XlaFile]:
    """Open a trace; it is read by one thread.

    Raises:
        ProfileError: it cannot be opened.
    """
    del jobs
    with opened_trace(path, XlaEvent, ExactXlaEvent, watch) as file:
        yield XlaFile(partial(_load, file))
