"""Builds a profile from XLA's planes: device activities, calls, and named ranges.

On GPUs, launches are usually recorded. A launch is a host event that has the same correlation id as
a kernel. In that case, an instruction's range has the times and the thread of its launch::

    host      ├─launch─┤ ├─launch─┤        Thunk:#name=.../jvp(a)/dot,hlo_op=fusion.1#, twice
    device              ███ fusion.1 ███ fusion.1

On TPUs, and on CPUs that are used as devices, launches are not recorded. An instruction's range
then has the instruction's device times, and is on a thread that represents the device. An
artificial call is added as each instruction's launch.

The ranges have the same names that XLA writes for Nsight Systems (see
:mod:`bubbleviz.analyses.pgle.instructions`), so the same convention applies to both.
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

#: First thread id for threads that represent devices, larger than all real thread ids.
_DEVICE_THREAD = 1 << 40
#: Name of a host line on which a thread runs Python.
_PYTHON = "python"
#: Splits a module execution's name, such as ``jit_step(7)``, into module and program id.
_MODULE = re.compile(r"(.*?)(?:\(([0-9]{1,20})\))?\Z", re.DOTALL)
#: Name suffix of host events that are module executions, as in ``jit_step:XLA GPU module``.
_EXECUTION_SUFFIX = ":XLA GPU module"


def make_named_ranges(start_ns: Ints, end_ns: Ints, thread: Ints, name_id: Ints) -> Ranges:
    """Create a table of ranges, leaving out rows whose ``name_id`` is -1. ``names`` is empty."""
    if (name_id == NONE).any():
        rows = name_id != NONE
        start_ns, end_ns, thread, name_id = (c[rows] for c in (start_ns, end_ns, thread, name_id))
    return in_memory.make_ranges(start_ns, end_ns, thread, name_id, ())


def find_leaves(events: PlaneEvents) -> Ints:
    """Return the rows of the events that do not contain any other event, sorted by start.

    Only events on the same line and device are considered::

        ├─while.2──────────┤      not a leaf, because it contains other instructions
         ├─dot.3─┤├─add.4─┤       leaves

    Events without a duration are leaves, and they do not count as contents of their enclosing
    events.
    """
    order = np.lexsort((-events.end_ns, events.start_ns, events.device, events.line))
    lasting = order[events.end_ns[order] > events.start_ns[order]]
    outer, inner = lasting[:-1], lasting[1:]
    is_same_line = (events.line[outer] == events.line[inner]) & (
        events.device[outer] == events.device[inner]
    )
    contains_next = is_same_line & (events.start_ns[inner] < events.end_ns[outer])
    contains_next &= events.end_ns[inner] <= events.end_ns[outer]
    is_leaf = np.ones(len(events), bool)
    is_leaf[outer[contains_next]] = False
    rows: Ints = np.flatnonzero(is_leaf)
    return rows[np.argsort(events.start_ns[rows], kind="stable")]


class DeviceWork:
    """The device activities in a recording, along with their calls and ranges.

    Args:
        planes: The recording's planes. :meth:`Planes.finish` must have been called.
        process: Number of the profiled process, as returned by :func:`make_process_number`.

    Attributes:
        host_events: Number of ranges on host threads.
        steps: Training steps on devices and on the host.
        thread_of_line: Thread number of each host line.
        devices: Device numbers, ascending.
        thread_of_device: Number of the thread that represents each device, in the same order.
        activities: Kernels, followed by copies.
        streams: Stream of each activity, or -1 if the activity did not run on a GPU stream.
        calls: Calls that launched the activities.
        ranges: Instruction, module and step ranges, followed by ranges on host threads.
        instructions: Number of instruction ranges and module ranges.
        has_launches: Whether ``calls`` contains launches recorded on a host rather than artificial
            calls.
    """

    def __init__(self, planes: Planes, process: int) -> None:
        self._process = process
        self._texts, self._labels = planes.texts.values, planes.labels.values
        self._names = Numbering(self._texts)
        self._names_of_module: dict[str, set[int]] = defaultdict(set)
        self._spans, self._modules = planes.get_events(xla.SPANS), planes.get_events(xla.MODULES)
        self.steps = planes.get_events(xla.STEPS, xla.HOST_STEPS)
        streams, transfers = planes.get_events(xla.STREAM), planes.get_events(xla.ASYNC)
        ops = planes.get_events(xla.HOST_OPS if planes.on_host else xla.OPS)
        tables = (streams, ops, transfers, self._modules, self.steps)
        devices = find_distinct(*(table.device for table in tables)).astype(np.int64)
        self.devices = devices[devices != NONE]
        self.thread_of_line, self.thread_of_device = self._number_threads(planes.lines)

        work, is_async, n_kernels = self._order_work(streams, ops, transfers)
        launches = _select_launches(work, planes.get_events(xla.LAUNCHES))
        self.has_launches = launches is not None
        if launches is None:
            self.calls = self._make_device_calls(work, is_async)
            correlation: Codes = np.arange(len(work))
            instructions = join_tables([streams, ops])
            thread = self._get_device_threads(instructions.device)
            name_id = self._name_instruction_ranges()[instructions.label]
        else:
            self.calls = self._make_host_calls(launches)
            correlation = work.correlation
            is_async = np.zeros(len(work), bool)
            thread = self.thread_of_line[launches.line]
            instructions, name_id = self._name_launches_by_work(launches, work)
        instruction_ranges = make_named_ranges(
            instructions.start_ns, instructions.end_ns, thread, name_id
        )
        if launches is not None:
            rows = np.flatnonzero(name_id != NONE)
            instructions, thread = instructions.take(rows), thread[rows]
        module_ranges = self._make_module_ranges(instructions, thread)
        self.instructions = len(instruction_ranges) + len(module_ranges)
        self.host_events = len(self._spans)
        ranges = join_tables(
            [instruction_ranges, module_ranges, self._make_step_ranges(), self._make_host_ranges()]
        )
        self.ranges = replace(ranges, names=self._names.values)
        self.streams = work.line
        self._copied = work.take(slice(n_kernels, None))
        self.activities = self._make_activities(work, correlation, is_async, n_kernels)

    def _make_device_calls(self, work: PlaneEvents, is_async: Bools) -> in_memory.InMemoryCalls:
        """Create an artificial call for each row of work, for recordings without launches.

        A call has the same start and end as its work, and is on the thread that represents the
        device. For an asynchronous transfer, the call has a duration of 0. A call's correlation id
        is the row of its work.

        Args:
            work: Kernels, followed by copies.
            is_async: Mask of the asynchronous transfers.
        """
        return in_memory.InMemoryCalls(
            model.Calls(
                row=np.arange(len(work)),
                start_ns=work.start_ns,
                # An asynchronous transfer was launched by the instruction that runs when the
                # transfer starts.
                end_ns=np.where(is_async, work.start_ns, work.end_ns),
                thread=self._get_device_threads(work.device),
                correlation_id=model.to_correlation_ids(np.arange(len(work))),
            ),
            np.zeros(len(work), np.int32),
            ("",),
        )

    def _make_host_calls(self, launches: PlaneEvents) -> in_memory.InMemoryCalls:
        """Convert the recorded launches to calls on their host threads, in the same order."""
        used, call_name = _compress_codes(launches.name)
        return in_memory.InMemoryCalls(
            model.Calls(
                row=np.arange(len(launches)),
                start_ns=launches.start_ns,
                end_ns=launches.end_ns,
                thread=self.thread_of_line[launches.line],
                correlation_id=model.to_correlation_ids(launches.correlation.astype(np.int64)),
            ),
            call_name,
            tuple(self._texts[number] for number in used.tolist()),
        )

    def _make_host_ranges(self) -> Ranges:
        """Convert the spans of host threads to ranges."""
        spans = self._spans
        thread, name_id = self.thread_of_line[spans.line], spans.name.astype(np.int64)
        return make_named_ranges(spans.start_ns, spans.end_ns, thread, name_id)

    def _make_activities(
        self, work: PlaneEvents, correlation: Codes, is_async: Bools, n_kernels: int
    ) -> model.Activities:
        """Convert work to an activity table in the same order. Each device becomes a rank.

        Only kernels and asynchronous copies get names.

        Args:
            work: Kernels, followed by copies.
            correlation: Correlation id of each kernel and copy.
            is_async: Mask of the asynchronous transfers.
            n_kernels: Number of kernels.
        """
        has_name = (np.arange(len(work)) < n_kernels) | is_async
        devices, rank = _compress_codes(work.device)
        name_id = np.full(len(work), NONE, np.int32)
        used, name_id[has_name] = _compress_codes(work.name[has_name])
        return model.Activities(
            start_ns=work.start_ns,
            end_ns=work.end_ns,
            rank=rank.astype(np.int16),
            correlation_id=model.to_correlation_ids(correlation.astype(np.int64)),
            name_id=name_id,
            kernels=n_kernels,
            names=tuple(self._texts[number] for number in used.tolist()),
            ranks=np.stack((np.full(len(devices), self._process, np.int64), devices), axis=1),
        )

    def copies(self) -> Copies:
        """Return the direction, the memory kinds and the size of each copy.

        The direction is read from the copy's name. The memory kinds and the size are read from the
        copy's details.
        """
        name, details = self._copied.name, self._copied.copy
        first_row = len(self.activities) - len(name)
        used, used_index = np.unique(details, return_inverse=True)
        texts = ("" if number == NONE else self._texts[number] for number in used.tolist())
        values = np.array([read_copy_details(text) for text in texts], np.int64).reshape(-1, 3)
        size, source, target = values[used_index.reshape(-1)].T
        copies = read_copies(first_row + np.arange(len(name)), name, self._texts, size)
        position = copies.activity - first_row
        return copies.replace_columns(source=source[position], target=target[position])

    def _number_threads(self, named_lines: Sequence[tuple[int, str]]) -> tuple[Ints, Ints]:
        """Return the thread numbers of host lines and of devices, numbered as in Nsight Systems.

        XLA identifies a thread by an address. The first thread that runs Python is regarded as the
        main thread. The main thread's id is set to the process id, as in the operating system,
        unless another thread has this id.

        Args:
            named_lines: Thread id and name of each host line.

        Returns:
            thread_of_line: Thread number of each host line.
            thread_of_device: Number of the thread that represents each device.
        """
        tids_of_lines = np.array([number for number, _ in named_lines], np.int64)
        python_lines = [index for index, (_, name) in enumerate(named_lines) if name == _PYTHON]
        pid = model.get_pid(self._process)
        if python_lines and pid not in tids_of_lines:
            tids_of_lines[python_lines[0]] = pid
        tids = np.concatenate((tids_of_lines, _DEVICE_THREAD + self.devices))
        thread = in_memory.number_threads(np.full(len(tids), self._process, np.int64), tids)
        return thread[: len(tids_of_lines)], thread[len(tids_of_lines) :]

    def _get_device_threads(self, device: Codes) -> Ints:
        """Return the thread that represents each device, given its number."""
        return self.thread_of_device[np.searchsorted(self.devices, device)]

    def _order_work(
        self, streams: PlaneEvents, ops: PlaneEvents, transfers: PlaneEvents
    ) -> tuple[PlaneEvents, Bools, int]:
        """Combine the work from all lines. Kernels come first, followed by copies.

        - Events on GPU streams are copies if their name starts with "Memcpy" or "Memset".
        - Asynchronous transfers are copies unless their name matches the default patterns for
          communication kernels.
        - All other work is a kernel.

        Args:
            streams: Events on GPU streams.
            ops: Instructions. Only instructions that do not contain other instructions are work.
            transfers: Asynchronous transfers.

        Returns:
            work: Kernels, followed by copies.
            is_async: Mask of the asynchronous transfers.
            n_kernels: Number of kernels.
        """
        tables = (streams, ops.take(find_leaves(ops)), transfers)
        work = join_tables([table for table in tables if len(table)] or [streams])
        # Asynchronous work that is not communication between devices is a copy.
        is_async, is_copy = np.zeros(len(work), bool), np.zeros(len(work), bool)
        is_async[len(work) - len(transfers) :] = True
        # Copies and memsets on GPU streams are identified by their names.
        is_copy_name = np.array(
            [text.startswith(("Memcpy", "Memset")) for text in self._texts], bool
        )
        is_copy[: len(streams)] = is_copy_name[work.name[: len(streams)]]
        is_communication_name = match_any(self._texts, default_kinds().communication)
        is_copy[is_async] = ~is_communication_name[work.name[is_async]]
        if not is_copy.any():
            return work, is_async, len(work)
        order = np.argsort(is_copy, kind="stable")
        return work.take(order), is_async[order], int((~is_copy).sum())

    def _name_launches_by_work(
        self, launches: PlaneEvents, work: PlaneEvents
    ) -> tuple[PlaneEvents, Ints]:
        """Label each launch with the instruction that it launched, and name its range.

        A launch is matched to the first row of work with the same correlation id. The launch gets
        this work's label, which identifies the instruction more precisely.

        Returns:
            instructions: The launches, with the label and the device of the matched work. A launch
                without matched work keeps its label, and its device is -1. The column ``run``
                contains the result of :meth:`_find_executions`.
            name_id: For each launch, the index of its range name. The index is -1 if the launch has
                no matched work, or if the matched work has no instruction.
        """
        ids, first = np.unique(work.correlation, return_index=True)
        first_match = find_positions(ids, launches.correlation)
        has_work = first_match != NONE
        label = np.where(has_work, work.label[first[first_match]], launches.label)
        device = np.where(has_work, work.device[first[first_match]], NONE)
        run = self._find_executions(launches, self._name_modules_of_labels()[label])
        instructions = replace(launches, label=label, device=device, run=run)
        return instructions, np.where(has_work, self._name_instruction_ranges()[label], NONE)

    def _find_executions(self, launches: PlaneEvents, module: Ints) -> Ints:
        """Find the module execution during which each launch starts.

        Only executions of the launch's module are considered, on any thread. If the module's
        executions overlap because each device has a thread, only executions on the launch's thread
        are considered. If several executions contain the start of the launch, the innermost one
        wins.

        Args:
            launches: Launches on the host.
            module: For each launch, the index of its module's range name, or -1.

        Returns:
            For each launch, the row of the execution in ``_spans``, or -1 if there is none.
        """
        spans, texts = self._spans, self._texts
        execution = np.full(len(launches), NONE, np.int64)
        rows = self._find_execution_spans()
        for number in find_distinct(spans.name[rows]).tolist():
            names = sorted(
                self._names_of_module.get(texts[number].removesuffix(_EXECUTION_SUFFIX), ())
            )
            module_launches = np.flatnonzero(np.isin(module, names))
            module_spans = rows[spans.name[rows] == number]
            module_spans = module_spans[np.argsort(spans.start_ns[module_spans], kind="stable")]
            if (spans.start_ns[module_spans[1:]] >= spans.end_ns[module_spans[:-1]]).all():
                groups = [(module_spans, module_launches)]
            else:
                groups = [
                    (
                        module_spans[spans.line[module_spans] == line],
                        module_launches[launches.line[module_launches] == line],
                    )
                    for line in find_distinct(spans.line[module_spans]).tolist()
                ]
            for outer, inner in groups:
                enclosing = _find_innermost(spans, outer, launches.start_ns[inner])
                execution[inner] = np.where(enclosing >= 0, outer[enclosing], NONE)
        return execution

    def _find_execution_spans(self) -> Ints:
        """Return the rows of ``_spans`` whose name suffix marks them as module executions."""
        is_execution_name = np.array(
            [text.endswith(_EXECUTION_SUFFIX) for text in self._texts], bool
        )
        return np.flatnonzero(is_execution_name[self._spans.name])

    def _name_instruction_ranges(self) -> Ints:
        """Name the instruction of each label, and return the index of each range name.

        A range name is ``Thunk:#name=PATH,hlo_op=INSTRUCTION#``, without ``name=PATH,`` if the path
        is unknown. The index is -1 if the label has no instruction. A final -1 is appended, so that
        indexing the result with label -1 yields -1.
        """
        numbers, texts = [], self._texts
        for op, path, _, _ in self._labels:
            path_prefix = f"name={texts[path]}," if path != NONE and texts[path] else ""
            text = f"Thunk:#{path_prefix}hlo_op={texts[op]}#"
            numbers.append(NONE if op == NONE else self._names.number(text))
        return np.array([*numbers, NONE], np.int64)

    def _name_modules_of_labels(self) -> Ints:
        """Name the module of each label, and return the index of each range name.

        The index is -1 if the label has no module. A final -1 is appended, so that indexing the
        result with label -1 yields -1.
        """
        numbers = [
            NONE if module == NONE else self._number_module_name(self._texts[module], program)
            for _, _, module, program in self._labels
        ]
        return np.array([*numbers, NONE], np.int64)

    def _number_module_name(self, module: str, program: int | str) -> int:
        """Make the range name for a module, and return its index.

        The range name is ``XlaModule:#hlo_module=MODULE,program_id=PROGRAM#``, without
        ``,program_id=PROGRAM`` if the program id is unknown. The index is also stored as one of the
        module's names. A module has a separate name for each program id.

        Args:
            module: Name of the module, such as ``jit_step``.
            program: Program id, or "" or -1 if unknown.
        """
        suffix = "" if program in ("", NONE) else f",program_id={program}"
        number = self._names.number(f"XlaModule:#hlo_module={module}{suffix}#")
        self._names_of_module[module].add(number)
        return number

    def _make_step_ranges(self) -> Ranges:
        """Convert training steps on devices and on the host to ranges.

        A range on a device is named ``Steps#step_num=N#``. On the host, the name of the event
        replaces the word "Steps".
        """
        steps, texts = self.steps, self._texts
        on_device = steps.device != NONE
        thread = np.empty(len(steps), np.int64)
        thread[on_device] = self._get_device_threads(steps.device[on_device])
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
        return make_named_ranges(steps.start_ns, steps.end_ns, thread, name_id)

    def _make_module_ranges(self, events: PlaneEvents, thread: Ints) -> Ranges:
        """Return a range for each module execution.

        If devices recorded module executions, these are returned. Otherwise, executions are derived
        from the instructions whose module is known:

        - If more than half of these instructions have a run id, instructions with the same thread,
          device, run id and module form an execution. Instructions without a run id are left out.
        - Otherwise, :func:`_number_executions` divides the instructions into executions.

        A derived execution's range extends from the earliest start to the latest end of its
        instructions.

        Args:
            events: Instructions, or the launches of instructions.
            thread: Thread of each instruction's range.
        """
        if len(self._modules):
            return self._make_recorded_module_ranges()
        module = self._name_modules_of_labels()[events.label]
        rows = np.flatnonzero(module != NONE)
        rows = rows[np.lexsort((events.start_ns[rows], events.device[rows], thread[rows]))]
        rows_with_run = rows[events.run[rows] != NONE]
        # A few instructions at the start or end may be outside all recorded executions.
        if 2 * len(rows_with_run) > len(rows):
            rows = rows_with_run
            run = group_rows(
                thread[rows],
                events.device[rows].astype(np.int64),
                events.run[rows].astype(np.int64),
                module[rows],
            ).of_row
        else:
            run = _number_executions(
                thread[rows], events.device[rows], module[rows], events.label[rows]
            )
        first = rows[group_rows(run).first]
        times_ns = group_extents(run, len(first), events.start_ns[rows], events.end_ns[rows])
        return make_named_ranges(*times_ns, thread[first], module[first])

    def _make_recorded_module_ranges(self) -> Ranges:
        """Convert the module executions recorded by devices to ranges on the device threads."""
        executions = self._modules
        used, number = np.unique(executions.name, return_inverse=True)
        parts = (_MODULE.findall(self._texts[name])[0] for name in used.tolist())
        numbers = [self._number_module_name(module, program) for module, program in parts]
        name_id = np.array(numbers, np.int64)[number.reshape(-1)]
        thread = self._get_device_threads(executions.device)
        return make_named_ranges(executions.start_ns, executions.end_ns, thread, name_id)


def _find_innermost(spans: PlaneEvents, rows: Ints, times_ns: Ints) -> Ints:
    """Find the innermost span that contains each time, and return its index in ``rows``.

    The index is -1 if no span contains the time.

    Args:
        spans: Spans on host threads.
        rows: Rows of the spans to consider, sorted by start.
        times_ns: Times to look up.
    """
    innermost = Innermost.of(spans.start_ns[rows], spans.end_ns[rows])
    return innermost.around(times_ns, times_ns)


def _select_launches(work: PlaneEvents, launches: PlaneEvents) -> PlaneEvents | None:
    """Select the earliest launch for each correlation id.

    Several host events can have the same correlation id, because a call may pass through two APIs.

    Args:
        work: Kernels and copies.
        launches: Host events that have a correlation id.

    Returns:
        The selected launches, sorted by start. None if there is no work, or if less than half of
        the work has the same correlation id as a launch.
    """
    launches = launches.take(np.argsort(launches.start_ns, kind="stable"))
    launches = launches.take(np.sort(np.unique(launches.correlation, return_index=True)[1]))
    has_launch = np.isin(work.correlation, launches.correlation) & (work.correlation != NONE)
    return launches if len(work) and 2 * int(has_launch.sum()) >= len(work) else None


def _number_executions(thread: Ints, device: Codes, module: Ints, label: Codes) -> Ints:
    """Group launches into module executions, and return the index of each launch's execution.

    A new execution starts when the thread, device or module changes. A new execution also starts
    when the module's first instruction occurs again after another instruction::

        modules       a  a  a  a  a  a  b  b  a  a
        instructions  x  y  z  x  y  z  p  q  x  y
        executions    0  0  0  1  1  1  2  2  3  3

    Args:
        thread: Thread of each launch. The launches are sorted by thread, device and start.
        device: Device of each launch.
        module: Module of each launch.
        label: Instruction of each launch.
    """
    is_module_start = mask_run_starts(thread, device, module)
    last_module_start = np.maximum.accumulate(np.where(is_module_start, np.arange(len(label)), 0))
    # An instruction may launch several kernels in a row. Only the first of these kernels starts an
    # execution.
    is_first_label = label == label[last_module_start]
    return np.cumsum(is_module_start | (is_first_label & mask_run_starts(label))) - 1


def _compress_codes(codes: Codes) -> tuple[Ints, npt.NDArray[np.int32]]:
    """Replace codes with indices into the distinct codes.

    The code -1 is treated like any other code.

    Returns:
        The distinct codes in ascending order, and the index of each row's code among them.
    """
    codes = codes.astype(np.int64)
    groups = group_rows(codes)
    return codes[groups.first], groups.of_row.astype(np.int32)


_RECORD_AGAIN = "record again with jax.profiler.trace around whole steps"


def make_profile(
    source: Source,
    planes: Planes,
    process: int,
    limitations: Sequence[Limitation] = (),
    *,
    cut: bool = False,
) -> in_memory.Decoded:
    """Build the profile of one recording.

    If none of the devices recorded work, instructions on host threads are used as work instead. If
    launches were not recorded, the profile has a named thread for each device.

    Args:
        source: File from which the planes were read.
        planes: All events in the recording. This function calls :meth:`Planes.finish` on them.
        process: Number of the profiled process, as returned by :func:`make_process_number`.
        limitations: Limitations found while reading the file.
        cut: Whether the end of the file is missing.
    """
    planes.finish()
    work = DeviceWork(planes, process)
    names = (name for _, name in planes.lines)
    threads = [model.Thread(*t) for t in zip(work.thread_of_line.tolist(), names, strict=True)]
    if not work.has_launches:
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
        limitations=(*limitations, *_report_limitations(source.path, planes, work)),
        launches_known=work.has_launches,
        streams=lambda: work.streams,
        copies=work.copies,
    )
    counts = {
        "kernels and instructions": activities.kernels,
        "copies and memsets": len(activities) - activities.kernels,
        "launches": len(work.calls.calls) if work.has_launches else None,
        "instructions and modules named": work.instructions,
        "steps": len(work.steps),
        "host events": work.host_events,
    }
    empty_reason = f"no kernels or device instructions were recorded; {_RECORD_AGAIN}"
    if cut:
        empty_reason = (
            "the file is cut short before the first complete kernel or instruction; copy it again"
        )
    return in_memory.Decoded(profile, counts, "" if activities.kernels else empty_reason)


def make_process_number(recording: int, pid: int) -> int:
    """Return a process number that is unique among the recordings in a file.

    Args:
        recording: Index of the recording in the file.
        pid: Process id of at most 24 bits, or 0 if unknown.
    """
    return recording * (model.PID_MASK + 1) + pid


def join_processes(parts: Sequence[tuple[int, in_memory.Decoded]]) -> in_memory.Decoded:
    """Join the profiles of all recordings in a file.

    If any process id is unknown or occurs twice, the recordings are labeled ``recording 1``,
    ``recording 2`` and so on. A single recording is returned unchanged.

    Args:
        parts: The process number and profile of each recording. The list contains at least one
            recording.
    """
    if len(parts) == 1:
        return parts[0][1]
    pids = {model.get_pid(process) for process, _ in parts}
    has_own_pids = len(pids) == len(parts) and 0 not in pids
    labels = ["" if has_own_pids else f"recording {number}" for number in range(1, len(parts) + 1)]
    return join_recordings([decoded for _, decoded in parts], labels)


def _report_limitations(path: str, planes: Planes, work: DeviceWork) -> Iterator[Limitation]:
    """Yield limitations for dropped events, missing devices, and missing launches."""
    n_others = planes.n_impossible - planes.n_impossible_work
    counts = {model.KERNELS_AND_COPIES: planes.n_impossible_work, "events": n_others}
    yield from model.report_impossible_times(path, counts)
    if planes.events_outside_capture:
        yield model.report_outside_capture("events", path, planes.events_outside_capture)
    if planes.unknown_device_count:
        reason = (
            f"{path}: no device has the device_ordinal of these instructions, so they are left out"
        )
        yield Limitation(
            "instructions on unknown devices",
            reason,
            planes.unknown_device_count,
            LimitationKind.COSTS,
        )
    if planes.on_host and work.activities.kernels:
        yield Limitation(
            "devices",
            f"{path}: there is no device plane, so this is a CPU run. Instructions on host threads "
            "count as kernels, and forward and backward are unknown",
            kind=LimitationKind.WITHOUT_DEVICE,
        )
    if not work.has_launches and work.activities.kernels:
        yield Limitation(
            "launches",
            f"{path}: none were recorded, so no bubble is attributed to the host, and device "
            "times are used as host times",
        )
