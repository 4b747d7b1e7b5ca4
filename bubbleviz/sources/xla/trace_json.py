"""Planes of XLA's trace JSON (``*.trace.json.gz``), collected.

A process is a plane, a thread is a line of it, and statistics are ``args``, all of them texts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
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
from bubbleviz.sources.trace_events import (
    ThreadName,
    TraceEvent,
    TraceFile,
    opened_trace,
    times_ns,
)
from bubbleviz.sources.xla.planes import (
    HOST,
    NOTHING,
    LineEvents,
    PlaneCollector,
    device_of,
    path_of,
    roles_of,
)
from bubbleviz.sources.xla.profile import XlaFile, XlaProfile, profile_of


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


_NO_ARGS = XlaArgs()


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
        self._roles: dict[ThreadName, str] = {}
        self._rows: dict[ThreadName, int] = {}

    def add(self, events: Sequence[XlaEvent]) -> None:
        """Add a block of events."""
        by_thread: dict[ThreadName, list[XlaEvent]] = defaultdict(list)
        # JSON gives an object an event, so that each must be looked at.
        for event in events:
            if event.ph == "X" and event.ts is not None:
                by_thread[event.pid, event.tid].append(event)
            elif event.ph == "M" and event.args is not None:
                self._add_name(event, encodable(event.args.name or ""))
        for thread, events_of_thread in by_thread.items():
            role = self._role(thread)
            if role is not NOTHING:
                row, columns = self._row(thread, role), self._line_events(events_of_thread)
                self._collector.add(role, self.planes[thread[0]], row, columns)
            elif thread[0] not in self.planes:
                self.strays += len(events_of_thread)

    def _add_name(self, event: XlaEvent, name: str) -> None:
        if event.name == "process_name":
            self.planes[event.pid] = name
            device = device_of(name)
            if device is not None:
                self._collector.add_device(name, device, "")
        elif event.name == "thread_name":
            self._lines[event.pid, event.tid] = name

    def _role(self, thread: ThreadName) -> str:
        """Return the role of a line; names of lines that come later change nothing."""
        if thread not in self._roles:
            threads = [other for other in {**self._lines, thread: ""} if other[0] == thread[0]]
            names = [self._lines.get(other, "") for other in threads]
            roles = roles_of(self.planes.get(thread[0], ""), names)
            self._roles = {**dict(zip(threads, roles, strict=True)), **self._roles}
        return self._roles[thread]

    def _row(self, thread: ThreadName, role: str) -> int:
        if role != HOST:
            return NONE
        if thread not in self._rows:
            tid = thread[1]
            known = isinstance(tid, int) and not abs(tid) >> 63
            number = tid if known and isinstance(tid, int) else len(self._rows)
            self._rows[thread] = self._collector.add_line(number, self._lines.get(thread, ""))
        return self._rows[thread]

    def _line_events(self, events: Sequence[XlaEvent]) -> LineEvents:
        """Return events of one line as columns."""
        args = [event.args or _NO_ARGS for event in events]
        start_ns, number = times_ns([event.ts for event in events]), self._collector.texts.number

        def texts(values: Iterable[str | None]) -> Ints:
            return np.array([number(encodable(v)) if v else NONE for v in values], np.int64)

        def numbers(name: str) -> Ints:
            # Longer ones than 64 bits are none.
            values = map(attrgetter(name), args)
            return np.array([NONE if n is None or abs(n) >> 63 else n for n in values], np.int64)

        return LineEvents(
            start_ns=start_ns,
            end_ns=start_ns + times_ns([event.dur for event in events]),
            name=self._collector.texts.numbers(encodable(event.name) for event in events),
            op=texts(a.hlo_op for a in args),
            path=texts(a.name or path_of(a.tf_op or "") for a in args),
            module=texts(a.hlo_module for a in args),
            program=numbers("program_id"),
            run=numbers("run_id"),
            correlation=numbers("correlation_id"),
            device=numbers("device_ordinal"),
            step=numbers("step_num"),
        )


def _load(file: TraceFile[XlaEvent]) -> XlaProfile:
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
    limitations = [
        *file.limitations(),
        Limitation(
            "the hostname and the start of the session, which align profiles",
            f"{file.path}: the format has none; the .xplane.pb of the same run has them",
        ),
    ]
    if trace.strays:
        reason = f"{file.path}: nothing shows where they ran; they are left out"
        what = "events of processes without a name"
        limitations.append(Limitation(what, reason, trace.strays))
    return profile_of(source, collector.planes(), 0, limitations, cut=file.cut)


@contextmanager
def open_file(path: str, jobs: int = 1, watch: Watch = unwatched) -> Iterator[XlaFile]:
    """Open a trace; it is read by one thread.

    Raises:
        ProfileError: it cannot be opened.
    """
    del jobs
    with opened_trace(path, XlaEvent, watch) as file:
        yield XlaFile(partial(_load, file))
