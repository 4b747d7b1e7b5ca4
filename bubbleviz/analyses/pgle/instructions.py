"""Instructions: how long each execution of each XLA instruction kept each device busy.

A kernel or copy belongs to the innermost instruction around its launching call.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field

import numpy as np

from bubbleviz.analyses.pgle.range_names import (
    RangeKind,
    XlaNames,
    halves,
    loops,
    parse_range_names,
)
from bubbleviz.conventions.kinds import Kinds, matching
from bubbleviz.conventions.launching_calls import GRAPH_LAUNCHES
from bubbleviz.errors import NothingToAnalyseError
from bubbleviz.interpret.added_communication import with_added_communication
from bubbleviz.interpret.linking import LinkRule, Links, link
from bubbleviz.interpret.record import other_commands
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Bools, Codes, Ints, Table
from bubbleviz.model.grouping import distinct, groups_of
from bubbleviz.model.intervals import Innermost
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.profile import Profile, Ranges
from bubbleviz.model.texts import counted
from bubbleviz.model.values import frozen

# Executions: which ranges of an XLA instruction are one execution of it, and of which module.
#
# Consecutive ranges of an instruction are one execution of it, since an instruction may be several
# thunks; every trip of a loop is one, too::
#
#     XlaModule   ├─jit_step──────────────────────────────────────────────┤
#     Thunk         ├─fusion.1─┤ ├─fusion.1─┤ ├─while.2──────────────────┤
#                                               ├─dot.3─┤├─add.4─┤├─dot.3─┤
#     executions    fusion.1 once                dot.3 twice, add.4 once


@frozen
class Thunks(Table):
    """Ranges of instructions; rows count those of all ranges, -1 is none.

    Attributes:
        instruction: row of the names.
        module: row of the modules' names.
        within: range of the module's execution.
        execution: number of the instruction's execution.
        compiling: whether XLA compiled.
        cut: whether the capture ended before it, or its module.
        apart: whether it ends an asynchronous pair that something else came between.
    """

    instruction: Ints
    module: Ints
    within: Ints
    execution: Ints
    compiling: Bools
    cut: Bools
    apart: Bools


def thunks_of(ranges: Ranges, rows: Ints, names: XlaNames) -> Thunks:
    """Return the executions that the ranges of instructions belong to.

    Args:
        ranges: of instructions, modules and compilation.
        rows: those of instructions.
        names: of ranges, parsed.
    """
    kind = names.kind[ranges.name_id]
    within = _around(ranges, np.flatnonzero(kind == RangeKind.MODULE), rows)
    module = np.where(
        within == NONE, names.module[ranges.name_id[rows]], names.module[ranges.name_id[within]]
    )
    instruction = names.instruction[ranges.name_id[rows]]
    parent = _parents(ranges, rows)
    order = np.lexsort((ranges.start_ns[rows], parent, within, ranges.thread[rows]))
    follows = np.ones(len(rows), bool)
    follows[:1] = False
    for column in (ranges.thread[rows], within, parent):
        follows[1:] &= column[order[1:]] == column[order[:-1]]
    same = follows & (within[order] != NONE) & ~_sole(parent, instruction, names)[order]
    same[1:] &= instruction[order[1:]] == instruction[order[:-1]]
    execution = np.empty(len(rows), np.int64)
    execution[order] = np.cumsum(~same) - 1
    return Thunks(
        instruction=instruction,
        module=module,
        within=within,
        execution=_with_outer(execution, parent, instruction),
        compiling=_around(ranges, np.flatnonzero(kind == RangeKind.COMPILATION), rows) != NONE,
        cut=ranges.cut[rows] | ((within != NONE) & ranges.cut[within]),
        apart=_apart(order, follows, instruction, names),
    )


def _around(ranges: Ranges, holders: Ints, rows: Ints) -> Ints:
    """Return the innermost holder around each of some ranges on its thread; -1 none."""
    around = np.full(len(rows), NONE, np.int64)
    for thread in distinct(ranges.thread[holders]).tolist():
        outer = holders[ranges.thread[holders] == thread]
        place = np.flatnonzero(ranges.thread[rows] == thread)
        innermost = Innermost.of(ranges.start_ns[outer], ranges.end_ns[outer])
        inner = rows[place]
        holder = innermost.around(ranges.start_ns[inner], ranges.end_ns[inner])
        around[place[holder >= 0]] = outer[holder[holder >= 0]]
    return around


def _parents(ranges: Ranges, rows: Ints) -> Ints:
    """Return the innermost of some ranges around each of them, as its place among them; -1 none."""
    parent = np.full(len(rows), NONE, np.int64)
    for thread in distinct(ranges.thread[rows]).tolist():
        place = np.flatnonzero(ranges.thread[rows] == thread)
        start_ns, end_ns = ranges.start_ns[rows[place]], ranges.end_ns[rows[place]]
        innermost = Innermost.of(start_ns, end_ns)
        deepest = np.full(len(place), NONE, np.int64)
        for query, row in innermost.all_around(start_ns, end_ns):
            depth = innermost.depth[row]
            better = (depth < innermost.depth[query]) & (depth > deepest[query])
            deepest[query[better]] = depth[better]
            parent[place[query[better]]] = place[row[better]]
    return parent


def _sole(parent: Ints, instruction: Ints, names: XlaNames) -> Bools:
    """Tell which ranges are trips of a loop of a single instruction."""
    inside = np.flatnonzero(parent != NONE)
    low, high = intervals.group_extents(
        parent[inside], len(parent), instruction[inside], instruction[inside]
    )
    sole = np.append((low == high) & loops(names.instructions)[instruction], False)
    return np.asarray(sole[parent], bool)


def _with_outer(execution: Ints, parent: Ints, instruction: Ints) -> Ints:
    """Return executions in which a range inside one of its own instruction belongs to that one."""
    inner = (parent != NONE) & (instruction == instruction[parent])
    while True:
        outer = np.where(inner, execution[parent], execution)
        if np.array_equal(outer, execution):
            return execution
        execution = outer


def _apart(order: Ints, follows: Bools, instruction: Ints, names: XlaNames) -> Bools:
    """Tell which ranges end a pair, and do not directly follow a beginning of its kind."""
    starts, ends = (of[instruction[order]] for of in halves(names.instructions))
    ending = (ends != NONE) & np.isin(ends, starts)
    beside = np.zeros(len(order), bool)
    beside[1:] = follows[1:] & (starts[:-1] == ends[1:])
    apart = np.zeros(len(order), bool)
    apart[order] = ending & ~beside
    return apart


#: Collectives may overlap compute for so much of their time (clock grain) without a word.
_OVERLAPPED = 0.01

OVERLAP = "collectives overlap compute"
PAIRS = "asynchronous collectives"
GRAPHS = "instructions inside CUDA graphs"


@frozen
class Samples(Table):
    """One row an execution of an instruction on a device.

    Attributes:
        instruction: row of ``instructions``.
        module: row of ``modules``; -1 unknown.
        device: number of the device in its profile.
        cost_ns: durations of its kernels, copies and memsets, summed.
        collective: whether it moves data between devices: by its name, or by one of its kernels.
        instructions: names of instructions.
        modules: labels of modules.
    """

    instruction: Ints
    module: Ints
    device: Ints
    cost_ns: Ints
    collective: Bools
    instructions: tuple[str, ...] = field(metadata={"shared": True})
    modules: tuple[str, ...] = field(metadata={"shared": True})


@frozen
class LeftOut:
    """Numbers of executions of instructions that were left out, by reason.

    Attributes:
        compilation: launched while XLA compiled (autotuning).
        cut: their module's execution began before the capture, or had not ended with it.
        warm_up: in the first executions of their module on their device.
    """

    compilation: int
    cut: int
    warm_up: int


@frozen
class ProfileSamples:
    """The executions of instructions in one profile.

    Attributes:
        samples: executions that count.
        left_out: executions that do not.
        limitations: what could not be measured, and why.
        device: what ran them: ``GPU``, or another accelerator's name.
    """

    samples: Samples
    left_out: LeftOut
    limitations: tuple[Limitation, ...]
    device: str = "GPU"


def measure(profile: Profile, kinds: Kinds, skip: int = 1) -> ProfileSamples:
    """Return the time of each execution of each instruction.

    Args:
        profile: as read, with the ranges that :data:`.range_names.GLOBS` lets through.
        kinds: names of communication kernels, and of collectives among instructions.
        skip: executions of each module on each device that are its warm-up (lazy loading, set-up
            of communication); a module that no device runs more often keeps them.

    Raises:
        NothingToAnalyseError: no instruction has GPU work.
    """
    path = profile.source.path
    names = parse_range_names(profile.ranges.names)
    rows = np.flatnonzero(names.kind[profile.ranges.name_id] == RangeKind.INSTRUCTION)
    if len(rows) == 0:
        raise without_instructions(profile)
    ranges = profile.ranges.take(rows)
    profile = with_added_communication(profile, kinds)
    linked = link(profile, ranges)
    profile = linked.profile
    thunks = thunks_of(profile.ranges, rows, names)
    work = _work(profile, linked.links, thunks, kinds)
    if len(work.groups_first) == 0:
        raise NothingToAnalyseError(
            f"{path}: no instruction of XLA has GPU work; profile again with: "
            "nsys profile -t cuda,nvtx (and the whole of a step in the capture)"
        )
    keep, left_out, once = _kept(work, thunks, profile.ranges, skip)
    notes = (
        *profile.limitations,
        *linked.limitations,
        *_notes(profile, linked.links, thunks, work, keep),
    )
    if once:
        reason = (
            f"{path}: no device runs them more than {counted(skip, 'time')}, so their "
            "warm-up is in their costs"
        )
        notes = (
            *notes,
            Limitation("modules whose warm-up counts", reason, once, LimitationKind.COSTS),
        )
    samples = _samples(work, thunks, names, kinds).take(keep)
    return ProfileSamples(samples, left_out, notes, profile.source.device)


def without_instructions(profile: Profile) -> NothingToAnalyseError:
    """Return the error of a profile that names no instruction, with the file that would.

    Args:
        profile: with its work.
    """
    path = profile.source.path
    others = other_commands(profile, path)
    if profile.source.format == "kineto":
        reason = (
            "a trace of PyTorch, which names no instructions of XLA; give the .xplane.pb of a JAX "
            "run"
        )
    elif profile.source.format.startswith("x"):
        reason = (
            "it names no instructions of XLA; give the .xplane.pb of a JAX run that computes on a "
            "device while it is recorded"
        )
    else:
        reason = (
            "no range is named as JAX names instructions (TSL:Thunk:#...hlo_op=...), as in any "
            "program without XLA; give a JAX run on GPUs, recorded with nsys profile -t cuda,nvtx, "
            "or its .xplane.pb"
        )
    return NothingToAnalyseError(f"{path}: {reason}" + (f"; {others}" if others else ""))


@frozen
class _Work:
    """Activities of instructions, and their groups: one an execution and device.

    Attributes:
        rows: activities.
        thunk: range of each.
        group: group of each.
        groups_first: the first of ``rows`` in each group.
        device: device of each group.
        cost_ns: sum of durations in each group.
        communication: which of ``rows`` are communication kernels.
        compute: which are other kernels.
    """

    rows: Ints
    thunk: Ints
    group: Ints
    groups_first: Ints
    device: Ints
    cost_ns: Ints
    communication: Bools
    compute: Bools


def _work(profile: Profile, links: Links, thunks: Thunks, kinds: Kinds) -> _Work:
    activities = profile.activities
    rows = np.flatnonzero(links.range != NONE)
    thunk = links.range[rows].astype(np.int64)
    device = activities.rank[rows].astype(np.int64)
    groups = groups_of(thunks.execution[thunk], device)
    duration_ns = activities.end_ns[rows] - activities.start_ns[rows]
    # Copies have no name; the place behind the last one is theirs.
    by_name = np.append(matching(activities.names, kinds.communication), False)
    communication = by_name[activities.name_id[rows]]
    return _Work(
        rows=rows,
        thunk=thunk,
        group=groups.of_row,
        groups_first=groups.first,
        device=device[groups.first],
        cost_ns=intervals.group_sum(groups.of_row, len(groups), duration_ns),
        communication=communication,
        compute=(rows < activities.kernels) & ~communication,
    )


def _samples(work: _Work, thunks: Thunks, names: XlaNames, kinds: Kinds) -> Samples:
    thunk = work.thunk[work.groups_first]
    instruction = thunks.instruction[thunk]
    moves = matching(names.instructions, kinds.communication)
    moves[thunks.instruction[work.thunk[work.communication]]] = True
    return Samples(
        instruction=instruction,
        module=thunks.module[thunk],
        device=work.device,
        cost_ns=work.cost_ns,
        collective=moves[instruction],
        instructions=names.instructions,
        modules=names.modules,
    )


def _kept(work: _Work, thunks: Thunks, ranges: Ranges, skip: int) -> tuple[Bools, LeftOut, int]:
    """Tell which groups count, how many do not, and how many modules keep their warm-up."""
    thunk = work.thunk[work.groups_first]
    compiling = thunks.compiling[thunk]
    orphan = (thunks.within[thunk] == NONE) & bool((thunks.within != NONE).any())
    cut = (thunks.cut[thunk] | orphan) & ~compiling
    keep = ~compiling & ~cut
    rows = np.flatnonzero(keep)
    place, runs, key = _places(work, thunks, ranges, rows)
    most = np.zeros(int(key.max(initial=NONE)) + 1, np.int64)
    np.maximum.at(most, key, runs)
    seldom = most <= skip
    warm = (place < skip) & ~seldom[key]
    keep[rows[warm]] = False
    once = int(seldom[distinct(key)].sum()) if skip else 0
    return keep, LeftOut(int(compiling.sum()), int(cut.sum()), int(warm.sum())), once


def _places(work: _Work, thunks: Thunks, ranges: Ranges, rows: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the execution of its module on its device that each of some groups is part of.

    Where no range names modules, each instruction counts its own executions.

    Returns:
        The place from 0, the number of executions on the device, and a number of the module.
    """
    thunk = work.thunk[work.groups_first[rows]]
    within, device = thunks.within[thunk], work.device[rows]
    in_module = within != NONE
    modules = int(thunks.module.max(initial=NONE)) + 1
    key = np.where(in_module, thunks.module[thunk], modules + thunks.instruction[thunk])
    run = np.where(in_module, within, len(ranges) + thunks.execution[thunk])
    # Executions are numbered in the order of ranges; those of modules begin in another one.
    start_ns = np.append(ranges.start_ns, 0)[np.where(in_module, within, NONE)]
    each = groups_of(device, key, start_ns, run)
    whole = groups_of(device[each.first], key[each.first])
    begin = np.unique(whole.of_row, return_index=True)[1]
    place = np.arange(len(each)) - begin[whole.of_row]
    runs = np.bincount(whole.of_row, minlength=len(whole))[whole.of_row]
    return place[each.of_row], runs[each.of_row], key


