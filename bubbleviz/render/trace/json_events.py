"""A trace as events in JSON, one a line, in the Trace Event Format (Google, 2016).

Times are microseconds, written with three decimals from whole numbers, so they are exact to the
nanosecond. Slices are put together column by column, for a run has a million::

    ,{"name":   "F 3"   ,"pid":1,"tid":66,"ts":   1000   .250   ,"args":{"kernels":   4   }}
    constant    text    text of the lane          number text   constant              number
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, repeat
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import CodedTexts
from bubbleviz.model.phases import COMMUNICATION
from bubbleviz.render.palette import CHROME_CAUSES
from bubbleviz.render.trace.trace import Numbers, Process, SliceTrack, Trace, trace_of
from bubbleviz.report.report import Report
from bubbleviz.report.view import View

# Colours of slices in Chrome's tracing, which takes the names of its own colours alone.
#
# Each is the one closest to the colour of pictures. Perfetto takes none: it chooses a colour by the
# name of a slice, numbers left out, so that a phase has one colour there, and a cause has.


_OF_PHASES = {
    "F": "rail_response",
    "B": "background_memory_dump",
    "W": "good",
    "BW": "thread_state_running",
    "R": "thread_state_runnable",
    "FB": "white",
    "Optimizer": "cq_build_running",
}
_COMMUNICATION = {phase.label: "rail_idle" for phase in COMMUNICATION}
#: The name of a colour by the category of a slice, then by the first word of its name; without one
#: the viewer chooses.
RESERVED = {"operation": _OF_PHASES, "communication": _COMMUNICATION, "bubble": CHROME_CAUSES}


#: A text of each row.
_Column: TypeAlias = npt.NDArray[np.object_]

_THOUSANDTHS: _Column = np.array([f".{number:03d}" for number in range(1000)], object)


def render(report: Report, view: View) -> str:
    """Return the whole report as Chrome trace events, whatever the view."""
    del view
    # Joined once: the text can be half a gigabyte.
    return "".join(written(trace_of(report)))


def written(trace: Trace) -> Iterator[str]:
    """Yield the pieces of a trace as one JSON document."""
    yield f'{{"displayTimeUnit": "ns",\n"otherData": {_text(trace.facts())},\n"traceEvents": [\n'
    # Lanes are threads, numbered above all processes.
    thread = len(trace.report.ranks) + 2
    for process in trace.processes():
        yield from _of_process(process, trace.ratio, thread)
        thread += sum(track.lanes for track in process.tracks)
    yield "\n]}\n"


def _text(value: object) -> str:
    """Return a value as JSON that is safe inside a page, too."""
    return json.dumps(value, ensure_ascii=True, allow_nan=False).replace("<", "\\u003c")


def _of_process(process: Process, ratio: str, thread: int) -> Iterator[str]:
    """Yield the events of a process; a comma is before each but the first of all."""
    where = f'"pid":{process.number}'
    yield ",\n" if process.order else ""
    yield _metadata("process_name", where, {"name": process.name})
    yield ",\n" + _metadata("process_labels", where, {"labels": ", ".join(process.labels)})
    yield ",\n" + _metadata("process_sort_index", where, {"sort_index": process.order})
    for time_ns, value in process.ratios:
        yield (
            f',\n{{"ph":"C","name":"bubble ratio",{where},'
            f'"ts":{time_ns // 1000}.{time_ns % 1000:03d},"args":{_text({ratio: value})}}}'
        )
    for track in process.tracks:
        for lane in range(track.lanes):
            name = f"{track.name} ({lane + 1})" if lane else track.name
            at = f'{where},"tid":{thread + lane}'
            yield ",\n" + _metadata("thread_name", at, {"name": name})
            yield ",\n" + _metadata("thread_sort_index", at, {"sort_index": thread + lane})
        yield _slices(track, process.number, thread)
        thread += track.lanes


def _metadata(name: str, where: str, arguments: Mapping[str, object]) -> str:
    return f'{{"ph":"M","name":"{name}",{where},"args":{_text(arguments)}}}'


def _slices(track: SliceTrack, process: int, first: int) -> str:
    """Return slices, each followed by the ends of flows in it."""
    lanes = [f'"pid":{process},"tid":{first + lane},"ts":' for lane in range(track.lanes)]
    where = np.stack((_chosen(lanes, track.lane), *_microseconds(track.start_ns)), axis=1)
    colours = RESERVED.get(track.category, {})
    coloured = ((text, colours.get(text.split(" ", 1)[0])) for text in track.names.texts)
    named = [_text(text) + (f',"cname":"{own}"' if own else "") for text, own in coloured]
    # Every slice has the first argument.
    commas = chain(("",), repeat(","))
    table = _table(
        len(track.names),
        ',\n{"ph":"X","name":',
        _chosen(named, track.names.code),
        f',"cat":"{track.category}",',
        *where.T,
        ',"dur":',
        *_microseconds(track.end_ns - track.start_ns),
        ',"args":{',
        *map(_argument, commas, track.arguments, track.arguments.values()),
        "}}",
        _flow_ends(track, where),
    )
    return "".join(table.ravel().tolist())


def _argument(comma: str, name: str, values: CodedTexts | Numbers) -> _Column:
    """Return an argument of each slice, empty where a slice has none."""
    key = f'{comma}"{name}":'
    if isinstance(values, CodedTexts):
        return _chosen([key + _text(text) for text in values.texts], values.code)
    # Most are told many times.
    numbers, code = np.unique(values.values, return_inverse=True)
    texts = [key + text for text in map(repr, numbers.tolist())]
    return _chosen(texts, np.where(values.known, code, NONE))


def _flow_ends(track: SliceTrack, where: npt.NDArray[np.object_]) -> _Column:
    """Return the ends of flows in each slice, empty where there are none.

    Args:
        track: of the slices.
        where: texts of their places, shape (slices, columns).
    """
    ends = np.full(len(track.names), "", object)
    for kind, flows in (('"f","bp":"e"', track.entering), ('"s"', track.leaving)):
        head = f',\n{{"ph":{kind},"name":"microbatch","cat":"flow","id":'
        for some in flows.turns():
            numbers = np.array(list(map(repr, some.flow.tolist())), object)
            table = _table(len(some), head, numbers, ",", *where[some.place].T, "}")
            ends[some.place] += np.array(list(map("".join, table.tolist())), object)
    return ends


def _microseconds(time_ns: Ints) -> tuple[_Column, _Column]:
    """Return times (never negative) in microseconds, exactly: whole ones, and thousandths."""
    whole = np.array(list(map(repr, (time_ns // 1000).tolist())), object)
    return whole, _THOUSANDTHS[time_ns % 1000]


def _chosen(texts: Sequence[str], code: Ints) -> _Column:
    """Return the text of each code; an empty one for -1."""
    return np.array([*texts, ""], object)[code]


def _table(rows: int, *columns: str | _Column) -> npt.NDArray[Any]:
    """Return columns, some of them constant, as rows."""
    table = np.empty((rows, len(columns)), object)
    for place, column in enumerate(columns):
        table[:, place] = column
    return table
