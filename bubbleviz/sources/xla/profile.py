"""A profile of XLA, in memory: the work of devices, its calls, and the ranges that name it.

If launches are recorded (on GPUs: a host event with the correlation id of a kernel), the range of
an instruction is its launching call, on the thread of the call::

    host      ├─launch─┤ ├─launch─┤        Thunk:#name=.../jvp(a)/dot,hlo_op=fusion.1#, twice
    device              ███ fusion.1 ███ fusion.1

Otherwise (on TPUs, and on CPUs that stand for devices) instructions are on a separate thread for
each device, at the device's times, and launch themselves. Such launches are not launches of a host.
Ranges have the names of :mod:`bubbleviz.analyses.pgle.instructions`, as XLA writes them for nsys,
so that one convention reads both.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from bubbleviz.conventions.copy_names import read_copies, read_copy_details
from bubbleviz.conventions.kinds import default_kinds, match_any
from bubbleviz.model import profile as model
from bubbleviz.model.columns import NONE, Bools, Codes, Ints, join_tables
from bubbleviz.model.copies import Copies
from bubbleviz.model.grouping import find_distinct, find_positions, group_rows, mask_run_starts
from bubbleviz.model.intervals import group_extents
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.nesting import Innermost
from bubbleviz.model.numbering import Numbering
from bubbleviz.model.profile import Profile, Ranges, Source
from bubbleviz.sources import in_memory
from bubbleviz.sources.recording_sets import join_recordings
from bubbleviz.sources.xla import planes as xla
from bubbleviz.sources.xla.planes import PlaneEvents, Planes

#: Devices are threads by numbers from here on, which no thread has.
_DEVICE_THREAD = 1 << 40
#: Name of the line of a thread that runs Python.
_PYTHON = "python"
#: An execution of a module: ``jit_step(7)``.
_MODULE = re.compile(r"(.*?)(?:\(([0-9]{1,20})\))?\Z", re.DOTALL)
#: Ends the name of a host's event that is a module's execution: ``jit_step:XLA GPU module``.
_OF_HOST = ":XLA GPU module"


def ranges_of(start_ns: Ints, end_ns: Ints, thread: Ints, name_id: Ints) -> Ranges:
    """Return ranges, without those that have no name (-1)."""
    if (name_id == NONE).any():
        rows = name_id != NONE
        start_ns, end_ns, thread, name_id = (c[rows] for c in (start_ns, end_ns, thread, name_id))
    return in_memory.make_ranges(start_ns, end_ns, thread, name_id, ())


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


class DeviceWork:
    """The work of devices, and the calls and ranges that show its instructions.

    Args:
        planes: of the profile.
        process: Number of the profiled process, as returned by :func:`process_number`.

    Attributes:
        host_events: how many ranges of the host's threads there are.
        steps: on devices, and of the host.
        thread_of_line: thread of each line of the host.
        devices: numbers of the devices, ascending.
        thread_of_device: thread that stands for each.
        activities: kernels, then copies.
        streams: Stream of each activity, or -1 if it did not run on a GPU stream.
        calls: that launched them.
        ranges: of instructions, modules and steps, then of the host's threads.
        instructions: how many of these are of instructions and modules.
        launched: whether the calls are a host's own.
    """

    def __init__(self, planes: Planes, process: int) -> None:
        self._process = process
        self._texts, self._labels = planes.texts.values, planes.labels.values
        self._names = Numbering(self._texts)
        self._names_of_module: dict[str, set[int]] = defaultdict(set)
        self._spans, self._modules = planes.events(xla.SPANS), planes.events(xla.MODULES)
        self.steps = planes.events(xla.STEPS, xla.HOST_STEPS)
        streams, transfers = planes.events(xla.STREAM), planes.events(xla.ASYNC)
        ops = planes.events(xla.HOST_OPS if planes.on_host else xla.OPS)
        tables = (streams, ops, transfers, self._modules, self.steps)
        devices = find_distinct(*(table.device for table in tables)).astype(np.int64)
        self.devices = devices[devices != NONE]
        self.thread_of_line, self.thread_of_device = self._threads(planes.lines)
        work, beside, kernels = self._ordered(streams, ops, transfers)
        launches = _launches_of(work, planes.events(xla.LAUNCHES))
        self.launched = launches is not None
        if launches is None:
            correlation: Codes = np.arange(len(work))
            called, call_name, call_names = work, np.zeros(len(work), np.int32), ("",)
            # A transfer is launched by the instruction that it begins in.
            returned_ns = np.where(beside, work.start_ns, work.end_ns)
            call_thread, call_id = self._of_devices(work.device), correlation
            instructions = join_tables([streams, ops])
            thread = self._of_devices(instructions.device)
            name_id = self._thunks()[instructions.label]
        else:
            beside = np.zeros(len(work), bool)
            correlation, called, returned_ns = work.correlation, launches, launches.end_ns
            thread = call_thread = self.thread_of_line[launches.line]
            call_id = launches.correlation.astype(np.int64)
            used, call_name = _renumbered(launches.name)
            call_names = tuple(self._texts[number] for number in used.tolist())
            instructions, name_id = self._named_by_work(launches, work)
        self.calls = in_memory.InMemoryCalls(
            model.Calls(
                row=np.arange(len(called)),
                start_ns=called.start_ns,
                end_ns=returned_ns,
                thread=call_thread,
                correlation_id=model.to_correlation_ids(call_id),
            ),
            call_name,
            call_names,
        )
        thunks = ranges_of(instructions.start_ns, instructions.end_ns, thread, name_id)
        if launches is not None:
            rows = np.flatnonzero(name_id != NONE)
            instructions, thread = instructions.take(rows), thread[rows]
        modules = self._module_ranges(instructions, thread)
        self.instructions = len(thunks) + len(modules)
        spans, self.host_events = self._spans, len(self._spans)
        line_thread, span_name = self.thread_of_line[spans.line], spans.name.astype(np.int64)
        of_host = ranges_of(spans.start_ns, spans.end_ns, line_thread, span_name)
        ranges = join_tables([thunks, modules, self._step_ranges(), of_host])
        self.ranges = replace(ranges, names=self._names.values)
        # Of copies those have a name that ran beside instructions.
        named = (np.arange(len(work)) < kernels) | beside
        devices, rank = _renumbered(work.device)
        work_name = np.full(len(work), NONE, np.int32)
        used, work_name[named] = _renumbered(work.name[named])
        self.streams = work.line
        self._copied = work.take(slice(kernels, None))
        self.activities = model.Activities(
            start_ns=work.start_ns,
            end_ns=work.end_ns,
            rank=rank.astype(np.int16),
            correlation_id=model.to_correlation_ids(correlation.astype(np.int64)),
            name_id=work_name,
            kernels=kernels,
            names=tuple(self._texts[number] for number in used.tolist()),
            ranks=np.stack((np.full(len(devices), self._process, np.int64), devices), axis=1),
        )

    def copies(self) -> Copies:
        """Read the direction, memory and size of copies from their names and statistics."""
        name, details = self._copied.name, self._copied.copy
        first_row = len(self.activities) - len(name)
        used, used_index = np.unique(details, return_inverse=True)
        texts = ("" if number == NONE else self._texts[number] for number in used.tolist())
        values = np.array([read_copy_details(text) for text in texts], np.int64).reshape(-1, 3)
        size, source, target = values[used_index.reshape(-1)].T
        copies = read_copies(first_row + np.arange(len(name)), name, self._texts, size)
        position = copies.activity - first_row
        return copies.replace_columns(source=source[position], target=target[position])

    def _threads(self, named_lines: Sequence[tuple[int, str]]) -> tuple[Ints, Ints]:
        """Return the threads of the host's lines and of devices, as nsys numbers them.

        XLA numbers threads by an address, where the system gives the main thread, which is the
        first that runs Python, the number of its process.
        """
        lines = np.array([number for number, _ in named_lines], np.int64)
        python = [at for at, (_, name) in enumerate(named_lines) if name == _PYTHON]
        pid = model.get_pid(self._process)
        if python and pid not in lines:
            lines[python[0]] = pid
        tids = np.concatenate((lines, _DEVICE_THREAD + self.devices))
        thread = in_memory.number_threads(np.full(len(tids), self._process, np.int64), tids)
        return thread[: len(lines)], thread[len(lines) :]

    def _of_devices(self, device: Codes) -> Ints:
        """Return the threads that stand for some devices."""
        return self.thread_of_device[np.searchsorted(self.devices, device)]

    def _ordered(
        self, streams: PlaneEvents, ops: PlaneEvents, transfers: PlaneEvents
    ) -> tuple[PlaneEvents, Bools, int]:
        """Return kernels, then copies; which run beside instructions; and the number of kernels."""
        tables = (streams, ops.take(leaves(ops)), transfers)
        work = join_tables([table for table in tables if len(table)] or [streams])
        # Work beside instructions that moves nothing between devices is a copy.
        beside, copied = np.zeros(len(work), bool), np.zeros(len(work), bool)
        beside[len(work) - len(transfers) :] = True
        # XLA's profiler names copies and memsets on a GPU's streams so.
        copies = np.array([text.startswith(("Memcpy", "Memset")) for text in self._texts], bool)
        copied[: len(streams)] = copies[work.name[: len(streams)]]
        passing = match_any(self._texts, default_kinds().communication)
        copied[beside] = ~passing[work.name[beside]]
        if not copied.any():
            return work, beside, len(work)
        order = np.argsort(copied, kind="stable")
        return work.take(order), beside[order], int((~copied).sum())

    def _named_by_work(self, launches: PlaneEvents, work: PlaneEvents) -> tuple[PlaneEvents, Ints]:
        """Return launches as the instructions that they launched, and names of their ranges.

        The work that a call launched names its instruction better than the call does.
        """
        ids, first = np.unique(work.correlation, return_index=True)
        at = find_positions(ids, launches.correlation)
        hit = at != NONE
        label = np.where(hit, work.label[first[at]], launches.label)
        device = np.where(hit, work.device[first[at]], NONE)
        run = self._executions(launches, self._modules_of_labels()[label])
        instructions = replace(launches, label=label, device=device, run=run)
        return instructions, np.where(hit, self._thunks()[label], NONE)

    def _executions(self, launches: PlaneEvents, module: Ints) -> Ints:
        """Return the execution of a module that the host records around each launch; -1 none.

        It may be on another thread than the launches are. Where executions of one module overlap
        (a thread for each device), only those of the launch's own thread are looked at.
        """
        spans, texts = self._spans, self._texts
        execution = np.full(len(launches), NONE, np.int64)
        of_host = np.array([text.endswith(_OF_HOST) for text in texts], bool)
        rows = np.flatnonzero(of_host[spans.name])
        for number in find_distinct(spans.name[rows]).tolist():
            names = sorted(self._names_of_module.get(texts[number].removesuffix(_OF_HOST), ()))
            inside = np.flatnonzero(np.isin(module, names))
            around = rows[spans.name[rows] == number]
            around = around[np.argsort(spans.start_ns[around], kind="stable")]
            if (spans.start_ns[around[1:]] >= spans.end_ns[around[:-1]]).all():
                groups = [(around, inside)]
            else:
                groups = [
                    (around[spans.line[around] == line], inside[launches.line[inside] == line])
                    for line in find_distinct(spans.line[around]).tolist()
                ]
            for outer, inner in groups:
                innermost = Innermost.of(spans.start_ns[outer], spans.end_ns[outer])
                at = innermost.around(launches.start_ns[inner], launches.start_ns[inner])
                execution[inner] = np.where(at >= 0, outer[at], NONE)
        return execution

    def _thunks(self) -> Ints:
        """Return the name of each label's ranges of instructions; -1 for none, and at the end."""
        numbers, texts = [], self._texts
        for op, path, _, _ in self._labels:
            before = f"name={texts[path]}," if path != NONE and texts[path] else ""
            text = f"Thunk:#{before}hlo_op={texts[op]}#"
            numbers.append(NONE if op == NONE else self._names.number(text))
        return np.array([*numbers, NONE], np.int64)

    def _modules_of_labels(self) -> Ints:
        """Return the name of each label's module; -1 for none, and at the end."""
        numbers = [
            NONE if module == NONE else self._module(self._texts[module], program)
            for _, _, module, program in self._labels
        ]
        return np.array([*numbers, NONE], np.int64)

    def _module(self, module: str, program: int | str) -> int:
        """Return the name of the executions of a module."""
        suffix = "" if program in ("", NONE) else f",program_id={program}"
        number = self._names.number(f"XlaModule:#hlo_module={module}{suffix}#")
        self._names_of_module[module].add(number)
        return number

    def _step_ranges(self) -> Ranges:
        """Return the ranges of steps, on devices and of the host."""
        steps, texts = self.steps, self._texts
        on_device = steps.device != NONE
        thread = np.empty(len(steps), np.int64)
        thread[on_device] = self._of_devices(steps.device[on_device])
        thread[~on_device] = self.thread_of_line[steps.line[~on_device]]
        groups = group_rows(
            steps.name.astype(np.int64), steps.step.astype(np.int64), on_device.astype(np.int64)
        )
        columns = (column[groups.first].tolist() for column in (steps.name, steps.step, on_device))
        numbers = [
            self._names.number(f"{'Steps' if device else texts[name]}#step_num={step}#")
            for name, step, device in zip(*columns, strict=True)
        ]
        name_id = np.array([*numbers, NONE], np.int64)[groups.of_row]
        return ranges_of(steps.start_ns, steps.end_ns, thread, name_id)

    def _module_ranges(self, events: PlaneEvents, thread: Ints) -> Ranges:
        """Return the executions of modules: as devices record them, else by their instructions.

        Args:
            events: instructions.
            thread: that the range of each lies on.
        """
        recorded, texts = self._modules, self._texts
        if len(recorded):
            used, number = np.unique(recorded.name, return_inverse=True)
            parts = (_MODULE.findall(texts[name])[0] for name in used.tolist())
            numbers = [self._module(module, program) for module, program in parts]
            name_id = np.array(numbers, np.int64)[number.reshape(-1)]
            thread = self._of_devices(recorded.device)
            return ranges_of(recorded.start_ns, recorded.end_ns, thread, name_id)
        module = self._modules_of_labels()[events.label]
        rows = np.flatnonzero(module != NONE)
        rows = rows[np.lexsort((events.start_ns[rows], events.device[rows], thread[rows]))]
        numbered = rows[events.run[rows] != NONE]
        # A few at the edges may lie outside of the recorded executions.
        if 2 * len(numbered) > len(rows):
            rows = numbered
            run = group_rows(
                thread[rows],
                events.device[rows].astype(np.int64),
                events.run[rows].astype(np.int64),
                module[rows],
            ).of_row
        else:
            run = _runs(thread[rows], events.device[rows], module[rows], events.label[rows])
        first = rows[group_rows(run).first]
        times_ns = group_extents(run, len(first), events.start_ns[rows], events.end_ns[rows])
        return ranges_of(*times_ns, thread[first], module[first])


