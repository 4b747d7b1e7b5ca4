"""Missing ranks: ranks of the run that are known to be absent from all profiles."""

from __future__ import annotations

import numpy as np

from bubbleviz.align.stages import pipelines, stage_order
from bubbleviz.model import grouping
from bubbleviz.model.columns import Ints
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.texts import list_and_count, list_first

#: Maximum number of ranks that a limitation lists.
_MAX_LISTED = 8


def _make_limitation(reason: str, count: int) -> tuple[Limitation, ...]:
    """Return the limitation for missing ranks, given the evidence (``reason``) and their number."""
    reason = f"{reason}, so ratios are incomplete"
    return (Limitation("ranks without a profile", reason, count),)


def find_missing_ranks(
    numbers: pipelines.RankNumbers, parallel: pipelines.Parallel | None, world: int
) -> tuple[Limitation, ...]:
    """Return a limitation for the ranks that are known to be absent from all profiles, or ().

    The first rule that applies shows which ranks are missing:

    1. If ``parallel`` is given, the run has ranks 0 to ``parallel.ranks - 1``. Ranks that were not
       recorded are missing.
    2. If fewer than ``world`` ranks were recorded, the run has ranks 0 to ``world - 1``. If names
       do not number the ranks, or if at least half of the ranks are missing, the limitation
       contains only the number of missing ranks, not a list.
    3. If names number the ranks, gaps between the numbers are missing ranks. Equally spaced numbers
       are not considered to have gaps, because they may be the ranks of one of several pipelines.

    Args:
        numbers: Numbers of the recorded ranks.
        parallel: Parallel sizes of the run, or None if the user does not specify any.
        world: Number of ranks in the run according to the profiles, or 0 if unknown.
    """
    number, count = np.sort(numbers.number), len(numbers.number)
    absent, run_clause = np.empty(0, np.int64), ""
    if parallel is not None:
        absent = grouping.subtract_values(np.arange(parallel.ranks), number)
    elif world > count:
        is_numbered = numbers.from_names and int(number.max(initial=0)) < world
        if not is_numbered or world - count >= count:
            number_list = list_first(map(str, number.tolist()), _MAX_LISTED)
            recorded_ranks = f" (only rank{'' if count == 1 else 's'} {number_list})"
            recorded_clause = recorded_ranks if is_numbered else ""
            return _make_limitation(
                f"the profiles contain {count:,} of the run's {world:,} ranks{recorded_clause}",
                world - count,
            )
        absent = grouping.subtract_values(np.arange(world), number)
        run_clause = f" (the run has {world:,} ranks)"
    elif numbers.from_names and len(grouping.find_distinct(np.diff(number))) > 1:
        absent = grouping.subtract_values(
            np.arange(number[0], number[-1], np.diff(number).min()), number
        )
    if len(absent) == 0:
        return ()
    ranks = list_and_count([str(rank) for rank in absent.tolist()], _MAX_LISTED)
    return _make_limitation(f"no profile contains ranks {ranks}{run_clause}", len(absent))


def find_incomplete_pipelines(pipeline: Ints, stage: Ints) -> tuple[Limitation, ...]:
    """Return a limitation for pipelines that lack a rank on any stage, or () if there are none.

    If no pipeline is known, stages with fewer ranks than the largest stage are reported instead
    (:func:`_find_small_stages`).

    Args:
        pipeline: Pipeline of each rank, or -1 if unknown.
        stage: Stage of each rank, or -1 if unknown.
    """
    is_known = (pipeline >= 0) & (stage >= 0)
    if not is_known.any():
        return _find_small_stages(stage)
    number, of_pipeline = np.unique(pipeline[is_known], return_inverse=True)
    numbers, stages = np.unique(stage[is_known], return_inverse=True)
    is_present = np.zeros((len(number), len(numbers)), bool)
    is_present[of_pipeline.reshape(-1), stages.reshape(-1)] = True
    absent = np.argwhere(~is_present)
    if not len(absent):
        return ()
    phrases = list_and_count([f"p{number[p]} stage {numbers[s]}" for p, s in absent], _MAX_LISTED)
    incomplete_count = int((~is_present.all(axis=1)).sum())
    return _make_limitation(
        f"ranks are missing from {incomplete_count:,} of {len(number):,} pipelines ({phrases})",
        len(absent),
    )


def _find_small_stages(stage: Ints) -> tuple[Limitation, ...]:
    """Return a limitation for stages with fewer ranks than the largest stage, or ().

    The result is () if all stages have the same number of ranks, or if the sizes of the stages are
    too uneven to show that ranks are missing (:func:`has_uneven_sizes`).

    Args:
        stage: Stage of each rank, or -1 if unknown.
    """
    stages, sizes = np.unique(stage[stage >= 0], return_counts=True)
    largest = int(sizes.max(initial=0))
    small = np.flatnonzero(sizes < largest)
    if not len(small) or stage_order.has_uneven_sizes(sizes.tolist()):
        return ()
    phrases = list_and_count(
        [f"{sizes[index]} of stage {stages[index]}" for index in small.tolist()], _MAX_LISTED
    )
    reason = f"the profiles contain {largest:,} ranks of most stages, but only {phrases}"
    return _make_limitation(reason, int((largest - sizes[small]).sum()))
