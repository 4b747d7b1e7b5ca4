"""Executions: which ranges of an XLA instruction are one execution of it, and of which module.

What an instruction's ranges one after the other launch is one execution of it, since an instruction
may be several thunks; every trip of a loop is one, too::

    XlaModule   ├─jit_step──────────────────────────────────────────────┤
    Thunk         ├─fusion.1─┤ ├─fusion.1─┤ ├─while.2──────────────────┤
                                              ├─dot.3─┤├─add.4─┤├─dot.3─┤
    executions    fusion.1 once                dot.3 twice, add.4 once
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bubbleviz.analyses.pgle.thunks import Kind, Said, halves, loops
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Bools, Ints, Table
from bubbleviz.model.containment import Innermost
from bubbleviz.model.profile import Ranges


@dataclass(frozen=True)
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


def thunks_of(ranges: Ranges, rows: Ints, said: Said) -> Thunks:
    """Return what is known of the ranges of instructions.

    Args:
        ranges: of instructions, modules and compilation.
        rows: those of instructions.
        said: what the names of ranges say.
    """
    kind = said.kind[ranges.name_id]
    within = _around(ranges, np.flatnonzero(kind == Kind.MODULE), rows)
    module = np.where(
        within == NONE, said.module[ranges.name_id[rows]], said.module[ranges.name_id[within]]
    )
    instruction = said.instruction[ranges.name_id[rows]]
    parent = _parents(ranges, rows)
    order = np.lexsort((ranges.start_ns[rows], parent, within, ranges.thread[rows]))
    follows = np.ones(len(rows), bool)
    follows[:1] = False
    for column in (ranges.thread[rows], within, parent):
        follows[1:] &= column[order[1:]] == column[order[:-1]]
    same = follows & (within[order] != NONE) & ~_sole(parent, instruction, said)[order]
    same[1:] &= instruction[order[1:]] == instruction[order[:-1]]
    execution = np.empty(len(rows), np.int64)
    execution[order] = np.cumsum(~same) - 1
    return Thunks(
        instruction=instruction,
        module=module,
        within=within,
        execution=_with_outer(execution, parent, instruction),
        compiling=_around(ranges, np.flatnonzero(kind == Kind.COMPILATION), rows) != NONE,
        cut=ranges.cut[rows] | ((within != NONE) & ranges.cut[within]),
        apart=_apart(order, follows, instruction, said),
    )


def _around(ranges: Ranges, holders: Ints, asked: Ints) -> Ints:
    """Return of each asked range the innermost holder around it on its thread; -1 none."""
    found = np.full(len(asked), NONE, np.int64)
    for thread in np.unique(ranges.thread[holders]).tolist():
        own = holders[ranges.thread[holders] == thread]
        of_thread = np.flatnonzero(ranges.thread[asked] == thread)
        inner = Innermost.of(ranges.start_ns[own], ranges.end_ns[own])
        rows = asked[of_thread]
        held = inner.around(ranges.start_ns[rows], ranges.end_ns[rows])
        found[of_thread[held >= 0]] = own[held[held >= 0]]
    return found


def _parents(ranges: Ranges, rows: Ints) -> Ints:
    """Return the innermost of some ranges around each of them, as its place among them; -1 none."""
    parent = np.full(len(rows), NONE, np.int64)
    for thread in np.unique(ranges.thread[rows]).tolist():
        own = np.flatnonzero(ranges.thread[rows] == thread)
        start_ns, end_ns = ranges.start_ns[rows[own]], ranges.end_ns[rows[own]]
        inner = Innermost.of(start_ns, end_ns)
        deepest = np.full(len(own), NONE, np.int64)
        for query, row in inner.all_around(start_ns, end_ns):
            depth = inner.depth[row]
            better = (depth < inner.depth[query]) & (depth > deepest[query])
            deepest[query[better]] = depth[better]
            parent[own[query[better]]] = own[row[better]]
    return parent


def _sole(parent: Ints, instruction: Ints, said: Said) -> Bools:
    """Tell which ranges are trips of a loop that holds one instruction and nothing else."""
    inside = np.flatnonzero(parent != NONE)
    low, high = intervals.group_extents(
        parent[inside], len(parent), instruction[inside], instruction[inside]
    )
    sole = np.append((low == high) & loops(said.instructions)[instruction], False)
    return np.asarray(sole[parent], bool)


def _with_outer(execution: Ints, parent: Ints, instruction: Ints) -> Ints:
    """Return executions in which a range inside one of its own instruction belongs to that one."""
    inner = (parent != NONE) & (instruction == instruction[parent])
    while True:
        outer = np.where(inner, execution[parent], execution)
        if np.array_equal(outer, execution):
            return execution
        execution = outer


def _apart(order: Ints, follows: Bools, instruction: Ints, said: Said) -> Bools:
    """Tell which ranges end a pair, and do not directly follow a beginning of its kind."""
    starts, ends = (of[instruction[order]] for of in halves(said.instructions))
    ending = (ends != NONE) & np.isin(ends, starts)
    beside = np.zeros(len(order), bool)
    beside[1:] = follows[1:] & (starts[:-1] == ends[1:])
    apart = np.zeros(len(order), bool)
    apart[order] = ending & ~beside
    return apart
