"""The work of devices in XLA's planes: activities, their calls, and the ranges that name them.

Where launches are recorded (GPUs: a host's event with the correlation id of a kernel), the range of
an instruction is its launching call, on the thread of that::

    host      ├─launch─┤ ├─launch─┤        Thunk:#name=.../jvp(a)/dot,hlo_op=fusion.1#, twice
    device              ███ fusion.1 ███ fusion.1

Elsewhere (TPUs, and CPUs that stand for devices) instructions lie on a thread of their own for
each device, in the device's time, and launch themselves; such launches are not a host's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from bubbleviz.conventions.kinds import default_kinds, matching
from bubbleviz.model.columns import NONE, Bools, Codes, Ints, joined
from bubbleviz.model.grouping import Numbering, distinct, found_in, groups_of
from bubbleviz.model.intervals import Innermost
from bubbleviz.model.profile import Activities, Calls, Ranges, correlations
from bubbleviz.model.values import frozen
from bubbleviz.sources.in_memory import InMemoryCalls
from bubbleviz.sources.xla.names import are_copies, module_of
from bubbleviz.sources.xla.planes import Label, PlaneEvents, Planes
from bubbleviz.sources.xla.threads import PlaneThreads

# Names of the ranges of instructions, modules and steps, as XLA gives them in nsys.
#
# They are those of :mod:`bubbleviz.analyses.pgle.range_names`, so that one convention reads both.


class RangeNames:
    """Numbers names of ranges: first the texts of the file, then names made of them."""

    def __init__(self, texts: Sequence[str]) -> None:
        """Take the texts of the file, which are distinct."""
        self._texts = texts
        self._numbering = Numbering(texts)
        self._of_module: dict[str, set[int]] = defaultdict(set)

    @property
    def all(self) -> tuple[str, ...]:
        """All names, by number."""
        return self._numbering.values

    def text(self, number: int) -> str:
        """Return a text of the file; "" for none."""
        return "" if number == NONE else self._texts[number]

    def thunks(self, labels: Sequence[Label]) -> Ints:
        """Return the names of the ranges of instructions; -1 for other labels, and at the end."""
        return np.array([*map(self._thunk, labels), NONE], np.int64)

    def _thunk(self, label: Label) -> int:
        if label.op == NONE:
            return NONE
        path = self.text(label.path)
        before = f"name={path}," if path else ""
        return self._numbering.number(f"Thunk:#{before}hlo_op={self.text(label.op)}#")

    def modules(self, labels: Sequence[Label]) -> Ints:
        """Return the names of the modules of instructions; -1 for none, and at the end."""
        numbers = [
            NONE if label.module == NONE else self.module(self.text(label.module), label.program)
            for label in labels
        ]
        return np.array([*numbers, NONE], np.int64)

    def module(self, module: str, program: int | str | None) -> int:
        """Return the name of the executions of a module."""
        suffix = "" if program in (None, NONE) else f",program_id={program}"
        number = self._numbering.number(f"XlaModule:#hlo_module={module}{suffix}#")
        self._of_module[module].add(number)
        return number

    def of_module(self, module: str) -> tuple[int, ...]:
        """Return the names of a module's executions, whatever its program."""
        return tuple(sorted(self._of_module.get(module, ())))

    def step(self, name: int, step: int, *, on_device: bool) -> int:
        """Return the name of a step, from the name of its event."""
        text = "Steps" if on_device else self.text(name)
        return self._numbering.number(f"{text}#step_num={step}#")


# Ranges of instructions, executions of modules, and steps.


def ranges_of(start_ns: Ints, end_ns: Ints, thread: Ints, name_id: Ints) -> Ranges:
    """Return ranges, without those that have no name (-1)."""
    if (name_id == NONE).any():
        rows = name_id != NONE
        start_ns, end_ns, thread, name_id = (c[rows] for c in (start_ns, end_ns, thread, name_id))
    none = np.zeros(len(name_id), bool)
    return Ranges(
        start_ns=start_ns,
        end_ns=end_ns,
        thread=thread,
        end_thread=np.full(len(none), NONE, np.int64),
        start_end=none,
        cut=none,
        name_id=name_id,
        names=(),
    )


