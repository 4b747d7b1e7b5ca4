"""Names of serving frameworks, in exports of nsys and in traces of PyTorch's profiler."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import bubbleviz
from tests.support.forward_runs import Chunk, Serving, served
from tests.support.nsys_exports import C, K, R, profile
from tests.support.torch_traces import traces_of

TOKENS = (512, 2048, 64, 1024, 4096, 512, 64, 2048)
RUN = Serving([t / 1024 for t in TOKENS], (1.0, 1.5), transfer_ns=20_000, depth=2, host_ns=50_000)
#: From when everything is recorded.
_BEGIN_NS = 10_000_000


def export(folder: Path, names: Callable[[Chunk], list[str]], *, steps: bool = False) -> Path:
    """Write an export in which each chunk launches one kernel in ranges of these names."""
    kernels, calls, ranges = [], [], []
    for number, chunk in enumerate(served(RUN)):
        pid, start = 1 + chunk.stage, chunk.start_ns + _BEGIN_NS
        kernels.append(K(start, chunk.end_ns + _BEGIN_NS, number, pid=pid))
        calls.append(C(start - 5_000, start - 2_000, number, tid=pid, pid=pid))
        own = [*([f"ProfilerStep#{chunk.number + 7}"] if steps else []), *names(chunk)]
        for depth, name in enumerate(own):
            wide = 400 * (len(own) - depth)
            ranges.append(R(start - 6_000 - wide, start - 1_900 + wide, name, pid, pid))
    return profile(folder, kernels, calls, ranges)


def vllm(chunk: Chunk) -> list[str]:
    tokens = TOKENS[chunk.number]
    decodes = f"generation_{tokens}({tokens})" if tokens == 64 else "generation_0(0)"
    return [f"execute_context_{int(tokens != 64)}({tokens if tokens != 64 else 0})_{decodes}"]


def sglang(chunk: Chunk) -> list[str]:
    tokens = TOKENS[chunk.number]
    return [f"step[DECODE bs={tokens}]" if tokens == 64 else f"step[EXTEND bs=1 toks={tokens}]"]


def measured(path: Path | list[Path], convention: str) -> bubbleviz.Report:
    """Return the report of the planted run, after a check of what was planted."""
    report = bubbleviz.analyze(path)
    assert report.convention == convention
    assert report.kind == "inference"
    assert [(i.kind, i.microbatches) for i in report.iterations] == [("inference", len(TOKENS))]
    assert [rank.stage for rank in report.ranks] == [0, 1]
    chunks = served(RUN)
    whole = max(c.end_ns for c in chunks) - min(c.start_ns for c in chunks)
    busy = sum(c.end_ns - c.start_ns for c in chunks)
    ratio = report.summary.bubble_ratio["schedule"].mean
    assert ratio == pytest.approx(1 - busy / (2 * whole), abs=1e-9)
    return report


@pytest.mark.parametrize("names", [vllm, sglang])
@pytest.mark.parametrize("steps", [False, True])
@pytest.mark.parametrize("traced", [False, True])
def test_chunks_and_their_tokens(
    tmp_path: Path, names: Callable[[Chunk], list[str]], steps: bool, traced: bool
) -> None:
    path = export(tmp_path, names, steps=steps)
    profiles = traces_of(path, tmp_path) if traced else [path]
    report = measured(profiles, f"{names.__name__}")

    of_rank = report.operations.rank == 1
    assert report.operations.tokens[of_rank].tolist() == list(TOKENS)
    first = 7 if steps else 0
    assert report.operations.microbatch[of_rank].tolist() == [first + n for n in range(8)]
    for cost, speed in zip(report.explanation.chunk_costs, RUN.stages, strict=True):
        assert cost.n == len(TOKENS)
        assert cost.token_ns == pytest.approx(speed * 1e6 / 1024, rel=1e-6)
        assert cost.fixed_ns == pytest.approx(0, abs=1)


@pytest.mark.parametrize(
    ("name", "convention"),
    [("gpu_model_runner: forward", "vllm-scopes"), ("scheduler.run_batch", "sglang-scheduler")],
)
def test_scopes_alone_name_the_chunks(tmp_path: Path, name: str, convention: str) -> None:
    report = measured(export(tmp_path, lambda _: [name]), convention)

    assert (report.operations.tokens == -1).all()
    assert report.explanation.chunk_costs == ()


def test_scopes_inside_steps_are_no_chunks_of_their_own(tmp_path: Path) -> None:
    path = export(tmp_path, lambda chunk: [*vllm(chunk), "gpu_model_runner: forward"])
    report = measured(path, "vllm")

    assert len(report.operations) == 2 * len(TOKENS)
    assert np.sort(report.operations.tokens).tolist() == sorted(2 * TOKENS)
