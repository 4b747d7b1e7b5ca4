"""Hosts whose clocks are wrong by up to seconds: never silently, over a sample of all such jobs."""

from __future__ import annotations

import pytest

from tests.support.host_clocks import Job, grid, outcome_of

#: ``python -m scripts.measure_pairing`` runs more of them.
JOBS = list(grid(24, 3))


@pytest.mark.parametrize("job", JOBS, ids=[str(job.planting.seed) for job in JOBS])
def test_iterations_are_paired_as_they_were_or_not_at_all(job: Job) -> None:
    outcome = outcome_of(job)

    assert outcome.kind != "wrong", f"{outcome.reason}: {job.name}"
    planting = job.planting
    varied = planting.jitter >= 0.02 and planting.iterations >= 8
    if varied and not job.held and planting.replicas == 1 and not any(planting.step_ns):
        assert outcome.kind == "right", f"{outcome.reason}: {job.name}"