def step_ranges(planes: Planes, threads: PlaneThreads, names: RangeNames) -> Ranges:
    """Return the ranges of steps, on devices and of the host."""
    steps = planes.steps
    on_device = steps.device != NONE
    thread = np.empty(len(steps), np.int64)
    thread[on_device] = threads.of_devices(steps.device[on_device])
    thread[~on_device] = threads.of_line[steps.line[~on_device]]
    groups = groups_of(
        steps.name.astype(np.int64), steps.step.astype(np.int64), on_device.astype(np.int64)
    )
    columns = (column[groups.first].tolist() for column in (steps.name, steps.step, on_device))
    numbers = [
        names.step(name, step, on_device=device)
        for name, step, device in zip(*columns, strict=True)
    ]
    name_id = np.array([*numbers, NONE], np.int64)[groups.of_row]
    return ranges_of(steps.start_ns, steps.end_ns, thread, name_id)


def module_ranges(
    planes: Planes, threads: PlaneThreads, names: RangeNames, events: PlaneEvents, thread: Ints
) -> Ranges:
    """Return the executions of modules: as devices record them, else by their instructions.

    Args:
        planes: of the profile.
        threads: of the planes.
        names: of ranges; extended.
        events: instructions.
        thread: that the range of each lies on.
    """
    recorded = planes.modules
    if len(recorded):
        used, number = np.unique(recorded.name, return_inverse=True)
        numbers = [names.module(*module_of(planes.texts[name])) for name in used.tolist()]
        name_id = np.array(numbers, np.int64)[number.reshape(-1)]
        thread = threads.of_devices(recorded.device)
        return ranges_of(recorded.start_ns, recorded.end_ns, thread, name_id)
    module = names.modules(planes.labels)[events.label]
    rows = np.flatnonzero(module != NONE)
    rows = rows[np.lexsort((events.start_ns[rows], events.device[rows], thread[rows]))]
    numbered = rows[events.run[rows] != NONE]
    # A few at the edges may lie outside of the recorded executions.
    if 2 * len(numbered) > len(rows):
        rows = numbered
        run = groups_of(
            thread[rows],
            events.device[rows].astype(np.int64),
            events.run[rows].astype(np.int64),
            module[rows],
        ).of_row
    else:
        run = _runs(thread[rows], events.device[rows], module[rows], events.label[rows])
    count = int(run.max(initial=NONE)) + 1
    start_ns = np.full(count, np.iinfo(np.int64).max)
    end_ns = np.full(count, np.iinfo(np.int64).min)
    np.minimum.at(start_ns, run, events.start_ns[rows])
    np.maximum.at(end_ns, run, events.end_ns[rows])
    first = np.unique(run, return_index=True)[1]
    return ranges_of(start_ns, end_ns, thread[rows[first]], module[rows[first]])


def _runs(thread: Ints, device: Codes, module: Ints, label: Codes) -> Ints:
    """Return the execution of its module that each launch belongs to; rows in order of time.

    Another begins where another module does, or where the instruction that began the last one
    comes again::

        modules       a  a  a  a  a  a  b  b  a  a
        instructions  x  y  z  x  y  z  p  q  x  y
        executions    0  0  0  1  1  1  2  2  3  3
    """
    fresh = np.ones(len(label), bool)
    for column in (thread, device, module):
        fresh[1:] &= column[1:] == column[:-1]
    fresh[:1] = False
    fresh = ~fresh
    begun = np.maximum.accumulate(np.where(fresh, np.arange(len(label)), 0))
    # An instruction may be several kernels one after the other.
    again = label == label[begun]
    again[1:] &= label[1:] != label[:-1]
    return np.cumsum(fresh | again) - 1


#: Ends the name of a host's event that is a module's execution: ``jit_step:XLA GPU module``.
_OF_HOST = ":XLA GPU module"


@frozen
class XlaWork:
    """The work of devices, and the calls and ranges that show its instructions.

    Attributes:
        activities: kernels, then copies.
        calls: that launched them.
        ranges: of instructions, modules and steps; names by number.
        instructions: how many of these are of instructions and modules.
        launched: whether the calls are a host's own.
    """

    activities: Activities
    calls: InMemoryCalls
    ranges: Ranges
    instructions: int
    launched: bool


