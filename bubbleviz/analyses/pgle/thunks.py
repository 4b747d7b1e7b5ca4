"""Executions: which ranges of an XLA instruction are one execution of it, and of which module.

Consecutive ranges of an instruction are one execution of it, since an instruction may be several
thunks. Every trip of a loop is one execution, too::

    XlaModule   ├─jit_step──────────────────────────────────────────────┤
    Thunk         ├─fusion.1─┤ ├─fusion.1─┤ ├─while.2──────────────────┤
                                              ├─dot.3─┤├─add.4─┤├─dot.3─┤
    executions    fusion.1 once                dot.3 twice, add.4 once

"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from bubbleviz.analyses.pgle.range_names import _HALF, RangeKind, XlaNames
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Bools, Ints, Table
from bubbleviz.model.grouping import find_distinct, find_positions, invert_permutation
from bubbleviz.model.nesting import Innermost
from bubbleviz.model.numbering import Numbering
from bubbleviz.model.profile import Ranges


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
    parent = find_positions(rows, _innermost(ranges, rows, rows))
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
    for thread in find_distinct(ranges.thread[holders]).tolist():
        outer = holders[ranges.thread[holders] == thread]
        place = np.flatnonzero(ranges.thread[rows] == thread)
        start_ns, end_ns = ranges.start_ns[rows[place]], ranges.end_ns[rows[place]]
        innermost = Innermost.of(ranges.start_ns[outer], ranges.end_ns[outer])
        if holders is rows:
            holder, deepest = (np.full(len(place), NONE, np.int64) for _ in range(2))
            depth_of = innermost.depth[invert_permutation(innermost.row)]
            for query, row in innermost.iter_around(start_ns, end_ns):
                depth = depth_of[row]
                better = (depth < depth_of[query]) & (depth > deepest[query])
                deepest[query[better]], holder[query[better]] = depth[better], row[better]
        else:
            holder = innermost.around(start_ns, end_ns)
        around[place[holder >= 0]] = outer[holder[holder >= 0]]
    return around