def _notes(
    profile: Profile, links: Links, thunks: Thunks, work: _Work, keep: Bools
) -> Iterator[Limitation]:
    """Yield what could not be measured, and what makes costs wrong."""
    path, activities = profile.source.path, profile.activities
    counted = keep[work.group]
    collectives_ns, overlapped_ns = _overlap(work, counted, activities.start_ns, activities.end_ns)
    if overlapped_ns > _OVERLAPPED * collectives_ns:
        share = overlapped_ns / collectives_ns
        yield Limitation(
            OVERLAP,
            f"{path}: {100 * share:.1f} % of their time beside compute kernels, so that both take "
            "longer than alone; record with the latency-hiding scheduler and asynchronous "
            "collectives off",
            kind=LimitationKind.WRONG_COSTS,
        )
    apart = int(thunks.apart.sum())
    if apart:
        yield Limitation(
            PAIRS,
            f"{path}: other instructions run between their start and done, as the latency-hiding "
            "scheduler puts them; costs would be wrong: record with it off",
            apart,
            LimitationKind.WRONG_COSTS,
        )
    graphs = _graphs(profile, links, work, thunks)
    if graphs:
        yield Limitation(
            GRAPHS,
            f"{path}: {graphs} instruction{'s launch' if graphs > 1 else ' launches'} whole "
            "graphs, and what is inside has no costs; record with --xla_gpu_enable_command_buffer=",
            graphs,
            LimitationKind.WRONG_COSTS,
        )
    for what, rule, why in (
        ("work outside every instruction", LinkRule.OUTSIDE, "it is in no cost"),
        ("kernels without their launching call", LinkRule.UNLINKED, "they are in no cost"),
    ):
        lost = np.flatnonzero(links.rule == rule)
        if len(lost):
            lost_ns = int((activities.end_ns[lost] - activities.start_ns[lost]).sum())
            yield Limitation(
                what, f"{path}: {lost_ns / 1e6:,.3f} ms; {why}", len(lost), LimitationKind.COSTS
            )