def work_of(planes: Planes, threads: PlaneThreads, names: RangeNames) -> XlaWork:
    """Return the work of devices.

    Args:
        planes: of the profile.
        threads: of the planes.
        names: of ranges; extended.
    """
    work, beside, kernels = _ordered(planes)
    launches = _launches_of(planes, work)
    if launches is None:
        return _self_launched(planes, threads, names, work, beside, kernels)
    return _host_launched(planes, threads, names, work, kernels, launches)


def _ordered(planes: Planes) -> tuple[PlaneEvents, Bools, int]:
    """Return kernels, then copies; which run beside instructions; and the number of kernels."""
    leaf = planes.ops.take(leaves(planes.ops))
    tables = [table for table in (planes.streams, leaf, planes.transfers) if len(table)]
    work = joined(tables) if len(tables) > 1 else [*tables, planes.streams][0]
    # Work beside instructions that moves nothing between devices is a copy.
    beside, copied = np.zeros(len(work), bool), np.zeros(len(work), bool)
    beside[len(work) - len(planes.transfers) :] = True
    streams = slice(0, len(planes.streams))
    copied[streams] = are_copies(planes.texts)[work.name[streams]]
    copied[beside] = ~matching(planes.texts, default_kinds().communication)[work.name[beside]]
    if not copied.any():
        return work, beside, len(work)
    order = np.argsort(copied, kind="stable")
    return work.take(order), beside[order], int((~copied).sum())


def leaves(events: PlaneEvents) -> Ints:
    """Return the rows that hold no other of their line and device, in order of time.

    ::

        ├─while.2──────────┤      no leaf: the instructions in it count by themselves
         ├─dot.3─┤├─add.4─┤       leaves

    An event of no length makes nothing a parent.
    """
    order = np.lexsort((-events.end_ns, events.start_ns, events.device, events.line))
    lasting = order[events.end_ns[order] > events.start_ns[order]]
    before, after = lasting[:-1], lasting[1:]
    same = (events.line[before] == events.line[after]) & (
        events.device[before] == events.device[after]
    )
    holds = same & (events.start_ns[after] < events.end_ns[before])
    holds &= events.end_ns[after] <= events.end_ns[before]
    leaf = np.ones(len(events), bool)
    leaf[before[holds]] = False
    rows: Ints = np.flatnonzero(leaf)
    return rows[np.argsort(events.start_ns[rows], kind="stable")]


def _launches_of(planes: Planes, work: PlaneEvents) -> PlaneEvents | None:
    """Return one launch of the host a correlation id; None where they are not those of the work.

    Several events may share an id (one call as two interfaces): the first one launched.
    """
    launches = planes.launches
    launches = launches.take(np.argsort(launches.start_ns, kind="stable"))
    launches = launches.take(np.sort(np.unique(launches.correlation, return_index=True)[1]))
    known = np.isin(work.correlation, launches.correlation) & (work.correlation != NONE)
    return launches if len(work) and 2 * int(known.sum()) >= len(work) else None


def _self_launched(
    planes: Planes,
    threads: PlaneThreads,
    names: RangeNames,
    work: PlaneEvents,
    beside: Bools,
    kernels: int,
) -> XlaWork:
    """Return work that launches itself, on the thread that stands for its device."""
    row = np.arange(len(work))
    # A transfer is launched by the instruction that it begins in.
    calls = Calls(
        row=row.copy(),
        start_ns=work.start_ns,
        end_ns=np.where(beside, work.start_ns, work.end_ns),
        thread=threads.of_devices(work.device),
        correlation_id=correlations(row),
    )
    instructions = joined([planes.streams, planes.ops])
    thread = threads.of_devices(instructions.device)
    thunks = ranges_of(
        instructions.start_ns,
        instructions.end_ns,
        thread,
        names.thunks(planes.labels)[instructions.label],
    )
    modules = module_ranges(planes, threads, names, instructions, thread)
    return XlaWork(
        activities=_activities(planes, threads.process, work, kernels, row, beside),
        calls=InMemoryCalls(calls, np.zeros(len(work), np.int32), ("",)),
        ranges=joined([thunks, modules, step_ranges(planes, threads, names)]),
        instructions=len(thunks) + len(modules),
        launched=False,
    )


