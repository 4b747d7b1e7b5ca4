"""Planes of XLA's profiler: what its lines hold, and their events as columns.

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
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
import numpy.typing as npt

from bubbleviz.model.columns import NONE, Codes, Ints, Table, joined
from bubbleviz.model.grouping import groups_of
from bubbleviz.model.profile import possible

#: Where JAX and TensorBoard put profiles, below the directory that they are told.
FOLDER = "plugins/profile"
_DEVICE = re.compile(r"/device:(?:GPU|TPU):([0-9]{1,4})(?: \(.*\))?\Z", re.DOTALL)
_STREAM = re.compile(r"Stream #")
#: What a line of a device is; everything else there is derived from these.
_LINES = {"XLA Ops": "OPS", "Async XLA Ops": "ASYNC", "XLA Modules": "MODULES", "Steps": "STEPS"}
#: Copies and fills on a GPU's streams, by the names that XLA's profiler gives CUPTI's.
_COPY = re.compile(r"(?:Memcpy|Memset)")
#: A module's execution: ``jit_step(7)``.
_MODULE = re.compile(r"(.*?)(?:\(([0-9]{1,20})\))?\Z", re.DOTALL)
#: What stands in ``tf_op`` where it tells no path.
_NO_PATH = "XlaModule:"
_NUMBER = re.compile(r"[0-9]{1,18}\Z")
#: Planes of the host that hold no threads.
_NO_THREADS = frozenset(("/host:metadata",))


class Role(Enum):
    """What the events of a line are."""

    NOTHING = "derived, or unknown"
    STREAM = "kernels and copies of a GPU"
    OPS = "instructions, nested ones inside their loops"
    ASYNC = "transfers that run beside instructions"
    MODULES = "executions of modules"
    STEPS = "steps of the training"
    HOST = "what a thread of the host did"


def device_of(plane: str) -> int | None:
    """Return the number of a device's plane; None for others."""
    found = _DEVICE.match(plane)
    return None if found is None else int(found[1])


def roles_of(plane: str, lines: Sequence[str]) -> tuple[Role, ...]:
    """Return what each line of a plane holds.

    A GPU's own record are its streams; ``XLA Ops`` and ``XLA Modules`` of one are made from them,
    and would count everything twice.
    """
    if device_of(plane) is None:
        host = plane.startswith("/host:") and plane not in _NO_THREADS
        return (Role.HOST if host else Role.NOTHING,) * len(lines)
    streams = [_STREAM.match(line) is not None for line in lines]
    if any(streams):
        return tuple(Role.STREAM if stream else Role.NOTHING for stream in streams)
    return tuple(Role[_LINES.get(line, "NOTHING")] for line in lines)


class Texts:
    """Numbers distinct texts, from 0 in the order in which they come."""

    def __init__(self) -> None:
        self._number: dict[str, int] = {}

    def of(self, text: str) -> int:
        """Return the number of a text."""
        return self._number.setdefault(text, len(self._number))

    def all(self) -> tuple[str, ...]:
        """Return every text, by its number."""
        return tuple(self._number)

    def whole_numbers(self, texts: Ints) -> Ints:
        """Return texts as the numbers that they write; -1 for what is none."""
        known, of_text = np.unique(texts, return_inverse=True)
        written = self.all()
        found = [
            int(text) if _NUMBER.match(text) else NONE for text in map(written.__getitem__, known)
        ]
        return np.array(found, np.int64)[of_text.reshape(-1)]


@dataclass(frozen=True)
class Events(Table):
    """Events of one line, or a piece of them; texts by their number, -1 is "not said".

    Attributes:
        start_ns: start, in the profile's own time.
        end_ns: end.
        name: text.
        op: text, the instruction (``fusion.3``).
        path: text, where it stands in the program (``jit(step)/jvp(layer)/dot_general``).
        module: text, the module of the instruction (``jit_step``).
        program: number of the module's program.
        run: number of the module's execution.
        correlation: pairs a launch with what it launched.
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


#: The columns of facts that an event may state.
FACTS = ("op", "path", "module", "program", "run", "correlation", "device", "step")


@dataclass(frozen=True)
class Kept(Table):
    """Events of several lines, in fewer bits.

    Attributes:
        start_ns: start.
        end_ns: end.
        name: text.
        label: row of the labels: what instruction of what module it is; -1 none.
        line: row of the lines.
        device: number of its device; -1 none.
        run: number of the module's execution; -1 none.
        correlation: of a launch and what it launched; -1 none.
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


