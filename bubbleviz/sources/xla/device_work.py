"""What ran on devices, of XLA's planes: activities, their calls, and the ranges that name them.

Ranges take the names that XLA gives them in nsys (:mod:`bubbleviz.analyses.pgle.thunks`), so that
the same convention reads both. Where launches are told (GPUs: a host's event with the correlation
id of a kernel), an instruction's range is its launching call, on the thread of that::

    host      ├─launch─┤ ├─launch─┤        Thunk:#name=.../jvp(a)/dot,hlo_op=fusion.1#, twice
    device              ███ fusion.1 ███ fusion.1

Elsewhere (TPUs, and CPUs that stand for devices) instructions lie on a thread of their own for
each device, in the device's time, and launch themselves; such launches say nothing of the host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from bubbleviz.conventions.kinds import default_kinds, matching
from bubbleviz.model.columns import NONE, Bools, Codes, Ints, joined
from bubbleviz.model.containment import Innermost
from bubbleviz.model.grouping import found_in, groups_of
from bubbleviz.model.profile import Activities, Calls, Ranges, correlations
from bubbleviz.sources.in_memory import InMemoryCalls
from bubbleviz.sources.xla.planes import Kept, Label, Planes, copies, leaves, module_of

#: How a host's event is called that is a module's execution: ``jit_step:XLA GPU module``.
_OF_HOST = ":XLA GPU module"


@dataclass(frozen=True)
class Work:
    """What ran on devices, and the calls and ranges that tell of which instruction it was.

    Attributes:
        activities: kernels, then copies.
        calls: what launched them.
        named: ranges of instructions, modules and steps; names by number.
        instructions: how many of these are of instructions and modules.
        launched: whether the calls are a host's own.
    """

    activities: Activities
    calls: InMemoryCalls
    named: Ranges
    instructions: int
    launched: bool


class Names:
    """Names of ranges, by number: the texts of the file, and those put together."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts
        self._number = {text: number for number, text in enumerate(texts)}
        self._modules: dict[str, set[int]] = {}

    def of(self, name: str) -> int:
        """Return the number of a name."""
        return self._number.setdefault(name, len(self._number))

    def text(self, number: int) -> str:
        """Return a text of the file; "" for none."""
        return "" if number == NONE else self._texts[number]

    def all(self) -> tuple[str, ...]:
        """Return all names."""
        return tuple(self._number)

    def thunks(self, labels: Sequence[Label]) -> Ints:
        """Return the names of the ranges of instructions; -1 for what is none."""
        return np.array([self._thunk(label) for label in labels] + [NONE], np.int64)

    def _thunk(self, label: Label) -> int:
        if label.op == NONE:
            return NONE
        path = self.text(label.path)
        before = f"name={path}," if path else ""
        return self.of(f"Thunk:#{before}hlo_op={self.text(label.op)}#")

    def modules_called(self, module: str) -> tuple[int, ...]:
        """Return the names of the ranges of a module's executions, whatever its program."""
        return tuple(sorted(self._modules.get(module, ())))

    def modules(self, labels: Sequence[Label]) -> Ints:
        """Return the names of the ranges of the modules of instructions; -1 for none."""
        named = [
            NONE if label.module == NONE else self.module(self.text(label.module), label.program)
            for label in labels
        ]
        return np.array([*named, NONE], np.int64)

    def module(self, module: str, program: int | str | None) -> int:
        """Return the name of the range of a module's execution."""
        number = "" if program in (None, NONE) else f",program_id={program}"
        name = self.of(f"XlaModule:#hlo_module={module}{number}#")
        self._modules.setdefault(module, set()).add(name)
        return name


@dataclass(frozen=True)
class Placed:
    """Planes, and the threads that their lines and devices are.

    Attributes:
        host_thread: thread of each line.
        device_thread: thread that stands for each device.
    """

    planes: Planes
    process: int
    host_thread: Ints
    device_thread: Mapping[int, int]

    def threads(self, device: Codes) -> Ints:
        """Return the threads that stand for some devices."""
        numbers = np.array(list(self.device_thread), np.int64)
        threads = np.array(list(self.device_thread.values()), np.int64)
        at = np.searchsorted(numbers, device)
        return np.asarray(threads[at], np.int64)


def devices_of(planes: Planes) -> Ints:
    """Return the numbers of all devices that did something, ascending."""
    kinds = (planes.streams, planes.ops, planes.transfers, planes.modules, planes.steps)
    found: Ints = np.unique(np.concatenate([kept.device for kept in kinds])).astype(np.int64)
    known: Ints = found[found != NONE]
    return known


