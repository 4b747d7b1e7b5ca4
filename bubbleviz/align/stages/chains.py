"""Chains: the ranks of one pipeline, stage by stage, even if some ranks are missing.

The first chains start at a stage that has all of its replicas. Each chain is continued by the only
rank that fits on the next stage. After a missing rank, many ranks fit, because the duration of the
work on the missing rank is unknown. In this case, the remaining ranks continue the remaining chains
in rank order, if they fit::

    stage 4   a ── b ── c ── d
    stage 5   a ── b    .    .      two ranks without a profile
    stage 6   a ── b ── c ── d      a and b are the only fits, c and d follow by number
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import find_distinct

#: Function that decides which ranks on two stages can be in the same pipeline. The arguments are
#: the ranks of the first stage and the ranks of the second stage. The result is a mask of the pairs
#: that fit, shape (ranks of the first, ranks of the second).
Fits = Callable[[Ints, Ints], Bools]


def find_pipelines(stages: Sequence[Ints], fits: Fits, ranks: int) -> Ints | None:
    """Divide the ranks on several stages into pipelines by building chains from stage to stage.

    The ranks of the stage with the most ranks (the first one if tied) start chains 0, 1, 2 and so
    on. The chains are first continued to later stages, and then to earlier ones
    (:func:`_continue_chains`). A rank whose chain is unknown starts a new chain with the next
    number. Each chain is a pipeline.

    Args:
        stages: Ranks of each stage, sorted by rank number.
        fits: Function that decides which ranks on two stages can be in the same pipeline. If the
            stages are not adjacent, the ranks between them are missing.
        ranks: Number of entries in the result, one per rank.

    Returns:
        Pipeline of each rank, or -1 for a rank that is on no stage. The result is None if the ranks
        of a stage cannot be assigned to the chains without ambiguity, or if a stage has all of its
        ranks but cannot continue all chains.
    """
    pipeline = np.full(ranks, NONE, np.int64)
    sizes = [len(stage) for stage in stages]
    count = max(sizes)
    first = sizes.index(count)
    pipeline[stages[first]] = np.arange(count)
    for remaining_stages in (stages[first + 1 :], stages[:first][::-1]):
        tips, number = stages[first], pipeline[stages[first]]
        away = np.zeros(len(tips), np.int64)
        for stage in remaining_stages:
            away += 1
            is_complete = len(stage) == sizes[first]
            chain = _continue_chains((tips, away), stage, fits, is_complete=is_complete)
            if chain is None:
                return None
            # Ranks whose chain is unknown start new chains.
            is_new = np.flatnonzero(chain < 0)
            chain[is_new] = len(tips) + np.arange(len(is_new))
            number = np.append(number, count + np.arange(len(is_new)))
            tips = np.append(tips, stage[is_new])
            away = np.append(away, np.zeros(len(is_new), np.int64))
            count += len(is_new)
            tips[chain], away[chain] = stage, 0
            pipeline[stage] = number[chain]
    return pipeline


def _continue_chains(
    chains: tuple[Ints, Ints], ranks: Ints, fits: Fits, *, is_complete: bool
) -> Ints | None:
    """For each rank of the next stage, find the chain that it continues.

    Chains that end at the adjacent stage are matched first (:func:`_match_adjacent`). Other chains
    have a gap. If the number of remaining ranks equals the number of chains with a gap, and all of
    them fit in order, the remaining ranks continue these chains.

    Args:
        chains: Last rank of each chain, and this rank's distance from the next stage, in stages.
        ranks: Ranks of the next stage, sorted by rank number.
        fits: Function that decides which ranks on two stages can be in the same pipeline.
        is_complete: Whether the next stage has all of its ranks.

    Returns:
        Chain of each rank, or -1 if unknown. The result is None if the matches with chains that end
        at the adjacent stage are ambiguous, or if ``is_complete`` is True and any such chain has no
        match.
    """
    tips, away = chains
    adjacent, gaps = np.flatnonzero(away == 1), np.flatnonzero(away > 1)
    can_follow = fits(tips[adjacent], ranks) if len(adjacent) else np.zeros((0, len(ranks)), bool)
    # If some chains have gaps, a rank may continue a chain with a gap instead.
    row = _match_adjacent(can_follow, is_complete=is_complete, is_unbroken=len(gaps) == 0)
    if row is None:
        return None
    unmatched = np.flatnonzero(row < 0)
    chain = np.append(adjacent, NONE)[row]
    if len(unmatched) == len(gaps) and _fit_in_order(
        tips[gaps], away[gaps], ranks[unmatched], fits
    ):
        chain[unmatched] = gaps
    return chain


def _match_adjacent(can_follow: Bools, *, is_complete: bool, is_unbroken: bool) -> Ints | None:
    """Match the ranks of a stage with the chains that end at the adjacent stage.

    Args:
        can_follow: Mask of the possible matches, shape (chains, ranks).
        is_complete: Whether every chain must continue.
        is_unbroken: Whether every rank must continue one of the chains.

    Returns:
        Chain (row of ``can_follow``) of each rank, or -1 for a rank that continues no chain. The
        result is None if the matches are ambiguous, or if ``is_complete`` is True and any chain has
        no match.
    """
    row = find_forced_matches(can_follow, rows_have_one=is_complete, columns_have_one=is_unbroken)
    remaining = can_follow.copy()
    remaining[row[row >= 0]] = False
    is_ambiguous = remaining[:, row < 0].any()
    lacks_ranks = is_complete and np.count_nonzero(row >= 0) < len(can_follow)
    return None if is_ambiguous or lacks_ranks else row


def _fit_in_order(tips: Ints, away: Ints, ranks: Ints, fits: Fits) -> bool:
    """Return whether each rank can continue the chain with the same index, across missing ranks.

    Args:
        tips: Last rank of each chain.
        away: For each chain, the number of stages from its last rank to the stage of ``ranks``.
        ranks: Ranks on one stage, one per chain.
        fits: Function that decides which ranks on two stages can be in the same pipeline.
    """
    for distance in find_distinct(away).tolist():
        is_as_far = away == distance
        if not fits(tips[is_as_far], ranks[is_as_far]).diagonal().all():
            return False
    return True


def find_forced_matches(can_match: Bools, *, rows_have_one: bool, columns_have_one: bool) -> Ints:
    """Find the forced matches between rows and columns, for which there is no alternative.

    Each row is matched with at most one column, and each column with at most one row.

    - If every column must have a match, a column with only one possible row is matched with that
      row. The row is then no longer available to other columns. This is repeated until no unmatched
      column has only one possible row. If every row must have a match, the same is done for rows.
    - If rows and columns may stay unmatched, a pair is forced only if the row is the only choice of
      the column and the column is the only choice of the row.

    Args:
        can_match: Mask of the possible matches, shape (rows, columns). Not modified.
        rows_have_one: Whether every row must have a match.
        columns_have_one: Whether every column must have a match. If True, ``rows_have_one`` is
            ignored.

    Returns:
        Row matched with each column, or -1 if no match of the column is forced.
    """
    of_column: Ints = np.full(can_match.shape[1], NONE, np.int64)
    if rows_have_one and not columns_have_one:
        of_row = find_forced_matches(can_match.T, rows_have_one=False, columns_have_one=True)
        rows = np.flatnonzero(of_row >= 0)
        of_column[of_row[rows]] = rows
        return of_column
    can_match, choices = can_match.copy(), can_match.sum(axis=0)
    if not columns_have_one:
        is_single_row = (can_match.sum(axis=1) == 1)[:, None]
        rows, columns = np.nonzero(can_match & is_single_row & (choices == 1))
        of_column[columns] = rows
        return of_column
    # If there is only one way to match all columns, at least one column has exactly one choice.
    while len(single := np.flatnonzero(choices == 1)):
        row = int(can_match[:, single[0]].argmax())
        of_column[single[0]] = row
        choices -= can_match[row]
        can_match[row] = False
    return of_column
