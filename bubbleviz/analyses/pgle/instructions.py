"""Instructions: how long each execution of each XLA instruction kept each device busy.

A kernel or copy belongs to the innermost instruction around its launching call.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from bubbleviz.conventions.kinds import GRAPH_LAUNCHES, Kinds, matching
from bubbleviz.errors import NothingToAnalyseError
from bubbleviz.interpret import iterations, linking, record
from bubbleviz.interpret.communication import with_added_communication
from bubbleviz.model import intervals, texts
from bubbleviz.model.columns import NONE, Bools, Ints, Table, scattered
from bubbleviz.model.grouping import Numbering, distinct, found_in, groups_of, places_in
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.nesting import Innermost
from bubbleviz.model.profile import Profile, Ranges

# Range names: the instruction, the module or the compilation that a range of XLA names.
#
# They are those of ``xla/service/gpu/nvtx_annotations`` (openxla/xla), in all forms seen::
#
#     Thunk:#hlo_op=fusion.3#
#     Thunk:#hlo_op=fusion.3,hlo_module=jit_step,program_id=7#
#     Thunk:#name=jit(step)/jvp(layer)/dot,hlo_op=fusion.3#
#     Thunk:#name=jit(step)/jvp(layer)/dot,hlo_op=fusion.3,unique_hlo_op_id=41#
#     XlaModule:#prefix=jit(step)/jit(main),hlo_module=jit_step,program_id=7#
#     XlaCompile:#module=jit_step#
#
# Exports hold their NVTX domain in a column; some tools write it in front, as ``TSL:Thunk``.


#: SQLite GLOBs that let all of them through.
GLOBS = ("*Thunk:#*hlo_op=*", "*XlaModule:#*hlo_module=*", "*XlaCompile*")
_DOMAIN = "TSL:"

# A name path may hold anything, "#" and ",hlo_op=" included: the last one counts.
_THUNK = re.compile(r"^Thunk:#(?:.*,)?hlo_op=([^,#]+)((?:,(?!hlo_op=)[^,#]*)*)#\Z", re.DOTALL)
_MODULE = re.compile(
    r"^XlaModule:#(?:prefix=.*,)?hlo_module=([^,#]+)(?:,program_id=([0-9]+))?#\Z", re.DOTALL
)
_OF_MODULE = re.compile(r",hlo_module=([^,]+)(?:,program_id=([0-9]+))?")

_HALF = re.compile(
    r"^(async|(?:ragged-)?all-to-all|all-reduce|all-gather|reduce-scatter|collective-permute"
    r"|collective-broadcast)-(start|done)\b"
)


class RangeKind(IntEnum):
    """What a range stands for."""

    OTHER = 0
    INSTRUCTION = 1
    MODULE = 2
    COMPILATION = 3


@dataclass(frozen=True, eq=False, repr=False)
class XlaNames(Table):
    """The parsed names of XLA's ranges, one row per name; -1 is none.

    Attributes:
        kind: code of :class:`RangeKind`.
        instruction: row of ``instructions``.
        module: row of ``modules``.
        instructions: distinct names of instructions.
        modules: distinct modules, as XLA writes them: ``jit_step(7)``, with the number if recorded.
    """

    kind: Ints
    instruction: Ints
    module: Ints
    instructions: tuple[str, ...] = field(metadata={"shared": True})
    modules: tuple[str, ...] = field(metadata={"shared": True})


def parse_range_names(names: Sequence[str]) -> XlaNames:
    """Return the instruction, the module or the compilation that each name stands for."""
    rows = scattered((3, len(names)), 0, RangeKind.OTHER)
    instructions, modules = Numbering[str](), Numbering[str]()
    for row, name in enumerate(names):
        plain, module = name.removeprefix(_DOMAIN), None
        if thunk := _THUNK.match(plain):
            rows[0, row] = RangeKind.INSTRUCTION
            rows[1, row] = instructions.number(thunk[1])
            module = _OF_MODULE.match(thunk[2])
        elif module := _MODULE.match(plain):
            rows[0, row] = RangeKind.MODULE
        elif plain.startswith("XlaCompile"):
            rows[0, row] = RangeKind.COMPILATION
        if module:
            label = module[1] if module[2] is None else f"{module[1]}({module[2]})"
            rows[2, row] = modules.number(label)
    kind, instruction, module_id = (column.copy() for column in rows)
    return XlaNames(kind, instruction, module_id, instructions.values, modules.values)


# Executions: which ranges of an XLA instruction are one execution of it, and of which module.
#
# Consecutive ranges of an instruction are one execution of it, since an instruction may be several
# thunks; every trip of a loop is one, too::
#
#     XlaModule   ├─jit_step──────────────────────────────────────────────┤
#     Thunk         ├─fusion.1─┤ ├─fusion.1─┤ ├─while.2──────────────────┤
#                                               ├─dot.3─┤├─add.4─┤├─dot.3─┤
#     executions    fusion.1 once                dot.3 twice, add.4 once


@dataclass(frozen=True, eq=False, repr=False)
class Thunks(Table):
    """Ranges of instructions; rows count those of all ranges, -1 is none.

    Attributes:
        instruction: row of the names.
        module: row of the modules' names.
        within: range of the module's execution.
        execution: number of the instruction's execution.
        compiling: whether XLA compiled.
        cut: whether the capture ended before it, or its module.
    """

    instruction: Ints
    module: Ints
    within: Ints
    execution: Ints
    compiling: Bools
    cut: Bools


def thunks_of(ranges: Ranges, rows: Ints, names: XlaNames) -> tuple[Thunks, int]:
    """Return the executions that the ranges of instructions belong to.

    Also how many ends of asynchronous pairs something else came before.

    Args:
        ranges: of instructions, modules and compilation.
        rows: those of instructions.
        names: of ranges, parsed.
    """
    kind = names.kind[ranges.name_id]
    within, compiling = (
        _innermost(ranges, np.flatnonzero(kind == own), rows)
        for own in (RangeKind.MODULE, RangeKind.COMPILATION)
    )
    named = np.where(within == NONE, rows, within)
    instruction, module = names.instruction[ranges.name_id[rows]], names.module[ranges.name_id]
    parent = found_in(rows, _innermost(ranges, rows, rows))
    order = np.lexsort((ranges.start_ns[rows], parent, within, ranges.thread[rows]))
    follows = np.ones(len(rows), bool)
    follows[:1] = False
    for column in (ranges.thread[rows], within, parent):
        follows[1:] &= column[order[1:]] == column[order[:-1]]
    # Trips of a loop of a single instruction are executions of their own.
    inside = np.flatnonzero(parent != NONE)
    low, high = intervals.group_extents(
        parent[inside], len(parent), instruction[inside], instruction[inside]
    )
    loops = np.array([re.match(r"while\b", name) is not None for name in names.instructions], bool)
    sole = np.append((low == high) & loops[instruction], False)[parent]
    same = follows & (within[order] != NONE) & ~sole[order]
    same[1:] &= instruction[order[1:]] == instruction[order[:-1]]
    execution, outer = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
    outer[order] = np.cumsum(~same) - 1
    # A range inside one of its own instruction belongs to that one's execution.
    inner = (parent != NONE) & (instruction == instruction[parent])
    while not np.array_equal(outer, execution):
        execution, outer = outer, np.where(inner, outer[parent], outer)
    # What ends a pair does not directly follow a beginning of its kind: other work came between.
    # The numbers in the names do not pair a start with its done.
    pairs, kinds = np.full((2, len(names.instructions)), NONE, np.int64), Numbering[str]()
    for row, name in enumerate(names.instructions):
        if half := _HALF.match(name):
            pairs[int(half[2] == "done"), row] = kinds.number(half[1])
    starts, ends = pairs[:, instruction[order]]
    apart = (ends != NONE) & np.isin(ends, starts)
    apart[1:] &= ~(follows[1:] & (starts[:-1] == ends[1:]))
    return Thunks(
        instruction=instruction,
        module=module[named],
        within=within,
        execution=execution,
        compiling=compiling != NONE,
        cut=ranges.cut[rows] | ((within != NONE) & ranges.cut[within]),
    ), int(apart.sum())


def _innermost(ranges: Ranges, holders: Ints, rows: Ints) -> Ints:
    """Return the innermost other holder around each of some ranges on its thread; -1 none."""
    around = np.full(len(rows), NONE, np.int64)
    for thread in distinct(ranges.thread[holders]).tolist():
        outer = holders[ranges.thread[holders] == thread]
        place = np.flatnonzero(ranges.thread[rows] == thread)
        start_ns, end_ns = ranges.start_ns[rows[place]], ranges.end_ns[rows[place]]
        innermost = Innermost.of(ranges.start_ns[outer], ranges.end_ns[outer])
        if holders is rows:
            holder, deepest = (np.full(len(place), NONE, np.int64) for _ in range(2))
            depth_of = innermost.depth[places_in(innermost.row)]
            for query, row in innermost.all_around(start_ns, end_ns):
                depth = depth_of[row]
                better = (depth < depth_of[query]) & (depth > deepest[query])
                deepest[query[better]], holder[query[better]] = depth[better], row[better]
        else:
            holder = innermost.around(start_ns, end_ns)
        around[place[holder >= 0]] = outer[holder[holder >= 0]]
    return around


#: Collectives may overlap compute for so much of their time (clock grain) without a word.
_OVERLAPPED = 0.01

OVERLAP = "collectives overlap compute"
PAIRS = "asynchronous collectives"
GRAPHS = "instructions inside CUDA graphs"


@dataclass(frozen=True, eq=False, repr=False)
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


def measure(
    profile: Profile, kinds: Kinds, skip: int = 1
) -> tuple[Samples, Counter[str], tuple[Limitation, ...]]:
    """Return the time of each execution of each instruction.

    A kernel or copy belongs to the innermost instruction around its launching call.

    Args:
        profile: as read, with the ranges that :data:`.range_names.GLOBS` lets through.
        kinds: names of communication kernels, and of collectives among instructions.
        skip: executions of each module on each device that are its warm-up (lazy loading, set-up
            of communication); a module that no device runs more often keeps them.

    Returns:
        The executions that count; the numbers of those left out: launched while XLA compiled
        (``compilation``, autotuning), of a module that began before the capture or had not ended
        with it (``cut``), and among the first of their module on their device (``warm_up``); and
        what could not be measured, and why.

    Raises:
        NothingToAnalyseError: no instruction has GPU work.
    """
    path = profile.source.path
    names = parse_range_names(profile.ranges.names)
    rows = np.flatnonzero(names.kind[profile.ranges.name_id] == RangeKind.INSTRUCTION)
    if len(rows) == 0:
        raise without_instructions(profile)
    linked = linking.link(with_added_communication(profile, kinds), profile.ranges.take(rows))
    links, activities = linked.links, linked.profile.activities
    thunks, apart = thunks_of(profile.ranges, rows, names)
    work = np.flatnonzero(links.range != NONE)
    if len(work) == 0:
        raise NothingToAnalyseError(
            f"{path}: no instruction of XLA has GPU work; profile again with: "
            "nsys profile -t cuda,nvtx (and the whole of a step in the capture)"
        )
    thunk = links.range[work].astype(np.int64)
    groups = groups_of(thunks.execution[thunk], activities.rank[work].astype(np.int64))
    length_ns = activities.end_ns[work] - activities.start_ns[work]
    # Copies have no name; the place behind the last one is theirs.
    by_name = np.append(matching(activities.names, kinds.communication), False)
    communication = by_name[activities.name_id[work]]
    moves = matching(names.instructions, kinds.communication)
    moves[thunks.instruction[thunk[communication]]] = True
    first = thunk[groups.first]
    samples = Samples(
        instruction=thunks.instruction[first],
        module=thunks.module[first],
        device=activities.rank[work[groups.first]].astype(np.int64),
        cost_ns=intervals.group_sum(groups.of_row, len(groups), length_ns),
        collective=moves[thunks.instruction[first]],
        instructions=names.instructions,
        modules=names.modules,
    )
    in_modules = bool((thunks.within != NONE).any())
    keep, left_out, once = _kept(
        thunks.take(first), samples.device, profile.ranges, skip, in_modules=in_modules
    )
    counts = keep[groups.of_row]
    # How long collectives ran over all devices, and how long of that beside compute.
    device, devices = activities.rank[work].astype(np.int64), len(activities.ranks)
    spans = device, devices, activities.start_ns[work], activities.end_ns[work]
    compute = (work < activities.kernels) & ~communication & counts
    cover = intervals.GroupCover(intervals.group_union(*spans, compute), devices)
    owner, low_ns, high_ns = intervals.group_union(*spans, communication & counts)
    collectives_ns = int((high_ns - low_ns).sum())
    overlapped_ns = int(cover.within(owner, low_ns, high_ns).sum())
    # Each instruction that launches a whole graph does so by one call.
    _, row = np.unique(thunks.instruction[thunk], return_index=True)
    called = distinct(links.call[work[row]])
    calls = profile.calls.names(called[called != NONE].astype(np.int64))
    graphs = sum(name.startswith(GRAPH_LAUNCHES) for name in calls)
    length_ns = activities.end_ns - activities.start_ns
    outside, unlinked = (
        links.rule == rule for rule in (linking.LinkRule.OUTSIDE, linking.LinkRule.UNLINKED)
    )
    notes = [
        Limitation(what, f"{path}: {reason}", int(count), kind)
        for what, count, reason, kind in (
            (
                OVERLAP,
                overlapped_ns > _OVERLAPPED * collectives_ns,
                f"{100 * overlapped_ns / max(collectives_ns, 1):.1f} % of their time beside "
                "compute kernels, which slows both; record with the latency-hiding scheduler and "
                "asynchronous collectives off",
                LimitationKind.WRONG_COSTS,
            ),
            (
                PAIRS,
                apart,
                "the latency-hiding scheduler put other instructions between their start and done, "
                "so costs would be wrong: record with it off",
                LimitationKind.WRONG_COSTS,
            ),
            (
                GRAPHS,
                graphs,
                f"{graphs} instruction{'s launch' if graphs > 1 else ' launches'} whole graphs, "
                "and what is inside has no costs; record with --xla_gpu_enable_command_buffer=",
                LimitationKind.WRONG_COSTS,
            ),
            (
                "work outside every instruction",
                outside.sum(),
                f"{length_ns[outside].sum() / 1e6:,.3f} ms; it is in no cost",
                LimitationKind.COSTS,
            ),
            (
                "kernels without their launching call",
                unlinked.sum(),
                f"{length_ns[unlinked].sum() / 1e6:,.3f} ms; they are in no cost",
                LimitationKind.COSTS,
            ),
            (
                "modules whose warm-up counts",
                once,
                f"no device runs them more than {texts.counted(skip, 'time')}, so their warm-up "
                "is in their costs",
                LimitationKind.COSTS,
            ),
        )
        if count
    ]
    limitations = (*linked.profile.limitations, *linked.limitations, *notes)
    return samples.take(keep), left_out, limitations


def without_instructions(profile: Profile) -> NothingToAnalyseError:
    """Return the error of a profile that names no instruction, with the file that would.

    Args:
        profile: with its work.
    """
    path = profile.source.path
    others = record.other_commands(profile, path)
    return NothingToAnalyseError(
        f"{path}: names no XLA instructions (TSL:Thunk:#...hlo_op=...); give a JAX run on GPUs, "
        "recorded with nsys profile -t cuda,nvtx, or the .xplane.pb of one on a "
        f"device{f'; {others}' if others else ''}"
    )


def _kept(
    thunks: Thunks, device: Ints, ranges: Ranges, skip: int, *, in_modules: bool
) -> tuple[Bools, Counter[str], int]:
    """Tell which executions count, how many do not, and how many modules keep their warm-up.

    Args:
        thunks: one of each execution on a device.
        device: of each.
        ranges: of all names.
        skip: executions of each module on each device that are its warm-up.
        in_modules: whether any range names the execution of a module.
    """
    compiling = int(thunks.compiling.sum())
    cut = (thunks.cut | ((thunks.within == NONE) & in_modules)) & ~thunks.compiling
    keep = ~thunks.compiling & ~cut
    rows = np.flatnonzero(keep)
    thunks, device = thunks.take(rows), device[rows]
    # Which execution of its module on its device each is part of. Where no range names modules,
    # each instruction counts its own executions.
    in_module = thunks.within != NONE
    modules = int(thunks.module.max(initial=NONE)) + 1
    key = np.where(in_module, thunks.module, modules + thunks.instruction)
    run = np.where(in_module, thunks.within, len(ranges) + thunks.execution)
    # Executions are numbered in the order of ranges; those of modules begin in another one.
    start_ns = np.append(ranges.start_ns, 0)[np.where(in_module, thunks.within, NONE)]
    each = groups_of(device, key, start_ns, run)
    of_module = (device[each.first], key[each.first])
    place = iterations.occurrences(of_module)[each.of_row]
    whole = groups_of(*of_module).of_row
    runs = np.bincount(whole, minlength=1)[whole][each.of_row]
    most = np.zeros(int(key.max(initial=NONE)) + 1, np.int64)
    np.maximum.at(most, key, runs)
    seldom = most <= skip
    warm = (place < skip) & ~seldom[key]
    keep[rows[warm]] = False
    left_out = Counter(compilation=compiling, cut=int(cut.sum()), warm_up=int(warm.sum()))
    return keep, left_out, int(seldom[distinct(key)].sum()) if skip else 0
