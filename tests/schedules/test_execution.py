"""Plans that PyTorch runs on gloo: they load, train, and give the gradients of the full model."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.support.places import CHECKOUT
from tests.support.pytorch import get_python_with_torch

pytestmark = pytest.mark.frameworks


def run(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script of the repository with PyTorch."""
    return subprocess.run(
        [get_python_with_torch(), "-m", module, *arguments],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )


def test_every_known_schedule_loads_and_trains() -> None:
    done = run("scripts.proving.known")

    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    counts = re.search(r"(\d+) of (\d+) schedules ran", done.stdout)
    assert counts is not None, done.stdout
    assert counts[1] == counts[2]
    assert int(counts[2]) >= 14


def test_refused_plans_hang_or_train_wrongly() -> None:
    done = run("scripts.proving.refused")

    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert re.search(r"1f1b deferred \(streams\): hangs; the communication deadlocks", done.stdout)
    assert re.search(r"zb-v deferred \(buffered\): gradients are off by", done.stdout)


#: PyTorch's own ZBVZeroBubble often hangs on two processors, so it gets several attempts. A job
#: that does not hang takes less than 10 s.
_MAX_ATTEMPTS, _TIMEOUT_S = 10, 30


@pytest.mark.parametrize("job", ["one-way-2", "v-2"])
def test_a_measured_job_is_planned_and_the_plan_runs(job: str) -> None:
    """Run times are not tested, because other processes share the processors."""
    for _ in range(_MAX_ATTEMPTS):
        done = run(
            "scripts.proving",
            *(job, "--iterations", "2", "--scale", "0.5", "--timeout", str(_TIMEOUT_S)),
        )
        if "did not end ZBVZeroBubble" not in done.stderr:
            break

    lines = [line for line in done.stdout.splitlines() if line.startswith(job)]
    assert len(lines) >= 3, done.stderr[-2000:]
    assert sum(" plan: " in line for line in lines) == 1
    for line in lines:
        match = re.search(r"gradients within ([0-9.e+-]+),", line)
        assert match is not None
        assert float(match.group(1)) < 1e-12