def _overlap(work: _Work, counted: Bools, start_ns: Ints, end_ns: Ints) -> tuple[int, int]:
    """Return the time of collectives over all devices, and that of compute beside them, in ns."""
    start_ns, end_ns = start_ns[work.rows], end_ns[work.rows]
    device = work.device[work.group]
    packing = intervals.Packing.of(
        *intervals.group_extents(device, int(device.max()) + 1, start_ns, end_ns)
    )

    def of(rows: Bools) -> intervals.Intervals:
        on = device[rows]
        return intervals.union(packing.place(on, start_ns[rows]), packing.place(on, end_ns[rows]))

    collectives = of(work.communication & counted)
    alone = intervals.difference(collectives, of(work.compute & counted))
    whole_ns = intervals.measure(collectives)
    return whole_ns, whole_ns - intervals.measure(alone)


def _graphs(profile: Profile, links: Links, work: _Work, thunks: Thunks) -> int:
    """Return the number of instructions that launch CUDA graphs, by one call of each."""
    instruction, first = np.unique(thunks.instruction[work.thunk], return_index=True)
    del instruction
    called: Codes = distinct(links.call[work.rows[first]])
    names = profile.calls.names(called[called != NONE].astype(np.int64))
    return sum(name.startswith(GRAPH_LAUNCHES) for name in names)
