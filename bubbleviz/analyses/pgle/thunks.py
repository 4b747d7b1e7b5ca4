"""Groups the ranges of XLA instructions into executions, and assigns them to modules.

An instruction may consist of several thunks, so its consecutive ranges form one execution. Every
iteration of a loop is a separate execution::

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
    """Ranges of instructions, one row per range.

    Attributes:
        instruction: Index of the instruction's name.
        module: Index of the module's label, or -1 if unknown.
        within: Row of the range of the module's execution, or -1 if there is none.
        execution: Number of the instruction's execution.
        compiling: Whether XLA was compiling.
        cut: Whether the capture ended inside the range or its module.
    """

    instruction: Ints
    module: Ints
    within: Ints
    execution: Ints
    compiling: Bools
    cut: Bools


def find_thunks(ranges: Ranges, rows: Ints, names: XlaNames) -> tuple[Thunks, int]:
    """Assign ranges of instructions to executions.

    Consecutive ranges of the same instruction in one module range are one execution, except in a
    loop that contains a single instruction.

    Args:
        ranges: Ranges of instructions, modules and compilations.
        rows: Rows of the ranges of instructions.
        names: Parsed names of the ranges.

    Returns:
        thunks: One row per range in ``rows``.
        n_apart: Number of ``done`` halves of asynchronous pairs that do not directly follow their
            ``start``, because other instructions ran in between.
    """
    kind = names.kind[ranges.name_id]
    within, compiling = (
        _find_innermost(ranges, np.flatnonzero(kind == range_kind), rows)
        for range_kind in (RangeKind.MODULE, RangeKind.COMPILATION)
    )
    module_range = np.where(within == NONE, rows, within)
    instruction, module = names.instruction[ranges.name_id[rows]], names.module[ranges.name_id]
    parent = find_positions(rows, _find_innermost(ranges, rows, rows))
    order = np.lexsort((ranges.start_ns[rows], parent, within, ranges.thread[rows]))
    follows = np.ones(len(rows), bool)
    follows[:1] = False
    for column in (ranges.thread[rows], within, parent):
        follows[1:] &= column[order[1:]] == column[order[:-1]]
    # If a loop contains a single instruction, each of its iterations is an execution.
    nested_row = np.flatnonzero(parent != NONE)
    first_instruction, last_instruction = intervals.group_extents(
        parent[nested_row], len(parent), instruction[nested_row], instruction[nested_row]
    )
    is_loop = np.array(
        [re.match(r"while\b", name) is not None for name in names.instructions], bool
    )
    is_only_child = np.append(
        (first_instruction == last_instruction) & is_loop[instruction], False
    )[parent]
    continues = follows & (within[order] != NONE) & ~is_only_child[order]
    continues[1:] &= instruction[order[1:]] == instruction[order[:-1]]
    execution, outer = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
    outer[order] = np.cumsum(~continues) - 1
    # A range nested in a range of the same instruction belongs to the outer range's execution.
    is_nested_in_itself = (parent != NONE) & (instruction == instruction[parent])
    while not np.array_equal(outer, execution):
        execution, outer = outer, np.where(is_nested_in_itself, outer[parent], outer)
    # Count the done halves that do not directly follow a start of the same kind. Numbers in names
    # do not identify pairs.
    pairs, kinds = np.full((2, len(names.instructions)), NONE, np.int64), Numbering[str]()
    for row, name in enumerate(names.instructions):
        if half := _HALF.match(name):
            pairs[int(half[2] == "done"), row] = kinds.number(half[1])
    start_kind, end_kind = pairs[:, instruction[order]]
    is_apart = (end_kind != NONE) & np.isin(end_kind, start_kind)
    is_apart[1:] &= ~(follows[1:] & (start_kind[:-1] == end_kind[1:]))
    return Thunks(
        instruction=instruction,
        module=module[module_range],
        within=within,
        execution=execution,
        compiling=compiling != NONE,
        cut=ranges.cut[rows] | ((within != NONE) & ranges.cut[within]),
    ), int(is_apart.sum())


def _find_innermost(ranges: Ranges, holders: Ints, rows: Ints) -> Ints:
    """Return the innermost range that encloses each range, or -1 if there is none.

    Args:
        ranges: All ranges.
        holders: Rows of the ranges that may enclose others. They only enclose ranges on their own
            thread. If this is the same array as ``rows``, no range encloses itself.
        rows: Rows of the ranges to look up.
    """
    around = np.full(len(rows), NONE, np.int64)
    for thread in find_distinct(ranges.thread[holders]).tolist():
        outer = holders[ranges.thread[holders] == thread]
        index = np.flatnonzero(ranges.thread[rows] == thread)
        start_ns, end_ns = ranges.start_ns[rows[index]], ranges.end_ns[rows[index]]
        innermost = Innermost.of(ranges.start_ns[outer], ranges.end_ns[outer])
        if holders is rows:
            holder, deepest = (np.full(len(index), NONE, np.int64) for _ in range(2))
            depth_of = innermost.depth[invert_permutation(innermost.row)]
            for query, row in innermost.iter_around(start_ns, end_ns):
                depth = depth_of[row]
                better = (depth < depth_of[query]) & (depth > deepest[query])
                deepest[query[better]], holder[query[better]] = depth[better], row[better]
        else:
            holder = innermost.around(start_ns, end_ns)
        around[index[holder >= 0]] = outer[holder[holder >= 0]]
    return around