@dataclass(frozen=True)
class Spans(Table):
    """What threads of the host did: all that lasted, in the fewest bits."""

    start_ns: Ints
    end_ns: Ints
    name: Codes
    line: Codes


@dataclass(frozen=True)
class Label:
    """An instruction of a module; texts by their number, -1 is "not said"."""

    op: int
    path: int
    module: int
    program: int


@dataclass(frozen=True)
class HostLine:
    """A line of a host's plane: its number there, and its name."""

    number: int
    name: str


@dataclass(frozen=True)
class Planes:
    """All that a profile of XLA tells, in columns.

    Attributes:
        texts: distinct texts.
        labels: distinct instructions.
        streams: kernels and copies of GPUs.
        ops: instructions on devices, or (``on_host``) of threads of the host that stand for them.
        transfers: asynchronous ones.
        modules: executions of modules on devices.
        steps: steps on devices, and of the host.
        launches: events of the host that launched something.
        spans: what the host did.
        lines: threads of the host.
        devices: number and name of each device's plane.
        on_host: whether there is no device, so that instructions that the host ran are the work.
        impossible: how many events were left out for times that cannot be.
    """

    texts: tuple[str, ...]
    labels: tuple[Label, ...]
    streams: Kept
    ops: Kept
    transfers: Kept
    modules: Kept
    steps: Kept
    launches: Kept
    spans: Spans
    lines: tuple[HostLine, ...]
    devices: tuple[tuple[int, str], ...]
    on_host: bool
    impossible: int


