"""Devices that ran a single kernel or copy: no window, so no duty cycle."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bubbleviz.cli.app import main
from tests.support.nsys_exports import C, K, R, profile


@pytest.mark.parametrize("ranges", [(), (R(0, 5, "work"),), (R(0, 5, "iter_0_0"),)])
@pytest.mark.parametrize("end_ns", [1_000, 1_000_000])
def test_a_single_kernel_gives_no_duty_cycle(
    end_ns: int, ranges: tuple[R, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = profile(tmp_path, [K(10, 10 + end_ns, 1)], [C(1, 2, 1)], ranges)
    written = tmp_path / "idle.json"
    assert main(["idle", str(run), "--json", str(written)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    document = json.loads(written.read_text(encoding="utf-8"))
    assert "1 device with a single kernel or copy" in shown
    assert "100.00" not in shown
    assert "profile more of the run" in shown
    assert document["ranks"][0]["duty_cycle"] is None
    assert document["span_ns"] == 0
    assert "duty cycle" in {note["what"] for note in document["limitations"]}


def test_two_kernels_give_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kernels, calls = [K(10, 20, 1), K(50, 60, 2)], [C(1, 2, 1), C(3, 4, 2)]
    assert main(["idle", str(profile(tmp_path, kernels, calls, []))]) == 0
    assert "1 device, idle for 60.00 % of the time" in capsys.readouterr().out


def test_a_device_with_a_single_kernel_counts_in_no_sum(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kernels = [K(10, 20, 1), K(50, 60, 2), K(10, 900, 3, device=1)]
    calls = [C(1, 2, 1), C(3, 4, 2), C(5, 6, 3)]
    assert main(["idle", str(profile(tmp_path, kernels, calls, []))]) == 0
    assert "2 devices, idle for 60.00 % of the time" in capsys.readouterr().out