def _launches_of(work: PlaneEvents, launches: PlaneEvents) -> PlaneEvents | None:
    """Return one launch of the host a correlation id; None where they are not of the work.

    Several events may share an id (one call as two interfaces): the first one launched.
    """
    launches = launches.take(np.argsort(launches.start_ns, kind="stable"))
    launches = launches.take(np.sort(np.unique(launches.correlation, return_index=True)[1]))
    known = np.isin(work.correlation, launches.correlation) & (work.correlation != NONE)
    return launches if len(work) and 2 * int(known.sum()) >= len(work) else None


def _runs(thread: Ints, device: Codes, module: Ints, label: Codes) -> Ints:
    """Return the execution of its module that each launch belongs to; rows in order of time.

    Another begins where another module does, or where the instruction that began the last one
    comes again::

        modules       a  a  a  a  a  a  b  b  a  a
        instructions  x  y  z  x  y  z  p  q  x  y
        executions    0  0  0  1  1  1  2  2  3  3
    """
    fresh = mask_run_starts(thread, device, module)
    begun = np.maximum.accumulate(np.where(fresh, np.arange(len(label)), 0))
    # An instruction may be several kernels one after the other.
    again = label == label[begun]
    return np.cumsum(fresh | (again & mask_run_starts(label))) - 1


