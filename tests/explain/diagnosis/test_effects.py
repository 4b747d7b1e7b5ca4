"""Effects: each factor that was planted is found, and no other."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest

from bubbleviz.explain.diagnosis.fault import Effects, effects_of
from bubbleviz.explain.slowdown.replay import Kind, Role, Work
from bubbleviz.model.columns import Ints

KINDS = (Kind("F", Role.FORWARD, "F"), Kind("BW", Role.BACKWARD, "BW"))
STAGES, REPLICAS, ITERATIONS, MICROBATCHES = 4, 3, 5, 6


class Place(NamedTuple):
    """Where operations run."""

    stage: Ints
    replica: Ints
    iteration: Ints
    microbatch: Ints
    kind: Ints


#: How many times longer operations take.
Factor = Callable[[Place], object]


def work_of(factor: Factor, replicas: int = REPLICAS) -> Work:
    """Return the computes of a run that take 1 ms (F) and 2 ms (BW) times a factor."""
    shape = (STAGES, replicas, ITERATIONS, MICROBATCHES, len(KINDS))
    stage, replica, iteration, microbatch, kind = (
        column.ravel().astype(np.int64) for column in np.indices(shape)
    )
    place = Place(stage, replica, iteration, microbatch, kind)
    times = np.asarray(factor(place), np.float64)
    length_ns = np.rint(1e6 * (1 + kind) * times).astype(np.int64)
    none = np.full(len(stage), -1, np.int64)
    return Work(
        rank=stage + STAGES * replica,
        stage=stage,
        replica=replica,
        iteration=iteration,
        kind=kind,
        microbatch=microbatch,
        chunk=np.zeros(len(stage), np.int64),
        virtual_stage=stage.copy(),
        start_ns=np.zeros(len(stage), np.int64),
        end_ns=length_ns,
        meeting=none,
        kinds=KINDS,
    )


def found(effects: Effects) -> dict[str, float]:
    """Return the largest of each kind of effect."""
    return {
        "rank": float(np.nanmax(effects.rank_effect)),
        "stage": float(np.nanmax(effects.stage_effect)),
        "iteration": float(effects.iteration_effect.max()),
        "microbatch": float(effects.microbatch_effect.max()),
        "pace": float(effects.pace.max()),
        "rest": float(effects.rest.max()),
    }


def test_nothing_has_no_effects() -> None:
    nothing = work_of(lambda at: np.ones(len(at.stage)))
    effects = effects_of(nothing.take(np.zeros(0, np.int64)))
    assert (len(effects.rank_effect), len(effects.rest), effects.noise) == (0, 0, 0.0)
    assert len(effects.trend) == 0


PLANTED: dict[str, Factor] = {
    "none": lambda at: np.ones(len(at.stage)),
    "rank": lambda at: np.where((at.stage == 2) & (at.replica == 1), 1.5, 1.0),
    "stage": lambda at: np.where(at.stage == 2, 1.5, 1.0),
    "iteration": lambda at: np.where(at.iteration == 3, 1.5, 1.0),
    "microbatch": lambda at: np.where(
        (at.iteration == 3) & (at.microbatch == 4) & (at.replica == 0), 1.5, 1.0
    ),
    "pace": lambda at: np.where(
        (at.iteration == 3) & (at.stage == 2) & (at.replica == 1), 1.5, 1.0
    ),
    "rest": lambda at: np.where(
        (at.iteration == 3)
        & (at.stage == 2)
        & (at.replica == 1)
        & (at.microbatch == 5)
        & (at.kind == 0),
        1.5,
        1.0,
    ),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_what_was_planted_is_found_and_nothing_else(planted: str) -> None:
    effects = effects_of(work_of(PLANTED[planted]))
    assert found(effects) == pytest.approx(
        {n: 1.5 if n == planted else 1.0 for n in found(effects)}
    )


def test_one_of_two_copies_is_slow_and_not_the_stage() -> None:
    effects = effects_of(
        work_of(lambda at: np.where((at.stage == 2) & (at.replica == 1), 1.5, 1.0), replicas=2)
    )
    assert found(effects) == pytest.approx(
        {"rank": 1.5, "stage": 1, "iteration": 1, "microbatch": 1, "pace": 1, "rest": 1}
    )


def test_a_slow_rank_on_a_slow_stage() -> None:
    effects = effects_of(
        work_of(
            lambda at: (
                np.where(at.stage == 2, 1.3, 1.0)
                * np.where((at.stage == 2) & (at.replica == 0), 1.5, 1.0)
            )
        )
    )
    assert found(effects)["rank"] == pytest.approx(1.5)
    assert found(effects)["stage"] == pytest.approx(1.3)


def test_chance_does_not_stand_out() -> None:
    random = np.random.default_rng(0)
    effects = effects_of(work_of(lambda at: random.uniform(0.9, 1.1, len(at.stage))))
    size = np.bincount(effects.cells.of_row)
    assert not effects.stands_out(effects.rank_effect, size).any()


def test_a_steady_rise_is_a_trend() -> None:
    effects = effects_of(work_of(lambda at: 1 + 0.1 * at.iteration))
    # Five iterations are too few to call it one.
    assert (effects.trend == 1).all()
