"""Explain one stretch. The explanations of all stretches are combined into one of the whole run.

:func:`explain_stretch` reads only the stretch, so it can run on the machine that stores the
profiles of the stretch. The result is small compared with the profiles.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from bubbleviz.align.arrivals import find_arrivals
from bubbleviz.explain import communication_times, phase_times
from bubbleviz.explain import stretch as stretches
from bubbleviz.explain.causes.bubbles import add_host_activity
from bubbleviz.explain.causes.cause import Cause
from bubbleviz.explain.causes.cause_times import measure_causes
from bubbleviz.explain.communication_times import CommunicationTimes
from bubbleviz.explain.dependencies import Inputs, find_dependencies, find_inputs
from bubbleviz.explain.phase_times import Samples
from bubbleviz.explain.slowdown.replayed_run import ExplainedRows, make_row_converter
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.operations import Operations


@dataclass(frozen=True, eq=False, repr=False)
class StretchExplanation:
    """The explanation of one stretch.

    Attributes:
        idle_ns: Idle time by cause, as in :class:`.CauseTimes`.
        communication: Communication times of the stretch's ranks.
        samples: Samples used to measure phase times; see :func:`.collect_phase_samples`.
        received: Number of receives whose producer is known, per iteration.
        crossing: Mask of the iterations in which an operation receives an input from another rank.
        kept_rows: Per-operation tables of the kept ranks, with the row numbers and rank indices of
            the run.
    """

    idle_ns: Mapping[str, Ints]
    communication: CommunicationTimes
    samples: tuple[Samples, Samples, Samples]
    received: Ints
    crossing: Bools
    kept_rows: ExplainedRows


def explain_stretch(stretch: stretches.Stretch) -> StretchExplanation:
    """Find the causes of the idle time in a stretch, and measure its operations and communication.

    If operations contradict the virtual stages, all dependencies are ignored.

    Args:
        stretch: The stretch, a group of complete pipelines.
    """
    operations = stretch.operations
    dependencies = find_dependencies(operations, stretch.ranks)
    if not stretch.stages_known:
        dependencies = dependencies.take(slice(0))
    inputs = find_inputs(
        operations,
        dependencies,
        stages_known=stretch.stages_known,
        passing=stretch.passing,
        ends_early=stretch.ends_early,
    )
    receive_arrivals = find_arrivals(operations)
    causes, bubbles, idle, tokens = measure_causes(stretch, inputs, receive_arrivals)
    bubbles = add_host_activity(bubbles, stretch.hosts)
    receives = communication_times.list_receives(operations, inputs, receive_arrivals, idle)
    iterations = len(stretch.averaged)
    received = operations.iteration[receives.operation]
    rows = ExplainedRows(dependencies, receives, idle, bubbles, tokens)
    if not stretch.is_kept.all():
        rows = rows.select_ranks(stretch.is_kept, operations.rank)
    return StretchExplanation(
        idle_ns=causes.idle_ns,
        communication=communication_times.measure_communication(
            stretch, receives, causes.idle_ns[stretch.listed_ratio][:, :, Cause.COLLECTIVE]
        ),
        samples=phase_times.collect_phase_samples(
            operations, receives, inputs, receive_arrivals, stretch.first_row
        ),
        received=np.bincount(received[received >= 0], minlength=iterations),
        crossing=_mask_crossing_iterations(operations, inputs, iterations),
        kept_rows=rows.renumber(
            make_row_converter(stretch.first_row, len(operations), stretch.elsewhere),
            operations.take(slice(0)),
            stretch.first_rank,
        ),
    )


def _mask_crossing_iterations(operations: Operations, inputs: Inputs, n_iterations: int) -> Bools:
    """Return a mask of the iterations in which an operation receives an input from another rank.

    Args:
        operations: Operations of the stretch.
        inputs: Inputs that operations received from other ranks.
        n_iterations: Number of iterations in the run.
    """
    # The last entry is for operations that belong to no iteration (-1).
    is_crossing = np.zeros(n_iterations + 1, bool)
    is_crossing[operations.iteration[inputs.producer != NONE]] = True
    return is_crossing[:n_iterations]
