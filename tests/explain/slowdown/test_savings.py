"""Savings: planted faults, predicted from a faulty run and known from the same run without."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import bubbleviz
from bubbleviz.explain.slowdown.savings import Change, Slow, candidates, saved, savings_of
from bubbleviz.explain.slowdown.scenarios import Scenarios, scenarios_of
from bubbleviz.explain.slowdown.work import Role
from bubbleviz.report.report import Report
from tests.planting import plant
from tests.planting.options import Planting
from tests.support.recorded_tables import NO_ORDER, table

#: A norm all of whose ranks end iterations together, so that these are alone.
BASE = Planting(stages=4, iterations=3, jitter=0.05, transfer_ns=20_000, barrier=True)
RUNS = {
    "1f1b": BASE,
    "replicas": replace(BASE, replicas=2),
    "gpipe": replace(BASE, schedule="gpipe"),
    "zb-h1": replace(BASE, schedule="zb-h1"),
    "zb-v": replace(BASE, schedule="zb-v"),
    "interleaved": replace(BASE, schedule="interleaved-1f1b", chunks=2),
    "eight stages": replace(BASE, stages=8, microbatches=16),
    "slow transfers": replace(BASE, transfer_ns=100_000),
}
SLOW_STAGE = Change(Slow.STAGE, (2,))


@cache
def report(planting: Planting) -> Report:
    """Return the report of a planted run."""
    folder = Path(tempfile.mkdtemp())
    plant(planting, folder)
    return bubbleviz.analyze(folder)


def scenarios(planting: Planting) -> Scenarios:
    """Return the replay of a planted run."""
    source = report(planting).explanation.slowdown_source
    assert source is not None
    assert source.scenarios is not None
    return source.scenarios


@pytest.mark.parametrize("name", RUNS)
def test_a_slow_stage_costs_what_the_run_without_it_is_shorter(name: str) -> None:
    planting = RUNS[name]
    slow = scenarios(replace(planting, slow_stage=2, slow_factor=1.5))
    best, *_ = savings_of(slow)

    assert best.changes == (SLOW_STAGE,)
    without_ns = scenarios(planting).original
    assert slow.original - best.saving_ns == pytest.approx(without_ns, rel=0.02)
    assert best.share == pytest.approx(1 - without_ns / slow.original, abs=0.02)


def test_an_even_run_has_nothing_to_save() -> None:
    assert all(saving.share < 0.01 for saving in savings_of(scenarios(BASE)))


def test_a_slow_rank_is_held_against_its_replicas() -> None:
    slow = scenarios(RUNS["replicas"])
    one = (slow.work.rank == 5) & (slow.work.role != Role.OPTIMIZER) & ~slow.work.communicates
    own_ns = np.where(one, slow.own_ns * 2, slow.own_ns)
    lengths_ns = slow.replay.lengths_ns(own_ns[:, None], slow.early_ns)[:, 0]
    best, *_ = savings_of(replace(slow, own_ns=own_ns, lengths_ns=lengths_ns))

    assert best.changes == (Change(Slow.RANK, (5,)),)
    assert lengths_ns.mean() - best.saving_ns == pytest.approx(slow.original, rel=0.02)


def test_changes_together_win_at_least_what_each_wins() -> None:
    slow = scenarios(replace(RUNS["slow transfers"], slow_stage=2))
    link = Change(Slow.LINK, (1, 2))
    both, stage, alone = saved(slow, [(SLOW_STAGE, link), (SLOW_STAGE,), (link,)])

    assert both.saving_ns >= max(stage.saving_ns, alone.saving_ns)
    assert both.changes == (SLOW_STAGE, link)


def test_one_rank_has_nobody_to_be_held_against() -> None:
    work = table((0, 0, 0, "forward-compute", 0, 0, 9), (0, 0, 0, "optimizer", -1, 9, 10))
    alone = scenarios_of(work, NO_ORDER)

    assert alone is not None
    assert savings_of(alone) == ()


def test_equal_ranks_are_no_candidates() -> None:
    rows = [(0, replica, 0, "forward-compute", 0, 0, 9) for replica in range(3)]
    equal = scenarios_of(table(*rows), NO_ORDER)

    assert equal is not None
    assert candidates(equal, Slow.RANK) == ()
    assert candidates(equal, Slow.LINK) == ()
