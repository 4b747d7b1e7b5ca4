"""The planes of a profile, collected from the events of its lines while a file is read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bubbleviz.model.capture import beyond, capture_bounds
from bubbleviz.model.columns import NONE, Bools, Codes, Ints, joined
from bubbleviz.model.grouping import groups_of
from bubbleviz.model.numbering import Numbering
from bubbleviz.model.profile import possible
from bubbleviz.sources.xla.names import MOST_DEVICES, Role, accelerator_of, device_of
from bubbleviz.sources.xla.planes import (
    HostLine,
    HostSpans,
    Label,
    LineEvents,
    PlaneEvents,
    Planes,
)

_NUMBER = re.compile(r"[0-9]{1,18}\Z")
#: Events of the host, by what they stand for.
_LAUNCHES, _HOST_OPS, _HOST_STEPS = "launches", "host ops", "host steps"


class PlaneCollector:
    """Takes the events of lines, piece by piece.

    Attributes:
        texts: numbers the texts of all events.
    """

    def __init__(self) -> None:
        self.texts: Numbering[str] = Numbering()
        self._labels: Numbering[tuple[int, ...]] = Numbering()
        self._events: dict[str, list[PlaneEvents]] = {}
        self._spans: list[HostSpans] = []
        self._lines: list[HostLine] = []
        self._devices: dict[int, str] = {}
        self._accelerator = "GPU"
        self._impossible = self._strange_devices = 0

    def add_device(self, plane: str, number: int, name: str) -> None:
        """Add a device that has a plane, and its name; "" unknown."""
        self._accelerator = accelerator_of(plane)
        self._devices[number] = name or self._devices.get(number, "")

    def add_line(self, number: int, name: str) -> int:
        """Add a line of the host; return its row."""
        self._lines.append(HostLine(number, name))
        return len(self._lines) - 1

    def add(self, role: Role, plane: str, line: int, events: LineEvents) -> None:
        """Add a piece of a line.

        Args:
            role: of the line.
            plane: name of its plane.
            line: row of the line, if it is the host's.
            events: the piece.
        """
        keep = possible(events.start_ns, events.end_ns)
        if keep is not None:
            self._impossible += int((~keep).sum())
            events = events.take(keep)
        if len(events) == 0:
            return
        if role is Role.HOST:
            self._add_host(line, events)
        elif role is not Role.NOTHING:
            if role in (Role.OPS, Role.ASYNC):
                events = replace(events, op=np.where(events.op == NONE, events.name, events.op))
            if role is Role.STEPS:
                named = _whole_numbers(events.name, self.texts.values)
                step = np.where(events.step != NONE, events.step, named)
                events = replace(events, step=step).take(step != NONE)
            device = np.full(len(events), device_of(plane), np.int64)
            self._append(role.name, events, line, device)

    def _add_host(self, line: int, events: LineEvents) -> None:
        # Launches are calls, and no ranges.
        lasting = (events.end_ns > events.start_ns) & (events.correlation == NONE)
        spans = events.take(lasting)
        row = _narrow(np.full(len(spans), line, np.int64))
        self._spans.append(HostSpans(spans.start_ns, spans.end_ns, _narrow(spans.name), row))
        for key, chosen in (
            (_LAUNCHES, events.correlation != NONE),
            (_HOST_OPS, (events.op != NONE) & self._known_devices(events.device)),
            (_HOST_STEPS, events.step != NONE),
        ):
            if chosen.any():
                some = events.take(chosen)
                self._append(key, some, line, some.device)

    def _known_devices(self, device: Ints) -> Bools:
        """Tell which of some devices can be; others are counted."""
        known = (device >= 0) & (device < MOST_DEVICES)
        self._strange_devices += int((~known & (device != NONE)).sum())
        return known

    def _append(self, key: str, events: LineEvents, line: int, device: Ints) -> None:
        narrow = PlaneEvents(
            start_ns=events.start_ns.copy(),
            end_ns=events.end_ns.copy(),
            name=_narrow(events.name),
            label=_narrow(self._labelled(events)),
            line=_narrow(np.full(len(events), line, np.int64)),
            device=_narrow(device),
            run=_narrow(events.run),
            correlation=_narrow(events.correlation),
            step=_narrow(events.step),
        )
        self._events.setdefault(key, []).append(narrow)

    def _labelled(self, events: LineEvents) -> Ints:
        """Return the number of each event's label; -1 where it names no instruction."""
        label = np.full(len(events), NONE, np.int64)
        rows = np.flatnonzero((events.op != NONE) | (events.module != NONE))
        columns = [getattr(events, name)[rows] for name in ("op", "path", "module", "program")]
        groups = groups_of(*columns)
        distinct = zip(*(column[groups.first].tolist() for column in columns), strict=True)
        label[rows] = self._labels.numbers(distinct)[groups.of_row]
        return label

    def planes(self) -> Planes:
        """Return the planes, once all lines have been added."""
        on_host = not any(self._events.get(role.name) for role in (Role.STREAM, Role.OPS))
        spans, self._spans = self._spans, []
        outside = self._leave_out_strays()
        return Planes(
            texts=self.texts.values,
            labels=tuple(Label(*row) for row in self._labels.values),
            streams=self._taken(Role.STREAM.name),
            ops=self._taken(_HOST_OPS if on_host else Role.OPS.name),
            transfers=self._taken(Role.ASYNC.name),
            modules=self._taken(Role.MODULES.name),
            steps=self._taken(Role.STEPS.name, _HOST_STEPS),
            launches=self._taken(_LAUNCHES),
            spans=joined([_no_spans(), *spans]),
            lines=tuple(self._lines),
            devices=tuple(sorted(self._devices.items())),
            accelerator=self._accelerator,
            on_host=on_host,
            impossible=self._impossible,
            outside=outside,
            strange_devices=self._strange_devices,
        )

    def _leave_out_strays(self) -> int:
        """Leave out what lies far outside the capture of all devices; return how much that is."""
        pieces = [piece for table in self._events.values() for piece in table]
        if not pieces:
            return 0
        start_ns, end_ns = (
            np.concatenate([getattr(piece, column) for piece in pieces])
            for column in ("start_ns", "end_ns")
        )
        bounds_ns = capture_bounds(start_ns, end_ns)
        if bounds_ns is None:
            return 0
        for key, table in self._events.items():
            strays = [beyond(piece.start_ns, piece.end_ns, bounds_ns) for piece in table]
            self._events[key] = [p.take(~stray) for p, stray in zip(table, strays, strict=True)]
        return int(beyond(start_ns, end_ns, bounds_ns).sum())

    def _taken(self, *keys: str) -> PlaneEvents:
        pieces = [piece for key in keys for piece in self._events.pop(key, [])]
        return joined([_no_events(), *pieces])


def _whole_numbers(codes: Ints, texts: Sequence[str]) -> Ints:
    """Return texts as the numbers that they spell; -1 for those that spell none."""
    distinct, of_row = np.unique(codes, return_inverse=True)
    numbers = [
        int(text) if _NUMBER.match(text) else NONE for text in map(texts.__getitem__, distinct)
    ]
    return np.array(numbers, np.int64)[of_row.reshape(-1)]


def _narrow(codes: Ints) -> Codes:
    """Return identifiers in as few bits as they need: a column of -1 alone takes a byte a row."""
    low, high = int(codes.min(initial=0)), int(codes.max(initial=0))
    return codes.astype(np.min_scalar_type(min(low, -1 - high)))


def _no_events() -> PlaneEvents:
    time_ns, code = np.empty(0, np.int64), np.empty(0, np.int8)
    return PlaneEvents(time_ns, time_ns, *[code] * 7)


def _no_spans() -> HostSpans:
    time_ns, code = np.empty(0, np.int64), np.empty(0, np.int8)
    return HostSpans(time_ns, time_ns, code, code)