def work_of(placed: Placed, names: Names) -> Work:
    """Return what ran; names that are put together are added to ``names``."""
    ran, beside, kernels = _ran(placed.planes)
    launches = _launches_of(placed.planes, ran)
    if launches is None:
        return _self_launched(placed, names, ran, beside, kernels)
    return _launched(placed, names, ran, kernels, launches)


def _ran(planes: Planes) -> tuple[Kept, Bools, int]:
    """Return kernels, then copies; which of them run beside instructions; how many are kernels."""
    leaf = planes.ops.take(leaves(planes.ops))
    some = [kept for kept in (planes.streams, leaf, planes.transfers) if len(kept)]
    ran = joined(some) if len(some) > 1 else [*some, planes.streams][0]
    # What runs beside instructions, and moves nothing between devices, is a copy.
    beside, copied = np.zeros(len(ran), bool), np.zeros(len(ran), bool)
    beside[len(ran) - len(planes.transfers) :] = True
    streams = slice(0, len(planes.streams))
    copied[streams] = copies(planes.texts)[ran.name[streams]]
    copied[beside] = ~matching(planes.texts, default_kinds().communication)[ran.name[beside]]
    if not copied.any():
        return ran, beside, len(ran)
    order = np.argsort(copied, kind="stable")
    return ran.take(order), beside[order], int((~copied).sum())


def _renumbered(codes: Codes) -> tuple[Ints, npt.NDArray[np.int32]]:
    """Return the codes that occur (none is -1), ascending, and the number of each row's."""
    used = np.flatnonzero(np.bincount(codes))
    number = np.zeros(int(used.max(initial=NONE)) + 1, np.int32)
    number[used] = np.arange(len(used))
    return used, number[codes]


def _activities(placed: Placed, ran: Kept, kernels: int, correlation: Codes) -> Activities:
    numbers, rank = _renumbered(ran.device)
    used, name_id = _renumbered(ran.name[:kernels])
    none = np.full(len(ran) - kernels, NONE, np.int32)
    return Activities(
        start_ns=ran.start_ns,
        end_ns=ran.end_ns,
        rank=rank.astype(np.int16),
        correlation_id=correlations(correlation.astype(np.int64)),
        name_id=np.concatenate((name_id, none)),
        kernels=kernels,
        names=tuple(placed.planes.texts[number] for number in used.tolist()),
        ranks=np.stack((np.full(len(numbers), placed.process, np.int64), numbers), axis=1),
    )


def _launches_of(planes: Planes, ran: Kept) -> Kept | None:
    """Return the host's launches, one a correlation id; None where they are not those of the work.

    Several events may share an id (one call as two interfaces): the first one launched.
    """
    launches = planes.launches
    launches = launches.take(np.argsort(launches.start_ns, kind="stable"))
    launches = launches.take(np.sort(np.unique(launches.correlation, return_index=True)[1]))
    known = np.isin(ran.correlation, launches.correlation) & (ran.correlation != NONE)
    return launches if len(ran) and 2 * int(known.sum()) >= len(ran) else None


def _self_launched(placed: Placed, names: Names, ran: Kept, beside: Bools, kernels: int) -> Work:
    """Return work that launches itself, on the thread that stands for its device."""
    planes, own = placed.planes, np.arange(len(ran))
    # A transfer is launched by the instruction that it begins in.
    calls = Calls(
        row=own.copy(),
        start_ns=ran.start_ns,
        end_ns=np.where(beside, ran.start_ns, ran.end_ns),
        thread=placed.threads(ran.device),
        correlation_id=correlations(own),
    )
    instructions = joined([planes.streams, planes.ops])
    thunks = ranges_of(
        instructions.start_ns,
        instructions.end_ns,
        placed.threads(instructions.device),
        names.thunks(planes.labels)[instructions.label],
    )
    modules = _modules(placed, names, instructions, placed.threads(instructions.device))
    return Work(
        activities=_activities(placed, ran, kernels, own),
        calls=InMemoryCalls(calls, np.zeros(len(ran), np.int32), ("",)),
        named=joined([thunks, modules, marks_of(placed, names)]),
        instructions=len(thunks) + len(modules),
        launched=False,
    )


