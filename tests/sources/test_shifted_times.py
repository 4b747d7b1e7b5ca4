"""Reports do not depend on the zero point of times, even if times are negative."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import bubbleviz
from bubbleviz.explain.causes.cause import Cause
from tests.planting import Planting, plant
from tests.support.edited_databases import edit_database, read_columns


@pytest.mark.parametrize("shift_ns", [-(10**12), -9_500_000_000, 10**12])
def test_all_times_of_an_export_may_be_shifted(shift_ns: int, tmp_path: Path) -> None:
    plant(Planting(stages=2, microbatches=4, overhead=True), tmp_path)
    (export,) = tmp_path.glob("*.sqlite")
    shifted = edit_database(
        tmp_path / "shifted.sqlite",
        *(
            f'UPDATE "{table}" SET "{column}" = "{column}" + {shift_ns} WHERE "{column}" > 0'
            for table, columns in read_columns(export).items()
            for column in ("start", "end")
            if column in columns
        ),
        source=export,
    )

    first, second = bubbleviz.analyze(export), bubbleviz.analyze(shifted)

    assert second.summary == first.summary
    causes = [
        np.bincount(r.bubbles.cause, r.bubbles.end_ns - r.bubbles.start_ns) for r in (first, second)
    ]
    assert causes[0][Cause.PROFILER] > 0
    assert causes[0].tolist() == causes[1].tolist()
    assert len(second.limitations) == len(first.limitations)
