"""Planes of XLA's profiler as tables, whichever format they come from.

JAX, TensorBoard and TensorFlow write the same thing in two formats (``*.xplane.pb`` and
``*.trace.json.gz``): planes (a device, or a host), in them lines (a stream, a thread, or something
derived), on them events. Sources: ``tsl/profiler/protobuf/xplane.proto`` and
``xla/tsl/profiler/utils/xplane_schema.cc`` (openxla/xla)::

    /device:TPU:0   XLA Modules     ├─jit_step(7)──────────────────┤
                    XLA Ops         ├─fusion.1─┤├─while.2──────────┤
                                                 ├─dot.3─┤├─add.4─┤
                    Async XLA Ops         ├─all-gather-start.5─┤
    /device:GPU:0   Stream #16(Kernel)    ├─gemm──┤├─loop_fusion─┤
    /host:CPU       python          ├─train──────────────────────────┤
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bubbleviz.model.columns import NONE, Codes, Ints, Table, joined
from bubbleviz.model.grouping import Numbering, groups_of
from bubbleviz.model.profile import beyond, capture_bounds, possible
from bubbleviz.model.values import frozen

#: What the events of a line are: kernels and copies of a GPU; instructions, nested ones inside
#: their loops; transfers that run beside instructions; executions of modules; steps of the
#: training; events of a thread of the host; derived, or unknown.
STREAM, OPS, ASYNC, MODULES, STEPS, HOST, NOTHING = (
    *("stream", "ops", "async", "modules", "steps"),
    *("host", "nothing"),
)
#: Lines of a device; all others there are derived from these.
_LINES = {"XLA Ops": OPS, "Async XLA Ops": ASYNC, "XLA Modules": MODULES, "Steps": STEPS}
#: Events of the host, by what they stand for.
_LAUNCHES, _HOST_OPS, _HOST_STEPS = "launches", "host ops", "host steps"
#: Numbers of devices are below this.
_MOST_DEVICES = 10_000
_DEVICE = re.compile(r"/device:(?:GPU|TPU):([0-9]{1,4})(?: \(.*\))?\Z", re.DOTALL)
#: A plane of whole programs, which holds no threads.
PROGRAMS = "/host:metadata"
#: Stands in ``tf_op`` where there is no path.
_NO_PATH = "XlaModule:"
_NUMBER = re.compile(r"[0-9]{1,18}\Z")


def device_of(plane: str) -> int | None:
    """Return the number of a device's plane; None for others."""
    match = _DEVICE.match(plane)
    return None if match is None else int(match[1])


def roles_of(plane: str, lines: Sequence[str]) -> list[str]:
    """Return what the events of each line of a plane are.

    A GPU's own records are its streams; ``XLA Ops`` and ``XLA Modules`` of a GPU are made from
    them, and would count everything twice.
    """
    if device_of(plane) is None:
        host = plane.startswith("/host:") and plane != PROGRAMS
        return [HOST if host else NOTHING] * len(lines)
    streams = [line.startswith("Stream #") for line in lines]
    if any(streams):
        return [STREAM if stream else NOTHING for stream in streams]
    return [_LINES.get(line, NOTHING) for line in lines]


def path_of(tf_op: str) -> str:
    """Return the path of an instruction in its ``tf_op``; "" where there is none.

    Behind the path TensorFlow's kind of operation may stand: ``jit(step)/dot_general:``.
    """
    return "" if tf_op == _NO_PATH else tf_op.rpartition(":")[0] or tf_op


@frozen
class LineEvents(Table):
    """Events of one line, or a piece of them; texts by number, -1 is none.

    Attributes:
        start_ns: start, in the profile's own time.
        end_ns: end.
        name: text.
        op: text, the instruction (``fusion.3``).
        path: text, its place in the program (``jit(step)/jvp(layer)/dot_general``).
        module: text, the module of the instruction (``jit_step``).
        program: number of the module's program.
        run: number of the module's execution.
        correlation: pairs a launch with the work that it launched.
        device: number of the device that a host's event is about.
        step: number of the training step that the event is.
    """

    start_ns: Ints
    end_ns: Ints
    name: Ints
    op: Ints
    path: Ints
    module: Ints
    program: Ints
    run: Ints
    correlation: Ints
    device: Ints
    step: Ints


