"""Divisions of prompts: times are exact, divisions nearly optimal, and bounds contain the truth."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bubbleviz
from bubbleviz.explain.chunk_costs import ChunkCost
from bubbleviz.explain.prompt_splits import (
    PromptChunks,
    PromptSplit,
    _simulate_ns,
    split_longest_prompt,
)
from bubbleviz.render.json_document import make_document
from bubbleviz.report.report import Report
from bubbleviz.report.sentences import write_all_advice
from tests.support.command_line import CommandLine
from tests.support.forward_runs import UNIT_NS, Serving, write_table


def make_cost(
    stage: int, fixed_ns: float, token_ns: float, bend_ns: float, prompt_tokens: int
) -> ChunkCost:
    """Return a known cost that was measured in chunks of 1,024 to 4,096 tokens."""
    return ChunkCost(
        stage, stage, 20, 1024, 4096, fixed_ns, token_ns, bend_ns, 0.0, 1.0, prompt_tokens
    )


def make_chunks(tokens: list[int]) -> PromptChunks:
    """Return the chunks of a single prompt."""
    lengths = np.array(tokens)
    return PromptChunks(lengths, np.cumsum(lengths) - lengths)


def measure_slowly(costs: list[ChunkCost], tokens: list[int], transfer_ns: float) -> float:
    """Return the time of a single prompt, simulated chunk by chunk."""
    free = [0.0] * len(costs)
    prefix, arrival_ns = 0, 0.0
    for n_tokens in tokens:
        arrival_ns = 0.0
        for stage, cost in enumerate(costs):
            start_ns = max(free[stage], arrival_ns)
            free[stage] = start_ns + float(cost.time_ns(np.array(float(n_tokens)), float(prefix)))
            arrival_ns = free[stage] + transfer_ns
        prefix += n_tokens
    return arrival_ns - transfer_ns


def divide_slowly(chunks: PromptChunks, boundaries: set[int]) -> list[tuple[int, int]]:
    """Return (tokens, prefix) of each piece, token by token."""
    pieces = []
    start = previous_end = -1
    for n_tokens, prefix in zip(chunks.tokens.tolist(), chunks.prefix.tolist(), strict=True):
        is_new = prefix == 0 or prefix != previous_end
        if is_new and start >= 0:
            pieces.append((previous_end - start, start))
        start = prefix if is_new else start
        for token in range(prefix, prefix + n_tokens):
            if token in boundaries and token > start:
                pieces.append((token - start, start))
                start = token
        previous_end = prefix + n_tokens
    return [*pieces, (previous_end - start, start)]


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3)), min_size=1, max_size=12),
    st.sets(st.integers(1, 40)),
)
def test_prompts_are_divided_like_token_by_token(
    prompts: list[tuple[int, int]], boundaries: set[int]
) -> None:
    chunks = []
    for n_tokens, start in prompts:
        chunks.append((n_tokens, start))
        chunks.append((3, start + n_tokens))
    recorded = PromptChunks(*np.array(chunks).T)
    divided = recorded.divide(np.array(sorted(boundaries), np.int64))

    pieces = list(zip(divided.tokens.tolist(), divided.prefix.tolist(), strict=True))
    assert pieces == divide_slowly(recorded, boundaries)


@given(
    st.lists(st.integers(1, 4096), min_size=1, max_size=20),
    st.lists(st.floats(0.1, 3.0), min_size=1, max_size=5),
    st.integers(0, 10**6),
)
def test_the_pipeline_is_simulated_like_chunk_by_chunk(
    tokens: list[int], speeds: list[float], transfer_ns: int
) -> None:
    costs = [
        make_cost(stage, 2e5 * speed, 500 * speed, 0.1 * speed, sum(tokens))
        for stage, speed in enumerate(speeds)
    ]

    assert _simulate_ns(costs, make_chunks(tokens), transfer_ns) == pytest.approx(
        measure_slowly(costs, tokens, transfer_ns)
    )


@settings(max_examples=20)
@given(st.integers(20_000, 300_000), st.integers(2, 8), st.floats(0.02, 5.0))
def test_no_similar_division_is_noticeably_faster(
    prompt_tokens: int, n_stages: int, bend_ns: float
) -> None:
    costs = [make_cost(stage, 5e6, 5_000, bend_ns, prompt_tokens) for stage in range(n_stages)]
    split = split_longest_prompt(costs, None, 0.0)
    if split is None:
        return
    generator = np.random.default_rng(7)
    best_ns, best = split.even_ns, list(split.tokens)
    for first, second, step in generator.integers(0, 10**6, (400, 3)).tolist():
        giver, taker, n_moved = first % len(best), second % len(best), 64 * (step % 5 + 1)
        if giver == taker or best[giver] <= n_moved:
            continue
        moved = list(best)
        moved[giver] -= n_moved
        moved[taker] += n_moved
        moved_ns = _simulate_ns(costs, make_chunks(moved), 0.0)
        if moved_ns < best_ns:
            best_ns, best = moved_ns, moved

    assert best_ns > 0.99 * split.even_ns
    assert sum(split.tokens) == prompt_tokens
    assert all(n_tokens % 64 == 0 for n_tokens in split.tokens[:-1])


def analyze_series(
    folder: Path, times_ms: list[float], n_tokens: int, stages: tuple[float, ...]
) -> Report:
    run = Serving(
        [ms * 1e6 / UNIT_NS for ms in times_ms], stages, tokens=[n_tokens] * len(times_ms)
    )
    return bubbleviz.analyze(write_table(folder, run))


@settings(max_examples=15, deadline=None)
@given(st.floats(0.0, 1.0), st.integers(2, 6), st.floats(0.2, 4.0))
def test_bounds_contain_the_truth_if_all_chunks_have_one_length(
    fixed: float, n_stages: int, growth: float
) -> None:
    n_tokens, n_chunks = 2048, 14
    prompt_tokens = n_tokens * n_chunks
    bend_ns = growth * 1e8 / n_tokens / prompt_tokens / 2
    truth = [
        make_cost(s, fixed * 1e8, (1 - fixed) * 1e8 / n_tokens, bend_ns, prompt_tokens)
        for s in range(n_stages)
    ]
    fits = [
        ChunkCost(
            s, s, n_chunks, n_tokens, n_tokens, 0.0, 1e8 / n_tokens, bend_ns, 0.0, 1.0,
            prompt_tokens, max_fixed_ns=1e8,
        )
        for s in range(n_stages)
    ]  # fmt: skip
    recorded = make_chunks([n_tokens] * n_chunks)
    split = split_longest_prompt(fits, recorded, 0.0)

    assert _simulate_ns(truth, recorded, 0.0) == pytest.approx(_simulate_ns(fits, recorded, 0.0))
    if split is None:
        return
    true_ns = measure_slowly(truth, list(split.tokens), 0.0)
    assert split.min_even_ns * (1 - 1e-6) <= true_ns <= split.even_ns * (1 + 1e-9)
    assert split.even_ns < 0.99 * split.equal_ns
    assert split.n_prompts == 1
    assert split.divided_ns == split.even_ns


def test_chunks_of_one_length_with_growing_prefixes_are_fitted(tmp_path: Path) -> None:
    # 100 ms per chunk and 10 ms more for each earlier chunk of 1,024 tokens.
    report = analyze_series(tmp_path, [100 + 10.0 * k for k in range(12)], 1024, (1.0, 2.0))
    first, second = report.explanation.chunk_costs

    assert first.token_squared_ns == pytest.approx(1e7 / 1024 / 2 / 1024)
    # The chunk's own attention takes half as long as that of one earlier chunk.
    assert first.max_fixed_ns == pytest.approx(95e6)
    assert second.max_fixed_ns == pytest.approx(190e6)
    assert (first.fixed_ns, first.prompt_tokens) == (0, 12 * 1024)
    for fraction in (0.0, 0.3, 1.0):
        fit = first.assume_fixed(fraction)
        times_ns = fit.time_ns(np.full(12, 1024.0), 1024 * np.arange(12, dtype=np.float64))
        assert times_ns == pytest.approx(1e8 + 1e7 * np.arange(12))

    equal_stages = analyze_series(tmp_path, [100 + 10.0 * k for k in range(12)], 1024, (1.0, 1.0))
    advice = write_all_advice(equal_stages)[0]
    assert (advice.kind, advice.place) == ("microbatch", "even-chunks")
    assert advice.text.startswith("Divide prompts of 12,288 tokens into ")
    assert " (at least -" in advice.text
    assert "iterations would take at most " in advice.text
    assert "(0 to 95.000 ms)" in advice.text


@pytest.mark.parametrize(
    ("n_tokens", "times_ms"),
    [
        (64, [100 + 10.0 * k for k in range(12)]),  # may be decode steps
        (1024, [100.0] * 12),
        (1024, [100 + 10.0 * (k % 2) for k in range(12)]),
        (1024, [100 - 5.0 * k for k in range(12)]),
        (1024, [100 + 10.0 * k for k in range(4)]),  # too few chunks
    ],
)
def test_times_that_do_not_grow_with_the_prefix_give_no_division(
    n_tokens: int, times_ms: list[float], tmp_path: Path
) -> None:
    report = analyze_series(tmp_path, times_ms, n_tokens, (1.0, 1.0))

    assert report.explanation.prompt_split is None
    assert all(cost.max_fixed_ns is None for cost in report.explanation.chunk_costs)


def shape_times(first_ms: float, last_ms: float, mean_ms: float, n_chunks: int) -> list[float]:
    """Return ascending times with a given first, last and mean time.

    The times grow like a power of the chunk's index. The exponent is found by bisection.
    """
    position = np.arange(n_chunks) / (n_chunks - 1)
    low, high = 0.1, 10.0
    for _ in range(60):
        exponent = (low + high) / 2
        times_ms = first_ms + (last_ms - first_ms) * position**exponent
        low, high = (exponent, high) if times_ms.mean() > mean_ms else (low, exponent)
    return [float(ms) for ms in times_ms]


@pytest.mark.parametrize(
    ("stages", "chunk_ms", "published_s", "expected_s"),
    [
        ((1.0,), (1664, 3947, 2754), 30.31, 30.294),
        ((1.0, 1.0), (719, 1828, 1235), 15.63, 15.413),
    ],
)
def test_the_published_prefill_series_is_reproduced(
    stages: tuple[float, ...],
    chunk_ms: tuple[float, float, float],
    published_s: float,
    expected_s: float,
    tmp_path: Path,
) -> None:
    """Chunks of 5,120 tokens: first, last and mean time, and the time of the whole prompt.

    The figures are those of DeepSeek-V3 on one and two ranks in tenstorrent/tt-metal, issue 49903.
    """
    report = analyze_series(tmp_path, shape_times(*chunk_ms, 11), 5120, stages)
    window_ns = report.summary.window_ns["schedule"].mean

    assert window_ns == pytest.approx(expected_s * 1e9, rel=1e-3)
    # Published times include transfers and the host, so they are up to 1.4 % longer.
    assert 0 < published_s - expected_s < 0.015 * published_s
    split = report.explanation.prompt_split
    assert (split is None) == (len(stages) == 1)
    if split is not None:
        assert split.equal_ns == pytest.approx(window_ns, rel=5e-3)
        # Even chunks without any fixed cost: twelve times the mean chunk.
        assert 12 * 1235e6 * 0.99 < split.even_ns < 0.985 * split.equal_ns


def plant_prompts(
    folder: Path, prompts: list[int], n_tokens: int, order: list[int] | None = None
) -> tuple[Report, list[int]]:
    """Write a run of several prompts with known costs and prefixes, and analyze it.

    Args:
        folder: Folder of the table.
        prompts: Number of tokens in each prompt.
        n_tokens: Maximum number of tokens in a chunk.
        order: Positions of the chunks in the run, or None for one prompt after another.
    """
    chunks = [
        (min(n_tokens, length - prefix), prefix)
        for length in prompts
        for prefix in range(0, length, n_tokens)
    ]
    chunks = chunks if order is None else [chunks[place] for place in order]
    tokens, prefixes = (list(column) for column in zip(*chunks, strict=True))
    times = [(2e6 + 3e4 * x + 10 * x * (x + 2 * p)) / UNIT_NS for x, p in chunks]
    run = Serving(times, (1.0, 1.0, 1.0), tokens=tokens)
    return bubbleviz.analyze(write_table(folder, run, prefix=prefixes * 3)), tokens


def test_advice_saves_what_divided_prompts_save(tmp_path: Path, cli: CommandLine) -> None:
    report, _ = plant_prompts(tmp_path, [30_000, 20_000, 30_000], 4096)
    split = report.explanation.prompt_split
    assert split is not None
    advice = write_all_advice(report)[0]

    assert split.n_prompts == 3
    ends = np.cumsum(split.tokens)
    divided = [
        [end - start for start, end in pairwise([0, *ends[ends < length].tolist(), length])]
        for length in (30_000, 20_000, 30_000)
    ]
    again, _ = plant_divided(tmp_path, divided)
    assert again.summary.window_ns["schedule"].mean == pytest.approx(split.divided_ns, rel=1e-6)
    assert advice.place == "even-chunks"
    window_ns = report.summary.window_ns["schedule"].mean
    assert window_ns is not None
    assert advice.saving_ns == pytest.approx(window_ns - split.divided_ns, rel=1e-6)
    even = make_document(report)["even_chunks"]
    assert even["even_ns"] == even["min_even_ns"] == split.even_ns
    shown = cli.printed("analyze", str(tmp_path / "operations.csv"))
    assert "First: Divide prompts of 30,000 tokens into" in shown


def plant_divided(folder: Path, prompts: list[list[int]]) -> tuple[Report, list[int]]:
    """Write and analyze a run whose prompts are divided into the given chunks."""
    chunks = [(x, sum(lengths[:place])) for lengths in prompts for place, x in enumerate(lengths)]
    times = [(2e6 + 3e4 * x + 10 * x * (x + 2 * p)) / UNIT_NS for x, p in chunks]
    tokens = [x for x, _ in chunks]
    run = Serving(times, (1.0, 1.0, 1.0), tokens=tokens)
    other = folder / "divided"
    other.mkdir()
    prefixes = [p for _, p in chunks] * 3
    return bubbleviz.analyze(write_table(other, run, prefix=prefixes)), tokens


def test_alternating_prompts_are_not_divided(tmp_path: Path) -> None:
    order = [place for pair in zip(range(8), range(8, 16), strict=True) for place in pair]
    report, _ = plant_prompts(tmp_path, [32_768, 32_768], 4096, order)
    split = report.explanation.prompt_split

    assert isinstance(split, PromptSplit)
    assert split.n_prompts == 0
    assert all(advice.place != "even-chunks" for advice in write_all_advice(report))


def test_lengths_are_not_blamed_if_they_do_not_explain_the_times(tmp_path: Path) -> None:
    # Prefixes are unknown, and two prompts of different lengths alternate.
    first = [(4096, 4096 * k) for k in range(14)] + [(2656, 4096 * 14)]
    second = [(4096, 4096 * k) for k in range(4)] + [(3616, 4096 * 4)]
    chunks = [chunk for pair in zip(first, second, strict=False) for chunk in pair]
    chunks += first[len(second) :]
    times = [(5e6 + 3e4 * x + x * (x + 2 * p)) / UNIT_NS for x, p in chunks]
    run = Serving(times, (1.0, 1.0, 1.0), tokens=[x for x, _ in chunks])
    advice = write_all_advice(bubbleviz.analyze(write_table(tmp_path, run)))[0]

    assert advice.text.startswith("Make the chunks that take longest shorter")
    assert "so longer prefixes may be the reason" in advice.text


def test_a_single_stage_needs_no_division() -> None:
    assert split_longest_prompt([make_cost(0, 1e6, 500, 1.0, 100_000)], None, 0.0) is None


def test_chunks_of_equal_time_are_not_divided_again(tmp_path: Path) -> None:
    report, _ = plant_prompts(tmp_path, [30_000], 4096)
    split = report.explanation.prompt_split
    assert split is not None
    even, _ = plant_divided(tmp_path, [list(split.tokens)])

    assert all(advice.place != "even-chunks" for advice in write_all_advice(even))


def test_decode_steps_after_the_prompt_change_nothing(tmp_path: Path) -> None:
    tokens = [*[4096] * 8, 2048, *[1] * 40]
    prefixes = [*range(0, 9 * 4096, 4096), *range(34_816, 34_856)]
    times = [
        (2e6 + 3e4 * x + 10 * x * (x + 2 * p)) / UNIT_NS
        for x, p in zip(tokens, prefixes, strict=True)
    ]
    decode_ms = 20.0
    times = [time if x > 1 else decode_ms for time, x in zip(times, tokens, strict=True)]
    run = Serving(times, (1.0, 1.0, 1.0), tokens=tokens)
    advice = write_all_advice(bubbleviz.analyze(write_table(tmp_path, run)))[0]

    assert advice.place == "even-chunks"
    assert advice.saving_ns is not None


def test_divided_runs_keep_the_promise(tmp_path: Path, cli: CommandLine) -> None:
    report, _ = plant_prompts(tmp_path, [30_000], 4096)
    split = report.explanation.prompt_split
    assert split is not None
    plant_divided(tmp_path, [list(split.tokens)])
    before, after = tmp_path / "operations.csv", tmp_path / "divided" / "operations.csv"

    shown = cli.printed("compare", str(before), str(after))
    assert "Divide prompts" in shown


def test_uneven_stages_leave_chunk_lengths_as_a_piece_of_advice(tmp_path: Path) -> None:
    chunks = [(4096, 4096 * k) for k in range(12)] + [(2048, 4096 * 12)]
    times = [(2e6 + 3e4 * x + 1 * x * (x + 2 * p)) / UNIT_NS for x, p in chunks]
    run = Serving(times, (1.0, 1.05, 1.0), tokens=[x for x, _ in chunks])
    report = bubbleviz.analyze(write_table(tmp_path, run, prefix=[p for _, p in chunks] * 3))
    split = report.explanation.prompt_split
    assert split is not None
    every = write_all_advice(report)

    assert split.virtual_stage == 1
    assert every[0].place == "even-chunks"
    assert all("microbatch" not in advice.kind for advice in every[1:])
