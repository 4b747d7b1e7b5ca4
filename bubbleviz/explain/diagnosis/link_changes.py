"""Find links between stages that become slow during a run, and when they become slow.

The slack of a message is the time from the end of its producer to the start of its consumer. The
slack contains the transfer, and the time during which the consumer's rank was still busy. In each
iteration, some consumer waits for each link, so the least slack of a link is close to its transfer
time. If a link becomes slow, its least slack rises in both directions::

    least slack, ms    iteration   5     6     7     8     9    10    11
    stages 2 -> 3                 3.2   3.2   3.2   3.2   130   131   130
    stages 3 -> 2                 1.8   1.7   1.8   1.7    72    71    73
    stages 2 -> 1                 1.7   1.7   1.7   1.8   136   136   135
    stages 1 -> 2                 1.8   1.8   1.7   1.8   1.9   1.9   1.8

Messages of a neighboring link may queue up behind messages of the slow link, here from stage 2 to
stage 1. But this happens in one direction only. The iteration of the change is found in the sum of
both directions, because the clock offset between two ranks cancels out in the sum.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bubbleviz.count.rank_slices import list_stages_and_pipelines
from bubbleviz.count.statistics import compute_median
from bubbleviz.explain.dependencies import Dependencies
from bubbleviz.explain.diagnosis.fits import Jumps, fit_jumps, replace_spikes
from bubbleviz.explain.slowdown.replayed_run import ReplayedRun
from bubbleviz.explain.slowdown.work import group_medians
from bubbleviz.model.columns import NONE, Bools, Floats, Ints, Table
from bubbleviz.model.grouping import Groups, find_distinct, group_rows
from bubbleviz.model.intervals import group_extents
from bubbleviz.model.operations import Operations

#: Minimum rise in each direction of a slow link, as a fraction of the rise in the opposite
#: direction.
_MIN_OTHER_DIRECTION = 0.25
#: Minimum rise of a slow link, as a fraction of the largest rise of any slow link.
_MIN_OF_LARGEST = 0.5


@dataclass(frozen=True)
class LinkChange:
    """A link between two stages that became slow during the run.

    Attributes:
        stages: The two stages, lower stage first.
        replica: Replica of the pipeline, or -1 if unknown.
        first_iteration: Number of the first slow iteration in the report.
        before_ns: Lower median of the least slack before the change.
        after_ns: Lower median of the least slack in the slow iterations. Both medians are for the
            direction in which ``after_ns`` is smaller.
    """

    stages: tuple[int, int]
    replica: int
    first_iteration: int
    before_ns: int
    after_ns: int


@dataclass(frozen=True, eq=False, repr=False)
class _LinkSlack(Table):
    """Least slack of links, one row per link and iteration that has messages in both directions.

    Attributes:
        low: Lower stage of the link.
        high: Higher stage of the link.
        replica: Replica of the pipeline, or -1 if unknown.
        iteration: Iteration number in the report.
        up_ns: Least slack of the messages from the lower to the higher stage.
        down_ns: Least slack of the messages from the higher to the lower stage.
    """

    low: Ints
    high: Ints
    replica: Ints
    iteration: Ints
    up_ns: Ints
    down_ns: Ints


def find_link_changes(run: ReplayedRun) -> tuple[LinkChange, ...]:
    """Find the links that become slow during a run, sorted by replica and stages.

    A link is a pair of stages in one replica. The slack of a message is the time from the end of
    its producer to the start of its consumer. A link became slow if three conditions hold:

    1. The least slack, summed over both directions, jumps significantly (:func:`.fit_jumps`). For
       this, the slack is divided by the median duration of a consumer, and outliers are removed.
    2. The least slack rises in both directions. The smaller rise is at least a quarter of the
       larger one.
    3. The jump is at least half as large as the largest jump of any link that meets the first two
       conditions.
    """
    messages = _select_messages(run)
    slack = _measure_link_slack(run, messages)
    if not len(slack):
        return ()
    unit_ns = compute_median(run.operations.busy_ns[messages.successor])
    links = group_rows(slack.replica, slack.low, slack.high)
    position = group_rows(slack.iteration).of_row.astype(np.float64)
    jumps = _fit_slack_jumps(slack, links, position, max(unit_ns, 1.0))
    is_after = position >= jumps.position[links.of_row]
    before_ns, after_ns = (_compute_medians(slack, links, mask) for mask in (~is_after, is_after))
    is_slow = _mask_slow_links(jumps, after_ns - before_ns)
    faster_direction = after_ns.argmin(axis=0)
    iterations = find_distinct(slack.iteration)
    return tuple(
        LinkChange(
            stages=(int(slack.low[links.first[link]]), int(slack.high[links.first[link]])),
            replica=int(slack.replica[links.first[link]]),
            first_iteration=int(iterations[int(jumps.position[link])]),
            before_ns=int(before_ns[faster_direction[link], link]),
            after_ns=int(after_ns[faster_direction[link], link]),
        )
        for link in np.flatnonzero(is_slow).tolist()
    )


def _fit_slack_jumps(slack: _LinkSlack, links: Groups, position: Floats, unit_ns: float) -> Jumps:
    """Fit a jump to the least slack of each link, summed over both directions.

    Args:
        slack: Least slack of each link in each iteration.
        links: Groups of rows of ``slack`` with the same link.
        position: Zero-based iteration number of each row of ``slack``.
        unit_ns: Time by which the slack is divided, in ns.
    """
    sum_in_units = (slack.up_ns + slack.down_ns) / unit_ns
    smooth = replace_spikes(links.of_row, position, sum_in_units)
    return fit_jumps(links.of_row, position, smooth)


def _mask_slow_links(jumps: Jumps, rise_ns: Floats) -> Bools:
    """Return a mask of the links that became slow; see :func:`find_link_changes`.

    Args:
        jumps: Jump of each link's least slack.
        rise_ns: Rise of the least slack in each direction in ns, shape (2, links).
    """
    rises_both_ways = rise_ns.min(axis=0) >= _MIN_OTHER_DIRECTION * rise_ns.max(axis=0)
    is_slow = jumps.is_significant & rises_both_ways
    largest_rise = jumps.change[is_slow].max(initial=0.0)
    return np.asarray(is_slow & (jumps.change >= _MIN_OF_LARGEST * largest_rise), bool)


def _select_messages(run: ReplayedRun) -> Dependencies:
    """Return the dependencies between ranks on different stages within an averaged iteration."""
    operations, dependencies = run.operations, run.explained().dependencies
    iteration = operations.iteration[dependencies.successor]
    sender, receiver = _find_stages(run, dependencies)
    is_message = iteration == operations.iteration[dependencies.predecessor]
    is_message &= sender != receiver
    is_message &= (sender != NONE) & (receiver != NONE)
    is_message &= np.append(run.averaged, False)[iteration]
    return dependencies.take(is_message)


def _measure_link_slack(run: ReplayedRun, messages: Dependencies) -> _LinkSlack:
    """Measure the least slack of each link in each iteration, in both directions.

    The slack of a message is the time from the end of its producer to the start of its consumer.
    For each link, iterations that lack messages in either direction are left out.

    Args:
        run: The replayed run.
        messages: Dependencies between ranks of different stages.
    """
    sender, receiver = _find_stages(run, messages)
    low, high = np.minimum(sender, receiver), np.maximum(sender, receiver)
    replica = list_stages_and_pipelines(run.ranks)[1][run.operations.rank[messages.successor]]
    iteration = run.operations.iteration[messages.successor]
    cells = group_rows(replica, low, high, iteration)
    slack_ns = _measure_message_slack(run.operations, messages)
    up_ns, has_up = _find_least(cells, slack_ns, sender < receiver)
    down_ns, has_down = _find_least(cells, slack_ns, sender > receiver)
    slack = _LinkSlack(
        low=low[cells.first],
        high=high[cells.first],
        replica=replica[cells.first],
        iteration=run.numbers[iteration[cells.first]],
        up_ns=up_ns,
        down_ns=down_ns,
    )
    return slack.take(has_up & has_down)


def _measure_message_slack(operations: Operations, messages: Dependencies) -> Ints:
    """Return the time from the end of each message's producer to the start of its consumer."""
    # An operation that contains its own receive may start before its input has arrived.
    start_ns = np.maximum(operations.start_ns, operations.received_ns)[messages.successor]
    return start_ns - operations.end_ns[messages.predecessor]


