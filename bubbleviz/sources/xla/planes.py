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
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bubbleviz.model.capture import find_capture_bounds, mask_outside
from bubbleviz.model.columns import NONE, Bools, Codes, Ints, Table, join_tables, make_constant
from bubbleviz.model.grouping import (
    find_distinct,
    find_positions,
    group_rows,
    mask_run_starts,
    sort_rows,
)
from bubbleviz.model.numbering import Numbering
from bubbleviz.model.profile import mask_possible

#: What the events of a line are: kernels and copies of a GPU; instructions, nested ones inside
#: their loops; transfers that run beside instructions; executions of modules; steps of the
#: training; events of a thread of the host; derived, or unknown.
STREAM, OPS, ASYNC, MODULES, STEPS, HOST, NOTHING = (
    *("stream", "ops", "async", "modules", "steps"),
    *("host", "nothing"),
)
#: Lines of a device; all others there are derived from these.
_LINES = {"XLA Ops": OPS, "Async XLA Ops": ASYNC, "XLA Modules": MODULES, "Steps": STEPS}
#: Events of the host, by what they stand for; those that last are its ranges.
SPANS, LAUNCHES, HOST_OPS, HOST_STEPS = "spans", "launches", "host ops", "host steps"
#: What statistics tell of an event: texts of the instruction, its path and its module, by number;
#: and numbers.
STAT_COLUMNS = (
    "op",
    "path",
    "module",
    "program",
    "run",
    "correlation",
    "device",
    "step",
    "copy",
)
#: Numbers of devices are below this.
_MOST_DEVICES = 10_000
_DEVICE = re.compile(r"/device:(?:GPU|TPU):([0-9]{1,4})(?: \(.*\))?\Z", re.DOTALL)
#: A plane of whole programs, which holds no threads.
PROGRAMS = "/host:metadata"
#: Stands in ``tf_op`` where there is no path.
_NO_PATH = "XlaModule:"
_NUMBER = re.compile(r"[0-9]{1,18}\Z")
#: Prefixes of the names of instructions that contain other instructions.
_OUTER = ("while", "conditional", "call")


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


def number_recordings(planes: Sequence[str], ends: Collection[int] = ()) -> list[int]:
    """Return the number of the recording that each plane belongs to, from 0.

    A recording has one plane per device and host. In a file that joins several recordings, a new
    recording begins with the first plane whose device or host is already in the current one.

    Args:
        planes: Names of planes, in order.
        ends: Indices of planes that are known to begin a new recording.
    """
    numbers: list[int] = []
    seen: set[int | str] = set()
    number = 0
    for index, name in enumerate(planes):
        device = device_of(name)
        key = name if device is None else device
        is_unique = device is not None or (name.startswith("/host:") and name != PROGRAMS)
        if index in ends or (is_unique and key in seen):
            number, seen = number + 1, set()
        if is_unique:
            seen.add(key)
        numbers.append(number)
    return numbers


def path_of(tf_op: str) -> str:
    """Return the path of an instruction in its ``tf_op``; "" where there is none.

    Behind the path TensorFlow's kind of operation may stand: ``jit(step)/dot_general:``.
    """
    return "" if tf_op == _NO_PATH else tf_op.rpartition(":")[0] or tf_op


