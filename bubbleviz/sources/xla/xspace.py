"""XSpace: the protobuf file of XLA's profiler, read piece by piece.

The file is never held whole: large messages are walked, events are decoded as columns, some
megabytes at a time (:mod:`bubbleviz.sources.xla.wire`). Messages and numbers of fields are those of
``tsl/profiler/protobuf/xplane.proto`` (openxla/xla).

A plane's lines stand before the names of what is on them, so that planes are walked first. A file
that was cut short ends within its last plane: the events before the cut are whole, and what the
names would have been is not known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.sources.xla.wire import NO_MESSAGES, Field, Messages, Walk

#: Numbers of fields, by message.
_SPACE_PLANES, _SPACE_HOSTNAMES = 1, 4
_PLANE_NAME, _PLANE_LINES, _PLANE_KINDS, _PLANE_STAT_NAMES, _PLANE_STATS = 2, 3, 4, 5, 6
_LINE_ID, _LINE_NAME, _LINE_TIMESTAMP_NS, _LINE_EVENTS, _LINE_DISPLAY_NAME = 1, 2, 3, 4, 11
_EVENT_KIND, _EVENT_OFFSET_PS, _EVENT_DURATION_PS, _EVENT_STATS = 1, 2, 3, 4
_STAT_NAME, _STAT_UINT64, _STAT_INT64, _STAT_TEXT, _STAT_REF = 1, 3, 4, 5, 7
_KIND_NAME, _KIND_DISPLAY_NAME, _KIND_STATS = 2, 4, 5
_ENTRY_KEY, _ENTRY_VALUE = 1, 2
NOT_READ = "/host:metadata"
#: The name in what statistics are called.
_CALLED = 2


@dataclass(frozen=True)
class Stat:
    """A statistic of a plane or of a kind of event: its name, and its number or text."""

    name: str
    number: int
    text: str


@dataclass(frozen=True)
class Kind:
    """A kind of event: what all of them have in common."""

    name: str
    display_name: str
    stats: tuple[Stat, ...]


@dataclass(frozen=True)
class Line:
    """A line of a plane; its events are decoded when they are asked for.

    Attributes:
        number: number of the line; of a thread where it is one.
        name: what it is called.
        timestamp_ns: what its events' offsets count from.
        stretches: where its events are.
    """

    number: int
    name: str
    timestamp_ns: int
    stretches: tuple[Field, ...]


@dataclass(frozen=True)
class Plane:
    """A plane of the file.

    Attributes:
        name: what it is called.
        stats: statistics of the whole plane.
        kinds: kinds of events, by number.
        stat_names: names of statistics (and texts that statistics refer to), by number.
        lines: its lines.
    """

    name: str
    stats: tuple[Stat, ...]
    kinds: Mapping[int, Kind]
    stat_names: Mapping[int, str]
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class RawEvents:
    """Events of a line, or a piece of it, as they are written.

    Attributes:
        kind: number of each event's kind.
        offset_ps: start, after the line's timestamp.
        duration_ps: how long.
        row: the event that each of some statistics belongs to.
        stat: number of the statistic's name.
        number: its number, where it has one.
        ref: number of the statistic whose name is its text; -1 none.
        texts: its own text, by its place, where it has one.
    """

    kind: Ints
    offset_ps: Ints
    duration_ps: Ints
    row: Ints
    stat: Ints
    number: Ints
    ref: Ints
    texts: Mapping[int, str]


def planes_of(walk: Walk) -> tuple[tuple[Plane, ...], tuple[str, ...]]:
    """Return the planes of a file and the names of its hosts.

    Raises:
        MalformedError: the file is no XSpace.
    """
    planes, hosts = [], []
    for told in walk.fields(0, len(walk.content)):
        if told.number == _SPACE_PLANES:
            planes.append(_plane(walk, told))
        elif told.number == _SPACE_HOSTNAMES and told.whole:
            hosts.append(walk.text(told))
    return tuple(planes), tuple(hosts)


def _plane(walk: Walk, place: Field) -> Plane:
    """Return a plane whose events are still to be decoded."""
    by_number: dict[int, list[Field]] = {}
    for told in walk.fields(place.begin, place.end):
        if told.whole or told.number == _PLANE_LINES:
            by_number.setdefault(told.number, []).append(told)
    name = "".join(walk.text(told) for told in by_number.get(_PLANE_NAME, ())[-1:])
    if name == NOT_READ:
        # It holds whole programs as statistics of its kinds of events.
        return Plane(name, (), {}, {}, ())
    names = {
        key: _last(walk, value, _CALLED)
        for key, value in _entries(walk, by_number.get(_PLANE_STAT_NAMES, ()))
    }
    kinds = {
        key: _kind(walk, value, names)
        for key, value in _entries(walk, by_number.get(_PLANE_KINDS, ()))
    }
    return Plane(
        name=name,
        stats=tuple(_stat(walk, told, names) for told in by_number.get(_PLANE_STATS, ())),
        kinds=kinds,
        stat_names=names,
        lines=tuple(_line(walk, told) for told in by_number.get(_PLANE_LINES, ())),
    )


def _entries(walk: Walk, places: Sequence[Field]) -> Iterator[tuple[int, Field]]:
    """Yield the number and the message of each entry of a map."""
    for place in places:
        key, value = 0, None
        for told in walk.fields(place.begin, place.end):
            if told.number == _ENTRY_KEY:
                key = told.value
            elif told.number == _ENTRY_VALUE:
                value = told
        if value is not None:
            yield key, value


def _last(walk: Walk, place: Field, number: int) -> str:
    """Return the text of a field of a message; "" where it has none."""
    found = [told for told in walk.fields(place.begin, place.end) if told.number == number]
    return walk.text(found[-1]) if found else ""


def _kind(walk: Walk, place: Field, names: Mapping[int, str]) -> Kind:
    name, display_name, stats = "", "", []
    for told in walk.fields(place.begin, place.end):
        if told.number == _KIND_NAME:
            name = walk.text(told)
        elif told.number == _KIND_DISPLAY_NAME:
            display_name = walk.text(told)
        elif told.number == _KIND_STATS:
            stats.append(_stat(walk, told, names))
    return Kind(name, display_name, tuple(stats))


def _stat(walk: Walk, place: Field, names: Mapping[int, str]) -> Stat:
    name, number, text = 0, 0, ""
    for told in walk.fields(place.begin, place.end):
        if told.number == _STAT_NAME:
            name = told.value
        elif told.number in (_STAT_UINT64, _STAT_INT64):
            number = told.value
        elif told.number == _STAT_TEXT:
            text = walk.text(told)
        elif told.number == _STAT_REF:
            text = names.get(told.value, "")
    return Stat(names.get(name, ""), number, text)


def _line(walk: Walk, place: Field) -> Line:
    number, name, display_name, timestamp_ns, stretches = 0, "", "", 0, []
    for told in walk.stretches(place.begin, place.end, _LINE_EVENTS):
        if told.number == _LINE_EVENTS:
            stretches.append(told)
        elif told.number == _LINE_ID:
            number = told.value
        elif told.number == _LINE_NAME:
            name = walk.text(told)
        elif told.number == _LINE_TIMESTAMP_NS:
            timestamp_ns = told.value
        elif told.number == _LINE_DISPLAY_NAME:
            display_name = walk.text(told)
    return Line(number, name or display_name, timestamp_ns, tuple(stretches))


def events_of(walk: Walk, line: Line, wanted: Sequence[int]) -> Iterator[RawEvents]:
    """Yield the events of a line, piece by piece.

    Args:
        walk: the file.
        line: one of its lines.
        wanted: numbers of the statistics that are looked at.

    Raises:
        MalformedError: an event cannot be decoded.
    """
    asked = np.array(wanted, np.int64)
    for stretch in line.stretches:
        own, inner = walk.messages(stretch).decoded(
            (_EVENT_KIND, _EVENT_OFFSET_PS, _EVENT_DURATION_PS), (_EVENT_STATS,) if wanted else ()
        )
        row, stats = inner.get(_EVENT_STATS, (np.empty(0, np.int64), NO_MESSAGES))
        told, texts = stats.decoded(
            (_STAT_NAME, _STAT_UINT64, _STAT_INT64, _STAT_REF), (_STAT_TEXT,)
        )
        chosen = np.isin(told[_STAT_NAME], asked)
        ref = told[_STAT_REF][chosen]
        yield RawEvents(
            kind=own[_EVENT_KIND],
            offset_ps=own[_EVENT_OFFSET_PS],
            duration_ps=own[_EVENT_DURATION_PS],
            row=row[chosen],
            stat=told[_STAT_NAME][chosen],
            number=(told[_STAT_INT64] | told[_STAT_UINT64])[chosen],
            ref=np.where(ref == 0, NONE, ref),
            texts=_texts(*texts[_STAT_TEXT], chosen),
        )


def _texts(row: Ints, texts: Messages, chosen: Bools) -> Mapping[int, str]:
    """Return the texts of chosen statistics, by their place among these."""
    place = np.cumsum(chosen) - 1
    kept = np.flatnonzero(chosen[row])
    pairs = zip(place[row[kept]].tolist(), kept.tolist(), strict=True)
    return {at: texts.text(own) for at, own in pairs}
