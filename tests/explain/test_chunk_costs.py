"""Costs of chunks: planted ones come out, and no more is fitted than is there."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

import bubbleviz
from bubbleviz.cli.app import main
from bubbleviz.explain.phase_times import ChunkCost
from bubbleviz.render.json_document import document
from bubbleviz.render.picture.slowdowns import chunk_costs
from bubbleviz.report.report import Report, cost_in_words
from bubbleviz.report.view import View
from tests.support.command_line import CommandLine
from tests.support.forward_runs import UNIT_NS, Serving, table_of
from tests.support.places import FIXTURES

SVG = "{http://www.w3.org/2000/svg}"


def report_of(folder: Path, tokens: list[int], times_ns: list[float], **more: list[int]) -> Report:
    run = Serving([ns / UNIT_NS for ns in times_ns], (1.0, 2.0), tokens=tokens)
    return bubbleviz.analyze(table_of(folder, run, **more))


def costs(folder: Path, tokens: list[int], times_ns: list[float]) -> tuple[ChunkCost, ...]:
    return report_of(folder, tokens, times_ns).explanation.chunk_costs


def test_without_tokens_there_is_none(tmp_path: Path) -> None:
    assert costs(tmp_path, [], [1e6, 2e6]) == ()


def test_equally_long_chunks_have_a_mean(tmp_path: Path) -> None:
    first, second = costs(tmp_path, [8, 8, 8], [1e6, 2e6, 3e6])

    assert (first.n, first.fixed_ns, first.token_ns, first.token_squared_ns) == (3, 2e6, None, None)
    assert (first.residual_ns, first.explained) == (1e6, None)
    assert second.fixed_ns == 4e6


def test_a_line_is_a_line(tmp_path: Path) -> None:
    tokens = [64, 128, 512, 1024, 4096]
    first, second = costs(tmp_path, tokens, [200_000 + 500 * t for t in tokens])

    assert first.fixed_ns == pytest.approx(200_000)
    assert first.token_ns == pytest.approx(500)
    assert second.token_ns == pytest.approx(1000)
    assert first.token_squared_ns == 0
    assert first.explained == pytest.approx(1)


def test_attention_makes_it_a_curve(tmp_path: Path) -> None:
    noise = np.random.default_rng(3).normal(0, 5_000, 40)
    tokens = np.linspace(64, 4096, 40).astype(int).tolist()
    times = [200_000 + 500 * t + 0.2 * t * t + n for t, n in zip(tokens, noise, strict=True)]
    first, _ = costs(tmp_path, tokens, times)

    assert first.token_squared_ns == pytest.approx(0.2, rel=0.02)
    assert first.token_ns == pytest.approx(500, rel=0.03)
    assert first.residual_ns == pytest.approx(5_000, rel=0.3)
    fitted = first.time_ns(np.array([64.0, 4096.0]))
    assert fitted.tolist() == pytest.approx([232_819, 5_603_443], rel=0.02)


@pytest.mark.parametrize("told", [False, True])
def test_the_prefix_of_a_prompt_makes_its_chunks_longer(told: bool, tmp_path: Path) -> None:
    noise = np.random.default_rng(3).normal(0, 5_000, 30)
    tokens = ([1024] * 7 + [640] + [1024] * 5 + [100] + [512]) * 2
    prefixes = [1024 * n for n in (*range(8), *range(6), 0)] * 2
    if told:  # as of prompts in turns
        order = np.random.default_rng(5).permutation(len(tokens)).tolist()
        tokens, prefixes = ([column[at] for at in order] for column in (tokens, prefixes))
    times = [
        200_000 + 500 * x + 0.1 * x * (x + 2 * read) + n
        for x, read, n in zip(tokens, prefixes, noise, strict=True)
    ]
    report = report_of(tmp_path, tokens, times, **({"prefix": prefixes * 2} if told else {}))
    first, second = report.explanation.chunk_costs

    assert (first.token_squared_ns, second.token_ns) == pytest.approx((0.1, 1000), rel=0.03)
    assert first.time_ns(np.array([640.0]), 7168).tolist() == pytest.approx([1_478_707], rel=0.01)
    sizes, read = second.even_chunks(1024), 0
    assert sum(sizes) == first.prompt_tokens == 7 * 1024 + 640
    assert sizes[0] == 1024 > sizes[1]
    for size in sizes[:-1]:
        once_more = [float(second.time_ns(np.array(s), read)) for s in (size, size + 64)]
        assert once_more[0] <= float(second.time_ns(np.array(1024))) < once_more[1]
        read += size
    assert "ns x tokens x (tokens + 2 prefix)" in cost_in_words(first)
    even = document(report)["even_chunks"]
    assert even["virtual_stage"] == 1
    assert even["even_ns"] < 0.99 * even["equal_ns"]
    assert chunk_costs(report, View()).count('class="bv-mark"') == 2 * 2


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("least", [8_190, 10**6, 10**9])
def test_lengths_far_from_zero_and_close_together(tmp_path: Path, least: int) -> None:
    tokens = [least + number % 6 for number in range(12)]
    first, _ = costs(tmp_path, tokens, [1e6 + 500.0 * (t - least) for t in tokens])

    assert first.token_ns == pytest.approx(500, rel=1e-3)
    assert first.token_squared_ns == 0


def test_what_costs_nothing_is_zero_in_words(tmp_path: Path) -> None:
    tokens = [10, 20, 10, 30, 10, 10, 20, 10]
    share, _ = costs(tmp_path, tokens, [1e5 * t for t in tokens])
    fixed, _ = costs(tmp_path, tokens, [1e6] * len(tokens))

    assert cost_in_words(share) == "0.000 ms + 100 us/token"
    assert cost_in_words(fixed) == "1.000 ms + 0 us/token"


def test_noise_alone_is_no_curve(tmp_path: Path) -> None:
    noise = np.random.default_rng(5).normal(0, 100_000, 60)
    tokens = np.linspace(64, 4096, 60).astype(int).tolist()
    first, _ = costs(
        tmp_path, tokens, [1e6 + 500 * t + n for t, n in zip(tokens, noise, strict=True)]
    )

    assert first.token_squared_ns == 0


def test_the_picture_has_a_panel_a_stage(tmp_path: Path) -> None:
    tokens = [64, 128, 512, 1024, 4096]
    report = report_of(tmp_path, tokens, [200_000 + 500 * t for t in tokens])
    root = ET.fromstring(chunk_costs(report, View()))

    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert [text for text in texts if text and text.startswith("stage ")] == ["stage 0", "stage 1"]
    assert "0.200 ms + 0.5 us/token" in texts
    assert len(list(root.iter(f"{SVG}circle"))) == 2 * len(tokens)


def test_the_line_of_few_tokens_has_no_steps(tmp_path: Path) -> None:
    tokens = [1, 2, 3]
    root = ET.fromstring(chunk_costs(report_of(tmp_path, tokens, [1e6, 2e6, 3e6]), View()))

    line = next(p for p in root.iter(f"{SVG}path") if p.get("class") == "bv-mark").attrib["d"]
    points = np.array([point.split() for point in line[1:].split("L")], float)
    slopes = np.diff(points[:, 1]) / np.diff(points[:, 0])
    assert np.ptp(slopes) < 0.01


def test_the_picture_of_ranks_without_a_stage(tmp_path: Path) -> None:
    report = bubbleviz.analyze(table_of(tmp_path, Serving((1.0,), (1.0, 1.0), tokens=[4])))
    root = ET.fromstring(chunk_costs(report, View()))

    texts = [text.text or "" for text in root.iter(f"{SVG}text")]
    assert [text for text in texts if text.startswith("stage")] == ["stage unknown"]


def test_a_picture_without_tokens_is_refused(tmp_path: Path, cli: CommandLine) -> None:
    made = tmp_path / "x.chunks.svg"
    said = cli.refused("analyze", str(FIXTURES / "1f1b"), "-o", str(made), code=2)

    assert "a picture of chunks needs the tokens of each forward" in said
    assert not made.exists()


def test_tables_written_again_keep_their_tokens(tmp_path: Path, cli: CommandLine) -> None:
    tokens = [64, 128, 512]
    path = table_of(tmp_path, Serving([0.1, 0.2, 0.5], (1.0, 2.0), tokens=tokens))
    assert main(["analyze", str(path), "--csv", str(tmp_path / "again.csv")]) == 0

    again = bubbleviz.analyze(tmp_path / "again.csv")
    assert again.explanation.chunk_costs == bubbleviz.analyze(path).explanation.chunk_costs
    assert "us/token" in cli.printed("analyze", str(path), "-v", "operations")
