"""A profile made of XLA's planes: its kernels, calls and ranges.

Ranges take the names that XLA gives them in nsys (:mod:`bubbleviz.thunks`), so that the same
convention reads both. Where launches are told (GPUs: a host's event with the correlation id of a
kernel), an instruction's range is its launching call, on the thread of that::

    host      ├─launch─┤ ├─launch─┤        Thunk:#name=.../jvp(a)/dot,hlo_op=fusion.1#, twice
    device              ███ fusion.1 ███ fusion.1

Elsewhere (TPUs, and CPUs that stand for devices) instructions lie on a thread of their own for
each device, in the device's time, and launch themselves; such launches say nothing of the host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from bubbleviz.columns import NONE, Bools, Codes, Ints, joined
from bubbleviz.containment import Innermost
from bubbleviz.errors import NothingToAnalyseError
from bubbleviz.globs import lets_through
from bubbleviz.grouping import groups_of
from bubbleviz.held import HeldCalls, HeldRanges, thread_numbers
from bubbleviz.kinds import default_kinds, matching
from bubbleviz.model import Limitation
from bubbleviz.profile import (
    PID_MASK,
    Activities,
    Calls,
    Contents,
    Device,
    NameCount,
    Overheads,
    Profile,
    Ranges,
    Source,
    TableCount,
    Thread,
    correlations,
    impossible_times,
)
from bubbleviz.xla_planes import Kept, Label, Planes, copies, leaves, module_of

#: Lines of devices are threads of their own, by numbers that no thread has.
_DEVICE_THREAD = 1 << 40
NO_LAUNCHES = "launches"
_RECORD_AGAIN = "record again with jax.profiler.trace around whole steps"
#: How a host's event is called that is a module's execution: ``jit_step:XLA GPU module``.
_OF_HOST = ":XLA GPU module"


@dataclass(frozen=True)
class Work:
    """What ran on devices, and the calls and ranges that tell of which instruction it was.

    Attributes:
        activities: kernels, then copies.
        calls: what launched them.
        thunks: ranges of instructions and modules; names by number.
        launched: whether the calls are a host's own.
    """

    activities: Activities
    calls: HeldCalls
    thunks: Ranges
    launched: bool


@dataclass(frozen=True)
class Held:
    """A profile in memory, of which ranges are asked by name.

    Attributes:
        source: where it came from.
        work: what ran.
        ranges: all ranges: of instructions, modules and steps, and what the host did.
        threads: named threads.
        devices: that have a plane.
        limitations: what is not known.
    """

    source: Source
    work: Work
    ranges: Ranges
    threads: tuple[Thread, ...]
    devices: tuple[Device, ...]
    limitations: tuple[Limitation, ...]

    @property
    def events(self) -> int:
        """How many rows it holds."""
        return len(self.work.activities) + len(self.ranges)

    @cached_property
    def _counts(self) -> Ints:
        return np.bincount(self.ranges.name_id, minlength=len(self.ranges.names))

    def _through(self, globs: Sequence[str]) -> Bools:
        """Tell which names some patterns let through."""
        names = self.ranges.names
        return np.array([any(lets_through(g, name) for g in globs) for name in names], bool)

    def sample(self, globs: Sequence[str]) -> Mapping[str, int]:
        """Return how often such names occur."""
        rows = np.flatnonzero(self._through(globs) & (self._counts > 0)).tolist()
        return {self.ranges.names[row]: int(self._counts[row]) for row in rows}

    def profile(self, globs: Sequence[str]) -> Profile:
        """Return the profile with the ranges of such names.

        Raises:
            NothingToAnalyseError: nothing ran on a device.
        """
        if self.work.activities.kernels == 0:
            raise NothingToAnalyseError(
                f"{self.source.path}: no kernel and no instruction of a device was recorded; "
                f"{_RECORD_AGAIN}"
            )
        return Profile(
            source=self.source,
            activities=self.work.activities,
            calls=self.work.calls,
            ranges=self.ranges.take(self._through(globs)[self.ranges.name_id]),
            every_range=HeldRanges(self.ranges),
            overheads=Overheads(*(np.empty(0, np.int64) for _ in range(3))),
            threads=self.threads,
            devices=self.devices,
            limitations=self.limitations,
            launches_known=self.work.launched,
        )

    def contents(self, globs: Sequence[str]) -> Contents:
        """Return what it holds, ranges of these names among it."""
        activities = self.work.activities
        kept = self.sample(globs)
        copied = len(activities) - activities.kernels
        steps = sum(count for name, count in kept.items() if "#step_num=" in name)
        counted = (
            ("kernels and instructions", activities.kernels),
            ("copies and fills", copied),
            ("launches", len(self.work.calls.calls) if self.work.launched else None),
            ("instructions and modules named", len(self.work.thunks)),
            ("steps", steps),
            ("what the host did", len(self.ranges) - len(self.work.thunks) - steps),
        )
        works = activities.kernels > 0
        return Contents(
            source=self.source,
            tables=tuple(TableCount(what, self.source.format, rows) for what, rows in counted),
            processes=tuple(sorted(set(activities.ranks[:, 0].tolist()))),
            devices=self.devices,
            candidates=tuple(NameCount(*pair) for pair in kept.items()),
            ranges=len(self.ranges),
            missing=() if works else (f"nothing ran on a device: {_RECORD_AGAIN}",),
            readable=works,
        )


def held(
    source: Source, planes: Planes, process: int, limitations: tuple[Limitation, ...] = ()
) -> Held:
    """Return the profile that planes make.

    Args:
        source: where they came from.
        planes: all that was recorded.
        process: that was profiled; 0 unknown.
        limitations: of the file.
    """
    process &= PID_MASK
    numbers = np.array([line.number for line in planes.lines], np.int64)
    present = _devices(planes)
    tids = np.concatenate((numbers, _DEVICE_THREAD + present))
    thread = thread_numbers(np.full(len(tids), process, np.int64), tids)
    host, device = thread[: len(numbers)], thread[len(numbers) :]
    texts = _Names(planes.texts)
    placed = _Placed(
        planes, process, host, dict(zip(present.tolist(), device.tolist(), strict=True))
    )
    work = _work(placed, texts)
    lines = (line.name for line in planes.lines)
    threads = [Thread(*pair) for pair in zip(host.tolist(), lines, strict=True)]
    own = [Thread(t, f"XLA on device {d}") for d, t in placed.device_thread.items()]
    notes = [*limitations, *_notes(source.path, planes, work)]
    return Held(
        source=source,
        work=work,
        ranges=_every_range(placed, work, texts),
        threads=tuple(dict.fromkeys((*threads, *(() if work.launched else own)))),
        devices=tuple(Device(None, number, name, None) for number, name in planes.devices),
        limitations=tuple(notes),
    )


def _notes(path: str, planes: Planes, work: Work) -> list[Limitation]:
    notes = list(impossible_times(path, {"events": planes.impossible}))
    if planes.on_host and work.activities.kernels:
        notes.append(
            Limitation(
                "devices",
                f"{path} has no plane of one: it ran on CPUs, and instructions on the host's "
                "threads stand for kernels",
            )
        )
    if not work.launched and work.activities.kernels:
        notes.append(
            Limitation(
                NO_LAUNCHES,
                f"{path} tells none: no idle time is put down to the host, and host times are "
                "those of the device",
            )
        )
    return notes


class _Names:
    """Names of ranges: the texts of the file, and those put together."""

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
class _Placed:
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


def _devices(planes: Planes) -> Ints:
    """Return the numbers of all devices that did something, ascending."""
    kinds = (planes.streams, planes.ops, planes.transfers, planes.modules, planes.steps)
    found: Ints = np.unique(np.concatenate([kept.device for kept in kinds])).astype(np.int64)
    known: Ints = found[found != NONE]
    return known


def _work(placed: _Placed, names: _Names) -> Work:
    planes = placed.planes
    leaf = planes.ops.take(leaves(planes.ops))
    ran = joined([planes.streams, leaf, planes.transfers])
    # What runs beside instructions, and moves nothing between devices, is a copy.
    beside = np.arange(len(ran)) >= len(ran) - len(planes.transfers)
    moves = matching(planes.texts, default_kinds().communication)
    copied = copies(planes.texts)[ran.name] & (np.arange(len(ran)) < len(planes.streams))
    copied |= beside & ~moves[ran.name]
    order = np.argsort(copied, kind="stable")
    ran, beside, kernels = ran.take(order), beside[order], int((~copied).sum())
    launches = _launches_of(planes, ran)
    if launches is None:
        return _self_launched(placed, names, ran, beside, kernels)
    return _launched(placed, names, ran, kernels, launches)


def _activities(placed: _Placed, ran: Kept, kernels: int, correlation: Ints) -> Activities:
    numbers = np.unique(ran.device).astype(np.int64)
    used, name_id = np.unique(ran.name[:kernels], return_inverse=True)
    none = np.full(len(ran) - kernels, NONE, np.int32)
    return Activities(
        start_ns=ran.start_ns.copy(),
        end_ns=ran.end_ns.copy(),
        rank=np.searchsorted(numbers, ran.device).astype(np.int16),
        correlation_id=correlations(correlation),
        name_id=np.concatenate((name_id.reshape(-1).astype(np.int32), none)),
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


def _self_launched(placed: _Placed, names: _Names, ran: Kept, beside: Bools, kernels: int) -> Work:
    """Return work that launches itself, on the thread that stands for its device."""
    planes, own = placed.planes, np.arange(len(ran))
    # A transfer is launched by the instruction that it begins in.
    calls = Calls(
        row=own.copy(),
        start_ns=ran.start_ns.copy(),
        end_ns=np.where(beside, ran.start_ns, ran.end_ns),
        thread=placed.threads(ran.device),
        correlation_id=correlations(own),
    )
    instructions = joined([planes.streams, planes.ops])
    thunks = _ranges(
        instructions.start_ns,
        instructions.end_ns,
        placed.threads(instructions.device),
        names.thunks(planes.labels)[instructions.label],
    )
    modules = _modules(placed, names, instructions, placed.threads(instructions.device))
    return Work(
        activities=_activities(placed, ran, kernels, own),
        calls=HeldCalls(calls, np.zeros(len(ran), np.int32), ("",)),
        thunks=joined([thunks, modules]),
        launched=False,
    )


def _launched(placed: _Placed, names: _Names, ran: Kept, kernels: int, launches: Kept) -> Work:
    """Return work that the host launched."""
    planes = placed.planes
    thread = placed.host_thread[launches.line]
    calls = Calls(
        row=np.arange(len(launches)),
        start_ns=launches.start_ns.copy(),
        end_ns=launches.end_ns.copy(),
        thread=thread,
        correlation_id=correlations(launches.correlation),
    )
    used, name_id = np.unique(launches.name, return_inverse=True)
    texts = tuple(planes.texts[number] for number in used.tolist())
    # What a call launched says which instruction it was, better than the call itself.
    ids, first = np.unique(ran.correlation, return_index=True)
    at = np.minimum(np.searchsorted(ids, launches.correlation), len(ids) - 1)
    hit = ids[at] == launches.correlation
    label = np.where(hit, ran.label[first[at]], launches.label)
    device = np.where(hit, ran.device[first[at]], NONE)
    called = replace(
        launches,
        label=label.astype(np.int32),
        device=device.astype(np.int32),
        run=_executions(planes, launches, names.modules(planes.labels)[label], names),
    )
    named = np.flatnonzero(hit & (names.thunks(planes.labels)[label] != NONE))
    thunks = _ranges(
        called.start_ns[named],
        called.end_ns[named],
        thread[named],
        names.thunks(planes.labels)[label[named]],
    )
    modules = _modules(placed, names, called.take(named), thread[named])
    return Work(
        activities=_activities(placed, ran, kernels, ran.correlation),
        calls=HeldCalls(calls, name_id.reshape(-1).astype(np.int32), texts),
        thunks=joined([thunks, modules]),
        launched=True,
    )


def _executions(planes: Planes, launches: Kept, module: Ints, names: _Names) -> Ints:
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


def _modules(placed: _Placed, names: _Names, events: Kept, thread: Ints) -> Ranges:
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
        return _ranges(told.start_ns, told.end_ns, placed.threads(told.device), name_id)
    module = names.modules(planes.labels)[events.label]
    rows = np.flatnonzero(module != NONE)
    rows = rows[np.lexsort((events.start_ns[rows], events.device[rows], thread[rows]))]
    numbered = rows[events.run[rows] != NONE]
    # A few at the edges may lie outside what is told.
    if 2 * len(numbered) > len(rows):
        rows = numbered
        run = groups_of(thread[rows], events.device[rows], events.run[rows], module[rows]).of_row
    else:
        run = _runs(thread[rows], events.device[rows], module[rows], events.label[rows])
    count = int(run.max(initial=NONE)) + 1
    start_ns = np.full(count, np.iinfo(np.int64).max)
    end_ns = np.full(count, np.iinfo(np.int64).min)
    np.minimum.at(start_ns, run, events.start_ns[rows])
    np.maximum.at(end_ns, run, events.end_ns[rows])
    first = np.unique(run, return_index=True)[1]
    return _ranges(start_ns, end_ns, thread[rows[first]], module[rows[first]])


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


def _ranges(start_ns: Ints, end_ns: Ints, thread: Ints, name_id: Ints) -> Ranges:
    """Return ranges of some names; those without one (-1) are left out."""
    rows = name_id != NONE
    none = np.zeros(int(rows.sum()), bool)
    return Ranges(
        start_ns=start_ns[rows],
        end_ns=end_ns[rows],
        thread=thread[rows],
        end_thread=np.full(len(none), NONE, np.int64),
        start_end=none,
        cut=none.copy(),
        name_id=name_id[rows].astype(np.int64),
        names=(),
    )


def _every_range(placed: _Placed, work: Work, names: _Names) -> Ranges:
    """Return all ranges: of instructions and modules, of steps, and what the host did."""
    planes, steps = placed.planes, placed.planes.steps
    on_device = steps.device != NONE
    thread = np.empty(len(steps), np.int64)
    thread[on_device] = placed.threads(steps.device[on_device])
    thread[~on_device] = placed.host_thread[steps.line[~on_device]]
    told = groups_of(steps.name.astype(np.int64), steps.step, on_device.astype(np.int64))
    named = [
        names.of(f"{'Steps' if on else names.text(name)}#step_num={number}#")
        for name, number, on in zip(
            steps.name[told.first].tolist(),
            steps.step[told.first].tolist(),
            on_device[told.first].tolist(),
            strict=True,
        )
    ]
    marks = _ranges(
        steps.start_ns, steps.end_ns, thread, np.array([*named, NONE], np.int64)[told.of_row]
    )
    spans = planes.spans
    did = _ranges(
        spans.start_ns, spans.end_ns, placed.host_thread[spans.line], spans.name.astype(np.int64)
    )
    return replace(joined([work.thunks, marks, did]), names=names.all())