class Collector:
    """Takes the events of lines, piece by piece, and keeps what counts of them."""

    def __init__(self) -> None:
        self.texts = Texts()
        self._labels: dict[tuple[int, ...], int] = {}
        self._kept: dict[str, list[Kept]] = {}
        self._spans: list[Spans] = []
        self._lines: list[HostLine] = []
        self._devices: dict[int, str] = {}
        self._impossible = 0

    def device(self, number: int, name: str) -> None:
        """Note that a device has a plane, and what it is called."""
        self._devices[number] = name or self._devices.get(number, "")

    def line(self, number: int, name: str) -> int:
        """Return the row of a further line of threads."""
        self._lines.append(HostLine(number, name))
        return len(self._lines) - 1

    def add(self, role: Role, plane: str, line: int, events: Events) -> None:
        """Take a piece of a line.

        Args:
            role: what the line holds.
            plane: name of its plane.
            line: row of the line, where it is a thread's.
            events: the piece.
        """
        sane = possible(events.start_ns, events.end_ns)
        if sane is not None:
            self._impossible += int((~sane).sum())
            events = events.take(sane)
        if len(events) == 0:
            return
        if role is Role.HOST:
            self._add_host(line, events)
        elif role is not Role.NOTHING:
            if role in (Role.OPS, Role.ASYNC):
                events = replace(events, op=np.where(events.op == NONE, events.name, events.op))
            if role is Role.STEPS:
                told = events.step != NONE
                step = np.where(told, events.step, self.texts.whole_numbers(events.name))
                events = replace(events, step=step).take(step != NONE)
            device = np.full(len(events), device_of(plane), np.int64)
            self._keep(role.name, events, line, device)

    def _add_host(self, line: int, events: Events) -> None:
        # Launches are calls, which are told apart from what threads did.
        lasts = (events.end_ns > events.start_ns) & (events.correlation == NONE)
        did = events.take(lasts)
        row = _narrow(np.full(len(did), line, np.int64))
        self._spans.append(Spans(did.start_ns, did.end_ns, _narrow(did.name), row))
        for key, chosen in (
            ("launches", events.correlation != NONE),
            ("host ops", (events.op != NONE) & (events.device != NONE)),
            ("host steps", events.step != NONE),
        ):
            if chosen.any():
                some = events.take(chosen)
                self._keep(key, some, line, some.device)

    def _keep(self, key: str, events: Events, line: int, device: Ints) -> None:
        kept = Kept(
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
        self._kept.setdefault(key, []).append(kept)

    def _labelled(self, events: Events) -> Ints:
        """Return the number of each event's label; -1 where it names no instruction."""
        label = np.full(len(events), NONE, np.int64)
        told = np.flatnonzero((events.op != NONE) | (events.module != NONE))
        columns = [getattr(events, name)[told] for name in ("op", "path", "module", "program")]
        groups = groups_of(*columns)
        rows = zip(*(column[groups.first].tolist() for column in columns), strict=True)
        numbers = [self._labels.setdefault(row, len(self._labels)) for row in rows]
        label[told] = np.array(numbers, np.int64)[groups.of_row]
        return label

    def done(self) -> Planes:
        """Return what was kept."""
        on_host = not any(self._kept.get(role.name) for role in (Role.STREAM, Role.OPS))
        steps = [*self._kept.pop(Role.STEPS.name, []), *self._kept.pop("host steps", [])]
        spans, self._spans = self._spans, []
        return Planes(
            texts=self.texts.all(),
            labels=tuple(Label(*row) for row in self._labels),
            streams=self._all(Role.STREAM.name),
            ops=self._all("host ops" if on_host else Role.OPS.name),
            transfers=self._all(Role.ASYNC.name),
            modules=self._all(Role.MODULES.name),
            steps=joined([_no_kept(), *steps]),
            launches=self._all("launches"),
            spans=joined([_no_spans(), *spans]),
            lines=tuple(self._lines),
            devices=tuple(sorted(self._devices.items())),
            on_host=on_host,
            impossible=self._impossible,
        )

    def _all(self, key: str) -> Kept:
        return joined([_no_kept(), *self._kept.pop(key, [])])


def _narrow(codes: Ints) -> Codes:
    """Return identifiers in as few bits as they need: what is said of no event takes a byte."""
    low, high = int(codes.min(initial=0)), int(codes.max(initial=0))
    return codes.astype(np.min_scalar_type(min(low, -1 - high)))


def _no_kept() -> Kept:
    time_ns, code = np.empty(0, np.int64), np.empty(0, np.int8)
    return Kept(time_ns, time_ns, *[code] * 7)


def _no_spans() -> Spans:
    time_ns, code = np.empty(0, np.int64), np.empty(0, np.int8)
    return Spans(time_ns, time_ns, code, code)


def copies(names: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Tell which names are of copies and fills on a GPU's streams."""
    return np.array([_COPY.match(name) is not None for name in names], bool)


def module_of(name: str) -> tuple[str, str | None]:
    """Return the module and the number of its program in the name of an execution."""
    found = _MODULE.match(name)
    return (name, None) if found is None else (found[1], found[2])


def path_of(tf_op: str) -> str:
    """Return where an instruction stands, of a ``tf_op``; "" where that tells it not.

    Behind the path TensorFlow's kind of operation may stand: ``jit(step)/dot_general:``.
    """
    return "" if tf_op == _NO_PATH else tf_op.rpartition(":")[0] or tf_op


def leaves(events: Kept) -> Ints:
    """Return the rows that hold no other of their line and device, in order of time.

    ::

        ├─while.2──────────┤      no leaf: what it runs is counted by itself
         ├─dot.3─┤├─add.4─┤       leaves

    What takes no time makes nothing a parent.
    """
    order = np.lexsort((-events.end_ns, events.start_ns, events.device, events.line))
    lasting = order[events.end_ns[order] > events.start_ns[order]]
    one, following = lasting[:-1], lasting[1:]
    same = (events.line[one] == events.line[following]) & (
        events.device[one] == events.device[following]
    )
    holds = same & (events.start_ns[following] < events.end_ns[one])
    holds &= events.end_ns[following] <= events.end_ns[one]
    leaf = np.ones(len(events), bool)
    leaf[one[holds]] = False
    rows: Ints = np.flatnonzero(leaf)
    return rows[np.argsort(events.start_ns[rows], kind="stable")]
