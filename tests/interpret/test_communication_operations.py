"""Forwards and backwards that only communicate, like the dispatch of an expert-parallel layer."""

from __future__ import annotations

from pathlib import Path

import pytest

import bubbleviz
from bubbleviz.conventions.convention_file import built_in
from bubbleviz.conventions.name_words import generate_drafts
from bubbleviz.conventions.range_names import parse_range_names
from bubbleviz.model.phases import COUNTED, Phase, list_missing_passes
from bubbleviz.report.report import Report
from tests.support.notes import list_restriction_codes
from tests.support.nsys_exports import C, K, M, R, write_profile

DISPATCH = "void deep_ep::internode::dispatch<false, 8>(int)"


def _run(folder: Path, kernels: list[K], copies: list[M], names: list[str]) -> Report:
    """Analyze an export. Range n launches the kernels and copies of correlation id n."""
    calls = [C(10 * n + 1, 10 * n + 2, n) for n in range(len(names))]
    ranges = [R(10 * n, 10 * n + 5, name) for n, name in enumerate(names)]
    return bubbleviz.analyze(write_profile(folder, kernels, calls, ranges, copies=copies))


def test_a_forward_of_communication_has_a_span_and_is_never_busy(tmp_path: Path) -> None:
    names = ["F0.0.0", "F1.0.0", "B1.0.0", "B0.0.0"]
    kernels = [K(100, 200, 0), K(200, 500, 1, DISPATCH), K(500, 700, 2), K(700, 800, 3)]

    report = _run(tmp_path, kernels, [M(180, 210, 1)], names)

    operations = report.operations
    (row,) = (
        row for row in range(4) if operations.microbatch[row] == 1 and not operations.phase[row]
    )
    assert operations.has_span.tolist() == [1, 1, 1, 1]
    assert (operations.start_ns[row], operations.end_ns[row]) == (200, 500)
    assert (operations.busy_ns[row], operations.active_ns[row], operations.kernels[row]) == (
        0,
        0,
        0,
    )
    assert report.iterations[0].ratios["schedule"].value == pytest.approx(300 / 700)
    assert not [n for n in report.limitations if "GPU work" in n.what]
    assert "operations-without-gpu-work" not in list_restriction_codes(report)


def test_a_forward_without_any_kernel_is_still_reported(tmp_path: Path) -> None:
    names = ["F0.0.0", "F1.0.0", "B1.0.0", "B0.0.0"]
    kernels = [K(100, 200, 0), K(500, 700, 2), K(700, 800, 3)]

    report = _run(tmp_path, kernels, [], names)

    assert "operations-without-gpu-work" in list_restriction_codes(report)


def test_the_first_launched_of_kernels_that_begin_together_counts(tmp_path: Path) -> None:
    names = ["F0.0.0", "B0.0.0"]
    kernels = [K(100, 300, 0, DISPATCH), K(100, 200, 0, DISPATCH, stream=8), K(300, 400, 1)]

    operations = _run(tmp_path, kernels, [], names).operations

    assert operations.launched_ns.tolist() == [1, 11]


# Tests of names with a suffix for the pass.


LAYER = (
    "combine(B)",
    "attn(F)",
    "mlp(B)",
    "dispatch(F)",
    "dispatch(B)",
    "mlp(W)",
    "mlp(F)",
    "attn(B)",
    "attn(W)",
    "combine(F)",
)
COMMUNICATES = ("dispatch", "combine")


def _layers(count: int) -> tuple[list[str], list[K]]:
    names = ["attn(F)", "mlp(F)", *LAYER * count, "attn(B)", "mlp(W)"]
    kernels = [
        K(100 * n + 1000, 100 * n + 1090, n, DISPATCH if name.startswith(COMMUNICATES) else "gemm")
        for n, name in enumerate(names)
    ]
    return names, kernels


def test_parts_with_the_suffix_of_their_pass_are_recognized(tmp_path: Path) -> None:
    names, kernels = _layers(2)

    report = _run(tmp_path, kernels, [], names)

    assert report.convention == "dualpipe"
    (coverage,) = report.coverage
    assert coverage.attributed_gpu_ns == coverage.gpu_ns
    assert not [n for n in report.limitations if "GPU work" in n.what]


@pytest.mark.parametrize("name", ["attn(F)", "Mlp_2(B)", "ATTN(W)"])
def test_the_suffix_is_the_phase(name: str) -> None:
    meaning = parse_range_names([name], built_in()["dualpipe"])

    assert Phase(int(meaning.phase[0])).label == name[-2]
    assert meaning.part.tolist() == [True]


def test_drafts_treat_dispatch_and_combine_as_parts() -> None:
    verbs = {"forward": ("attn", "dispatch", "mlp", "combine"), "backward": ("attn", "mlp")}
    counts = {f"{part} {verb}": 4 for verb, parts in verbs.items() for part in parts}

    likeliest = next(iter(generate_drafts(counts).values()))

    meanings = parse_range_names(list(counts), likeliest)
    assert set(meanings.phase.tolist()) <= set(COUNTED)
    assert not list_missing_passes(meanings.phase.tolist())
    assert meanings.part.all()