def _renumbered(codes: Codes) -> tuple[Ints, npt.NDArray[np.int32]]:
    """Return the codes that occur (none is -1), ascending, and the number of each row's."""
    codes = codes.astype(np.int64)
    groups = group_rows(codes)
    return codes[groups.first], groups.of_row.astype(np.int32)


_RECORD_AGAIN = "record again with jax.profiler.trace around whole steps"


def profile_of(
    source: Source,
    planes: Planes,
    process: int,
    limitations: Sequence[Limitation] = (),
    *,
    cut: bool = False,
) -> in_memory.Decoded:
    """Return the profile that planes make.

    Args:
        source: where they came from.
        planes: all that was recorded.
        process: Number of the profiled process, as returned by :func:`process_number`.
        limitations: of the file.
        cut: whether the file's end is missing.
    """
    planes.finish()
    work = DeviceWork(planes, process)
    names = (name for _, name in planes.lines)
    threads = [model.Thread(*t) for t in zip(work.thread_of_line.tolist(), names, strict=True)]
    if not work.launched:
        of_device = zip(work.thread_of_device.tolist(), work.devices.tolist(), strict=True)
        threads += [model.Thread(t, f"{model.DEVICE_THREAD} {device}") for t, device in of_device]
    activities, devices = work.activities, sorted(planes.devices.items())
    profile = Profile(
        source=replace(source, device=model.HOST if planes.on_host else planes.accelerator),
        activities=activities,
        calls=work.calls,
        ranges=work.ranges,
        all_ranges=in_memory.InMemoryRanges(work.ranges),
        overheads=model.Overheads.make_empty(),
        threads=tuple(dict.fromkeys(threads)),
        devices=tuple(model.Device(None, number, name, None) for number, name in devices),
        limitations=(*limitations, *_limitations(source.path, planes, work)),
        launches_known=work.launched,
        streams=lambda: work.streams,
        copies=work.copies,
    )
    counts = {
        "kernels and instructions": activities.kernels,
        "copies and memsets": len(activities) - activities.kernels,
        "launches": len(work.calls.calls) if work.launched else None,
        "instructions and modules named": work.instructions,
        "steps": len(work.steps),
        "host events": work.host_events,
    }
    lacking = f"no kernel and no instruction of a device was recorded; {_RECORD_AGAIN}"
    if cut:
        lacking = "cut short before the first complete kernel or instruction; copy it again"
    return in_memory.Decoded(profile, counts, "" if activities.kernels else lacking)


