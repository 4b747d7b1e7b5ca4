"""Receiving kernels: kernels of unknown names that count as compute but wait for their input.

A receive begins in an operation whose input does not exist yet, and ends once it does. Compute that
needs no input may begin so early, but it also ends early now and then::

    rank 0   F1 █████████ F2 █████████
    rank 1   F1 ▒▒▒▒▒▒▒▒▒▒████ F2 ▒▒▒▒▒████
                          └ F1 of rank 0 ends, and so does the receive
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from bubbleviz.align.merge import JoinedRecordings
from bubbleviz.align.offsets import GRAIN_NS, ProfileClock
from bubbleviz.align.staging import Staging
from bubbleviz.align.timebase import rank_precedences
from bubbleviz.align.waiting_kernels import kernels_by_name, waiting_limitation
from bubbleviz.align.waits import NEVER
from bubbleviz.interpret.recording import Recording, UnknownKernels
from bubbleviz.model.columns import Ints
from bubbleviz.model.intervals import group_latest
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.operations import RankOperations

#: Minimum number of receives on a rank, and their minimum share of the kernels that begin before
#: the input of their operation exists.
_MIN_RECEIVES, _MIN_RECEIVING = 3, 0.95
#: Minimum share of a name's time on a rank that passes before inputs exist.
_MIN_WAITED = 0.5
#: Maximum time by which a receive ends before its input exists, as a share of the receive.
_EARLY_END_SHARE = 0.02


def receiving_kernels(
    recordings: Sequence[Recording],
    sessions: Sequence[ProfileClock],
    joined: JoinedRecordings,
    staging: Staging,
) -> Iterator[Limitation]:
    """Yield a limitation for each name whose kernels wait for an input and count as compute.

    Only inputs from ranks of the same machine are considered, because these share a clock.

    Args:
        recordings: All recordings of a run.
        sessions: Clock of each recording according to its session.
        joined: The recordings, on these clocks.
        staging: Their stages, pipelines and iterations.
    """
    by_name = kernels_by_name(_numbered_through(recordings, sessions))
    several = {name: of_ranks for name, of_ranks in by_name.items() if len(of_ranks) > 1}
    if not several or not staging.pairing.known:
        return
    ready_ns = _inputs_of_machine(joined, staging)
    for name, of_ranks in several.items():
        waiting = [
            of_rank for of_rank in of_ranks if _is_receiving(of_rank, joined.operations, ready_ns)
        ]
        if len(waiting) > 1:
            behaviour = "begins before the input of its operation exists, and ends once it does"
            yield waiting_limitation(name, of_ranks, behaviour, "bubbles are too small")


def _numbered_through(
    recordings: Sequence[Recording], sessions: Sequence[ProfileClock]
) -> Iterator[UnknownKernels]:
    """Yield unknown kernels on the clocks of sessions, with ranks numbered over all recordings."""
    first_rank = 0
    for recording, clock in zip(recordings, sessions, strict=True):
        for kernels in recording.unknown_kernels:
            yield replace(
                kernels,
                rank=first_rank + kernels.rank,
                start_ns=clock.of(kernels.start_ns),
                end_ns=clock.of(kernels.end_ns),
            )
        first_rank += len(recording.ranks)


def _inputs_of_machine(joined: JoinedRecordings, staging: Staging) -> Ints:
    """Return when the inputs of each operation existed that come from its own machine.

    The time is ``NEVER`` if there is no such input, or if a receive of it was recorded.
    """
    pairs = rank_precedences(joined, staging)
    machine = joined.machine_of_rank
    is_used = machine[pairs.before] == machine[pairs.after]
    is_used &= staging.arrivals.latest_ns[pairs.after_row] == NEVER
    return group_latest(
        pairs.after_row[is_used], len(staging.operations), pairs.before_ns[is_used], NEVER
    )


def _is_receiving(kernels: UnknownKernels, operations: RankOperations, ready_ns: Ints) -> bool:
    """Return whether kernels of one name on one rank wait for the inputs of their operations.

    They do if they spend most of their time before an input exists, and do not end before it does.

    Args:
        kernels: The kernels, with the number of the rank among all ranks.
        operations: Operations of all ranks, on the same clock.
        ready_ns: When the input of each operation existed, or ``NEVER``.
    """
    rows = np.flatnonzero((operations.rank == kernels.rank) & (ready_ns != NEVER))
    rows = rows[np.argsort(operations.start_ns[rows], kind="stable")]
    if not len(rows):
        return False
    middle_ns = (kernels.start_ns + kernels.end_ns) // 2
    row = rows[np.maximum(np.searchsorted(operations.start_ns[rows], middle_ns, "right") - 1, 0)]
    is_inside = (operations.start_ns[row] <= middle_ns) & (middle_ns < operations.end_ns[row])
    length_ns = kernels.end_ns - kernels.start_ns
    tolerance_ns = np.maximum(_EARLY_END_SHARE * length_ns, GRAIN_NS)
    earliest_ns = ready_ns[row] - tolerance_ns
    is_early = is_inside & (kernels.start_ns < earliest_ns)
    is_waiting = is_early & (kernels.end_ns >= earliest_ns)
    waited_ns = int((ready_ns[row] - kernels.start_ns)[is_waiting].sum())
    n_waiting, n_early = int(is_waiting.sum()), int(is_early.sum())
    return (
        n_waiting >= _MIN_RECEIVES
        and n_waiting >= _MIN_RECEIVING * n_early
        and waited_ns >= _MIN_WAITED * int(length_ns.sum())
    )
