"""The same run recorded twice at once, by PyTorch's profiler and without a profiler: one answer.

Four processes train a pipeline whose stages sleep, so that processors which others use, too, say
little. Where PyTorch is not installed, BUBBLEVIZ_TORCH names a Python that has it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import bubbleviz
from bubbleviz.explain.causes.cause import Cause
from bubbleviz.model.phases import COUNTED
from tests.support.pytorch import trained

SCHEDULES = ("1F1B", "GPipe", "ZBVZeroBubble")
#: A port of its own, since other tests train, too.
OPTIONS = ("--record", "--sleep-ms", "20", "--port", "29541")


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train four ranks under each schedule, and record each with both."""
    return trained(tmp_path_factory.mktemp("twice"), SCHEDULES, *OPTIONS)


def order_of(report: bubbleviz.Report) -> list[tuple[int, ...]]:
    """Return rank, iteration, phase, microbatch and virtual stage of operations, in order."""
    operations = report.operations
    rows = np.flatnonzero(np.isin(operations.phase, COUNTED))
    # The first stage of a split backward has no operator in B, and so no span in the trace.
    rows = rows[np.lexsort((operations.host_start_ns[rows], operations.rank[rows]))]
    columns = ("rank", "iteration", "phase", "microbatch", "virtual_stage")
    return list(zip(*(getattr(operations, name)[rows].tolist() for name in columns), strict=True))


def largest_cause(report: bubbleviz.Report) -> Cause:
    bubbles = report.bubbles
    lengths = np.bincount(bubbles.cause, bubbles.end_ns - bubbles.start_ns, minlength=len(Cause))
    return Cause(int(lengths.argmax()))


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_recording_tells_what_the_profiler_does(name: str, twice: Path) -> None:
    profiles = [twice / name / f"rank{rank}.json" for rank in range(4)]

    traced = bubbleviz.analyze(profiles)
    recorded = bubbleviz.analyze([twice / name / "recording"])

    assert [i.name for i in recorded.iterations] == [i.name for i in traced.iterations]
    for iteration, other in zip(recorded.iterations, traced.iterations, strict=True):
        value, expected = (i.ratios["schedule"].value for i in (iteration, other))
        assert value == pytest.approx(expected, abs=0.01)
    assert order_of(recorded) == order_of(traced)
    assert largest_cause(recorded) == largest_cause(traced)
    assert recorded.headline == traced.headline
    assert recorded.schedule is not None
    assert traced.schedule is not None
    assert recorded.schedule.name == traced.schedule.name
