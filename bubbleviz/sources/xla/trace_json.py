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
from bubbleviz.sources import trace_events
from bubbleviz.sources.in_memory import Decoded, DecodedFile
from bubbleviz.sources.trace_events import TraceEvent, TraceFile
from bubbleviz.sources.xla.planes import HOST, NOTHING, Planes, device_of, path_of, roles_of
from bubbleviz.sources.xla.profile import profile_of


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


_NO_ARGS = XlaArgs()
_NUMBERS = {
    "program": "program_id",
    "run": "run_id",
    "correlation": "correlation_id",
    "device": "device_ordinal",
    "step": "step_num",
}


class TraceJsonPlanes:
    """Adds the events of a trace to planes; names of processes and threads stand before them.

    Attributes:
        processes: their names.
        strays: how many events belong to processes without a name.
    """

    def __init__(self, planes: Planes) -> None:
        self.processes: dict[int | str | None, str] = {}
        self.strays = 0
        self._planes = planes
        self._lines: dict[trace_events.ThreadName, str] = {}
        self._roles: dict[trace_events.ThreadName, str] = {}
        self._rows: dict[trace_events.ThreadName, int] = {}

    def add(self, events: Sequence[TraceEvent[XlaArgs]]) -> None:
        """Add a block of events."""
        by_thread: dict[trace_events.ThreadName, list[TraceEvent[XlaArgs]]] = defaultdict(list)
        # JSON gives an object an event, so that each must be looked at.
        for event in events:
            if event.ph == "X" and event.ts is not None:
                by_thread[event.pid, event.tid].append(event)
            elif event.ph == "M" and event.args is not None:
                self._add_name(event, encodable(event.args.name or ""))
        for thread, of_thread in by_thread.items():
            role = self._role(thread)
            if role is not NOTHING:
                self._add_events(role, thread, of_thread)
            elif thread[0] not in self.processes:
                self.strays += len(of_thread)

    def _add_name(self, event: TraceEvent[XlaArgs], name: str) -> None:
        if event.name == "process_name":
            self.processes[event.pid] = name
            device = device_of(name)
            if device is not None:
                self._planes.add_device(name, device, "")
        elif event.name == "thread_name":
            self._lines[event.pid, event.tid] = name

    def _role(self, thread: trace_events.ThreadName) -> str:
        """Return the role of a line; names of lines that come later change nothing."""
        if thread not in self._roles:
            threads = [other for other in {**self._lines, thread: ""} if other[0] == thread[0]]
            names = [self._lines.get(other, "") for other in threads]
            roles = roles_of(self.processes.get(thread[0], ""), names)
            self._roles = {**dict(zip(threads, roles, strict=True)), **self._roles}
        return self._roles[thread]

    def _add_events(
        self, role: str, thread: trace_events.ThreadName, events: Sequence[TraceEvent[XlaArgs]]
    ) -> None:
        row = NONE
        if role == HOST:
            if thread not in self._rows:
                tid = thread[1]
                known = isinstance(tid, int) and not abs(tid) >> 63
                number = tid if known and isinstance(tid, int) else len(self._rows)
                self._rows[thread] = self._planes.add_line(number, self._lines.get(thread, ""))
            row = self._rows[thread]
        args, texts = [event.args or _NO_ARGS for event in events], self._planes.texts

        def numbered(values: Iterable[str | None]) -> Ints:
            every = (texts.number(encodable(v)) if v else NONE for v in values)
            return np.fromiter(every, np.int64, len(args))

        start_ns = trace_events.times_ns([event.ts for event in events])
        name = texts.numbers(encodable(event.name) for event in events)
        stats = {
            "op": numbered(a.hlo_op for a in args),
            "path": numbered(a.name or path_of(a.tf_op or "") for a in args),
            "module": numbered(a.hlo_module for a in args),
        }
        for column, argument in _NUMBERS.items():
            # Longer ones than 64 bits are none.
            values = map(attrgetter(argument), args)
            fitting = [NONE if n is None or abs(n) >> 63 else n for n in values]
            stats[column] = np.array(fitting, np.int64)
        end_ns = start_ns + trace_events.times_ns([event.dur for event in events])
        self._planes.add(role, self.processes[thread[0]], row, (start_ns, end_ns), name, stats)


def _load(file: TraceFile[XlaArgs]) -> Decoded:
    """Read a trace.

    Raises:
        ProfileError: it is not XLA's.
    """
    planes = Planes()
    trace = TraceJsonPlanes(planes)
    for events in file.blocks():
        trace.add(events)
    if not trace.processes:
        raise ProfileError(
            f"{file.path}: cut short before the first process of XLA; copy it again"
            if file.cut
            else f"{file.path}: no process is named as XLA names them; give the file that the "
            "profiler wrote"
        )
    limitations = [
        *file.limitations(),
        Limitation(
            "the hostname and the start of the session, which align profiles",
            f"{file.path}: this format lacks them; the .xplane.pb of the same run has them",
        ),
    ]
    if trace.strays:
        reason = f"{file.path}: where they ran is unknown, so they are left out"
        what = "events of processes without a name"
        limitations.append(Limitation(what, reason, trace.strays))
    source = Source(file.path, Path(file.path).name, host_known=False, format="xla-trace")
    return profile_of(source, planes, 0, limitations, cut=file.cut)


@contextmanager
def open_file(path: str, jobs: int = 1, watch: Watch = unwatched) -> Iterator[DecodedFile]:  # noqa: ARG001 - one thread reads JSON
    """Open a trace.

    Raises:
        ProfileError: it cannot be opened.
    """
    with trace_events.opened_trace(path, XlaArgs, watch) as file:
        yield DecodedFile(partial(_load, file))
