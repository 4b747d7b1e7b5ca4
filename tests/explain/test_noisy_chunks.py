"""Divisions of prompts with noisy times: they are safe, and their savings have honest errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bubbleviz
from bubbleviz.explain.chunk_costs import ChunkCost, _fit_cost
from bubbleviz.explain.prompt_splits import PromptChunks, _pool_stages, _simulate_ns
from bubbleviz.report.report import Report
from bubbleviz.report.sentences import write_all_advice
from tests.support.operation_tables import write_csv

#: Planted coefficients of a chunk's cost in ns: fixed, per token, and per attended pair.
COST = (1e7, 3e4, 1.0)
N_STAGES = 4
PROMPT, LENGTH = 60_000, 4096


def cut_prompt(ends: list[int]) -> PromptChunks:
    """Return the chunks of a prompt, given the ends of the chunks."""
    starts = np.array([0, *ends[:-1]])
    return PromptChunks(np.array(ends) - starts, starts)


def make_true_costs() -> list[ChunkCost]:
    """Return the planted costs of all stages."""
    return [
        ChunkCost(stage, stage, 15, 2656, LENGTH, *COST, 0.0, 1.0, PROMPT)
        for stage in range(N_STAGES)
    ]


def divide_without_fixed_cost(n_chunks: int) -> list[int]:
    """Return the ends of a given number of chunks that take equal time."""
    _, token_ns, bend_ns = COST
    work_ns = np.arange(1, n_chunks) / n_chunks * (token_ns * PROMPT + bend_ns * PROMPT**2)
    ends = (np.sqrt(token_ns**2 + 4 * bend_ns * work_ns) - token_ns) / (2 * bend_ns)
    return [*np.rint(ends).astype(int).tolist(), PROMPT]


def analyze_noisy(folder: Path, seed: int, noise: float) -> Report:
    """Write a run of one prompt in chunks of equal length, with noisy times, and analyze it."""
    chunks = cut_prompt([*range(LENGTH, PROMPT, LENGTH), PROMPT])
    true_ns = make_true_costs()[0].time_ns(chunks.tokens.astype(float), chunks.prefix.astype(float))
    times_ns = np.random.default_rng(seed).normal(1, noise, (N_STAGES, len(true_ns))) * true_ns
    rows = []
    arrival_ns = np.zeros(len(true_ns), np.int64)
    for stage, of_stage in enumerate(times_ns.astype(np.int64)):
        free_ns = 0
        for number, time_ns in enumerate(of_stage.tolist()):
            start_ns = max(free_ns, int(arrival_ns[number]))
            free_ns = start_ns + time_ns
            arrival_ns[number] = free_ns
            place = (stage, "F", number, start_ns, free_ns)
            rows.append((*place, int(chunks.tokens[number]), int(chunks.prefix[number])))
    names = ("rank", "phase", "microbatch", "start_ns", "end_ns", "tokens", "prefix")
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    return bubbleviz.analyze(write_csv(folder / "operations.csv", columns))


@pytest.mark.parametrize("noise", [0.01, 0.03])
def test_noisy_times_give_a_safe_division(noise: float, tmp_path: Path) -> None:
    truth = make_true_costs()
    before_ns = _simulate_ns(truth, cut_prompt([*range(LENGTH, PROMPT, LENGTH), PROMPT]), 0.0)
    safe_ns = _simulate_ns(truth, cut_prompt(divide_without_fixed_cost(15)), 0.0)
    n_covered = 0
    for seed in range(8):
        split = analyze_noisy(tmp_path, seed, noise).explanation.prompt_split
        assert split is not None
        after_ns = _simulate_ns(truth, cut_prompt(np.cumsum(split.tokens).tolist()), 0.0)
        missed_ns = abs(before_ns - after_ns - (split.recorded_ns - split.divided_ns))
        n_covered += missed_ns <= split.error_ns

        assert after_ns < before_ns
        # The same number of chunks as before, with the true costs.
        assert after_ns < 1.02 * safe_ns
    assert n_covered >= 6


def test_the_error_is_shown_with_the_saving(tmp_path: Path) -> None:
    advice = write_all_advice(analyze_noisy(tmp_path, 1, 0.01))[0]

    assert advice.place == "even-chunks"
    assert advice.error_ratio is not None
    assert 0.005 < advice.error_ratio < 0.05
    assert f" ± {100 * advice.error_ratio:.2f}" in advice.text
    # More than twelve lengths are not all listed.
    assert advice.text.endswith("All lengths: -v operations")


def test_times_without_noise_have_no_error(tmp_path: Path) -> None:
    split = analyze_noisy(tmp_path, 1, 0.0).explanation.prompt_split

    assert split is not None
    assert split.error_ns < 1e-4 * split.recorded_ns


@given(st.integers(0, 10**6))
def test_deviations_add_up_to_the_covariance_of_the_fit(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tokens, prefix = rng.integers(100, 5000, 20), rng.integers(0, 50_000, 20)
    terms = np.stack([np.ones(20), tokens, tokens * (tokens + 2.0 * prefix)], axis=1)
    fit = _fit_cost(tokens, prefix, terms @ COST + rng.normal(0, 1e6, 20))
    variance = (fit.residual_ns**2).sum() / (20 - 3)
    covariance = variance * np.linalg.inv(terms.T @ terms)

    assert len(fit.factors) == 3
    deviations = np.transpose(fit.deviations)
    scale = np.sqrt(np.diag(covariance))
    assert (deviations @ deviations.T / np.outer(scale, scale)) == pytest.approx(
        covariance / np.outer(scale, scale), abs=1e-3
    )


@given(
    st.tuples(*[st.floats(-1e8, 1e8)] * 3),
    st.tuples(*[st.floats(-1e8, 1e8)] * 3),
    st.floats(-5, 5),
)
def test_deviating_costs_are_never_negative(
    factors: tuple[float, float, float],
    deviation: tuple[float, float, float],
    n_deviations: float,
) -> None:
    cost = ChunkCost(0, 0, 9, 64, 4096, *factors, 0.0, 1.0, 9000, deviations=(deviation,))
    other = cost.deviate(0, n_deviations)

    assert min(other.fixed_ns, other.token_ns or 0.0, other.token_squared_ns or 0.0) >= 0


def test_proportional_stages_share_a_fit() -> None:
    deviations = ((1e6, 0.0, 0.0), (0.0, 1e3, 0.0), (0.0, 0.0, 0.1))
    factors = np.array([[1.0e7, 3.1e4, 1.0], [2.1e7, 6.0e4, 2.0], [1.0e7, 3.0e4, 1.05]])
    costs = [
        ChunkCost(0, stage, 9, 64, 4096, a, b, c, 0.0, 1.0, 9000, None, deviations, 6)
        for stage, (a, b, c) in enumerate(factors.tolist())
    ]
    pooled = _pool_stages(costs)

    assert [cost.dof for cost in pooled] == [18] * 3
    ratios = [cost.fixed_ns / (cost.token_ns or 1.0) for cost in pooled]
    assert ratios == pytest.approx([ratios[0]] * 3)
    assert pooled[1].fixed_ns / pooled[0].fixed_ns == pytest.approx(2, rel=0.1)
    # A stage with a much larger fixed cost has another fit.
    other = [*costs[:2], ChunkCost(0, 2, 9, 64, 4096, 9e7, 3e4, 1.0, 0.0, 1.0, 9000, None,
                                   deviations, 6)]  # fmt: skip
    assert _pool_stages(other) is other
