"""Communication kernels: names that are known, names that users add, and candidates."""

from __future__ import annotations

from pathlib import Path

import pytest

import bubbleviz
from bubbleviz.analyses.idle.advice import advice
from bubbleviz.conventions.kinds import communication_candidates, default_kinds, matching
from bubbleviz.errors import UsageError
from bubbleviz.render.text.report import sections
from bubbleviz.report.report import View
from tests.planting import Planting, plant
from tests.support.idle_runs import c, k, only
from tests.support.nsys_exports import C, K, R, profile

KNOWN = [
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "void dpsk::ep::internode::dispatch<false, 8, true, 8>(int4*, float*)",
    "void dpsk::ep::internode::notify_dispatch<false, 4>(int const*)",
    "void deep_ep::intranode::combine<c10::BFloat16>(...)",
    "void internode_ll::dispatch<true, 7168>(...)",
    "void vllm::cross_device_reduce_1stage<float, 8>(vllm::RankData*)",
    "void tensorrt_llm::kernels::oneShotAllReduceKernel<half, 8>(...)",
    "two_shot_all_reduce_kernel",
    "kuserbuffers_pushsend(int*, int*)",
]
LOOKALIKES = [
    "void acme::all_reduce_ring<float>(float*)",
    "mylib::AllGatherKernel",
    "void moe_ep::token_dispatch_kernel<8>(int*)",
    "reduceScatterKernel",
    "void fabric::send_kernel(void*)",
]
COMPUTE = [
    "",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float> >(...)",
    "void cdpsk::ep::CUB_200700_900_NS::DeviceScanKernel<int>(...)",
    "void cub::DeviceReduceKernel<cub::DispatchReduce<float, all_reduce_tag>::Policy>(int)",
    "void flash::flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<64> >(...)",
    "void at::native::vectorized_gather_kernel<16, long>(char*)",
    "void sender_norm(float*)",
    "void compute_commutator(float*)",
]


@pytest.mark.parametrize("name", KNOWN)
def test_communication_kernels_are_known(name: str) -> None:
    kinds = default_kinds()

    assert matching([name], kinds.communication).tolist() == [True]
    assert communication_candidates([name], kinds).tolist() == [False]


@pytest.mark.parametrize("name", LOOKALIKES)
def test_names_that_look_like_communication_are_candidates(name: str) -> None:
    kinds = default_kinds()

    assert matching([name], kinds.communication).tolist() == [False]
    assert communication_candidates([name], kinds).tolist() == [True]


@pytest.mark.parametrize("name", COMPUTE)
def test_compute_kernels_are_neither(name: str) -> None:
    kinds = default_kinds()

    assert matching([name], kinds.communication).tolist() == [False]
    assert communication_candidates([name], kinds).tolist() == [False]


def test_no_names_have_no_candidates() -> None:
    assert communication_candidates([], default_kinds()).tolist() == []


def _additions(folder: Path, text: str = 'communication = ["^acme::"]') -> Path:
    file = folder / "ours.toml"
    file.write_text(text)
    return file


def test_exposed_communication_under_another_name_is_measured(tmp_path: Path) -> None:
    """DeepSeek's names: 4,190 us of dispatch, of which compute covers none."""
    name = "void dpsk::ep::internode::dispatch<false, 8, true, 8>(int4*)"
    kernels = [k(0, 1000, 1), k(1000, 5190, 2, name), k(5190, 6000, 3)]

    report = bubbleviz.idle(profile(tmp_path, kernels, [c(0, 1, 1), c(1, 2, 2), c(2, 3, 3)]))

    assert only(report).breakdown.exposed_communication_ns == 4_190_000
    assert advice(report) == (
        "devices are idle for less than 1 % of the time, and only communicate for 69.83 % of it: "
        "overlap communication with compute"
    )
    assert not [note for note in report.limitations if "look like" in note.what]


def test_candidates_are_pointed_out_and_added_by_a_file(tmp_path: Path) -> None:
    kernels = [k(0, 10, 1), k(10, 40, 2, "acme::all_reduce(int)"), k(40, 50, 3)]
    file = profile(tmp_path, kernels, [c(0, 1, 1), c(1, 2, 2), c(2, 3, 3)])

    before = bubbleviz.idle(file)
    after = bubbleviz.idle(file, convention=_additions(tmp_path))

    (note,) = [note for note in before.limitations if "look like" in note.what]
    assert note.count == 1
    assert "0.030 ms of 'acme::all_reduce(int)' count as compute" in note.reason
    assert only(before).breakdown.exposed_communication_ns == 0
    assert only(after).breakdown.exposed_communication_ns == 30_000
    assert not [note for note in after.limitations if "look like" in note.what]


def test_a_file_of_additions_leaves_names_to_be_recognised(tmp_path: Path) -> None:
    kernels = [K(0, 10, 1), K(10, 90, 2, "acme::all_reduce"), K(90, 100, 3)]
    calls = [C(1, 2, 1), C(7, 8, 2), C(11, 12, 3)]
    ranges = [R(0, 5, "F0.0.0"), R(10, 15, "B0.0.0")]
    file, ours = profile(tmp_path, kernels, calls, ranges), _additions(tmp_path)

    before = bubbleviz.analyze(file)
    after = bubbleviz.analyze(file, convention=ours)

    assert before.convention == after.convention == "zero-bubble"
    assert [sum(rank.comm_ns for rank in report.coverage) for report in (before, after)] == [0, 80]
    assert any("look like communication" in note.what for note in before.limitations)
    assert not any("look like communication" in note.what for note in after.limitations)
    # Exposed collectives stand under exposed, and in the table.
    communication = after.explanation.communication
    collective = after.explanation.causes.of_rank(after.bubbles.ratio, 0, 0)["collective"]
    assert int(communication.exposed_ns[0, 0]) == collective == 80
    assert list(sections(after, View()))
    assert bubbleviz.inspect(file, convention=ours).analysable


@pytest.mark.parametrize("text", ["", "communication = []", 'name = "ours"', "communication = 3"])
def test_a_file_without_anything_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match=r"pattern|list of texts"):
        bubbleviz.idle(profile(tmp_path, [k(0, 1, 1)]), convention=_additions(tmp_path, text))


@pytest.mark.parametrize("barrier", [False, True])
def test_exposed_counts_the_collectives_that_the_bubble_holds(
    tmp_path: Path, barrier: bool
) -> None:
    plant(Planting(barrier=barrier, transfer_ns=40_000), tmp_path)

    report = bubbleviz.analyze(tmp_path)

    exposed_ns = report.explanation.communication.exposed_ns
    for iteration in report.iterations:
        for rank in iteration.ranks:
            causes = report.explanation.causes.of_rank(
                report.bubbles.ratio, iteration.index, rank.rank
            )
            least = causes["collective"]
            assert least <= int(exposed_ns[iteration.index, rank.rank])
