"""What kernels are, by name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bubbleviz.analyses.pgle.range_names import parse_range_names
from bubbleviz.conventions.convention_file import built_in
from bubbleviz.conventions.kinds import default_kinds, matching
from bubbleviz.conventions.range_names import understand
from bubbleviz.model.phases import COMMUNICATION

NAMES = [
    # name, communication, receives, point to point, collective
    ("gemm", False, False, False, False),
    ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", True, True, True, False),
    ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", True, False, False, True),
    ("void deep_ep::internode::recv<2>(int)", True, True, True, False),
    ("c10d::recv_", True, False, True, False),
    ("c10d::send", True, False, True, False),
    ("gloo:all_reduce", True, False, False, False),
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
def test_what_names_tell(
    name: str, communicates: bool, receives: bool, point_to_point: bool, collective: bool
) -> None:
    kinds = default_kinds()

    talks = matching([name], kinds.communication)[0]
    told = [
        bool(talks and matching([name], regexes)[0])
        for regexes in (kinds.receives, kinds.point_to_point, kinds.collectives)
    ]

    assert talks == communicates
    assert told == [receives, point_to_point, collective]


# --- XLA's instructions: told alike, whether they are kernels or ranges

JAX = built_in()["jax-xla"]
XLA_KERNELS = [r for r in default_kinds().communication if "all-reduce" in r or "psum" in r]
XLA_RANGES = [
    p.match.pattern for p in JAX.patterns if p.phase in COMMUNICATION and "hlo_op" in p.glob
]


def of_range(name: str) -> bool:
    """Tell whether the convention takes a range of this instruction for communication."""
    return bool(understand([f"Thunk:#hlo_op={name}#"], JAX).phase[0] in COMMUNICATION)


def of_kernel(name: str) -> bool:
    return bool(matching([name], default_kinds().communication)[0])


@pytest.mark.parametrize(
    "name", [name for name, *_ in NAMES if "::" not in name and ":" not in name]
)
def test_instructions_that_communicate_do_as_ranges_too(name: str) -> None:
    assert of_range(name) == (of_kernel(name) and "nccl" not in name)


def test_there_are_instructions_that_communicate() -> None:
    assert len(XLA_KERNELS) == len(XLA_RANGES) == 2


@given(st.sampled_from(XLA_KERNELS).flatmap(lambda r: st.from_regex(r, fullmatch=True)))
def test_whatever_kernels_tell_ranges_tell(name: str) -> None:
    assert of_range(name.removesuffix("\n"))


@given(st.sampled_from(XLA_RANGES).flatmap(lambda r: st.from_regex(r, fullmatch=True)))
def test_whatever_ranges_tell_kernels_tell(text: str) -> None:
    said = parse_range_names([text])

    assert of_kernel(said.instructions[said.instruction[0]])
