"""Assignment of ranks to pipelines, replicas of a stage, and the rows of drawings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from bubbleviz.align.stages.pipelines import Parallel, RankNumbers, find_pipelines
from bubbleviz.errors import UsageError
from bubbleviz.render.rows import MAX_RANKS, choose_row_kind, make_rows
from bubbleviz.report.report import Report
from bubbleviz.report.view import View
from tests.support.drawn_reports import make_rank, make_report


def column(values: Sequence[int]) -> npt.NDArray[np.int64]:
    return np.array(values, np.int64)


def test_sizes_place_ranks_as_megatron_does() -> None:
    sizes = Parallel(tp=2, pp=2, dp=2)
    number = column(range(8))

    assert sizes.ranks == 8
    assert sizes.stage(number).tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert sizes.pipeline(number).tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
    # Ranks with the same stage and tensor-parallel index reduce together.
    assert sizes.reducing(number).tolist() == [0, 1, 0, 1, 2, 3, 2, 3]


@pytest.mark.parametrize(
    ("number", "stage", "world", "pipeline"),
    [
        # Without replicas, all ranks belong to one pipeline, whichever ranks take part.
        (None, [0, 1, 2], 0, [0, 0, 0]),
        (None, [1, -1, 0], 0, [0, 0, 0]),
        (None, [-1, -1], 0, [0, 0]),
        (None, [], 0, []),
        # With replicas, names must contain rank numbers.
        (range(4), [0, 0, 1, 1], 0, [0, 1, 0, 1]),
        (None, [0, 0, 1, 1], 0, [-1] * 4),
        # Ranks are not in Megatron's order, or stages have different numbers of ranks.
        (range(4), [0, 1, 0, 1], 0, [-1] * 4),
        (range(3), [0, 0, 1], 0, [-1] * 3),
        # With replicas, a rank whose stage is unknown belongs to no pipeline.
        (range(5), [0, 0, -1, 1, 1], 0, [0, 1, -1, 0, 1]),
        # First, rank 2 of two stages and three pipelines is missing.
        # In the next case, ranks 0 and 5 are missing.
        ([0, 1, 3, 4, 5], [0, 0, 1, 1, 1], 6, [0, 1, 0, 1, 2]),
        ([1, 2, 3, 4], [0, 0, 1, 1], 6, [1, 2, 0, 1]),
        # The stages are in a different order, or the run has a different size.
        ([0, 1, 3, 4, 5], [0, 1, 1, 1, 0], 6, [-1] * 5),
        *(([0, 1, 3, 4, 5], [0, 0, 1, 1, 1], world, [-1] * 5) for world in (7, 0)),
    ],
)
def test_replicas_are_told_apart_if_rank_numbers_allow_it(
    number: Sequence[int] | None, stage: list[int], world: int, pipeline: list[int]
) -> None:
    has_numbers = number is not None
    numbers = RankNumbers(column(number if number is not None else range(len(stage))), has_numbers)

    assert find_pipelines(column(stage), numbers, world).tolist() == pipeline


def run_of(stages: Sequence[int | None]) -> Report:
    ranks = tuple(replace(make_rank(index), stage=stage) for index, stage in enumerate(stages))
    return make_report([], ranks=ranks)


def list_drawn_ranks(report: Report, view: View) -> list[tuple[int, tuple[int, ...]]]:
    """Return the drawn rank of each row, and the ranks that it represents."""
    return [(row.rank.index, row.replicas) for row in make_rows(report, view)]


def test_replicas_share_a_row_and_ranks_without_a_stage_have_separate_rows() -> None:
    report = run_of([0, 1, 0, None, None, 1])

    assert list_drawn_ranks(report, View()) == [(rank, (rank,)) for rank in range(6)]
    assert list_drawn_ranks(report, View(rows="stage")) == [
        (0, (0, 2)),
        (1, (1, 5)),
        (3, (3,)),
        (4, (4,)),
    ]
    assert list_drawn_ranks(report, View(rows="stage", ranks=(2, 3, 5))) == [
        (2, (2,)),
        (3, (3,)),
        (5, (5,)),
    ]
    with pytest.raises(UsageError, match="--rows 'host': must be one of rank, stage"):
        make_rows(report, View(rows="host"))


def test_many_ranks_are_shown_by_stage() -> None:
    run_by_rank, run_by_stage = run_of([0] * MAX_RANKS), run_of([0] * (MAX_RANKS + 1))

    assert choose_row_kind(run_by_rank, View()) == "rank"
    assert choose_row_kind(run_by_stage, View()) == "stage"
    assert choose_row_kind(run_by_stage, View(rows="rank")) == "rank"
    assert choose_row_kind(run_by_stage, View(ranks=tuple(range(MAX_RANKS)))) == "rank"