#: The columns that statistics of an event fill.
STAT_COLUMNS = ("op", "path", "module", "program", "run", "correlation", "device", "step")


@frozen
class PlaneEvents(Table):
    """Events of several lines, in fewer bits.

    Attributes:
        start_ns: start.
        end_ns: end.
        name: text.
        label: row of the labels: the instruction and its module; -1 none.
        line: row of the lines.
        device: number of its device; -1 none.
        run: number of the module's execution; -1 none.
        correlation: of a launch and the work that it launched; -1 none.
        step: number of the step that it is; -1 none.
    """

    start_ns: Ints
    end_ns: Ints
    name: Codes
    label: Codes
    line: Codes
    device: Codes
    run: Codes
    correlation: Codes
    step: Codes


@frozen
class HostSpans(Table):
    """All events of the host's threads that lasted, in the fewest bits."""

    start_ns: Ints
    end_ns: Ints
    name: Codes
    line: Codes


@frozen
class Planes:
    """All of a profile of XLA, in columns.

    Attributes:
        texts: distinct texts.
        labels: distinct instructions: texts of the instruction, its path and its module, by number,
            and the number of its program; -1 is none.
        streams: kernels and copies of GPUs.
        ops: instructions on devices, or (``on_host``) of threads of the host that stand for them.
        transfers: asynchronous ones.
        modules: executions of modules on devices.
        steps: steps on devices, and of the host.
        launches: events of the host that launched something.
        spans: events of the host's threads.
        lines: number and name of each thread of the host.
        devices: number and name of each device's plane.
        accelerator: what the devices are: ``GPU`` or ``TPU``.
        on_host: whether there is no device, so that instructions that the host ran are the work.
        impossible: how many events were left out for impossible times.
        outside: how many events of devices, and launches, were left out for they lie far outside
            the capture.
        strange_devices: how many instructions of the host were left out for numbers that no device
            has.
    """

    texts: tuple[str, ...]
    labels: tuple[tuple[int, ...], ...]
    streams: PlaneEvents
    ops: PlaneEvents
    transfers: PlaneEvents
    modules: PlaneEvents
    steps: PlaneEvents
    launches: PlaneEvents
    spans: HostSpans
    lines: tuple[tuple[int, str], ...]
    devices: tuple[tuple[int, str], ...]
    accelerator: str
    on_host: bool
    impossible: int
    outside: int
    strange_devices: int


