"""Kinds of kernels, threads, calls and layers, derived from their names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import bubbleviz
from bubbleviz.analyses.pgle.range_names import parse_range_names
from bubbleviz.conventions import range_names, toml_files
from bubbleviz.conventions.convention_file import built_in
from bubbleviz.conventions.host_activities import LAUNCH, TRANSFER, default_activities
from bubbleviz.conventions.kinds import (
    COPIES,
    GRAPH_LAUNCHES,
    KERNEL_LAUNCHES,
    MEMSETS,
    WORK_CALLS,
    classify_collective,
    classify_kernels,
    default_kinds,
    list_short_names,
    mask_communication_candidates,
    mask_unknown_kernels,
    match_any,
    parse_hccl_operation,
)
from bubbleviz.errors import UsageError
from bubbleviz.model.limitations import LimitationKind
from bubbleviz.model.phases import COMMUNICATION
from bubbleviz.model.texts import MATCHED_CHARACTERS, MAX_RANGE_NAME
from bubbleviz.render.text.first_screen import render_first_screen
from bubbleviz.render.text.report import list_sections
from bubbleviz.render.text.terminal import Display, join_plain_lines
from bubbleviz.report.view import View
from tests.planting import Planting, plant
from tests.support.idle_runs import c, k
from tests.support.notes import find_limitation
from tests.support.nsys_exports import C, K, R, write_profile

# Tests of the kinds of kernels.


NAMES = [
    # (name, communication, receives, point to point, collective).
    ("gemm", False, False, False, False),
    ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", True, True, True, False),
    ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", True, False, False, True),
    # NCCL's kernels without their prefix. Names in lower case may be instructions of XLA.
    ("AllReduce", True, False, False, True),
    ("AllReduce_Sum_f32_RING_LL", True, False, False, True),
    ("AllGather_RING_LL", True, False, False, True),
    ("ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", True, False, False, True),
    ("Reduce_Sum_f32_RING_LL", True, False, False, False),
    ("AllReduce_AGxLL_R_sum_bf16(ncclSymDevArgs)", True, False, False, True),
    ("AllReduce_RSxLDMC_AGxSTMC_sum_bf16", True, False, False, True),
    ("ReduceScatter_LD_sum_bf16", True, False, False, True),
    ("AllGather_STMC", True, False, False, True),
    ("Broadcast(float*, int)", False, False, False, False),
    ("SendRecv", True, True, True, False),
    ("Recv", True, True, True, False),
    ("Broadcast_RING_LL", True, False, False, False),
    ("broadcast", False, False, False, False),
    ("Reduce", False, False, False, False),
    ("Reduce_Sum_kernel", False, False, False, False),
    ("AllGather_Stack", False, False, False, False),
    ("AllReduceFusedNorm", False, False, False, False),
    ("AllReduce_kernel", False, False, False, False),
    ("void deep_ep::internode::recv<2>(int)", True, True, True, False),
    ("void deep_ep::elastic::pp_send_impl<8>(int)", True, False, True, False),
    ("pplx::a2a_dispatch_recv_kernel", True, False, False, True),
    ("void hybrid_ep::dispatch_kernel<4>(int)", True, False, False, True),
    ("EpCombineInterNodeV1Kernel_bf16", True, False, False, True),
    ("void aiter::cross_device_reduce_2stage<float, 8>(int)", True, False, False, True),
    ("flashcomm::all2all_kernel", True, False, False, True),
    ("all_reduce_two_shot_kernel", True, False, False, True),
    ("symm_mem_barrier", True, False, False, False),
    ("barrier_all", True, False, False, False),
    ("c10d::recv_", True, False, True, False),
    ("c10d::send", True, False, True, False),
    ("gloo:all_reduce", True, False, False, True),
    ("all-reduce.3", True, False, False, True),
    ("all-reduce-start.3", True, False, False, False),
    ("collective-permute.12", True, True, True, False),
    ("collective-permute-start.1", True, False, True, False),
    ("collective-permute-done.1", True, True, True, False),
    ("recv.4", True, False, True, False),
    ("recv-done.4", True, True, True, False),
    ("send-done", True, False, True, False),
    ("ppermute.3", True, True, True, False),
    ("psum_invariant", True, False, False, True),
    ("reduce-scatter.1.clone", True, False, False, True),
    ("all-reduce-scatter.1", True, False, False, True),
    ("collective-permute.2.remat3", True, True, True, False),
    ("all-reduce_fusion.1", False, False, False, False),
    ("all-reduce-fusion", False, False, False, False),
    ("loop_reduce_fusion", False, False, False, False),
]


@pytest.mark.parametrize(
    ("name", "communicates", "receives", "point_to_point", "collective"), NAMES
)
def test_kernels_are_classified_by_name(
    name: str, communicates: bool, receives: bool, point_to_point: bool, collective: bool
) -> None:
    kinds = default_kinds()

    talks = match_any([name], kinds.communication)[0]
    flags = [
        bool(talks and match_any([name], regexes)[0])
        for regexes in (kinds.receives, kinds.point_to_point)
    ]
    kind = dict(enumerate(name for name, _ in kinds.collective_kinds)).get(
        classify_collective(name, kinds.collective_kinds)
    )
    flags.append(bool(talks) and kind in {"AllReduce", "AllGather", "ReduceScatter", "AlltoAll"})

    assert talks == communicates
    assert flags == [receives, point_to_point, collective]


JAX = built_in()["jax-xla"]
XLA_KERNELS = [r for r in default_kinds().communication if "all-reduce" in r or "psum" in r]
XLA_RANGES = [p.regex for p in JAX.patterns if p.phase in COMMUNICATION and "hlo_op" in p.glob]


def is_communication_range(name: str) -> bool:
    """Return whether the convention reads the range of this instruction as communication."""
    return bool(
        range_names.parse_range_names([f"Thunk:#hlo_op={name}#"], JAX).phase[0] in COMMUNICATION
    )


def is_communication_kernel(name: str) -> bool:
    return bool(match_any([name], default_kinds().communication)[0])


def test_some_instructions_communicate() -> None:
    assert len(XLA_KERNELS) == len(XLA_RANGES) == 2


@given(st.sampled_from(XLA_KERNELS).flatmap(lambda r: st.from_regex(r, fullmatch=True)))
def test_ranges_recognize_what_kernel_names_recognize(name: str) -> None:
    assert is_communication_range(name.removesuffix("\n"))


@given(st.sampled_from(XLA_RANGES).flatmap(lambda r: st.from_regex(r, fullmatch=True)))
def test_kernel_names_recognize_what_ranges_recognize(text: str) -> None:
    meaning = parse_range_names([text])

    assert is_communication_kernel(meaning.instructions[meaning.instruction[0]])


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
    "ncclSymkDevKernel_AllReduce_AGxLL_R_sum_bf16(ncclSymkDevWorkArgs)",
    "rcclGenericKernel_1(ncclDevComm *)",
    "void mscclpp::allreduce<float>(float *)",
    "nvshmemi_transfer_rma_kernel(void *)",
]
LOOKALIKES = [
    "void acme::all_reduce_ring<float>(float*)",
    "mylib::AllGatherKernel",
    "void moe_ep::token_dispatch_kernel<8>(int*)",
    "reduceScatterKernel",
    "void fabric::send_kernel(void*)",
    "send_to_expert_permute_kernel",
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


@pytest.mark.parametrize(
    ("name", "is_known", "is_likely"),
    [
        *((name, True, False) for name in KNOWN),
        *((name, False, True) for name in LOOKALIKES),
        *((name, False, False) for name in COMPUTE),
    ],
)
def test_kernels_that_communicate_or_look_like_it_are_recognized(
    name: str, is_known: bool, is_likely: bool
) -> None:
    kinds = default_kinds()
    assert match_any([name], kinds.communication).tolist() == [is_known]
    assert mask_communication_candidates([name], kinds).tolist() == [is_likely]
    assert mask_communication_candidates([], kinds).tolist() == []


# Tests with the names of public kernels (kernel_names.toml).


KERNEL_NAMES = [
    (library, kernel_class, name)
    for library, classes in toml_files.load(
        Path(__file__).with_name("kernel_names.toml").read_text(encoding="utf-8")
    ).items()
    for kernel_class, names in classes.items()
    for name in names
]


@pytest.mark.parametrize("library", dict.fromkeys(library for library, _, _ in KERNEL_NAMES))
def test_each_public_kernel_has_the_class_of_its_work(library: str) -> None:
    expected = {name: kernel_class for of, kernel_class, name in KERNEL_NAMES if of == library}

    classes = classify_kernels(list(expected), default_kinds())

    assert dict(zip(expected, classes, strict=True)) == expected


def test_the_table_of_public_kernels_contains_every_class() -> None:
    names = [name for _, _, name in KERNEL_NAMES]

    assert len(set(names)) == len(names) >= 300
    classes = toml_files.load(toml_files.read_built_in("kinds.toml"))["kernel_classes"]
    assert {of for _, of, _ in KERNEL_NAMES} == {*classes, "communication", "other"}


def test_public_kernels_that_communicate_need_no_hint_and_others_get_none() -> None:
    computing = [name for _, kernel_class, name in KERNEL_NAMES if kernel_class != "communication"]
    candidates = mask_communication_candidates(computing, default_kinds())

    assert [name for name, is_likely in zip(computing, candidates, strict=True) if is_likely] == []


# Tests with names of several megabytes.


@pytest.mark.parametrize("length", [1, MATCHED_CHARACTERS, 1 << 23])
def test_only_the_start_of_a_name_is_matched(length: int) -> None:
    name = f"void softmax_kernel<{'x' * length}>(float*)"
    long_template = (
        f"void f<{'x' * max(length, MATCHED_CHARACTERS)}, ncclDevKernel_SendRecv>(float*)"
    )
    kinds = default_kinds()

    assert classify_kernels([name, long_template], kinds) == ("normalization, softmax", "other")
    assert match_any([long_template], ["nccl"]).tolist() == [False]
    assert (
        classify_collective(f"{'x' * MATCHED_CHARACTERS}all_reduce", kinds.collective_kinds) == -1
    )
    assert mask_unknown_kernels([name, long_template], kinds).tolist() == [False, True]
    assert mask_communication_candidates([name, long_template], kinds).tolist() == [False, False]
    activity, _ = default_activities().copy().classify_range(f"cudaMemcpy{'x' * length}")
    assert activity == TRANSFER


def test_a_range_name_of_megabytes_is_not_an_operation() -> None:
    convention = built_in()["zero-bubble"]
    tail = ", sizes = " + "[1], " * (1 << 18)

    assert range_names.match_name("F" + "1" * MAX_RANGE_NAME + ".0.0", convention) is None
    # The tail that PyTorch appends to a name is ignored.
    assert range_names.match_name("F1.0.0" + tail, convention) is not None


def _write_additions(folder: Path, text: str = 'communication = ["^acme::"]') -> Path:
    file = folder / "ours.toml"
    file.write_text(text)
    return file


def test_a_file_of_additions_does_not_replace_built_in_names(tmp_path: Path) -> None:
    kernels = [K(0, 10, 1), K(10, 90, 2, "acme::all_reduce"), K(90, 100, 3)]
    calls = [C(1, 2, 1), C(7, 8, 2), C(11, 12, 3)]
    ranges = [R(0, 5, "F0.0.0"), R(10, 15, "B0.0.0")]
    file, ours = write_profile(tmp_path, kernels, calls, ranges), _write_additions(tmp_path)

    default = bubbleviz.analyze(file)
    extended = bubbleviz.analyze(file, convention=ours)

    assert default.convention == extended.convention == "zero-bubble"
    assert [sum(rank.comm_ns for rank in report.coverage) for report in (default, extended)] == [
        0,
        80,
    ]
    assert any("look like communication" in note.what for note in default.limitations)
    assert not any("look like communication" in note.what for note in extended.limitations)
    # Exposed collectives are reported as exposed, and in the table of causes.
    communication = extended.explanation.communication
    collective = extended.explanation.causes.of_iteration(extended.bubbles.ratio, 0)["collective"]
    assert int(communication.exposed_ns[0, 0]) == collective == 80
    assert list(list_sections(extended, View()))
    assert bubbleviz.inspect(file, convention=ours).analyzable


@pytest.mark.parametrize(("length", "is_mentioned"), [(900, True), (11, True), (9, False)])
def test_the_first_screen_mentions_names_that_take_a_percent_of_the_kernel_time(
    tmp_path: Path, length: int, is_mentioned: bool
) -> None:
    kernels = [K(0, 1000 - length, 1), K(1000 - length, 1000, 2, "acme::all_reduce")]
    kernels.append(K(1000, 1001, 3))
    calls = [C(1, 2, 1), C(7, 8, 2), C(11, 12, 3)]
    ranges = [R(0, 9, "F0.0.0"), R(10, 15, "B0.0.0")]

    report = bubbleviz.analyze(write_profile(tmp_path, kernels, calls, ranges))

    note = find_limitation(report, "kernels that look like communication")
    assert (note.kind is LimitationKind.COMMUNICATION_COUNTED) == is_mentioned
    screen = " ".join(join_plain_lines(render_first_screen(report, View(), Display())).split())
    assert (note.what in screen) == is_mentioned


@pytest.mark.parametrize("text", ["", "communication = []", 'name = "ours"', "communication = 3"])
def test_an_empty_file_of_additions_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match=r"pattern|list of strings"):
        bubbleviz.idle(
            write_profile(tmp_path, [k(0, 1, 1)]), convention=_write_additions(tmp_path, text)
        )


# Tests of kernels that run concurrently with compute.


def _write_concurrent_kernels(
    folder: Path,
    name: str = "void acme::xchg_rows<float, 8>(float*, int)",
    compute: str = "gemm",
    *,
    times: int = 4,
    offset: int = 5,
    length: int = 85,
) -> Path:
    """Write steps of ten compute kernels of 9 us and a concurrent kernel on another stream."""
    kernels, calls = [], []
    for step in range(times):
        start = 200 * step
        for number in range(10):
            kernels.append(
                k(
                    start + 10 * number,
                    start + 10 * number + 9,
                    20 * step + number,
                    compute,
                )
            )
        kernels.append(k(start + offset, start + offset + length, 20 * step + 15, name, stream=8))
        calls += [c(start, start + 1, 20 * step + n) for n in (*range(10), 15)]
    return write_profile(folder, kernels, calls)


BESIDE = "kernels that overlap compute, as communication does"


def _list_concurrent_notes(file: Path, **options: Any) -> list[str]:
    return [n.reason for n in bubbleviz.idle(file, **options).limitations if n.what == BESIDE]


@pytest.mark.parametrize("compute", ["gemm", "mystery_block"])
@pytest.mark.parametrize(
    "name",
    [
        "void acme::xchg_rows<float, 8>(float*, int)",
        "acme_broadcast_push",
        "void (anonymous namespace)::xchg<cutlass::half>(int)",
        "void acme::(anonymous namespace)::xchg<int>(int)",
        "it's 日本",
    ],
)
def test_long_concurrent_kernels_are_pointed_out_with_the_line_that_adds_them(
    tmp_path: Path, name: str, compute: str
) -> None:
    file = _write_concurrent_kernels(tmp_path, name, compute)

    (reason,) = _list_concurrent_notes(file)
    assert "0.340 ms of " in reason
    line = reason.partition("--convention: ")[2]
    assert line.startswith("communication = [")
    assert not _list_concurrent_notes(file, convention=_write_additions(tmp_path, line))
    assert bubbleviz.inspect(file).candidates == (f"{BESIDE} (4 times): {reason}",)
    assert bubbleviz.inspect(file, convention=tmp_path / "ours.toml").candidates == ()


@pytest.mark.parametrize(
    "changed",
    [
        {"name": "ampere_sgemm_64x64"},
        {"name": "void at::native::vectorized_elementwise_kernel<4>(int)"},
        {"name": "Kernel2<cutlass_80_tensorop>"},
        {"name": "ncclDevKernel_SendRecv"},
        {"name": "gemm"},
        {"times": 1},
        {"offset": 100},
        {"offset": 60, "length": 100},
        {"offset": 1, "length": 8},
        {"offset": 1, "length": 17},
    ],
)
def test_short_and_lone_and_computing_kernels_are_not_pointed_out(
    tmp_path: Path, changed: dict[str, Any]
) -> None:
    assert not _list_concurrent_notes(_write_concurrent_kernels(tmp_path, **changed))


@pytest.mark.parametrize(
    "planting",
    [
        Planting(two_streams=True, kernels=6),
        Planting(two_streams=True, kernels=3, stray="busy", copies=True),
        Planting(schedule="zb-h1", autograd="unnamed", barrier=True, transfer_ns=40_000),
    ],
)
def test_planted_runs_have_no_candidates(tmp_path: Path, planting: Planting) -> None:
    plant(planting, tmp_path)

    for report in (bubbleviz.analyze(tmp_path), bubbleviz.idle(tmp_path)):
        assert not [n for n in report.limitations if n.what.startswith("kernels that")]


def test_candidates_of_operations_are_pointed_out(tmp_path: Path) -> None:
    kernels = [K(10 * n, 10 * n + 9, n) for n in range(20)]
    kernels += [K(2, 98, 30, "xchg", stream=8), K(102, 198, 31, "xchg", stream=8)]
    calls = [C(1, 2, n) for n in (*range(10), 30)] + [C(101, 102, n) for n in (*range(10, 20), 31)]
    file = write_profile(tmp_path, kernels, calls, [R(0, 5, "F0.0.0"), R(100, 105, "B0.0.0")])

    notes = [note for note in bubbleviz.analyze(file).limitations if note.what == BESIDE]

    assert [(note.count, "communication = ['xchg']" in note.reason) for note in notes] == [
        (2, True)
    ]


# Calls that launch work are recognized by name, also among host activities.


def test_launches_and_copies_are_separate_activities() -> None:
    calls = default_activities().copy()

    assert {calls.classify_call(name)[0] for name in (*KERNEL_LAUNCHES, *GRAPH_LAUNCHES)} == {
        LAUNCH
    }
    assert {calls.classify_call(name)[0] for name in (*COPIES, *MEMSETS)} == {TRANSFER}
    for name in ("cudaLaunchHostFunc_v10000", "cudaGraphInstantiate", "cudaMalloc", "cuLaunchGrid"):
        assert not name.startswith(WORK_CALLS)


def test_short_names_of_different_kernels_differ() -> None:
    names = [
        "void at::native::add_kernel<4, at::native::Add<float> >(int)",
        "void at::native::add_kernel<4, at::native::Mul<float> >(int)",
        "void at::native::add_kernel<8, at::native::Mul<float> >(int)",
        "void at::native::fill_kernel<float>(float*)",
        "void scale_kernel<float, half>(int)",
        "void scale_kernel<half, float>(int)",
        "gemm",
        "gemm",
    ]

    assert list_short_names(names) == [
        "at::native::add_kernel<4 Add>",
        "at::native::add_kernel<4 Mul>",
        "at::native::add_kernel<8 Mul>",
        "at::native::fill_kernel",
        "scale_kernel<float, half>(int)",
        "scale_kernel<half, float>(int)",
        "gemm",
        "gemm",
    ]


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("hcom_allReduce_", "AllReduce"),
        ("hcom_reduceScatter__428_0_1", "ReduceScatter"),
        ("hcom_receive_", "Recv"),
        ("hcom_batchSendRecv_", "SendRecv"),
        ("hcom_unknown_", ""),
        ("hcom_", ""),
        ("allReduce", ""),
        ("", ""),
    ],
)
def test_operations_of_hccl_have_names_of_nccl(name: str, operation: str) -> None:
    assert parse_hccl_operation(name) == operation
