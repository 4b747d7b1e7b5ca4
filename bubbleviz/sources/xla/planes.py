"""Tables of the events recorded by XLA's profiler, independent of the file format.

JAX, TensorBoard and TensorFlow write the same data in two formats (``*.xplane.pb`` and
``*.trace.json.gz``). The data consists of planes, and a plane is a device or a host. A plane
contains lines, which are streams, threads or derived data. A line contains events. See
``tsl/profiler/protobuf/xplane.proto`` and ``xla/tsl/profiler/utils/xplane_schema.cc``
(openxla/xla)::

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

#: Roles of lines. A line's role depends on the events that it contains. STREAM: kernels and copies
#: on a GPU stream. OPS: instructions; a loop contains the instructions in its body. ASYNC:
#: asynchronous transfers. MODULES: executions of modules. STEPS: training steps. HOST: events on a
#: host thread. NOTHING: events that are not used.
STREAM, OPS, ASYNC, MODULES, STEPS, HOST, NOTHING = (
    *("stream", "ops", "async", "modules", "steps"),
    *("host", "nothing"),
)
#: Roles of device lines, keyed by line name. Lines that have other names are derived from these
#: lines.
_ROLE_OF_LINE = {"XLA Ops": OPS, "Async XLA Ops": ASYNC, "XLA Modules": MODULES, "Steps": STEPS}
#: Additional roles of events on host threads: ranges, launches, instructions, and training steps.
SPANS, LAUNCHES, HOST_OPS, HOST_STEPS = "spans", "launches", "host ops", "host steps"
#: Names of the columns that are filled from event statistics. ``op``, ``path``, ``module`` and
#: ``copy`` contain indices into ``texts``, and all others contain numbers.
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
#: Exclusive upper bound on device numbers.
_DEVICE_LIMIT = 10_000
_DEVICE = re.compile(r"/device:(?:GPU|TPU):([0-9]{1,4})(?: \(.*\))?\Z", re.DOTALL)
#: Name of the plane that contains the compiled programs. This plane has no threads.
PROGRAMS = "/host:metadata"
#: Value of the statistic ``tf_op`` if an instruction has no path.
_NO_PATH = "XlaModule:"
_NUMBER = re.compile(r"[0-9]{1,18}\Z")
#: Name prefixes of instructions that contain other instructions.
_OUTER_PREFIXES = ("while", "conditional", "call")


def get_device_number(plane: str) -> int | None:
    """Return the device number in the name of a plane, or None if the plane is not a device."""
    match = _DEVICE.match(plane)
    return None if match is None else int(match[1])


def classify_lines(plane: str, lines: Sequence[str]) -> list[str]:
    """Return the role of each line in a plane.

    - On a host, all lines have the role ``HOST``.
    - A device with streams is a GPU. The streams have the role ``STREAM``. All other lines of a GPU
      are derived from its streams.
    - On other devices, a line's name determines its role.

    Lines that none of these rules cover have the role ``NOTHING``.

    Args:
        plane: The plane's name.
        lines: Line names in the plane.
    """
    if get_device_number(plane) is None:
        is_host = plane.startswith("/host:") and plane != PROGRAMS
        return [HOST if is_host else NOTHING] * len(lines)
    is_stream = [line.startswith("Stream #") for line in lines]
    if any(is_stream):
        return [STREAM if stream else NOTHING for stream in is_stream]
    return [_ROLE_OF_LINE.get(line, NOTHING) for line in lines]


def number_recordings(planes: Sequence[str], starts: Collection[int] = ()) -> list[int]:
    """Divide the planes in a file into recordings, and return the recording index of each plane.

    A recording has at most one plane per device and host. A new recording therefore starts at a
    plane whose device or host already occurs in the current recording.

    Args:
        planes: Plane names, in file order.
        starts: Indices of planes that also start a new recording.
    """
    numbers: list[int] = []
    used_keys: set[int | str] = set()
    number = 0
    for index, name in enumerate(planes):
        device = get_device_number(name)
        key = name if device is None else device
        is_unique = device is not None or (name.startswith("/host:") and name != PROGRAMS)
        if index in starts or (is_unique and key in used_keys):
            number, used_keys = number + 1, set()
        if is_unique:
            used_keys.add(key)
        numbers.append(number)
    return numbers


def get_instruction_path(tf_op: str) -> str:
    """Return the path of an instruction in the statistic ``tf_op``, or "" if there is no path.

    The last colon and the text after it are removed, because TensorFlow may append the operation
    type there: ``jit(step)/dot_general:MatMul``.
    """
    return "" if tf_op == _NO_PATH else tf_op.rpartition(":")[0] or tf_op


@dataclass(frozen=True, eq=False, repr=False)
class PlaneEvents(Table):
    """Events with the same role, stored in narrow integer types. Missing values are -1.

    Attributes:
        start_ns: Start time, relative to the start of the profile.
        end_ns: End time, relative to the start of the profile.
        name: Name of the event, as an index into ``texts`` of :class:`Planes`.
        label: The event's instruction and module, as an index into ``labels`` of :class:`Planes`.
        line: Row of the event's host line, or number of its GPU stream. The value is -1 if the
            event is on neither.
        device: Number of the device that ran the event. For host events, the device number recorded
            with the event.
        run: Run id of the module execution to which the event belongs.
        correlation: Correlation id, which a launch shares with the work that it launched.
        step: Number of the training step, if the event is a training step.
        copy: Details of a copy, such as ``kind_src:pinned kind_dst:device size:4``, as an index
            into ``texts`` of :class:`Planes`.
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
    """All events in one recording by XLA's profiler, as columns.

    Attributes:
        texts: Numbers all texts in events.
        labels: Numbers all labels. A label identifies the instruction to which an event belongs.
            Each label is a tuple of four numbers, each -1 if unknown. The first three numbers are
            indices into ``texts``: the instruction (``fusion.3``), its path in the program
            (``jit(step)/jvp(layer)/dot_general``), and its module (``jit_step``). The fourth number
            is the program id.
        lines: Thread id and name of each host line.
        devices: Names of the devices that have a plane, keyed by device number, or "" if unknown.
        accelerator: Kind of device, ``GPU`` or ``TPU``.
        on_host: Whether no device recorded work, so that instructions on host threads are used
            instead. Valid only after :meth:`finish` was called.
        n_impossible: Number of events that were dropped because of invalid times.
        n_impossible_work: Number of kernels, copies and instructions that were dropped because of
            invalid times.
        events_outside_capture: Number of events, excluding spans, that were dropped because they
            are far outside the capture.
        unknown_device_count: Number of host events with an invalid device number. Instructions that
            have an invalid device number were dropped.
    """

    def __init__(self) -> None:
        self.texts, self.labels = Numbering[str](), Numbering[tuple[int, ...]]()
        self.lines: list[tuple[int, str]] = []
        self.devices: dict[int, str] = {}
        self.accelerator, self.on_host = "GPU", False
        self.n_impossible = self.n_impossible_work = self.events_outside_capture = (
            self.unknown_device_count
        ) = 0
        self._events: dict[str, list[PlaneEvents]] = defaultdict(list)

    def add_device(self, plane: str, number: int, name: str) -> None:
        """Add a device that has a plane.

        Args:
            plane: The plane's name.
            number: Device number.
            name: Name of the device, or "" if unknown.
        """
        self.accelerator = "TPU" if plane.startswith("/device:TPU") else "GPU"
        self.devices[number] = name or self.devices.get(number, "")

    def add_line(self, number: int, name: str) -> int:
        """Add a host line, and return its row.

        Args:
            number: Thread id.
            name: Name of the thread.
        """
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
        """Add the events on a line. Events with invalid times are dropped and counted.

        - On instruction lines, the event name replaces a missing statistic ``op``.
        - Device events get the device number of the plane. Host events keep the statistic
          ``device``.
        - :meth:`_number_steps` numbers training steps.
        - :meth:`_add_host` assigns roles to host events.

        Args:
            role: The line's role, such as ``HOST``.
            plane: The plane's name.
            line: Row of a host line, number of a GPU stream, or -1 for any other line.
            times_ns: Start and end time of each event.
            name: For each event, the index of its name in ``texts``.
            stats: Event statistics, keyed by the names in ``STAT_COLUMNS``. Missing values
                are -1.
        """
        op, count = stats["op"], len(name)
        if role in (OPS, ASYNC):
            op = np.where(op == NONE, name, op)
        device = stats["device"]
        if role != HOST:
            device = np.full(count, get_device_number(plane), np.int64)
        label = self._number_labels(
            op, *(stats[column] for column in ("path", "module", "program"))
        )
        extra_columns = (stats[column] for column in ("run", "correlation", "step", "copy"))
        columns = (name, label, np.full(count, line, np.int64), device, *extra_columns)
        events = PlaneEvents(*times_ns, *columns)
        is_possible = mask_possible(*times_ns)
        if is_possible is not None:
            self.n_impossible += int((~is_possible).sum())
            if role in (STREAM, OPS, ASYNC):
                self.n_impossible_work += int((~is_possible).sum())
            events, op = events.take(is_possible), op[is_possible]
        if role == HOST:
            self._add_host(events, op != NONE)
            return
        self._append(role, self._number_steps(events) if role == STEPS else events)

    def _number_steps(self, events: PlaneEvents) -> PlaneEvents:
        """Fill in missing step numbers, and return the training steps whose number is known.

        If a step lacks the statistic ``step``, its name is used as its number. A step whose name is
        not a number is left out.
        """
        texts = self.texts.values
        used, of_row = np.unique(events.name, return_inverse=True)
        parsed_numbers = [int(t) if _NUMBER.match(t := texts[name]) else NONE for name in used]
        step_in_name = np.array(parsed_numbers, np.int64)[of_row.reshape(-1)]
        step = np.where(events.step != NONE, events.step, step_in_name)
        return replace(events, step=step).take(step != NONE)

    def _add_host(self, events: PlaneEvents, is_instruction: Bools) -> None:
        """Store the events on a host thread under their roles.

        An event can have several roles at the same time:

        - Span: has a duration and no correlation id. Only the name, line and times are kept.
        - Launch: has a correlation id.
        - Instruction: names an instruction and has a valid device number.
        - Training step: has a step number.

        Args:
            events: Events on the thread.
            is_instruction: Mask of the events that name an instruction.
        """
        # Launches become calls, not ranges.
        spans = events.take((events.end_ns > events.start_ns) & (events.correlation == NONE))
        unset = make_constant(NONE, len(spans))
        unused_columns = ("label", "device", "run", "correlation", "step", "copy")
        self._append(SPANS, spans.replace_columns(**dict.fromkeys(unused_columns, unset)))
        is_known_device = (events.device >= 0) & (events.device < _DEVICE_LIMIT)
        self.unknown_device_count += int((~is_known_device & (events.device != NONE)).sum())
        self._append(LAUNCHES, events.take(events.correlation != NONE))
        self._append(HOST_OPS, events.take(is_instruction & is_known_device))
        self._append(HOST_STEPS, events.take(events.step != NONE))

    def _append(self, role: str, events: PlaneEvents) -> None:
        """Store events under a role, in narrow integer types."""
        if len(events):
            columns = [getattr(events, name) for name in PlaneEvents.column_names()]
            narrow = [column.copy() for column in columns[:2]] + [
                _convert_to_narrow(c) for c in columns[2:]
            ]
            self._events[role].append(PlaneEvents(*narrow).compact())

    def _number_labels(self, *columns: Ints) -> Ints:
        """Combine four columns into labels, and return the label index of each event.

        New labels are added to ``labels``. The index is -1 for an event that names neither an
        instruction nor a module.

        Args:
            columns: The instruction, path and module of each event as indices into ``texts``,
                followed by the program id of each event. Missing values are -1.
        """
        label = np.full(len(columns[0]), NONE, np.int64)
        rows = np.flatnonzero((columns[0] != NONE) | (columns[2] != NONE))
        groups = group_rows(*(column[rows] for column in columns))
        first = rows[groups.first]
        label_values = zip(*(column[first].tolist() for column in columns), strict=True)
        label[rows] = self.labels.numbers(label_values)[groups.of_row]
        return label

    def get_events(self, *roles: str) -> PlaneEvents:
        """Return the events that have any of the given roles, sorted by line, device and start.

        The order does not depend on the order of the events in the file. Ties are broken as
        follows:

        1. Events without a duration come first.
        2. Longer events come before shorter ones, so that a loop comes before its body.
        3. Loops, conditionals and calls come before other instructions.
        4. Any remaining ties are broken by name, label, run, correlation id and step.
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
        """Return ``order`` with ties sorted as :meth:`get_events` describes.

        Events are tied if they have the same line, device and start.

        Args:
            events: Events to sort.
            order: Event rows, sorted by line, device and start.
            is_first: Mask of the entries of ``order`` that are not tied with the previous entry.
        """
        is_tied = ~is_first
        is_tied[:-1] |= is_tied[1:]
        positions = np.flatnonzero(is_tied)
        rows = order[positions]
        tied = events.take(rows)
        texts = self.texts.values
        outer_first = [(not text.startswith(_OUTER_PREFIXES), text) for text in texts]
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
        """Set ``on_host``, and drop all events except spans that are far outside the capture.

        This method must be called after all events have been added. ``on_host`` becomes True if
        there are neither events on GPU streams nor instructions on devices. The capture bounds are
        computed from all events except spans, by
        :func:`~bubbleviz.model.capture.find_capture_bounds`.
        """
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
        self.events_outside_capture = int(mask_outside(start_ns, end_ns, bounds_ns).sum())


def _rank_values(code: Codes, values: Sequence[Any]) -> Ints:
    """Renumber codes so that they sort like their values. Code -1 stays -1.

    The new code is the zero-based rank of the value among all values that occur.

    Args:
        code: For each row, the index of its value in ``values``, or -1.
        values: Values to sort.
    """
    code = code.astype(np.int64)
    used = find_distinct(code)
    by_value = sorted(used[used != NONE].tolist(), key=values.__getitem__)
    rank_of = {number: rank for rank, number in enumerate(by_value)}
    ranks = np.array([rank_of.get(number, NONE) for number in used.tolist()], np.int64)
    return ranks[find_positions(used, code)]


def _convert_to_narrow(codes: Codes) -> Codes:
    """Convert codes to the narrowest signed integer type that can represent them."""
    low, high = int(codes.min(initial=0)), int(codes.max(initial=0))
    return codes.astype(np.min_scalar_type(min(low, -1 - high)))
