"""The reference itself, on files small enough to work out by hand, the degenerate ones first."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from tests.support import reference
from tests.support.nsys_exports import START_END, C, K, M, R, T, global_id, profile
from tests.support.reference import Analysis, Mark, Named, Operation, analyse, parse
from tests.support.strategies import Rows, profiles

RECEIVE = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096>)"
REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
RANK = (global_id(1), 0)


def held(found: Analysis) -> list[tuple[str, str | None]]:
    """How every kernel was attributed, and the name of its range."""
    return [
        (a.how, None if a.range is None else a.range.name)
        for a in found.attributions
        if a.work.kind == "kernel"
    ]


def brief(found: Operation) -> tuple[str, int | None, int, reference.Span | None]:
    """Phase, microbatch, occurrence and span."""
    microbatch = found.named.microbatches[0] if found.named.microbatches else None
    return found.phase, microbatch, found.occurrence, found.span


def run(operations: list[tuple[str, int, int]]) -> Rows:
    """One range with one call and one kernel for every (name, kernel start, kernel end).

    On the host the n-th range is [10 n, 10 n + 9], its call [10 n + 1, 10 n + 2].
    """
    numbered = list(enumerate(operations))
    return Rows(
        tuple(K(start, end, n) for n, (_, start, end) in numbered),
        tuple(C(10 * n + 1, 10 * n + 2, n) for n, _ in numbered),
        tuple(R(10 * n, 10 * n + 9, name) for n, (name, _, _) in numbered),
    )


# --- degenerate files -------------------------------------------------------------------------


def test_empty_file(tmp_path: Path) -> None:
    found = analyse(profile(tmp_path))
    assert found.operations == ()
    assert found.ranks == ()
    assert found.iterations == ()
    assert found.capture.end == 0


def test_no_tables_at_all(tmp_path: Path) -> None:
    path = tmp_path / "nothing.sqlite"
    path.touch()
    assert analyse(path).operations == ()


@pytest.mark.parametrize(
    "table",
    [
        "CUPTI_ACTIVITY_KIND_KERNEL",
        "CUPTI_ACTIVITY_KIND_RUNTIME",
        "CUPTI_ACTIVITY_KIND_MEMCPY",
        "CUPTI_ACTIVITY_KIND_MEMSET",
        "NVTX_EVENTS",
        "ThreadNames",
        "ENUM_NSYS_EVENT_TYPE",
        "TARGET_INFO_SYSTEM_ENV",
    ],
)
def test_any_table_may_be_absent(tmp_path: Path, table: str) -> None:
    path = profile(tmp_path, [K(5, 6, 1)], [C(1, 2, 1)], [R(0, 3, "F0.0.0")], without=(table,))
    found = analyse(path)
    whole = "KERNEL" not in table and "RUNTIME" not in table and table != "NVTX_EVENTS"
    assert bool(found.operations and found.operations[0].span == (5, 6)) is whole


def test_reading_leaves_nothing_beside_the_file(tmp_path: Path) -> None:
    path = profile(tmp_path, [K(5, 6, 1)], [C(1, 2, 1)], [R(0, 3, "F0.0.0")])
    before = path.read_bytes()
    analyse(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


# --- names ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "meaning"),
    [
        ("F12.1.0", Named("F", (12,), (1,), (0,))),
        ("W_clear.1.0", Named("W", (), (1,), (0,))),
        ("iter_3_17", Mark(3, 17)),
        ("Optimizer", Named("Optimizer")),
        ("POST_VALIDATION", Named("Optimizer", validates=True)),
        ("post_validation_phase", Named("Optimizer", validates=True)),
        ("RECV_FORWARD", Named("RECV_F", receives=True)),
        ("SEND_BACKWARD.7.0.1", Named("SEND_B", (7,), (0,), (1,))),
        (
            "SEND_FORWARD.7.0.0_RECV_BACKWARD.3.1.0",
            Named("SEND_RECV", (7, 3), (0, 1), (0, 0), receives=True),
        ),
        ("RECV_POST_VALIDATION", Named("COLLECTIVE", receives=True)),
        ("pre_step", None),
        ("F", None),
        ("F0.0", None),
        ("F0.0.0 ", None),
        ("F0.0.0\n", None),
        ("F\N{ARABIC-INDIC DIGIT ZERO}.0.0", None),
        ("SEND_FORWARD_RECV_BACKWARD", None),
        ("Offload", None),
        ("", None),
    ],
)
def test_names(name: str, meaning: Named | Mark | None) -> None:
    assert parse(name) == meaning


@pytest.mark.parametrize(
    ("name", "communication"),
    [
        (RECEIVE, True),
        ("NCCLKernel", True),
        ("my_nccl_like", False),
        ("rcclKernel", True),
        ("void deep_ep::dispatch", True),
        ("nvshmemi_barrier", True),
        ("", False),
    ],
)
def test_communication_kernels(name: str, *, communication: bool) -> None:
    kernel = reference.Work("kernel", 1, 0, 1, 0, None, None, name)
    assert reference.is_communication(kernel) is communication


# --- from kernel to call -----------------------------------------------------------------------


def test_two_api_rows_for_one_kernel(tmp_path: Path) -> None:
    # The driver call (4..5) lies in W, but the runtime call (1..6) started first: it is in F only.
    found = analyse(
        profile(
            tmp_path,
            [K(10, 12, 7)],
            [C(4, 5, 7), C(1, 6, 7)],
            [R(0, 8, "F0.0.0"), R(3, 6, "W0.0.0")],
        )
    )
    assert held(found) == [("range", "F0.0.0")]


def test_one_call_for_many_kernels_and_other_processes_ids(tmp_path: Path) -> None:
    # The second process has the same correlation id; its kernel has no call there.
    found = analyse(
        profile(
            tmp_path,
            [K(10, 12, 7), K(12, 13, 7), K(10, 11, 7, pid=2), K(1, 2, None), K(1, 2, 99)],
            [C(1, 2, 7)],
            [R(0, 8, "F0.0.0")],
        )
    )
    ours, missing = ("range", "F0.0.0"), ("unlinked", None)
    assert held(found) == [ours, ours, missing, missing, missing]


# --- from call to range ------------------------------------------------------------------------


def test_identical_ranges_give_the_later_row(tmp_path: Path) -> None:
    ranges = [R(0, 8, "F0.0.0"), R(0, 8, "F1.0.0"), R(1, 3, "aten::mm")]
    found = analyse(profile(tmp_path, [K(10, 12, 7)], [C(1, 2, 7)], ranges))
    assert held(found) == [("range", "F1.0.0")]


def test_equally_short_ranges_give_the_later_start(tmp_path: Path) -> None:
    ranges = [R(2, 10, "F0.0.0"), R(0, 8, "F1.0.0")]
    found = analyse(profile(tmp_path, [K(10, 12, 7)], [C(3, 4, 7)], ranges))
    assert held(found) == [("range", "F0.0.0")]


def test_touching_ranges_and_a_call_without_length(tmp_path: Path) -> None:
    # The call [5, 5] is in both; they are equally long, B starts later. [4, 6] is in neither.
    ranges = [R(0, 5, "F0.0.0"), R(5, 10, "B0.0.0")]
    calls = [C(5, 5, 1), C(4, 6, 2), C(0, 5, 3), C(10, 10, 4)]
    kernels = [K(10 + n, 11 + n, n) for n in (1, 2, 3, 4)]
    found = analyse(profile(tmp_path, kernels, calls, ranges))
    assert held(found) == [
        ("range", "B0.0.0"),
        ("none", None),
        ("range", "F0.0.0"),
        ("range", "B0.0.0"),
    ]


def test_a_range_without_length_contains_a_call_without_length(tmp_path: Path) -> None:
    ranges = [R(0, 9, "F0.0.0"), R(5, 5, "W0.0.0")]
    found = analyse(profile(tmp_path, [K(10, 12, 7)], [C(5, 5, 7)], ranges))
    assert held(found) == [("range", "W0.0.0")]


def test_library_ranges_steal_nothing_and_nested_receives_do(tmp_path: Path) -> None:
    ranges = [R(0, 9, "F0.0.0"), R(1, 3, "aten::mm"), R(5, 8, "RECV_FORWARD.0.0.0")]
    found = analyse(
        profile(tmp_path, [K(10, 12, 1), K(13, 14, 2, RECEIVE)], [C(1, 2, 1), C(6, 7, 2)], ranges)
    )
    assert held(found) == [("range", "F0.0.0"), ("range", "RECV_FORWARD.0.0.0")]


def test_start_end_ranges(tmp_path: Path) -> None:
    # F1 ends on thread 2: it covers both threads. B0 ends where it starts: thread 1 only. On
    # thread 1 the push/pop range F0 comes before both although it is the longest.
    ranges = [
        R(0, 20, "F0.0.0"),
        R(2, 8, "F1.0.0", kind=START_END, end_tid=2),
        R(3, 7, "F2.0.0", kind=START_END, end_tid=1),
    ]
    calls = [C(4, 5, 1), C(4, 5, 2, tid=2), C(4, 5, 3, tid=3, pid=2)]
    kernels = [K(10, 11, 1), K(11, 12, 2), K(12, 13, 3, pid=2)]
    found = analyse(profile(tmp_path, kernels, calls, ranges))
    assert held(found) == [("range", "F0.0.0"), ("range", "F1.0.0"), ("none", None)]
    found = analyse(profile(tmp_path, kernels, calls, ranges[1:]))
    assert held(found) == [("range", "F2.0.0"), ("range", "F1.0.0"), ("none", None)]


# --- helper threads and backward threads -------------------------------------------------------


def test_cross_thread_with_one_candidate(tmp_path: Path) -> None:
    # Thread 2 launches at 4, while thread 1 has B0 open and in it W0; the innermost takes it.
    ranges = [R(0, 9, "B0.0.0"), R(3, 6, "W0.0.0")]
    path = profile(tmp_path, [K(10, 12, 1)], [C(4, 20, 1, tid=2)], ranges)
    assert held(analyse(path)) == [("cross", "W0.0.0")]
    assert held(analyse(path, cross_thread=False)) == [("none", None)]


@pytest.mark.parametrize("name", ["F0.0.0", "Optimizer", "RECV_BACKWARD.0.0.0"])
def test_cross_thread_takes_backward_only(tmp_path: Path, name: str) -> None:
    found = analyse(profile(tmp_path, [K(10, 12, 1)], [C(4, 5, 1, tid=2)], [R(0, 9, name)]))
    assert held(found) == [("none", None)]


def test_cross_thread_never_from_these_threads(tmp_path: Path) -> None:
    # Threads 2 and 3 open F and Optimizer elsewhere, 4 is a loader, 5 has no name.
    ranges = [
        R(0, 9, "B0.0.0"),
        R(20, 21, "F0.0.0", tid=2),
        R(20, 21, "Optimizer", tid=3),
    ]
    calls = [C(4, 5, n, tid=n) for n in (2, 3, 4, 5)]
    kernels = [K(10, 12, n) for n in (2, 3, 4, 5)]
    path = profile(tmp_path, kernels, calls, ranges, threads=[T(4, "pt_data_worker")])
    none = ("none", None)
    assert held(analyse(path)) == [none, none, none, ("cross", "B0.0.0")]


def test_cross_thread_with_two_candidates(tmp_path: Path) -> None:
    # Threads 1 and 2 both have a B open at 4. Thread 1 launches for device 0, thread 2 for 1.
    ranges = [R(0, 9, "B0.0.0"), R(0, 9, "B1.0.0", tid=2)]
    calls = [C(1, 2, 1), C(1, 2, 2, tid=2), C(4, 5, 3, tid=3), C(4, 5, 4, tid=3)]
    kernels = [K(10, 12, 1), K(10, 12, 2, device=1), K(12, 13, 3, device=1), K(12, 13, 4, device=2)]
    assert held(analyse(profile(tmp_path, kernels, calls, ranges)))[2:] == [
        ("cross", "B1.0.0"),
        ("ambiguous", None),
    ]
    # With both on device 0 nothing tells them apart.
    kernels = [K(10, 12, 1), K(10, 12, 2), K(12, 13, 3)]
    assert held(analyse(profile(tmp_path, kernels, calls, ranges)))[2:] == [("ambiguous", None)]


# --- spans, cut operations and receives --------------------------------------------------------


def test_open_range_ends_with_the_capture(tmp_path: Path) -> None:
    # The latest end is the copy's. The second open range starts after that: no length.
    found = analyse(
        profile(
            tmp_path,
            [K(10, 12, 1)],
            [C(1, 2, 1)],
            [R(0, None, "F0.0.0"), R(99, None, "B0.0.0")],
            copies=[M(10, 30, None)],
        )
    )
    assert [(r.end, r.cut) for r in found.capture.ranges] == [(30, True), (99, True)]
    assert [o.cut for o in found.operations] == [True, True]
    assert [o.span for o in found.operations] == [(10, 12), None]


def test_registered_names(tmp_path: Path) -> None:
    ranges = [R(0, 9, "F0.0.0", registered=True), R(0, 9, None)]
    found = analyse(profile(tmp_path, [K(10, 12, 1)], [C(1, 2, 1)], ranges))
    assert [r.name for r in found.capture.ranges] == ["F0.0.0"]
    assert held(found) == [("range", "F0.0.0")]


def test_spans(tmp_path: Path) -> None:
    # F0: kernels [10,12] and [14,15], the copy and the all-reduce do not count; active 3 of 5.
    # F1 has only a copy; F2 nothing; the receive has the span of its communication.
    found = analyse(
        profile(
            tmp_path,
            [K(10, 12, 1), K(14, 15, 1), K(15, 40, 2, REDUCE), K(50, 60, 4, RECEIVE)],
            [C(1, 2, 1), C(2, 3, 2), C(11, 12, 3), C(31, 32, 4), C(4, 5, 5)],
            [
                R(0, 9, "F0.0.0"),
                R(10, 19, "F1.0.0"),
                R(20, 29, "F2.0.0"),
                R(30, 39, "RECV_FORWARD"),
            ],
            copies=[M(41, 44, 3), M(70, 80, 5)],
        )
    )
    assert [o.span for o in found.operations] == [(10, 15), (41, 44), None, (50, 60)]
    assert [o.active for o in found.operations] == [3, 0, 0, 0]
    assert [o.busy_ns for o in found.operations] == [5, 3, 0, 10]


@pytest.mark.parametrize("nested", [True, False])
def test_receive_hole_inside_f(tmp_path: Path, *, nested: bool) -> None:
    # Span 10..40. The receive runs 18..30, a kernel until 20 and one within it 22..23, so
    # 20..22 and 23..30 are bubble. 30..35, without any receive, stays. Busy 30 - 2 - 7 = 21.
    ranges = [R(0, 9, "F0.0.0"), R(3, 5, "RECV_FORWARD.0.0.0")]
    found = analyse(
        profile(
            tmp_path,
            [K(10, 20, 1), K(22, 23, 1), K(35, 40, 1), K(18, 30, 2, RECEIVE)],
            [C(1, 2, 1), C(4, 5, 2)],
            ranges if nested else ranges[:1],
        )
    )
    assert found.operations[0].busy == ((10, 20), (22, 23), (30, 40))
    assert found.operations[0].active == 16


def test_other_holes_stay(tmp_path: Path) -> None:
    # An all-reduce of its own, a receive launched elsewhere, a send of its own: no bubble.
    found = analyse(
        profile(
            tmp_path,
            [
                *(K(10, 12, 1), K(30, 40, 1)),
                *(K(12, 30, 2, REDUCE), K(12, 30, 3, RECEIVE), K(12, 30, 4, RECEIVE)),
            ],
            [C(1, 2, 1), C(2, 3, 2), C(12, 13, 3), C(5, 6, 4)],
            [R(0, 9, "F0.0.0"), R(4, 7, "SEND_FORWARD.0.0.0")],
        )
    )
    assert found.operations[0].busy == ((10, 40),)


def test_parts_and_occurrences(tmp_path: Path) -> None:
    # F0 in two parts (a receive between is no F, B or W), then, after F1, a second occurrence of
    # B0's key only: B0 B0 are parts, F1 between makes the third B0 a further occurrence.
    names = ["F0.0.0", "RECV_FORWARD", "F0.0.0", "B0.0.0", "B0.0.0", "F1.0.0", "B0.0.0"]
    rows = run([(name, 10 * n, 10 * n + 5) for n, name in enumerate(names)])
    found = analyse(rows.write(tmp_path))
    assert [brief(o) for o in found.operations] == [
        ("F", 0, 0, (0, 25)),
        ("RECV_F", None, 0, (10, 15)),
        ("BW", 0, 0, (30, 45)),
        ("F", 1, 0, (50, 55)),
        ("BW", 0, 1, (60, 65)),
    ]
    assert [o.host for o in found.operations][:2] == [(0, 29), (10, 19)]


def test_b_without_w_is_bw(tmp_path: Path) -> None:
    names = ["B0.0.0", "B1.0.0", "B0.1.0", "W1.0.1", "W_clear.1.0"]
    found = analyse(run([(name, 0, 1) for name in names]).write(tmp_path))
    assert [o.phase for o in found.operations] == ["BW", "B", "B", "W", "W"]


def test_a_range_without_work_on_two_devices_is_nowhere(tmp_path: Path) -> None:
    path = profile(tmp_path, [K(1, 2, None), K(1, 2, None, device=1)], [], [R(0, 1, "F0.0.0")])
    found = analyse(path)
    assert found.operations == ()
    assert [r.name for r in found.unplaced] == ["F0.0.0"]


def test_coverage(tmp_path: Path) -> None:
    # Linked: 1, 2, 3. F0 holds 1 (2 ns) and the all-reduce 2; the receive holds gemm 3.
    path = profile(
        tmp_path,
        [K(0, 2, 1), K(2, 5, 2, REDUCE), K(5, 9, 3), K(9, 14, None), K(14, 20, None, RECEIVE)],
        [C(1, 2, 1), C(2, 3, 2), C(11, 12, 3)],
        [R(0, 9, "F0.0.0"), R(10, 19, "RECV_FORWARD")],
        copies=[M(0, 7, None)],
    )
    whole = reference.Coverage(5, 3, 3, 0, 0, 2 + 4 + 5, 2, 3 + 6, 3, 7)
    found = analyse(path)
    assert reference.coverage(found) == whole
    assert reference.coverage(found, RANK) == whole
    assert [w.start for w in found.unattributed[RANK]] == [5, 9]


# --- iterations --------------------------------------------------------------------------------


def numbers(path: Path) -> list[tuple[str, int | None, int]]:
    """Phase, microbatch and iteration of every operation."""
    return [(*brief(o)[:2], o.iteration) for o in analyse(path).operations]


def test_iterations_end_at_the_last_optimizer(tmp_path: Path) -> None:
    # F2 is new, but follows the Optimizer that ends the iteration before the repeated F0.
    names = ["F0.0.0", "F1.0.0", "B0.0.0", "B1.0.0", "Optimizer", "F2.0.0", "F0.0.0", "B0.0.0"]
    found = numbers(run([(name, 0, 1) for name in names]).write(tmp_path))
    assert [n for _, _, n in found] == [0, 0, 0, 0, 0, 1, 1, 1]


def test_iterations_without_optimizer(tmp_path: Path) -> None:
    # The second F0 is a part of the first; the third repeats it.
    names = ["F0.0.0", "F0.0.0", "B0.0.0", "F0.0.0", "B0.0.0"]
    found = numbers(run([(name, 0, 1) for name in names]).write(tmp_path))
    assert found == [("F", 0, 0), ("BW", 0, 0), ("F", 0, 1), ("BW", 0, 1)]


def test_constant_names(tmp_path: Path) -> None:
    names = ["F0.0.0", "F0.0.0", "B0.0.0", "B0.0.0", "Optimizer", "F0.0.0", "B0.0.0", "Optimizer"]
    found = numbers(run([(name, 0, 1) for name in names]).write(tmp_path))
    assert found == [
        *[("F", 0, 0), ("F", 1, 0), ("BW", 0, 0), ("BW", 1, 0), ("Optimizer", None, 0)],
        *[("F", 0, 1), ("BW", 0, 1), ("Optimizer", None, 1)],
    ]


def test_post_validation_belongs_to_the_iteration_before(tmp_path: Path) -> None:
    # It neither ends the iteration in which it lies nor belongs to it.
    names = ["F0.0.0", "B0.0.0", "Optimizer", "F0.0.0", "POST_VALIDATION", "B0.0.0", "Optimizer"]
    found = analyse(run([(name, 0, 1) for name in names]).write(tmp_path))
    assert [(o.phase, o.iteration, o.occurrence) for o in found.operations] == [
        *[("F", 0, 0), ("BW", 0, 0), ("Optimizer", 0, 0), ("F", 1, 0)],
        *[("Optimizer", 0, 1), ("BW", 1, 0), ("Optimizer", 1, 0)],
    ]


def test_marks(tmp_path: Path) -> None:
    # The mark [10, 15] begins iteration 7 with the range that starts at once; the Optimizer after
    # its end still belongs to it; what lies before the first mark has no number.
    rows = run([(name, 0, 1) for name in ["B9.0.0", "F0.0.0", "B0.0.0", "Optimizer"]])
    ranges = [*rows.ranges, R(10, 15, "iter_0_7")]
    found = numbers(profile(tmp_path, rows.kernels, rows.calls, ranges))
    assert [n for _, _, n in found] == [-1, 7, 7, 7]


# --- ratios ------------------------------------------------------------------------------------


def test_one_rank_by_hand(tmp_path: Path) -> None:
    """Two iterations of one microbatch; the second's Optimizer is missing.

    device   F0 [0,10]  gap  B0 [20,30]  Optimizer [32,36]  F0 [40,50]  B0 [50,60]
    and unattributed [12,14], unattributed under F0 [5,8], a kernel in a RECV range [14,15].
    """
    rows = run(
        [
            ("F0.0.0", 0, 10),
            ("B0.0.0", 20, 30),
            ("Optimizer", 32, 36),
            ("F0.0.0", 40, 50),
            ("B0.0.0", 50, 60),
            ("RECV_FORWARD", 14, 15),
        ]
    )
    path = profile(
        tmp_path, [*rows.kernels, K(12, 14, None), K(5, 8, None)], rows.calls, rows.ranges
    )
    found = analyse(path).iterations
    assert found is not None
    first, second = found
    rank = first.ranks[0]
    # window 0..30: compute 20, unattributed 12..15 = 3, bubble 7. ratio 10/30, low 7/30.
    accounts = rank.accounts
    assert accounts["schedule"] == reference.Account((0, 30), 20, 0, 0, 3, 7)
    assert accounts["stage"] == accounts["schedule"]
    # window 0..36: Optimizer 4, bubble 7 + 2.
    assert accounts["step"] == reference.Account((0, 36), 20, 4, 0, 3, 9)
    # window 0..40: bubble 7 + 2 + 4.
    assert accounts["period"] == reference.Account((0, 40), 20, 4, 0, 3, 13)
    assert [first.ratios[name].value for name in reference.WINDOWS] == pytest.approx(
        [10 / 30, 10 / 30, 12 / 36, 16 / 40]
    )
    assert [first.ratios[name].low for name in reference.WINDOWS] == pytest.approx(
        [7 / 30, 7 / 30, 9 / 36, 13 / 40]
    )
    assert first.ratios["schedule"].overhead == pytest.approx(10 / 20)
    assert rank.busy == {"F": 10, "BW": 10, "Optimizer": 4}
    assert rank.hollow == 0
    assert (first.kind, first.complete, first.microbatches) == ("training", True, 1)
    assert (first.start, first.end) == (0, 36)
    assert second.ratios["period"].value is None
    assert second.ratios["schedule"].value == 0
    assert reference.headline(found) == "schedule"


def test_overlap_of_iterations(tmp_path: Path) -> None:
    # The second iteration's F0 runs [15,25] within the first's window 0..40, before its B0
    # [20,40]: 5 overlap alone (15..20), the rest belongs to the own iteration first.
    rows = run(
        [
            ("F0.0.0", 0, 10),
            ("B0.0.0", 20, 40),
            ("Optimizer", 40, 41),
            ("F0.0.0", 15, 25),
            ("B0.0.0", 50, 60),
        ]
    )
    found = analyse(rows.write(tmp_path)).iterations
    assert found is not None
    assert found[0].ranks[0].accounts["schedule"] == reference.Account((0, 40), 30, 0, 5, 0, 5)
    # Period 0..15: F0 and nothing else.
    assert found[0].ranks[0].accounts["period"] == reference.Account((0, 15), 10, 0, 0, 0, 5)
    assert reference.headline(found) == "period"


def ideal_1f1b(p: int, m: int) -> Rows:
    """An ideal 1F1B, forward 1, backward 2: rank s is process s + 1."""
    kernels: list[K] = []
    calls: list[C] = []
    ranges: list[R] = []
    for s in range(p):
        warmup = min(p - s, m)
        order = [("F", n) for n in range(warmup)]
        for n in range(m):
            order.append(("B", n))
            order += [("F", n + warmup)] if n + warmup < m else []
        for place, (letter, n) in enumerate(order):
            # F(n) of a warm-up starts as soon as its input is there; in the steady state, and in
            # the drain, B(n) ends 2 (p - 1 - s) after it ended on the last stage.
            last_end = p - 1 + 3 * (n + 1)
            if letter == "B":
                start = last_end + 2 * (p - 1 - s) - 2
            elif n < warmup:
                start = s + n
            else:
                start = last_end - 3 * (p - s) + 2 * (p - 1 - s)
            end = start + (2 if letter == "B" else 1)
            kernels.append(K(start, end, place, pid=s + 1))
            calls.append(C(10 * place + 1, 10 * place + 2, place, pid=s + 1))
            ranges.append(R(10 * place, 10 * place + 9, f"{letter}{n}.0.0", pid=s + 1))
    return Rows(tuple(kernels), tuple(calls), tuple(ranges))


def test_ideal_1f1b(tmp_path: Path) -> None:
    # (p-1)/(m+p-1) = 3/11 on the whole and on every rank; overhead (p-1)/m = 3/8.
    found = analyse(ideal_1f1b(4, 8).write(tmp_path)).iterations
    assert found is not None
    (only,) = found
    assert only.ratios["schedule"].value == pytest.approx(3 / 11)
    assert only.ratios["schedule"].overhead == pytest.approx(3 / 8)
    assert [r.ratio["schedule"] for r in only.ranks] == pytest.approx([3 / 11] * 4)
    assert only.complete


def test_zb_h2_back_to_back(tmp_path: Path) -> None:
    # p = 8, m = 16, equal times: rank s starts at s and never idles. stage 0, schedule 7/55, and
    # from one iteration to the next (48 later) nothing idles either.
    p, m, length = 8, 16, 48
    names = [f"{letter}{n}.0.0" for n in range(m) for letter in "FBW"]
    rows = [
        (s, place, length * k + place + s, name)
        for s in range(p)
        for k in range(2)
        for place, name in enumerate([*names, "Optimizer"])
    ]
    kernels, calls, ranges = [], [], []
    for key, (s, place, start, name) in enumerate(rows):
        if place < length:
            kernels.append(K(start, start + 1, key, pid=s + 1))
        calls.append(C(10 * key + 1, 10 * key + 2, key, pid=s + 1))
        ranges.append(R(10 * key, 10 * key + 9, name, pid=s + 1))
    found = analyse(profile(tmp_path, kernels, calls, ranges)).iterations
    assert found is not None
    assert [found[0].ratios[name].value for name in reference.WINDOWS] == pytest.approx(
        [7 / 55, 0, 7 / 55, 0]
    )
    # Rank 0 goes on with the next iteration for 7 of the 55: idle time is 0, the ratio is not.
    first = found[0].ranks[0].accounts["schedule"]
    assert (first.compute, first.overlap, first.bubble) == (48, 7, 0)
    assert reference.headline(found) == "period"


def test_ranks_that_do_not_pair(tmp_path: Path) -> None:
    kernels = [K(0, 1, 1), K(1, 2, 1, pid=2)]
    calls = [C(1, 2, 1), C(1, 2, 1, pid=2)]
    ranges = [R(0, 9, "F0.0.0"), R(0, 9, "F1.0.0", pid=2)]
    assert analyse(profile(tmp_path, kernels, calls, ranges)).iterations is None


def test_evaluation_and_missing(tmp_path: Path) -> None:
    found = analyse(run([("F0.0.0", 0, 1), ("F1.0.0", 1, 2)]).write(tmp_path)).iterations
    assert found is not None
    assert [(i.kind, i.complete, i.ratios["schedule"].value) for i in found] == [
        ("evaluation", True, 0)
    ]
    found = analyse(run([("B0.0.0", 0, 1), ("W0.0.0", 1, 2)]).write(tmp_path)).iterations
    assert found is not None
    assert [(i.kind, i.complete, i.ratios["schedule"].value) for i in found] == [
        ("training", False, None)
    ]
    assert found[0].ranks[0].missing == ("F",)


def test_spread() -> None:
    # 1, 2, 3: mean 2, std 1, t(0.975, 2) = 4.302653.
    found = reference.spread([1, None, 2, 3])
    assert (found.mean, found.std, found.min, found.max, found.n) == (2, 1, 1, 3, 3)
    assert found.ci95 == pytest.approx(4.302652729911275 / math.sqrt(3))
    assert reference.student_t(1) == pytest.approx(12.706204736432095)
    assert reference.student_t(30) == pytest.approx(2.042272456301238)
    assert reference.spread([]).mean is None
    assert reference.spread([1]).std is None


# --- whatever a file holds --------------------------------------------------------------------


@given(profiles())
@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
def test_everything_adds_up(rows: Rows) -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = analyse(rows.write(Path(folder)))
    work: list[K | M] = [*rows.kernels, *rows.copies, *rows.fills]
    timed = [w for w in work if (w.start, w.end) != reference.NO_TIMESTAMP]
    # Rows of one call that are equal count once.
    distinct = {
        (
            isinstance(w, K) and w.name,
            (w.pid, w.device, w.start, w.end),
            n if w.correlation is None else -1 - w.correlation,
        )
        for n, w in enumerate(timed)
    }
    assert len(found.attributions) == len(distinct)
    for operation in found.operations:
        if operation.span is None:
            assert not operation.busy
        elif operation.phase in reference.COMPUTE:
            length = operation.span[1] - operation.span[0]
            assert operation.active <= operation.busy_ns <= length
    for iteration in found.iterations or ():
        for rank in iteration.ranks:
            for account in rank.accounts.values():
                assert account.window_ns == (
                    account.compute
                    + account.optimizer
                    + account.overlap
                    + account.unattributed
                    + account.bubble
                )
            for name in ("schedule", "stage", "step"):
                assert rank.accounts[name].compute == rank.compute
        for ratio in iteration.ratios.values():
            if ratio.value is not None and ratio.low is not None:
                assert 0 <= ratio.low <= ratio.value <= 1
