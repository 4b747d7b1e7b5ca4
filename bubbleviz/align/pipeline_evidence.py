"""Evidence: what shows that ranks are stages of a pipeline, where no name and no user says so.

Waiting times give stages an order. But data-parallel replicas wait for each other, too, and
unequally where one is late or slow, so that one of them may look like the upstream one of two.
These run one and the same order; ranks of a pipeline transfer, or run orders of their own, or keep
every one of several microbatches for as long as the next stage has it.
"""

from __future__ import annotations

from bubbleviz.align.arrivals import Arrivals
from bubbleviz.align.rank_orders import orders_of
from bubbleviz.align.replicas import nests
from bubbleviz.model.columns import Ints
from bubbleviz.model.grouping import distinct
from bubbleviz.model.operations import RankOperations
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import COUNTED, TRANSFERS


def transfers_or_orders_differ(operations: RankOperations) -> bool:
    """Return whether ranges name a transfer that ran, or no order is common to all ranks.

    Kernels alone show no transfer between stages: all-to-all is sends and receives as well.

    Args:
        operations: of all ranks, with each rank's own iteration numbers.
    """
    if (among(operations.phase, TRANSFERS) & (operations.has_span == 1)).any():
        return True
    orders = orders_of(operations, training=True)
    return len(distinct(orders.rank)) > 1 and not orders.in_common


def microbatches_nest(operations: RankOperations, inputs: Arrivals, virtual_stage: Ints) -> bool:
    """Return whether each of several microbatches is away for as long as the next stage has it.

    Of a single microbatch an iteration that says little: one late replica looks the same.

    Args:
        operations: of all ranks, with each rank's own iteration numbers.
        inputs: when their inputs were there.
        virtual_stage: of each operation; -1 unknown.
    """
    work = among(operations.phase, COUNTED) & (operations.microbatch >= 0)
    several = len(distinct(operations.microbatch[work])) > 1
    return several and nests(operations, inputs, virtual_stage)