class PlaneCollector:
    """Takes the events of lines, piece by piece, while a file is read.

    Attributes:
        texts: numbers the texts of all events.
    """

    def __init__(self) -> None:
        self.texts: Numbering[str] = Numbering()
        self._labels: Numbering[tuple[int, ...]] = Numbering()
        self._events: dict[str, list[PlaneEvents]] = {}
        self._spans: list[HostSpans] = []
        self._lines: list[tuple[int, str]] = []
        self._devices: dict[int, str] = {}
        self._accelerator = "GPU"
        self._impossible = self._strange_devices = 0

    def add_device(self, plane: str, number: int, name: str) -> None:
        """Add a device that has a plane, and its name; "" unknown."""
        self._accelerator = "TPU" if plane.startswith("/device:TPU") else "GPU"
        self._devices[number] = name or self._devices.get(number, "")

    def add_line(self, number: int, name: str) -> int:
        """Add a line of the host; return its row."""
        self._lines.append((number, name))
        return len(self._lines) - 1

    def add(self, role: str, plane: str, line: int, events: LineEvents) -> None:
        """Add a piece of a line.

        Args:
            role: what the line's events are.
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
        if role == HOST:
            self._add_host(line, events)
            return
        if role in (OPS, ASYNC):
            events = replace(events, op=np.where(events.op == NONE, events.name, events.op))
        if role == STEPS:
            texts = self.texts.values
            used, of_row = np.unique(events.name, return_inverse=True)
            spelled = [int(t) if _NUMBER.match(t := texts[name]) else NONE for name in used]
            named = np.array(spelled, np.int64)[of_row.reshape(-1)]
            step = np.where(events.step != NONE, events.step, named)
            events = replace(events, step=step).take(step != NONE)
        self._append(role, line, replace(events, device=np.full(len(events), device_of(plane))))

    def _add_host(self, line: int, events: LineEvents) -> None:
        # Launches are calls, and no ranges.
        spans = events.take((events.end_ns > events.start_ns) & (events.correlation == NONE))
        row = np.full(len(spans), line, np.int64)
        self._spans.append(
            HostSpans(spans.start_ns, spans.end_ns, _narrow(spans.name), _narrow(row))
        )
        known = (events.device >= 0) & (events.device < _MOST_DEVICES)
        self._strange_devices += int((~known & (events.device != NONE)).sum())
        for key, chosen in (
            (_LAUNCHES, events.correlation != NONE),
            (_HOST_OPS, (events.op != NONE) & known),
            (_HOST_STEPS, events.step != NONE),
        ):
            if chosen.any():
                self._append(key, line, events.take(chosen))

    def _append(self, key: str, line: int, events: LineEvents) -> None:
        label = np.full(len(events), NONE, np.int64)
        rows = np.flatnonzero((events.op != NONE) | (events.module != NONE))
        columns = [getattr(events, name)[rows] for name in ("op", "path", "module", "program")]
        groups = groups_of(*columns)
        distinct = zip(*(column[groups.first].tolist() for column in columns), strict=True)
        label[rows] = self._labels.numbers(distinct)[groups.of_row]
        narrow = PlaneEvents(
            start_ns=events.start_ns.copy(),
            end_ns=events.end_ns.copy(),
            name=_narrow(events.name),
            label=_narrow(label),
            line=_narrow(np.full(len(events), line, np.int64)),
            device=_narrow(events.device),
            run=_narrow(events.run),
            correlation=_narrow(events.correlation),
            step=_narrow(events.step),
        )
        self._events.setdefault(key, []).append(narrow)

    def planes(self) -> Planes:
        """Return the planes, once all lines have been added."""
        on_host = not any(self._events.get(role) for role in (STREAM, OPS))
        outside = self._leave_out_strays()
        no_time, no_code = np.empty(0, np.int64), np.empty(0, np.int8)

        def taken(*keys: str) -> PlaneEvents:
            pieces = [piece for key in keys for piece in self._events.pop(key, [])]
            return joined([PlaneEvents(no_time, no_time, *[no_code] * 7), *pieces])

        spans, self._spans = self._spans, []
        return Planes(
            texts=self.texts.values,
            labels=self._labels.values,
            streams=taken(STREAM),
            ops=taken(_HOST_OPS if on_host else OPS),
            transfers=taken(ASYNC),
            modules=taken(MODULES),
            steps=taken(STEPS, _HOST_STEPS),
            launches=taken(_LAUNCHES),
            spans=joined([HostSpans(no_time, no_time, no_code, no_code), *spans]),
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
        start_ns = np.concatenate([piece.start_ns for piece in pieces])
        end_ns = np.concatenate([piece.end_ns for piece in pieces])
        bounds_ns = capture_bounds(start_ns, end_ns)
        if bounds_ns is None:
            return 0
        for key, table in self._events.items():
            strays = [beyond(piece.start_ns, piece.end_ns, bounds_ns) for piece in table]
            self._events[key] = [p.take(~stray) for p, stray in zip(table, strays, strict=True)]
        return int(beyond(start_ns, end_ns, bounds_ns).sum())


def _narrow(codes: Ints) -> Codes:
    """Return identifiers in as few bits as they need: a column of -1 alone takes a byte a row."""
    low, high = int(codes.min(initial=0)), int(codes.max(initial=0))
    return codes.astype(np.min_scalar_type(min(low, -1 - high)))
