"""Flows: how microbatches go from stage to stage, to the last one and back.

::

    rank 0   F 3 ──┐                ┌─> B 3
    rank 1         └─> F 3 ──> B 3 ─┘
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bubbleviz.explain.dependencies import needs_of
from bubbleviz.model.columns import NONE, Ints, Table
from bubbleviz.model.phases import Phase
from bubbleviz.report.report import Report


@dataclass(frozen=True)
class Flows(Table):
    """Results that operations pass on: rows of the operations table."""

    before: Ints
    after: Ints


def flows_of(report: Report) -> Flows:
    """Return how microbatches go from stage to stage, and turn where they go back.

    What a W takes is no step of that way, nor is an F that a B takes beside the B behind it. Where
    clocks leave a result before what it is made of, there is no flow: it would go back in time.
    """
    operations = report.operations
    needs = needs_of(operations, report.ranks)
    stage = operations.virtual_stage
    steps = needs.remote | (stage[needs.after] != stage[needs.before])
    stepped = np.zeros(len(operations), bool)
    stepped[needs.after[steps]] = True
    kept = (operations.phase[needs.after] != Phase.W) & (steps | ~stepped[needs.after])
    kept &= operations.start_ns[needs.before] < operations.start_ns[needs.after]
    return Flows(needs.before[kept], needs.after[kept])


def flows_at(rows: Ints, ends: Ints) -> dict[int, list[int]]:
    """Return the flows that have an end at each place of some rows.

    Args:
        rows: of the operations table, distinct.
        ends: one end of each flow; the first flow is number 1.
    """
    order = np.argsort(rows, kind="stable")
    at = np.searchsorted(rows[order], ends)
    held = np.flatnonzero(np.append(rows[order], NONE)[at] == ends)
    found: dict[int, list[int]] = {}
    for place, flow in zip(order[at[held]].tolist(), (held + 1).tolist(), strict=True):
        found.setdefault(place, []).append(flow)
    return found
