"""Idle time of real profiles, partly compared with HolisticTraceAnalysis."""

from __future__ import annotations

import pytest

import bubbleviz
from bubbleviz.analyses.idle.outputs import as_json, format_gaps_csv
from bubbleviz.analyses.idle.picture import draw_idle
from bubbleviz.errors import NothingToAnalyzeError
from tests.support.command_line import CommandLine
from tests.support.idle_runs import check_sums, get_only_rank
from tests.support.needs import get_real_file

pytestmark = pytest.mark.real_files


WITHOUT_KERNELS = (
    "dynamicvit_no_kernels",
    "jacc_cg_trace_no_kernels",
    "yoon_poolformer_no_kernels",
)


def test_every_real_export_with_work_adds_up(subtests: pytest.Subtests) -> None:
    files = sorted(get_real_file("nsys").glob("*.sqlite"))
    with_work = [file for file in files if file.stem not in WITHOUT_KERNELS]
    assert len(with_work) >= 14
    for file in with_work:
        with subtests.test(file=file.name):
            report = bubbleviz.idle(file)

            for rank in report.ranks:
                check_sums(rank)
                waiting = [part for part in rank.activities if part.activity == "waiting"]
                waiting_ns = sum(part.idle_ns for part in waiting)
                assert sum(wait.idle_ns for wait in rank.waits) <= waiting_ns
            as_json(report, 5)
            format_gaps_csv(report)


def test_real_exports_without_kernels_are_refused() -> None:
    for name in WITHOUT_KERNELS:
        with pytest.raises(NothingToAnalyzeError, match="no CUDA kernels were recorded"):
            bubbleviz.idle(get_real_file(f"nsys/{name}.sqlite"))


def test_waits_of_hosts_in_real_exports_are_explained(subtests: pytest.Subtests) -> None:
    for name, calls, works in [
        # Versions of nsys from 2022 to 2025 number the kinds of waits differently.
        ("rodinia_report3", ["cudaThreadSynchronize"], {"Fan1", "Fan2"}),
        ("nsightful_power_iteration", ["cudaStreamSynchronize"], {"copy or memset"}),
        ("gomory_report10", ["cudaDeviceSynchronize", "cudaEventSynchronize"], None),
        ("pipit_cloverleaf", ["cudaDeviceSynchronize"], None),
    ]:
        with subtests.test(name=name):
            rank = get_only_rank(bubbleviz.idle(get_real_file(f"nsys/{name}.sqlite")))

            # The cause of every wait is known.
            # Each call waits for one stream, or for the only device.
            (waiting,) = (part for part in rank.activities if part.activity == "waiting")
            assert sum(wait.idle_ns for wait in rank.waits) == waiting.idle_ns
            assert {wait.waiting for wait in rank.waits} == {f"host, {call}" for call in calls}
            assert {wait.stream for wait in rank.waits} == {"stream 7"}
            assert works is None or {wait.work.partition("(")[0] for wait in rank.waits} == works


JAX = (
    "jax_cpu4.trace.json.gz",
    "jax_cpu4.xplane.pb",
    "tracelens_jax08_attention.trace_viewer.json.gz",
    "tracelens_jax08_attention.xplane.pb",
)


def test_real_traces_of_jax_add_up(subtests: pytest.Subtests) -> None:
    for name in JAX:
        with subtests.test(name=name):
            report = bubbleviz.idle(get_real_file(f"jax/{name}"))

            for rank in report.ranks:
                check_sums(rank)
            if name.startswith("jax_cpu4"):
                steps = [step.name for step in report.ranks[0].steps if step.name is not None]
                assert steps == ["train#step_num=0#", "train#step_num=1#", "train#step_num=2#"]
                activities = {part.activity for rank in report.ranks for part in rank.activities}
                assert {"waiting", "operators", "host: train"} <= activities


#: Results of HolisticTraceAnalysis 0.5.0 for PyTorch traces, in microseconds.
#: The options are include_last_profiler_step=True and HTA_DISABLE_NS_ROUNDING=1.
#: The first three values are idle, compute and kernel time from get_temporal_breakdown.
#: The last value is the percentage from get_comm_comp_overlap, or None for NaN.
HTA = {
    "hta_sampled_rank-0": (675_191.0, 210_320.0, 1_222_847.0, 14.95),
    "hta_sampled_rank-1": (651_136.0, 271_973.0, 1_231_186.0, 19.93),
    "hta_nccl_data": (503_050.991, 115_655.847, 660_551.006, 15.61),
    # The times of this trace are UTC floats with a resolution of a quarter of a microsecond.
    "hta_ns_resolution": (7_574.786, 468_153.602, 480_029.227, None),
}


def test_idle_compute_and_overlap_agree_with_hta(subtests: pytest.Subtests) -> None:
    for name, published in HTA.items():
        with subtests.test(name=name):
            idle, compute, span, overlap = published

            rank = get_only_rank(bubbleviz.idle(get_real_file(f"kineto/{name}.json.gz")))

            # HTA counts communication and copies that do not overlap compute as non-compute.
            other_ns = rank.exposed_communication_ns + rank.exposed_copy_ns
            measured = (rank.idle_ns, rank.compute_ns, rank.span_ns, other_ns)
            assert [ns / 1000 for ns in measured] == pytest.approx(
                [idle, compute, span, span - compute - idle], abs=0.06
            )
            if overlap is None:
                assert rank.overlap is None
            else:
                assert 100 * (rank.overlap or 0) == pytest.approx(overlap, abs=0.005)


def test_all_to_alls_are_not_sends_although_their_kernels_are_named_after_sends() -> None:
    """Records show the true operation of ``ncclKernel_SendRecv``. This run has no pipeline."""
    report = bubbleviz.idle(get_real_file("kineto/hta_sampled_rank-0.json.gz"))
    assert get_only_rank(report).exposed_communication_ns > 0
    assert get_only_rank(report).exposed_point_to_point_ns == 0


def test_hosts_without_a_device_do_not_hide_the_only_gpu(cli: CommandLine) -> None:
    files = [
        get_real_file("jax/jax_cpu4.xplane.pb"),
        get_real_file("jax/tracelens_jax08_attention.xplane.pb"),
    ]

    printed = cli.printed("idle", *map(str, files))
    picture = draw_idle(bubbleviz.idle(files))

    assert "1 device, idle for 88.19 % of the time; 1 host without a device\n" in printed
    assert "vm host" not in printed
    assert "tw003 GPU 0" in picture
    assert "vm host" not in picture
    alone = cli.printed("idle", str(files[0]))
    assert alone.startswith("1 host without a device: operators were recorded, but no device work")
    assert "XLA ran on CPUs, so run the program on its accelerator" in " ".join(alone.split())
    assert len(alone.splitlines()) <= 3