def process_number(recording: int, pid: int) -> int:
    """Return a process number that is unique among the recordings of one file.

    Args:
        recording: Number of the recording in its file, from 0.
        pid: Process id of at most 24 bits, or 0 if unknown.
    """
    return recording * (model.PID_MASK + 1) + pid


def join_processes(parts: Sequence[tuple[int, in_memory.Decoded]]) -> in_memory.Decoded:
    """Join the recordings of the processes in one file.

    Args:
        parts: Process number and profile of each recording. At least one is required.
    """
    if len(parts) == 1:
        return parts[0][1]
    pids = {model.get_pid(process) for process, _ in parts}
    has_own_pids = len(pids) == len(parts) and 0 not in pids
    labels = ["" if has_own_pids else f"recording {number}" for number in range(1, len(parts) + 1)]
    return join_recordings([decoded for _, decoded in parts], labels)


def _limitations(path: str, planes: Planes, work: DeviceWork) -> Iterator[Limitation]:
    n_others = planes.impossible - planes.impossible_work
    counts = {model.KERNELS_AND_COPIES: planes.impossible_work, "events": n_others}
    yield from model.report_impossible_times(path, counts)
    if planes.outside:
        yield model.report_outside_capture("events", path, planes.outside)
    if planes.strange_devices:
        reason = f"{path}: no device has their device_ordinal; they are left out"
        yield Limitation(
            "instructions of unknown devices", reason, planes.strange_devices, LimitationKind.COSTS
        )
    if planes.on_host and work.activities.kernels:
        yield Limitation(
            "devices",
            f"{path}: no device plane: a CPU run, in which instructions on host threads are used "
            "as kernels, without forward and backward; use idle instead of analyze",
            kind=LimitationKind.WITHOUT_DEVICE,
        )
    if not work.launched and work.activities.kernels:
        yield Limitation(
            "launches",
            f"{path}: not recorded, so no bubble is attributed to the host, and host times are "
            "device times",
        )
