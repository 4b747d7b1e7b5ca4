"""Executions: which ranges of an XLA instruction are one execution of it, and of which module.

Consecutive ranges of an instruction are one execution of it, since an instruction may be several
thunks; every trip of a loop is one, too::

    XlaModule   ├─jit_step──────────────────────────────────────────────┤
    Thunk         ├─fusion.1─┤ ├─fusion.1─┤ ├─while.2──────────────────┤
                                              ├─dot.3─┤├─add.4─┤├─dot.3─┤
    executions    fusion.1 once                dot.3 twice, add.4 once
"""

from __future__ import annotations

import numpy as np

from bubbleviz.analyses.pgle.range_names import RangeKind, XlaNames, halves, loops
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Bools, Ints, Table
from bubbleviz.model.containment import Innermost
from bubbleviz.model.grouping import distinct
from bubbleviz.model.profile import Ranges
from bubbleviz.model.values import frozen


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