def _launched(placed: Placed, names: Names, ran: Kept, kernels: int, launches: Kept) -> Work:
    """Return work that the host launched."""
    planes = placed.planes
    thread = placed.host_thread[launches.line]
    calls = Calls(
        row=np.arange(len(launches)),
        start_ns=launches.start_ns,
        end_ns=launches.end_ns,
        thread=thread,
        correlation_id=correlations(launches.correlation.astype(np.int64)),
    )
    used, call_name = _renumbered(launches.name)
    texts = tuple(planes.texts[number] for number in used.tolist())
    # What a call launched says which instruction it was, better than the call itself.
    ids, first = np.unique(ran.correlation, return_index=True)
    at = found_in(ids, launches.correlation)
    hit = at != NONE
    label = np.where(hit, ran.label[first[at]], launches.label)
    device = np.where(hit, ran.device[first[at]], NONE)
    called = replace(
        launches,
        label=label,
        device=device,
        run=_executions(planes, launches, names.modules(planes.labels)[label], names),
    )
    name_id = np.where(hit, names.thunks(planes.labels)[label], NONE)
    thunks = ranges_of(called.start_ns, called.end_ns, thread, name_id)
    named = np.flatnonzero(name_id != NONE)
    modules = _modules(placed, names, called.take(named), thread[named])
    return Work(
        activities=_activities(placed, ran, kernels, ran.correlation),
        calls=InMemoryCalls(calls, call_name, texts),
        named=joined([thunks, modules, marks_of(placed, names)]),
        instructions=len(thunks) + len(modules),
        launched=True,
    )


def _executions(planes: Planes, launches: Kept, module: Ints, names: Names) -> Ints:
    """Return the execution of a module that the host tells around each launch; -1 none.

    It may be told on another thread than the launches are. Where executions of one module overlap
    (a thread for each device), only those of the launch's own thread are looked at.
    """
    spans, found = planes.spans, np.full(len(launches), NONE, np.int64)
    told = np.array([text.endswith(_OF_HOST) for text in planes.texts], bool)
    rows = np.flatnonzero(told[spans.name])
    for number in np.unique(spans.name[rows]).tolist():
        text = names.text(number).removesuffix(_OF_HOST)
        mine = np.flatnonzero(np.isin(module, names.modules_called(text)))
        own = rows[spans.name[rows] == number]
        own = own[np.argsort(spans.start_ns[own], kind="stable")]
        if (spans.start_ns[own[1:]] >= spans.end_ns[own[:-1]]).all():
            groups = [(own, mine)]
        else:
            lines = np.unique(spans.line[own]).tolist()
            groups = [
                (own[spans.line[own] == line], mine[launches.line[mine] == line]) for line in lines
            ]
        for around, asked in groups:
            inner = Innermost.of(spans.start_ns[around], spans.end_ns[around])
            at = inner.around(launches.start_ns[asked], launches.start_ns[asked])
            found[asked] = np.where(at >= 0, around[at], NONE)
    return found


def _modules(placed: Placed, names: Names, events: Kept, thread: Ints) -> Ranges:
    """Return the executions of modules: as devices tell them, else by what ran.

    Args:
        placed: threads.
        names: names of ranges.
        events: of instructions.
        thread: that the range of each lies on.
    """
    planes, told = placed.planes, placed.planes.modules
    if len(told):
        found = [names.module(*module_of(text)) for text in _distinct(planes.texts, told)]
        number = np.unique(told.name, return_inverse=True)[1].reshape(-1)
        name_id = np.array(found, np.int64)[number]
        return ranges_of(told.start_ns, told.end_ns, placed.threads(told.device), name_id)
    module = names.modules(planes.labels)[events.label]
    rows = np.flatnonzero(module != NONE)
    rows = rows[np.lexsort((events.start_ns[rows], events.device[rows], thread[rows]))]
    numbered = rows[events.run[rows] != NONE]
    # A few at the edges may lie outside what is told.
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


def _distinct(texts: Sequence[str], events: Kept) -> list[str]:
    return [texts[number] for number in np.unique(events.name).tolist()]


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


def ranges_of(start_ns: Ints, end_ns: Ints, thread: Ints, name_id: Ints) -> Ranges:
    """Return ranges of some names; those without one (-1) are left out."""
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


def marks_of(placed: Placed, names: Names) -> Ranges:
    """Return the ranges of steps, on devices and of the host."""
    steps = placed.planes.steps
    on_device = steps.device != NONE
    thread = np.empty(len(steps), np.int64)
    thread[on_device] = placed.threads(steps.device[on_device])
    thread[~on_device] = placed.host_thread[steps.line[~on_device]]
    told = groups_of(
        steps.name.astype(np.int64), steps.step.astype(np.int64), on_device.astype(np.int64)
    )
    named = [
        names.of(f"{'Steps' if on else names.text(name)}#step_num={number}#")
        for name, number, on in zip(
            steps.name[told.first].tolist(),
            steps.step[told.first].tolist(),
            on_device[told.first].tolist(),
            strict=True,
        )
    ]
    name_id = np.array([*named, NONE], np.int64)[told.of_row]
    return ranges_of(steps.start_ns, steps.end_ns, thread, name_id)