def _find_stages(run: ReplayedRun, messages: Dependencies) -> tuple[Ints, Ints]:
    """Return the stages of the sender and the receiver of each message, or -1 if unknown."""
    stage, _ = list_stages_and_pipelines(run.ranks)
    rank = run.operations.rank
    return stage[rank[messages.predecessor]], stage[rank[messages.successor]]


def _find_least(cells: Groups, slack_ns: Ints, is_included: Bools) -> tuple[Ints, Bools]:
    """Return the least slack of the included messages in each group, and which groups have any.

    Args:
        cells: Groups of messages, such as the messages of a link in an iteration.
        slack_ns: Slack of each message in ns.
        is_included: Mask of the messages to include.

    Returns:
        Least slack of each group, and a mask of the groups that have included messages. In all
        other groups, the least slack is arbitrary.
    """
    cell = cells.of_row[is_included]
    least_ns, _ = group_extents(cell, len(cells), slack_ns[is_included], slack_ns[is_included])
    return least_ns, np.bincount(cell, minlength=len(cells)) > 0


def _compute_medians(slack: _LinkSlack, links: Groups, is_included: Bools) -> Floats:
    """Return the lower median of each link's least slack in ns, shape (2, links).

    Row 0 is the direction from the lower to the higher stage, row 1 the opposite direction. Only
    the included rows are used. The median is NaN if no row of the link is included.
    """
    link = links.of_row[is_included]
    return np.stack(
        [
            group_medians(link, len(links), least_ns[is_included].astype(np.float64))
            for least_ns in (slack.up_ns, slack.down_ns)
        ]
    )
