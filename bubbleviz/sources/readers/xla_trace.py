"""XLA's trace JSON: the ``*.trace.json.gz`` that JAX and TensorBoard write beside the xplane file.

It is made of the same planes: a process is a plane, a thread a line of it, and statistics are
``args``, all of them texts. It tells less (neither UTC nor the number of programs), and at most a
million events, where ``jax.profiler`` wrote it; the xplane file is to be preferred.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from pathlib import Path

import msgspec
import numpy as np

from bubbleviz.errors import ProfileError
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.operations import Limitation
from bubbleviz.model.profile import Contents, Profile, Source
from bubbleviz.model.texts import encodable
from bubbleviz.progress import Watch, unwatched
from bubbleviz.sources.readers import Reader
from bubbleviz.sources.trace_events.columns import times_ns
from bubbleviz.sources.trace_events.events import ExactTraceEvent, TraceEvent
from bubbleviz.sources.trace_events.file import TraceFile, is_json, opened_trace
from bubbleviz.sources.xla.planes import (
    FOLDER,
    Collector,
    Events,
    Role,
    device_of,
    path_of,
    roles_of,
)
from bubbleviz.sources.xla.profile import Held, held
from bubbleviz.timing import step

#: How XLA's profiler says how exact its times are, and how it calls processes.
_MARKS = re.compile(rb'"highres-ticks"|"args"\s*:\s*\{\s*"name"\s*:\s*"/(?:device|host):')


class _Args(msgspec.Struct, gc=False):
    name: str | None = None
    tf_op: str | None = None
    hlo_op: str | None = None
    hlo_module: str | None = None
    program_id: int | None = None
    run_id: int | None = None
    correlation_id: int | None = None
    device_ordinal: int | None = None
    step_num: int | None = None


class _Event(TraceEvent, gc=False):
    args: _Args | None = None


class _ExactEvent(ExactTraceEvent, gc=False):
    args: _Args | None = None


_NO_ARGS = _Args()
#: Numbers that an event may state, by the column they make.
_NUMBERS = {
    "program": "program_id",
    "run": "run_id",
    "correlation": "correlation_id",
    "device": "device_ordinal",
    "step": "step_num",
}
_Owner = tuple[int | str | None, int | str | None]
_Some = Sequence[_Event | _ExactEvent]


@dataclass
class _Trace:
    """A trace that is being read; names of processes and threads stand in front of events."""

    into: Collector
    planes: dict[int | str | None, str] = field(default_factory=dict)
    lines: dict[_Owner, str] = field(default_factory=dict)
    strays: int = 0
    _roles: dict[_Owner, Role] = field(default_factory=dict)
    _rows: dict[_Owner, int] = field(default_factory=dict)

    def add(self, events: _Some) -> None:
        """Take a block of events."""
        owned: dict[_Owner, list[_Event | _ExactEvent]] = defaultdict(list)
        # JSON gives an object an event, so that each must be looked at.
        for event in events:
            if event.ph == "X" and event.ts is not None:
                owned[event.pid, event.tid].append(event)
            elif event.ph == "M" and event.args is not None:
                self._name(event, encodable(event.args.name or ""))
        for owner, own in owned.items():
            role = self._role(owner)
            if role is not Role.NOTHING:
                events_of_line = self._events(own)
                self.into.add(role, self.planes[owner[0]], self._row(owner, role), events_of_line)
            elif owner[0] not in self.planes:
                self.strays += len(own)

    def _name(self, event: _Event | _ExactEvent, name: str) -> None:
        if event.name == "process_name":
            self.planes[event.pid] = name
            device = device_of(name)
            if device is not None:
                self.into.device(device, "")
        elif event.name == "thread_name":
            self.lines[event.pid, event.tid] = name

    def _role(self, owner: _Owner) -> Role:
        """Return what a line holds; lines that come to be known later change nothing."""
        if owner not in self._roles:
            own = [one for one in {**self.lines, owner: ""} if one[0] == owner[0]]
            names = [self.lines.get(one, "") for one in own]
            roles = roles_of(self.planes.get(owner[0], ""), names)
            self._roles = {**dict(zip(own, roles, strict=True)), **self._roles}
        return self._roles[owner]

    def _row(self, owner: _Owner, role: Role) -> int:
        if role is not Role.HOST:
            return NONE
        if owner not in self._rows:
            tid = owner[1] if isinstance(owner[1], int) else len(self._rows)
            self._rows[owner] = self.into.line(tid, self.lines.get(owner, ""))
        return self._rows[owner]

    def _events(self, events: _Some) -> Events:
        """Return events of one line as columns."""
        texts, args = self.into.texts, [event.args or _NO_ARGS for event in events]

        def numbered(told: Sequence[str | None]) -> Ints:
            found = (texts.of(encodable(text)) if text else NONE for text in told)
            return np.fromiter(found, np.int64, len(told))

        start_ns = times_ns([event.ts for event in events])
        paths = [own.name or path_of(own.tf_op or "") for own in args]
        numbers = {
            column: _numbers(list(map(attrgetter(name), args))) for column, name in _NUMBERS.items()
        }
        return Events(
            start_ns=start_ns,
            end_ns=start_ns + times_ns([event.dur for event in events]),
            name=np.fromiter((texts.of(encodable(e.name)) for e in events), np.int64, len(events)),
            op=numbered([own.hlo_op for own in args]),
            path=numbered(paths),
            module=numbered([own.hlo_module for own in args]),
            **numbers,
        )


def _numbers(told: Sequence[int | None]) -> Ints:
    """Return numbers of 64 bits; what is none, or longer, is -1."""
    return np.array([NONE if n is None or abs(n) >> 63 else n for n in told], np.int64)


@dataclass
class XlaTraceFile:
    """An open trace; see :class:`~bubbleviz.sources.readers.OpenFile`. It is decoded once."""

    file: TraceFile[_Event, _ExactEvent]

    def sample(self, globs: Sequence[str]) -> Mapping[str, int]:
        """Return how often such names occur among the ranges."""
        return self._held.sample(globs)

    def read(self, globs: Sequence[str], *, partial: bool = False) -> Profile:
        """Return the profile; whatever it lacks but work is never missed.

        Raises:
            ProfileError: it cannot be read; NothingToAnalyseError: it holds no device's work.
        """
        del partial
        return self._held.profile(globs)

    def inspect(self, globs: Sequence[str]) -> Contents:
        """Return what the file holds, ranges of these names among it."""
        return self._held.contents(globs)

    @cached_property
    def _held(self) -> Held:
        trace = _Trace(Collector())
        with step("read planes") as rows:
            for events in self.file.blocks():
                trace.add(events)
            if not trace.planes:
                raise ProfileError(
                    f"{self.file.path}: no process in it is named as XLA names them; give the file "
                    "that the profiler wrote"
                )
            found = held(self._source(), trace.into.done(), 0, self._limitations(trace.strays))
            rows.count = found.events
        return found

    def _source(self) -> Source:
        return Source(
            path=self.file.path,
            host=Path(self.file.path).name,
            host_known=False,
            format="xla-trace",
            nsys_version=None,
            schema_version=None,
            session_utc_ns=None,
            session_clock_ns=None,
        )

    def _limitations(self, strays: int) -> tuple[Limitation, ...]:
        path = self.file.path
        known = "the hostname and the start of the session, which put profiles together"
        told = [
            *self.file.limitations(),
            Limitation(known, f"{path} has none; the .xplane.pb of the same run has them"),
        ]
        if strays:
            reason = f"{path}: nothing says what they are of; they are left out"
            told.append(Limitation("events of processes without a name", reason, strays))
        return tuple(told)


@contextmanager
def open_file(path: str, jobs: int = 1, watch: Watch = unwatched) -> Iterator[XlaTraceFile]:
    """Open a trace; it is read by one thread.

    Raises:
        ProfileError: it cannot be opened.
    """
    del jobs
    with opened_trace(path, _Event, _ExactEvent, watch) as file:
        yield XlaTraceFile(file)


READER = Reader(
    name="xla-trace",
    suffixes=(".trace.json.gz", ".trace.json"),
    recognises=lambda head: is_json(head) and _MARKS.search(head) is not None,
    open_file=open_file,
    told_better_by=(".xplane.pb",),
    folder=FOLDER,
)
