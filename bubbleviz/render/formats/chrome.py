"""Chrome: the report as a trace in the JSON that chrome://tracing and most viewers read.

One event a line, in the Trace Event Format (Google, 2016): times are microseconds, written with
three decimals from whole numbers, so they are exact to the nanosecond.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from bubbleviz.render.formats import Renderer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from bubbleviz.render.trace.tracks import Argument, Counter, Process, SliceTrack
    from bubbleviz.report.report import Report, View


def render(report: Report, view: View) -> str:
    """Return the whole report as Chrome trace events, whatever the view."""
    del view
    from bubbleviz.render.trace.trace import trace_of

    trace = trace_of(report)
    events = _events(trace.processes(), len(report.ranks) + 2)
    # Joined once: the text can be half a gigabyte.
    facts = f'{{"displayTimeUnit": "ns",\n"otherData": {_text(trace.facts())},\n'
    return "".join((facts, '"traceEvents": [\n', *events, "\n]}\n"))


def _text(value: object) -> str:
    """Return a value as JSON that is safe inside a page, too."""
    import json

    return json.dumps(value, ensure_ascii=True, allow_nan=False).replace("<", "\\u003c")


def _us(time_ns: int) -> str:
    """Return nanoseconds (never negative) as microseconds, exactly."""
    return f"{time_ns // 1000}.{time_ns % 1000:03d}"


def _events(processes: Iterable[Process], thread: int) -> Iterator[str]:
    """Yield the events of each process as one text, with commas between and before.

    Lanes are threads, numbered from ``thread`` on, above all processes.
    """
    for place, process in enumerate(processes):
        yield (",\n" if place else "") + ",\n".join(_of_process(process, thread))
        thread += sum(track.lanes for track in process.tracks)


def _of_process(process: Process, thread: int) -> Iterator[str]:
    where = f'"pid":{process.number}'
    yield _metadata("process_name", where, {"name": process.name})
    yield _metadata("process_labels", where, {"labels": ", ".join(process.labels)})
    yield _metadata("process_sort_index", where, {"sort_index": process.order})
    yield from _counter(process.counter, process.number)
    for track in process.tracks:
        for lane in range(track.lanes):
            name = f"{track.name} ({lane + 1})" if lane else track.name
            at = f'{where},"tid":{thread + lane}'
            yield _metadata("thread_name", at, {"name": name})
            yield _metadata("thread_sort_index", at, {"sort_index": thread + lane})
        yield from _slices(track, process.number, thread)
        thread += track.lanes


def _metadata(name: str, where: str, arguments: Mapping[str, object]) -> str:
    return f'{{"ph":"M","name":"{name}",{where},"args":{_text(arguments)}}}'


def _counter(counter: Counter, process: int) -> Iterator[str]:
    for time_ns, value in zip(counter.time_ns, counter.values, strict=True):
        yield (
            f'{{"ph":"C","name":"bubble ratio","pid":{process},"ts":{_us(time_ns)},'
            f'"args":{_text({counter.name: value})}}}'
        )


def _slices(track: SliceTrack, process: int, first: int) -> Iterator[str]:
    """Yield slices, each followed by the ends of flows in it."""
    arguments = [_written(argument) for argument in track.arguments]
    rows = zip(*arguments, strict=True) if arguments else ((),) * len(track.names)
    names = {name: _text(name) for name in set(track.names)}
    columns = (track.start_ns.tolist(), track.end_ns.tolist(), track.lane.tolist(), track.names)
    for place, (start_ns, end_ns, lane, name, row) in enumerate(zip(*columns, rows, strict=True)):
        where = f'"pid":{process},"tid":{first + lane},"ts":{_us(start_ns)}'
        yield (
            f'{{"ph":"X","name":{names[name]},"cat":"{track.category}",{where},'
            f'"dur":{_us(end_ns - start_ns)},"args":{{{",".join(filter(None, row))}}}}}'
        )
        for flow in track.entering.get(place, ()):
            yield f'{{"ph":"f","bp":"e","name":"microbatch","cat":"flow","id":{flow},{where}}}'
        for flow in track.leaving.get(place, ()):
            yield f'{{"ph":"s","name":"microbatch","cat":"flow","id":{flow},{where}}}'


def _written(argument: Argument) -> list[str]:
    """Return an argument of each slice as JSON, empty for none; equal values are one text."""
    key = f'"{argument.name}":'
    written = {v: key + (_text(v) if isinstance(v, str) else repr(v)) for v in set(argument.values)}
    written[None] = ""
    return [written[value] for value in argument.values]


RENDERER = Renderer(
    name="chrome",
    summary="a trace for chrome://tracing and other viewers, as JSON",
    render=render,
    order=9,
)
