"""The ranks of an iteration: columns, values and a tuple of values say the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from scipy.special import stdtrit

import bubbleviz
from bubbleviz.count.count import quantile
from bubbleviz.count.rank_iterations import (
    RankIterations,
    has_account,
    indices_of,
    lacking,
    own_ratios,
    with_index,
)
from bubbleviz.report.report import Report


def run_of(folder: Path) -> Report:
    """Return a run of two ranks in two iterations; the second lacks the backward of rank 1."""
    rows = ["rank,phase,start_ns,end_ns,iteration,microbatch,stage"]
    for k in range(2):
        at = 1_000 * k
        rows += [f"0,F,{at},{at + 10},{k},0,0", f"1,F,{at + 20},{at + 40},{k},0,1"]
        rows += [f"1,BW,{at + 50},{at + 70},{k},0,1"] if k == 0 else []
        rows += [f"0,BW,{at + 80},{at + 100},{k},0,0"]
    path = folder / "operations.csv"
    path.write_text("\n".join(rows), encoding="utf-8")
    return bubbleviz.analyze(path)


def test_columns_say_what_values_say(tmp_path: Path) -> None:
    for iteration in run_of(tmp_path).iterations:
        ranks, values = iteration.ranks, tuple(iteration.ranks)

        assert isinstance(ranks, RankIterations)
        assert indices_of(ranks) == indices_of(values) == [0, 1]
        assert lacking(ranks) == lacking(values)
        for ratio in ("schedule", "stage", "step", "period", "no such ratio"):
            assert has_account(ranks, ratio) == has_account(values, ratio)
            assert own_ratios(ranks, ratio) == own_ratios(values, ratio)
        for index in (-1, 0, 1, 2):
            assert with_index(ranks, index) == with_index(values, index)


def test_what_ranks_lack_is_said(tmp_path: Path) -> None:
    whole, cut = run_of(tmp_path).iterations

    assert lacking(whole.ranks) == [None, None]
    assert lacking(cut.ranks) == [
        "the capture does not hold all of the iteration",
        "no B or BW with GPU work",
    ]


def test_ranks_are_like_a_tuple(tmp_path: Path) -> None:
    ranks = run_of(tmp_path).iteration(0).ranks
    values = tuple(ranks)

    assert (len(ranks), ranks[0], ranks[-1], ranks[:1]) == (2, values[0], values[1], values[:1])
    assert ranks == values
    assert ranks != values[:1]
    assert ranks == run_of(tmp_path).iteration(0).ranks
    assert repr(ranks) == repr(values)


# Quantiles of Student's t are those of scipy.


def test_quantiles_of_students_t_are_those_of_scipy() -> None:
    for df in (*range(1, 103), 1000):
        assert quantile(df) == pytest.approx(float(stdtrit(df, 0.975)), rel=1e-14)
