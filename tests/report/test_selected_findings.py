"""Selection of findings that represent other findings of their family."""

from __future__ import annotations

import pytest

from bubbleviz.explain.diagnosis.faults import Fault
from bubbleviz.explain.diagnosis.findings import Diagnosis, Finding
from bubbleviz.report.advice import select_findings


def make_launch_finding(name: str, ranks: tuple[int, ...], saving: float) -> Finding:
    """Return a finding of late launches on the hosts of some ranks."""
    fault = Fault("launch", name, ranks=ranks)
    return Finding((fault,), 1000 * saving, 1000.0, 1, None)


def select_names(*findings: Finding) -> list[str]:
    """Return the names of the faults in the selected findings."""
    selected = select_findings(Diagnosis(findings, 1, 1000.0, 0.0))
    return [finding.faults[0].name for finding in selected]


@pytest.mark.parametrize("second", [0.10, 0.098, 0.05])
def test_the_first_part_represents_parts_that_save_as_much_as_the_whole(
    second: float,
) -> None:
    selected = select_names(
        make_launch_finding("launches", (0, 1), 0.10),
        make_launch_finding("launch-0", (0,), 0.10),
        make_launch_finding("launch-1", (1,), second),
    )

    assert selected == ["launch-0"]


@pytest.mark.parametrize(
    ("part", "stands"), [(0.10, "launches"), (0.188, "launches"), (0.192, "launch-0")]
)
def test_a_whole_that_saves_more_represents_its_parts(part: float, stands: str) -> None:
    selected = select_names(
        make_launch_finding("launches", (0, 1), 0.20),
        make_launch_finding("launch-0", (0,), part),
        make_launch_finding("launch-1", (1,), 0.10),
    )

    assert selected == [stands]