@dataclass(frozen=True, eq=False, repr=False)
class PlaneEvents(Table):
    """Events of lines, in few bits; -1 is none.

    Attributes:
        start_ns: start, in the profile's own time.
        end_ns: end.
        name: text.
        label: row of the labels: the instruction and its module.
        line: Row of the host's line, or number of the device's stream, or -1 for other events.
        device: number of its device, or of the device that a host's event is about.
        run: number of the module's execution.
        correlation: pairs a launch with the work that it launched.
        step: number of the training step that the event is.
        copy: Number of the text with the details of a copy, such as
            ``kind_src:pinned kind_dst:device size:4``, or -1.
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
    copy: Codes


class Planes:
    """All of a profile of XLA in columns: takes the events of lines, piece by piece.

    Attributes:
        texts: numbers the texts of all events.
        labels: numbers instructions: the text of the instruction (``fusion.3``), its place in the
            program (``jit(step)/jvp(layer)/dot_general``) and its module (``jit_step``), by number,
            and the number of its program; -1 is none.
        lines: number and name of each thread of the host.
        devices: name of each device that has a plane, by number; "" unknown.
        accelerator: what the devices are: ``GPU`` or ``TPU``.
        on_host: whether there is no device, so that instructions that the host ran are the work;
            known once all was added.
        impossible: how many events were left out for impossible times.
        impossible_work: Number of kernels, copies and instructions among them.
        outside: how many events of devices, and launches, were left out for they lie far outside
            the capture.
        strange_devices: how many instructions of the host were left out for numbers that no device
            has.
    """

    def __init__(self) -> None:
        self.texts, self.labels = Numbering[str](), Numbering[tuple[int, ...]]()
        self.lines: list[tuple[int, str]] = []
        self.devices: dict[int, str] = {}
        self.accelerator, self.on_host = "GPU", False
        self.impossible = self.impossible_work = self.outside = self.strange_devices = 0
        self._events: dict[str, list[PlaneEvents]] = defaultdict(list)

    def add_device(self, plane: str, number: int, name: str) -> None:
        """Add a device that has a plane, and its name; "" unknown."""
        self.accelerator = "TPU" if plane.startswith("/device:TPU") else "GPU"
        self.devices[number] = name or self.devices.get(number, "")

    def add_line(self, number: int, name: str) -> int:
        """Add a line of the host; return its row."""
        self.lines.append((number, name))
        return len(self.lines) - 1

    def add(
        self,
        role: str,
        plane: str,
        line: int,
        times_ns: tuple[Ints, Ints],
        name: Ints,
        stats: Mapping[str, Ints],
    ) -> None:
        """Add a piece of a line.

        Args:
            role: what the line's events are.
            plane: name of its plane.
            line: Row of the host's line, or number of the device's stream, or -1 for other lines.
            times_ns: start and end of each event.
            name: text of each.
            stats: what else is known, by the names of ``STAT_COLUMNS``.
        """
        op, count = stats["op"], len(name)
        if role in (OPS, ASYNC):
            op = np.where(op == NONE, name, op)
        device = stats["device"]
        if role != HOST:
            device = np.full(count, device_of(plane), np.int64)
        label = self._labels(op, *(stats[column] for column in ("path", "module", "program")))
        others = (stats[column] for column in ("run", "correlation", "step", "copy"))
        columns = (name, label, np.full(count, line, np.int64), device, *others)
        events = PlaneEvents(*times_ns, *columns)
        keep = mask_possible(*times_ns)
        if keep is not None:
            self.impossible += int((~keep).sum())
            if role in (STREAM, OPS, ASYNC):
                self.impossible_work += int((~keep).sum())
            events, op = events.take(keep), op[keep]
        if role == HOST:
            self._add_host(events, op != NONE)
            return
        if role == STEPS:
            texts = self.texts.values
            used, of_row = np.unique(events.name, return_inverse=True)
            spelled = [int(t) if _NUMBER.match(t := texts[name]) else NONE for name in used]
            named = np.array(spelled, np.int64)[of_row.reshape(-1)]
            step = np.where(events.step != NONE, events.step, named)
            events = replace(events, step=step).take(step != NONE)
        self._append(role, events)

    def _add_host(self, events: PlaneEvents, instructions: Bools) -> None:
        # Launches are calls, and no ranges.
        spans = events.take((events.end_ns > events.start_ns) & (events.correlation == NONE))
        none = make_constant(NONE, len(spans))
        others = ("label", "device", "run", "correlation", "step", "copy")
        self._append(SPANS, spans.replace_columns(**dict.fromkeys(others, none)))
        known = (events.device >= 0) & (events.device < _MOST_DEVICES)
        self.strange_devices += int((~known & (events.device != NONE)).sum())
        self._append(LAUNCHES, events.take(events.correlation != NONE))
        self._append(HOST_OPS, events.take(instructions & known))
        self._append(HOST_STEPS, events.take(events.step != NONE))

    def _append(self, role: str, events: PlaneEvents) -> None:
        if len(events):
            columns = [getattr(events, name) for name in PlaneEvents.column_names()]
            narrow = [column.copy() for column in columns[:2]] + [_narrow(c) for c in columns[2:]]
            self._events[role].append(PlaneEvents(*narrow).compact())

    def _labels(self, *columns: Ints) -> Ints:
        """Return the label of each event, by instruction, path, module and program."""
        label = np.full(len(columns[0]), NONE, np.int64)
        rows = np.flatnonzero((columns[0] != NONE) | (columns[2] != NONE))
        groups = group_rows(*(column[rows] for column in columns))
        first = rows[groups.first]
        distinct = zip(*(column[first].tolist() for column in columns), strict=True)
        label[rows] = self.labels.numbers(distinct)[groups.of_row]
        return label

    def events(self, *roles: str) -> PlaneEvents:
        """Return the events of some roles, sorted by thread, device and start.

        The order does not depend on the order in the file. Among events that start together, events
        without a duration come first, then longer events before the events inside them. A loop
        comes before its body.
        """
        pieces = [piece for role in roles for piece in self._events[role]]
        no_time, no_code = np.empty(0, np.int64), np.empty(0, np.int8)
        events = join_tables([*pieces, PlaneEvents(no_time, no_time, *[no_code] * 8)])
        keys = (events.line.astype(np.int64), events.device.astype(np.int64), events.start_ns)
        order = sort_rows(*keys)
        is_first = mask_run_starts(*(column[order] for column in keys))
        if not is_first.all():
            order = self._order_ties(events, order, is_first)
        return events if np.array_equal(order, np.arange(len(order))) else events.take(order)

    def _order_ties(self, events: PlaneEvents, order: Ints, is_first: Bools) -> Ints:
        """Sort events of one thread and device that start together.

        Args:
            events: The events.
            order: Their rows, sorted by thread, device and start.
            is_first: Mask of the entries of ``order`` that do not start together with the one
                before.

        Returns:
            The rows, with ties sorted.
        """
        is_tied = ~is_first
        is_tied[:-1] |= is_tied[1:]
        positions = np.flatnonzero(is_tied)
        rows = order[positions]
        tied = events.take(rows)
        texts = self.texts.values
        outer_first = [(not text.startswith(_OUTER), text) for text in texts]
        label_texts = [
            (*(texts[text] if text != NONE else "" for text in label[:3]), label[3])
            for label in self.labels.values
        ]
        length_ns = tied.end_ns - tied.start_ns
        order = order.copy()
        order[positions] = rows[
            np.lexsort(
                (
                    tied.step,
                    tied.correlation,
                    tied.run,
                    _rank_values(tied.label, label_texts),
                    _rank_values(tied.name, outer_first),
                    -length_ns,
                    length_ns > 0,
                    np.cumsum(is_first)[positions],
                )
            )
        ]
        return order

    def finish(self) -> None:
        """Leave out what lies far outside the capture of all devices, once all was added."""
        self.on_host = not (self._events[STREAM] or self._events[OPS])
        tables = [piece for role, table in self._events.items() if role != SPANS for piece in table]
        if not tables:
            return
        start_ns = np.concatenate([piece.start_ns for piece in tables])
        end_ns = np.concatenate([piece.end_ns for piece in tables])
        bounds_ns = find_capture_bounds(start_ns, end_ns)
        if bounds_ns is None:
            return
        for role in self._events.keys() - {SPANS}:
            self._events[role] = [
                piece.take(~mask_outside(piece.start_ns, piece.end_ns, bounds_ns))
                for piece in self._events[role]
            ]
        self.outside = int(mask_outside(start_ns, end_ns, bounds_ns).sum())


def _rank_values(code: Codes, values: Sequence[Any]) -> Ints:
    """Return the rank of each code's value among the values that occur, or -1 for code -1."""
    code = code.astype(np.int64)
    used = find_distinct(code)
    by_value = sorted(used[used != NONE].tolist(), key=values.__getitem__)
    rank_of = {number: rank for rank, number in enumerate(by_value)}
    ranks = np.array([rank_of.get(number, NONE) for number in used.tolist()], np.int64)
    return ranks[find_positions(used, code)]


def _narrow(codes: Codes) -> Codes:
    """Return identifiers in as few bits as they need."""
    low, high = int(codes.min(initial=0)), int(codes.max(initial=0))
    return codes.astype(np.min_scalar_type(min(low, -1 - high)))