def _host_launched(
    planes: Planes,
    threads: PlaneThreads,
    names: RangeNames,
    work: PlaneEvents,
    kernels: int,
    launches: PlaneEvents,
) -> XlaWork:
    """Return work that the host launched."""
    thread = threads.of_line[launches.line]
    calls = Calls(
        row=np.arange(len(launches)),
        start_ns=launches.start_ns,
        end_ns=launches.end_ns,
        thread=thread,
        correlation_id=correlations(launches.correlation.astype(np.int64)),
    )
    used, call_name = _renumbered(launches.name)
    call_names = tuple(planes.texts[number] for number in used.tolist())
    # The work that a call launched names its instruction better than the call does.
    ids, first = np.unique(work.correlation, return_index=True)
    at = found_in(ids, launches.correlation)
    hit = at != NONE
    label = np.where(hit, work.label[first[at]], launches.label)
    device = np.where(hit, work.device[first[at]], NONE)
    run = _executions(planes, launches, names.modules(planes.labels)[label], names)
    instructions = replace(launches, label=label, device=device, run=run)
    name_id = np.where(hit, names.thunks(planes.labels)[label], NONE)
    thunks = ranges_of(launches.start_ns, launches.end_ns, thread, name_id)
    named = np.flatnonzero(name_id != NONE)
    modules = module_ranges(planes, threads, names, instructions.take(named), thread[named])
    return XlaWork(
        activities=_activities(planes, threads.process, work, kernels, work.correlation),
        calls=InMemoryCalls(calls, call_name, call_names),
        ranges=joined([thunks, modules, step_ranges(planes, threads, names)]),
        instructions=len(thunks) + len(modules),
        launched=True,
    )


def _executions(planes: Planes, launches: PlaneEvents, module: Ints, names: RangeNames) -> Ints:
    """Return the execution of a module that the host records around each launch; -1 none.

    It may be on another thread than the launches are. Where executions of one module overlap
    (a thread for each device), only those of the launch's own thread are looked at.
    """
    spans, execution = planes.spans, np.full(len(launches), NONE, np.int64)
    of_host = np.array([text.endswith(_OF_HOST) for text in planes.texts], bool)
    rows = np.flatnonzero(of_host[spans.name])
    for number in distinct(spans.name[rows]).tolist():
        text = names.text(number).removesuffix(_OF_HOST)
        inside = np.flatnonzero(np.isin(module, names.of_module(text)))
        around = rows[spans.name[rows] == number]
        around = around[np.argsort(spans.start_ns[around], kind="stable")]
        if (spans.start_ns[around[1:]] >= spans.end_ns[around[:-1]]).all():
            groups = [(around, inside)]
        else:
            groups = [
                (around[spans.line[around] == line], inside[launches.line[inside] == line])
                for line in distinct(spans.line[around]).tolist()
            ]
        for outer, inner in groups:
            innermost = Innermost.of(spans.start_ns[outer], spans.end_ns[outer])
            at = innermost.around(launches.start_ns[inner], launches.start_ns[inner])
            execution[inner] = np.where(at >= 0, outer[at], NONE)
    return execution


def _activities(
    planes: Planes,
    process: int,
    work: PlaneEvents,
    kernels: int,
    correlation: Codes,
    beside: Bools | None = None,
) -> Activities:
    """Return work as activities; of copies those have a name that ran beside instructions."""
    named = np.arange(len(work)) < kernels
    if beside is not None:
        named |= beside
    devices, rank = _renumbered(work.device)
    name_id = np.full(len(work), NONE, np.int32)
    used, name_id[named] = _renumbered(work.name[named])
    return Activities(
        start_ns=work.start_ns,
        end_ns=work.end_ns,
        rank=rank.astype(np.int16),
        correlation_id=correlations(correlation.astype(np.int64)),
        name_id=name_id,
        kernels=kernels,
        names=tuple(planes.texts[number] for number in used.tolist()),
        ranks=np.stack((np.full(len(devices), process, np.int64), devices), axis=1),
    )


def _renumbered(codes: Codes) -> tuple[Ints, npt.NDArray[np.int32]]:
    """Return the codes that occur (none is -1), ascending, and the number of each row's."""
    used = np.flatnonzero(np.bincount(codes))
    number = np.zeros(int(used.max(initial=NONE)) + 1, np.int32)
    number[used] = np.arange(len(used))
    return used, number[codes]
