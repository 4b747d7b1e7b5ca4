"""Renders traces as JSON in Google's Trace Event Format (2016), with one event per line.

Times are in microseconds with three decimals. No precision is lost, because times are formatted
from integer nanoseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from bubbleviz.model.phases import COMMUNICATION
from bubbleviz.render.palette import CHROME_CAUSES
from bubbleviz.render.trace.trace import Trace, make_trace
from bubbleviz.render.trace.tracks import Process, SliceTrack
from bubbleviz.report.report import Report
from bubbleviz.report.view import View

#: Color name of each phase. Chrome's trace viewer accepts only a fixed set of color names. Each
#: name is the one closest to the phase's color in pictures. Perfetto ignores color names, and
#: derives a slice's color from its name without digits. Each phase and each cause therefore has a
#: single color in Perfetto, too.
_PHASE_COLORS = {
    "F": "rail_response",
    "B": "background_memory_dump",
    "W": "good",
    "BW": "thread_state_running",
    "R": "thread_state_runnable",
    "FB": "white",
    "Optimizer": "cq_build_running",
}
_COMMUNICATION_COLORS = {phase.label: "rail_idle" for phase in COMMUNICATION}
#: Color names of slices, keyed by category and then by the first word of the slice name.
#: The viewer chooses the colors of all other slices.
RESERVED = {
    "operation": _PHASE_COLORS,
    "communication": _COMMUNICATION_COLORS,
    "bubble": CHROME_CAUSES,
}


def render(report: Report, _: View) -> str:
    """Return the entire report as JSON text with Chrome trace events. The view is ignored."""
    # The text can be half a gigabyte long, so its pieces are joined only once.
    return "".join(write_events(make_trace(report)))


def write_events(trace: Trace) -> Iterator[str]:
    """Yield the JSON text of a trace in pieces.

    The text is an object with the display unit, the properties of the trace (``otherData``) and the
    list of all events.
    """
    facts = _encode_json(trace.facts())
    yield f'{{"displayTimeUnit": "ns",\n"otherData": {facts},\n"traceEvents": [\n'
    # Each lane is a thread. Thread ids are greater than all process numbers.
    thread = len(trace.report.ranks) + 2
    for process in trace.processes():
        yield from _write_process(process, trace.ratio, thread)
        thread += sum(track.lanes for track in process.tracks)
    yield "\n]}\n"


def _encode_json(value: object) -> str:
    """Encode a value as JSON. All ``<`` are escaped, so that HTML pages can embed the result."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def _format_us(time_ns: int) -> str:
    """Format a non-negative time in ns as microseconds with three decimals, without rounding."""
    return f"{time_ns // 1000}.{time_ns % 1000:03d}"


def _write_process(process: Process, ratio: str, thread: int) -> Iterator[str]:
    """Yield the JSON text of all events in a process.

    Each event starts with a comma, except the first event of the process whose ``order`` is 0.

    Args:
        process: The process.
        ratio: Name of the bubble ratio shown by the counter.
        thread: Thread id of the first lane of the first track.
    """
    where = f'"pid":{process.number}'
    yield ",\n" if process.order else ""
    yield _format_metadata("process_name", where, {"name": process.name})
    yield ",\n" + _format_metadata("process_labels", where, {"labels": ", ".join(process.labels)})
    yield ",\n" + _format_metadata("process_sort_index", where, {"sort_index": process.order})
    for time_ns, value in process.ratios:
        yield (
            f',\n{{"ph":"C","name":"bubble ratio",{where},'
            f'"ts":{_format_us(time_ns)},"args":{_encode_json({ratio: value})}}}'
        )
    for track in process.tracks:
        for lane in range(track.lanes):
            name = f"{track.name} ({lane + 1})" if lane else track.name
            lane_fields = f'{where},"tid":{thread + lane}'
            yield ",\n" + _format_metadata("thread_name", lane_fields, {"name": name})
            yield ",\n" + _format_metadata(
                "thread_sort_index", lane_fields, {"sort_index": thread + lane}
            )
        yield from _write_slices(track, process.number, thread)
        thread += track.lanes


def _format_metadata(name: str, where: str, arguments: Mapping[str, object]) -> str:
    return f'{{"ph":"M","name":"{name}",{where},"args":{_encode_json(arguments)}}}'


def _write_slices(track: SliceTrack, process: int, first: int) -> Iterator[str]:
    """Yield the JSON text of the events in a track.

    Each slice is followed by the flows that end in the slice and the flows that start in it.

    Args:
        track: The track.
        process: Number of the process to which the track belongs.
        first: Thread id of the first lane of the track.
    """
    colors = RESERVED.get(track.category, {})
    for slice_ in track.slices():
        start = _format_us(slice_.start_ns)
        slice_fields = f'"pid":{process},"tid":{first + slice_.lane},"ts":{start}'
        color = colors.get(slice_.name.split(" ", 1)[0])
        look = f',"cname":"{color}"' if color else ""
        head = f'"ph":"X","name":{_encode_json(slice_.name)}{look},"cat":"{track.category}"'
        duration = _format_us(slice_.end_ns - slice_.start_ns)
        yield (
            f',\n{{{head},{slice_fields},"dur":{duration},"args":{_encode_json(slice_.arguments)}}}'
        )
        for kind, flows in (('"f","bp":"e"', slice_.entering), ('"s"', slice_.leaving)):
            for flow in flows:
                fields = f'"ph":{kind},"name":"microbatch","cat":"flow","id":{flow}'
                yield f",\n{{{fields},{slice_fields}}}"
