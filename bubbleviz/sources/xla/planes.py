"""Planes of XLA's profiler as tables, whichever format they come from."""

from __future__ import annotations

from bubbleviz.model.columns import Codes, Ints, Table
from bubbleviz.model.values import frozen


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
class Label:
    """An instruction of a module; texts by number, -1 is none."""

    op: int
    path: int
    module: int
    program: int


@frozen
class HostLine:
    """A line of a host's plane: its number there, and its name."""

    number: int
    name: str


@frozen
class Planes:
    """All of a profile of XLA, in columns.

    Attributes:
        texts: distinct texts.
        labels: distinct instructions.
        streams: kernels and copies of GPUs.
        ops: instructions on devices, or (``on_host``) of threads of the host that stand for them.
        transfers: asynchronous ones.
        modules: executions of modules on devices.
        steps: steps on devices, and of the host.
        launches: events of the host that launched something.
        spans: events of the host's threads.
        lines: threads of the host.
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
    labels: tuple[Label, ...]
    streams: PlaneEvents
    ops: PlaneEvents
    transfers: PlaneEvents
    modules: PlaneEvents
    steps: PlaneEvents
    launches: PlaneEvents
    spans: HostSpans
    lines: tuple[HostLine, ...]
    devices: tuple[tuple[int, str], ...]
    accelerator: str
    on_host: bool
    impossible: int
    outside: int
    strange_devices: int
