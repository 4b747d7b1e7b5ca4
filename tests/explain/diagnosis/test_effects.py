"""Effects: chance is none."""

from __future__ import annotations

import numpy as np

from bubbleviz.explain.diagnosis.effects import jumps


def test_chance_jumps_in_few_of_many_series() -> None:
    generator = np.random.default_rng(7)
    group, x = np.repeat(np.arange(20_000), 10), np.tile(np.arange(10.0), 20_000)

    assert jumps(group, x, generator.normal(0.0, 0.05, len(group)))[3].mean() < 0.001
