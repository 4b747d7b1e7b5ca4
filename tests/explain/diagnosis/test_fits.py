"""Fits of parabolas and jumps: noise is not mistaken for a jump."""

from __future__ import annotations

import numpy as np

from bubbleviz.explain.diagnosis.fits import fit_jumps, fit_parabolas


def test_noise_rarely_looks_like_a_jump() -> None:
    generator = np.random.default_rng(7)
    group, x = np.repeat(np.arange(20_000), 10), np.tile(np.arange(10.0), 20_000)

    jumps = fit_jumps(group, x, generator.normal(0.0, 0.05, len(group)))

    assert jumps.is_significant.mean() < 0.001


def test_a_parabola_is_found_exactly_and_needs_three_points() -> None:
    x = np.array([0.0, 1.0, 2.0, 3.0, 0.0, 1.0, 5.0, 7.1, 7.3, 7.3, 7.1])
    group = np.array([0, 0, 0, 0, 1, 1, 2, 3, 3, 3, 3])
    y = np.array([1.0, 1.5, 3.0, 5.5, 2.0, 2.5, 9.0, 1.0, 2.0, 4.0, 2.0])

    slope, bend = fit_parabolas(group, x, y)

    np.testing.assert_allclose(slope, [0.0, 0.5, 0.0, 7.5], atol=1e-12)
    np.testing.assert_allclose(bend, [0.5, 0.0, 0.0, 0.0], atol=1e-12)


def test_a_parabola_agrees_with_numpy() -> None:
    generator = np.random.default_rng(3)
    x = np.arange(12.0)
    y = generator.normal(size=(5, 12))

    slope, bend = fit_parabolas(np.repeat(np.arange(5), 12), np.tile(x, 5), y.ravel())

    expected = np.polynomial.polynomial.polyfit(x, y.T, 2)
    np.testing.assert_allclose(slope, expected[1], atol=1e-9)
    np.testing.assert_allclose(bend, expected[2], atol=1e-9)
