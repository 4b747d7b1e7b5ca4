"""Effects of faults: noise is not mistaken for a jump."""

from __future__ import annotations

import numpy as np

from bubbleviz.explain.diagnosis.effects import fit_jumps


def test_noise_rarely_looks_like_a_jump() -> None:
    generator = np.random.default_rng(7)
    group, x = np.repeat(np.arange(20_000), 10), np.tile(np.arange(10.0), 20_000)

    jumps = fit_jumps(group, x, generator.normal(0.0, 0.05, len(group)))

    assert jumps.is_significant.mean() < 0.001
