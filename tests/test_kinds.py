"""What kernels are, by name."""

from __future__ import annotations

import pytest

from bubbleviz.kinds import default_kinds, matching

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
