"""Costs of chunks: planted costs are found, and no spurious terms are fitted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bubbleviz
from bubbleviz.cli.app import main
from bubbleviz.explain.chunk_costs import ChunkCost
from bubbleviz.render.web import unsaved
from bubbleviz.render.web.unsaved import collect_unsaved_numbers
from bubbleviz.report.prompt_chunks import format_cost
from bubbleviz.report.report import Report
from bubbleviz.report.sentences import write_all_advice
from tests.support.command_line import CommandLine
from tests.support.forward_runs import UNIT_NS, Serving, write_table


def report_of(
    folder: Path, tokens: list[int], times_ns: list[float], **columns: list[int]
) -> Report:
    run = Serving([ns / UNIT_NS for ns in times_ns], (1.0, 2.0), tokens=tokens)
    return bubbleviz.analyze(write_table(folder, run, **columns))


def costs(folder: Path, tokens: list[int], times_ns: list[float]) -> tuple[ChunkCost, ...]:
    return report_of(folder, tokens, times_ns).explanation.chunk_costs


def test_without_tokens_there_is_no_cost(tmp_path: Path) -> None:
    assert costs(tmp_path, [], [1e6, 2e6]) == ()


def test_equally_long_chunks_have_a_mean(tmp_path: Path) -> None:
    first, second = costs(tmp_path, [8, 8, 8], [1e6, 2e6, 3e6])

    assert (first.n, first.fixed_ns, first.token_ns, first.token_squared_ns) == (3, 2e6, None, None)
    assert (first.residual_ns, first.explained) == (1e6, None)
    assert second.fixed_ns == 4e6


def test_a_linear_cost_is_fitted_by_a_line(tmp_path: Path) -> None:
    tokens = [64, 128, 512, 1024, 4096]
    first, second = costs(tmp_path, tokens, [200_000 + 500 * t for t in tokens])

    assert first.fixed_ns == pytest.approx(200_000)
    assert first.token_ns == pytest.approx(500)
    assert second.token_ns == pytest.approx(1000)
    assert first.token_squared_ns == 0
    assert first.explained == pytest.approx(1)


def test_attention_makes_the_cost_a_curve(tmp_path: Path) -> None:
    noise = np.random.default_rng(3).normal(0, 5_000, 40)
    tokens = np.linspace(64, 4096, 40).astype(int).tolist()
    times = [200_000 + 500 * t + 0.2 * t * t + n for t, n in zip(tokens, noise, strict=True)]
    first, _ = costs(tmp_path, tokens, times)

    assert first.token_squared_ns == pytest.approx(0.2, rel=0.02)
    assert first.token_ns == pytest.approx(500, rel=0.03)
    assert first.residual_ns == pytest.approx(5_000, rel=0.3)
    fitted = first.time_ns(np.array([64.0, 4096.0]))
    assert fitted.tolist() == pytest.approx([232_819, 5_603_443], rel=0.02)


@pytest.mark.parametrize("expected", [False, True])
def test_the_prefix_of_a_prompt_makes_its_chunks_longer(expected: bool, tmp_path: Path) -> None:
    noise = np.random.default_rng(3).normal(0, 5_000, 30)
    tokens = ([1024] * 7 + [640] + [1024] * 5 + [100] + [512]) * 2
    prefixes = [1024 * n for n in (*range(8), *range(6), 0)] * 2
    if expected:  # like alternating prompts
        order = np.random.default_rng(5).permutation(len(tokens)).tolist()
        tokens, prefixes = ([column[at] for at in order] for column in (tokens, prefixes))
    times = [
        200_000 + 500 * x + 0.1 * x * (x + 2 * read) + n
        for x, read, n in zip(tokens, prefixes, noise, strict=True)
    ]
    report = report_of(tmp_path, tokens, times, **({"prefix": prefixes * 2} if expected else {}))
    first, second = report.explanation.chunk_costs

    assert (first.token_squared_ns, second.token_ns) == pytest.approx((0.1, 1000), rel=0.03)
    assert first.time_ns(np.array([640.0]), 7168).tolist() == pytest.approx([1_478_707], rel=0.01)
    assert first.prompt_tokens == 7 * 1024 + 640
    assert "ns x tokens x (tokens + 2 prefix)" in format_cost(first)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("shortest", [8_190, 10**6, 10**9])
def test_lengths_may_be_far_from_zero_and_close_together(tmp_path: Path, shortest: int) -> None:
    tokens = [shortest + number % 6 for number in range(12)]
    first, _ = costs(tmp_path, tokens, [1e6 + 500.0 * (t - shortest) for t in tokens])

    assert first.token_ns == pytest.approx(500, rel=1e-3)
    assert first.token_squared_ns == 0


def test_a_cost_of_nothing_is_described_as_zero(tmp_path: Path) -> None:
    tokens = [10, 20, 10, 30, 10, 10, 20, 10]
    cost, _ = costs(tmp_path, tokens, [1e5 * t for t in tokens])
    fixed, _ = costs(tmp_path, tokens, [1e6] * len(tokens))

    assert format_cost(cost) == "0.000 ms + 100 us/token"
    assert format_cost(fixed) == "1.000 ms + 0 us/token"


def test_noise_alone_is_not_fitted_by_a_curve(tmp_path: Path) -> None:
    noise = np.random.default_rng(5).normal(0, 100_000, 60)
    tokens = np.linspace(64, 4096, 60).astype(int).tolist()
    first, _ = costs(
        tmp_path, tokens, [1e6 + 500 * t + n for t, n in zip(tokens, noise, strict=True)]
    )

    assert first.token_squared_ns == 0


def test_a_page_contains_the_measured_chunks(tmp_path: Path) -> None:
    tokens = [64, 128, 512, 1024, 4096]
    report = report_of(tmp_path, tokens, [200_000 + 500 * t for t in tokens])
    first, second = collect_unsaved_numbers(report).chunk_times

    assert (first.virtual_stage, second.virtual_stage) == (0, 1)
    assert sorted(first.tokens) == sorted(second.tokens) == tokens
    assert dict(zip(first.tokens, first.busy_ns, strict=True)) == {
        count: 200_000 + 500 * count for count in tokens
    }
    assert dict(zip(second.tokens, second.busy_ns, strict=True)) == {
        count: 400_000 + 1000 * count for count in tokens
    }


def test_a_page_contains_chunks_of_ranks_without_a_stage(tmp_path: Path) -> None:
    report = bubbleviz.analyze(write_table(tmp_path, Serving((1.0,), (1.0, 1.0), tokens=[4])))

    assert [
        chunk_time.virtual_stage for chunk_time in collect_unsaved_numbers(report).chunk_times
    ] == [-1]


@given(
    st.lists(st.tuples(st.integers(0, 9000), st.integers(0, 10**10)), min_size=1, max_size=60),
    st.integers(0, 60),
)
def test_every_chunk_has_a_sample_chunk_nearby(
    chunks: list[tuple[int, int]], max_chunks: int
) -> None:
    tokens, busy_ns = np.array(chunks, np.int64).T
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unsaved, "_MAX_CHUNKS", max_chunks)
        sample = unsaved._select_sample(tokens, busy_ns).tolist()

    assert sample == sorted(set(sample))
    if len(chunks) <= max_chunks:
        assert sample == list(range(len(chunks)))
    # Each chunk has a drawn chunk in its grid cell.
    # A cell is 1 / 127 of each axis wide and high.
    wide, high = max(tokens.max(), 1) / 127, max(busy_ns.max(), 1) / 127
    for count, length in chunks:
        assert any(
            abs(count - chunks[row][0]) <= wide and abs(length - chunks[row][1]) <= high
            for row in sample
        )


def test_tables_written_again_keep_their_tokens(tmp_path: Path, cli: CommandLine) -> None:
    tokens = [64, 128, 512]
    path = write_table(tmp_path, Serving([0.1, 0.2, 0.5], (1.0, 2.0), tokens=tokens))
    assert main(["analyze", str(path), "--csv", str(tmp_path / "again.csv")]) == 0

    reread = bubbleviz.analyze(tmp_path / "again.csv")
    assert reread.explanation.chunk_costs == bubbleviz.analyze(path).explanation.chunk_costs
    assert "us/token" in cli.printed("analyze", str(path), "-v", "operations")


@pytest.mark.parametrize("last", [1024, 512])
def test_chunks_of_equal_length_with_growing_prefixes_are_not_told_to_spread_tokens(
    last: int, tmp_path: Path
) -> None:
    tokens = [*[1024] * 10, last]
    times = [200_000 + 500 * x + 0.1 * x * (x + 2 * 1024 * n) for n, x in enumerate(tokens)]
    run = Serving([ns / UNIT_NS for ns in times], (1.0, 1.0, 1.0), tokens=tokens)

    first = write_all_advice(bubbleviz.analyze(write_table(tmp_path, run)))[0]

    assert (first.kind, first.place) == ("microbatch", "even-chunks")
    assert first.action.startswith("Divide prompts of ")
    assert "Chunks take longer as their prefix grows" in first.text
    assert ("Chunks of one length do not show" in first.text) == (last == 1024)
