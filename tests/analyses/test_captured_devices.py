"""Devices of which several captures are analyzed by ``idle`` and ``nccl``."""

from __future__ import annotations

from pathlib import Path

import pytest

import bubbleviz
from bubbleviz.cli.app import main
from bubbleviz.interpret.device_captures import DeviceCapture, number_devices
from tests.planting import Planting, plant
from tests.support.captures import cut_captures
from tests.support.data_parallel_traces import write_rank_traces


def test_the_captures_of_a_device_follow_each_other() -> None:
    captures = [
        DeviceCapture("a", 7, 0, (0, 10)),
        DeviceCapture("a", 7, 1, (0, 10)),
        DeviceCapture("b", 7, 0, (0, 10)),
        DeviceCapture("a", 7, 0, (10, 20)),
        DeviceCapture("a", 7, 0, (30, 40)),
    ]
    assert number_devices(captures) == [0, 1, 2, 0, 0]


def test_captures_at_the_same_time_are_of_different_devices() -> None:
    """Two containers may have the same host name and process ids."""
    captures = [
        DeviceCapture("a", 7, 0, (0, 10)),
        DeviceCapture("a", 7, 0, (9, 20)),
        DeviceCapture("a", 7, 0, (30, 40)),
    ]
    assert number_devices(captures) == [0, 1, 2]


def test_captures_without_a_time_are_of_different_devices() -> None:
    captures = [DeviceCapture("a", 7, 0, None)] * 2
    assert number_devices(captures) == [0, 1]
    assert number_devices([]) == []


@pytest.mark.parametrize("captures", [(range(4), range(4, 8)), (range(3), range(5, 8))], ids=str)
def test_the_late_gpu_of_several_captures(captures: tuple[range, ...], tmp_path: Path) -> None:
    folder = write_rank_traces(tmp_path / "run", "backward", steps=8, captures=captures)
    # The first step of a capture has no previous barrier.
    n_steps = sum(len(capture) - 1 for capture in captures)
    for report in (bubbleviz.nccl(folder), bubbleviz.idle(folder)):
        assert len(report.gpu_names) == 4
        assert report.late_sentence.startswith(
            f"rank 1 (node0) arrives last at barriers in {n_steps} of {n_steps} steps; the others "
            "wait 20.000 ms per"
        )
        assert report.late_sentence.endswith("Its backward takes 20.000 ms per step longer")


def test_steps_of_captures_that_have_the_same_numbers(tmp_path: Path) -> None:
    folder = write_rank_traces(
        tmp_path / "run", "backward", steps=8, captures=(range(4), range(4, 8))
    )
    for trace in folder.glob("*0000001.pt.trace.json"):
        text = trace.read_text()
        for number in range(4, 8):
            text = text.replace(f"ProfilerStep#{number}", f"ProfilerStep#{number - 4}")
        trace.write_text(text)
    lateness = bubbleviz.nccl(folder).lateness

    assert lateness is not None
    assert lateness.n_steps == 6
    assert lateness.main is not None
    assert lateness.main.late_ns == 6 * 20_000_000


def test_idle_counts_devices_and_lists_their_captures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_rank_traces(tmp_path / "run", "", steps=6, captures=(range(3), range(3, 6)))
    report = bubbleviz.idle(folder)

    assert [rank.label for rank in report.ranks] == [
        f"node0 GPU {device} capture {capture}" for device in range(4) for capture in (1, 2)
    ]
    summary = report.summarize()
    assert [rank.capture for rank in summary.ranks] == [1, 2] * 4
    assert repr(summary).endswith("4 devices)")
    assert main(["idle", str(folder)]) == 0
    assert capsys.readouterr().out.startswith("8 captures of 4 devices, idle for ")


def test_kernels_of_several_captures_meet_in_their_order(tmp_path: Path) -> None:
    """Without communicators, the k-th kernels of all GPUs are one collective."""
    planting = Planting(
        stages=2, microbatches=2, iterations=6, kernels=1, barrier=True, files="rank"
    )
    truth = plant(planting, tmp_path / "whole")
    folder = tmp_path / "captures"
    cut_captures(truth, tmp_path / "whole", (range(3), range(3, 6)), folder)
    known = []
    for run in (tmp_path / "whole", folder):
        table = bubbleviz.nccl(run).operations
        is_reduction = table.name == table.names.index("AllReduce")
        known.append(table.waiting_ns[is_reduction] >= 0)

    assert len(known[0]) == len(known[1])
    assert known[0].all()
    assert known[1].all()
