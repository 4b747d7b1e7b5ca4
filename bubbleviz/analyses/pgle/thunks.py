"""Groups the ranges of XLA instructions into executions, and assigns the executions to modules.

An instruction may consist of several thunks, so consecutive ranges of an instruction form one
execution. Each loop iteration is a separate execution::

    XlaModule   ├─jit_step──────────────────────────────────────────────┤
    Thunk         ├─fusion.1─┤ ├─fusion.1─┤ ├─while.2──────────────────┤
                                              ├─dot.3─┤├─add.4─┤├─dot.3─┤
    executions    fusion.1 once                dot.3 twice, add.4 once

"""

from __future__ import annotations

import re
from collections.abc import Sequence
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
        instruction: The instruction, as an index into :attr:`.XlaNames.instructions`.
        module: The module, as an index into :attr:`.XlaNames.modules`, or -1 if unknown.
        within: Row of the module range around the instruction, or -1 if there is none.
        execution: Integer id of the execution that the range belongs to.
        compiling: Whether XLA was compiling during the range.
        cut: Whether the capture ended inside the range or its module.
    """

    instruction: Ints
    module: Ints
    within: Ints
    execution: Ints
    compiling: Bools
    cut: Bools


def find_thunks(ranges: Ranges, rows: Ints, names: XlaNames) -> tuple[Thunks, int]:
    """Find out which ranges of an instruction belong to the same execution.

    Consecutive ranges of the same instruction within one module range form one execution. If a loop
    contains a single instruction, each range of this instruction is a separate execution.

    Args:
        ranges: Ranges of instructions, modules and compilations.
        rows: Rows of the instruction ranges.
        names: Parsed names of the ranges.

    Returns:
        thunks: One row per range in ``rows``.
        n_apart: Number of asynchronous ``done`` instructions that do not directly follow their
            ``start``, because other instructions ran in between.
    """
    kind = names.kind[ranges.name_id]
    within, compiling = (
        _find_innermost(ranges, np.flatnonzero(kind == range_kind), rows)
        for range_kind in (RangeKind.MODULE, RangeKind.COMPILATION)
    )
    instruction = names.instruction[ranges.name_id[rows]]
    parent = find_positions(rows, _find_innermost(ranges, rows, rows))
    order = np.lexsort((ranges.start_ns[rows], parent, within, ranges.thread[rows]))
    follows = np.ones(len(rows), bool)
    follows[:1] = False
    for column in (ranges.thread[rows], within, parent):
        follows[1:] &= column[order[1:]] == column[order[:-1]]
    # If a loop contains a single instruction, each loop iteration is one execution.
    is_only_child = _mask_only_children(parent, instruction, names.instructions)
    continues = follows & (within[order] != NONE) & ~is_only_child[order]
    continues[1:] &= instruction[order[1:]] == instruction[order[:-1]]
    execution = np.empty(len(rows), np.int64)
    execution[order] = np.cumsum(~continues) - 1
    n_apart = _count_halves_apart(instruction[order], follows, names.instructions)
    return Thunks(
        instruction=instruction,
        module=names.module[ranges.name_id[np.where(within == NONE, rows, within)]],
        within=within,
        execution=_merge_nested_executions(execution, parent, instruction),
        compiling=compiling != NONE,
        cut=ranges.cut[rows] | ((within != NONE) & ranges.cut[within]),
    ), n_apart


def _mask_only_children(parent: Ints, instruction: Ints, names: Sequence[str]) -> Bools:
    """Return a mask of the ranges whose direct parent is a loop that contains a single instruction.

    Args:
        parent: Row of the range that directly encloses each range, or -1 if there is none.
        instruction: Instruction of each range, as an index into ``names``.
        names: Instruction names.
    """
    nested_row = np.flatnonzero(parent != NONE)
    first_instruction, last_instruction = intervals.group_extents(
        parent[nested_row], len(parent), instruction[nested_row], instruction[nested_row]
    )
    is_loop = np.array([re.match(r"while\b", name) is not None for name in names], bool)
    has_single_child = (first_instruction == last_instruction) & is_loop[instruction]
    return np.append(has_single_child, False)[parent]


def _merge_nested_executions(execution: Ints, parent: Ints, instruction: Ints) -> Ints:
    """Merge the executions of ranges nested inside a range of the same instruction.

    A nested range gets the execution of the outermost enclosing range of the same instruction.

    Args:
        execution: Execution of each range.
        parent: Row of the range that directly encloses each range, or -1 if there is none.
        instruction: Instruction of each range.
    """
    is_nested_in_itself = (parent != NONE) & (instruction == instruction[parent])
    while True:
        outer = np.where(is_nested_in_itself, execution[parent], execution)
        if np.array_equal(outer, execution):
            return execution
        execution = outer


def _count_halves_apart(instruction: Ints, follows: Bools, names: Sequence[str]) -> int:
    """Count the ``done`` instructions that do not directly follow a ``start`` of the same kind.

    Only kinds, such as ``all-reduce``, are compared, because the numbers in names do not identify
    pairs. Kinds for which no range is a ``start`` are ignored.

    Args:
        instruction: Instruction of each range, as an index into ``names``, in order of execution.
        follows: Mask of the ranges with the same thread, module and parent as the preceding range.
        names: Instruction names.
    """
    kind_of_half, kinds = np.full((2, len(names)), NONE, np.int64), Numbering[str]()
    for row, name in enumerate(names):
        if half := _HALF.match(name):
            kind_of_half[int(half[2] == "done"), row] = kinds.number(half[1])
    start_kind, done_kind = kind_of_half[:, instruction]
    is_apart = (done_kind != NONE) & np.isin(done_kind, start_kind)
    is_apart[1:] &= ~(follows[1:] & (start_kind[:-1] == done_kind[1:]))
    return int(is_apart.sum())


def _find_innermost(ranges: Ranges, holders: Ints, rows: Ints) -> Ints:
    """Return the innermost range that encloses each range, or -1 if there is none.

    Args:
        ranges: All ranges.
        holders: Rows of the ranges that may enclose other ranges of the same thread. If ``holders``
            is the same array as ``rows``, no range encloses itself.
        rows: Rows of the ranges to look up.
    """
    around = np.full(len(rows), NONE, np.int64)
    for thread in find_distinct(ranges.thread[holders]).tolist():
        outer = holders[ranges.thread[holders] == thread]
        index = np.flatnonzero(ranges.thread[rows] == thread)
        start_ns, end_ns = ranges.start_ns[rows[index]], ranges.end_ns[rows[index]]
        innermost = Innermost.of(ranges.start_ns[outer], ranges.end_ns[outer])
        holder = (
            _find_parents(innermost, start_ns, end_ns)
            if holders is rows
            else innermost.around(start_ns, end_ns)
        )
        around[index[holder >= 0]] = outer[holder[holder >= 0]]
    return around


def _find_parents(innermost: Innermost, start_ns: Ints, end_ns: Ints) -> Ints:
    """Return, for each range, the innermost other range that encloses it, or -1 if there is none.

    If two ranges have equal times, the range with the smaller depth encloses the other.

    Args:
        innermost: The ranges.
        start_ns: Start time of each range in ``innermost``, in order of rows.
        end_ns: End time of each range in ``innermost``, in order of rows.
    """
    parent, deepest = (np.full(len(start_ns), NONE, np.int64) for _ in range(2))
    depth_of = innermost.depth[invert_permutation(innermost.row)]
    for query, row in innermost.iter_around(start_ns, end_ns):
        depth = depth_of[row]
        better = (depth < depth_of[query]) & (depth > deepest[query])
        deepest[query[better]], parent[query[better]] = depth[better], row[better]
    return parent
