"""The vectorized stages agree with the slow reference on small profiles.

Cases that were computed by hand also check the reference itself. Random cases follow.
"""

from __future__ import annotations

import os
from collections import Counter
from itertools import starmap
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, example, given, settings

from bubbleviz.api.analysis import analyze
from bubbleviz.errors import ProfileError
from bubbleviz.model.columns import NONE
from bubbleviz.model.phases import Phase
from bubbleviz.report.restrictions import ITERATIONS_UNMARKED
from tests.support import reference, strategies
from tests.support.exact import measure_union
from tests.support.nsys_exports import START_END, C, K, R, T
from tests.support.strategies import Rows

if TYPE_CHECKING:
    from pathlib import Path

    from bubbleviz.report.report import Report

pytestmark = pytest.mark.thorough

EXAMPLES = int(os.environ.get("BUBBLEVIZ_EXAMPLES", "60"))
SETTINGS = settings(
    max_examples=EXAMPLES,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

#: Numbers of one iteration, keyed by rank.
Accounts = dict[reference.Rank, tuple[object, ...]]

RECEIVE = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096>)"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("profiles")


def analyze_both(rows: Rows, folder: Path) -> tuple[Report | None, reference.Analysis]:
    """Return the report (None if the profile is refused) and the result of the reference."""
    path = rows.write(folder)
    analysis = reference.analyze(path)
    for iteration in analysis.iterations or ():
        for rank in iteration.values():
            assert all(a.length == sum(a[1:]) for a in rank.accounts.values())
    try:
        return analyze([path], convention="zero-bubble"), analysis
    except ProfileError:
        return None, analysis


def count_reference_operations(analysis: reference.Analysis) -> Counter[tuple[object, ...]]:
    """Return the reference's operations as a multiset of tuples."""
    return Counter(
        (
            o.rank,
            o.phase,
            o.meaning.microbatches[0] if o.meaning.microbatches else NONE,
            o.occurrence,
            o.span,
            measure_union(o.busy),
            o.active,
            o.ranges[0].start,
            any(r.cut for r in o.ranges),
            o.ranges[0].name,
            len(o.kernels),
        )
        for o in analysis.operations
    )


def count_report_operations(report: Report) -> Counter[tuple[object, ...]]:
    """Return the report's operations as a multiset of the same tuples."""
    t = report.operations
    ranks = [(rank.pid, rank.device_id) for rank in report.ranks]
    return Counter(
        (
            ranks[t.rank[i]],
            Phase(int(t.phase[i])).label,
            int(t.microbatch[i]),
            int(t.occurrence[i]),
            (int(t.start_ns[i]), int(t.end_ns[i])) if t.has_span[i] else None,
            int(t.busy_ns[i]),
            int(t.active_ns[i]),
            int(t.host_start_ns[i]),
            int(t.cut[i]) == 1,
            t.names[t.name_id[i]],
            int(t.kernels[i]),
        )
        for i in range(len(t))
    )


def check(rows: Rows, folder: Path) -> reference.Analysis:
    """Compare operations and coverage, and return the result of the reference."""
    report, analysis = analyze_both(rows, folder)
    if report is not None:
        profile = report.profiles[0]
        assert reference.coverage(analysis) == (
            profile.kernels,
            profile.linked_kernels,
            profile.attributed_kernels,
            profile.cross_thread_kernels,
            profile.gpu_ns,
            profile.attributed_gpu_ns,
            profile.comm_ns,
            profile.copy_ns,
        )
        assert count_report_operations(report) == count_reference_operations(analysis)
    return analysis


_ONE_CALL = (C(4, 5, 1, tid=2),)
_TWO_OPEN = (R(0, 9, "B0.0.0"), R(0, 9, "B1.0.0", tid=2))
_TWO_OPENERS = (C(1, 2, 1), C(1, 2, 2, tid=2), C(4, 5, 3, tid=3), C(4, 5, 4, tid=3))
_WIDE = (R(2, 8, "F1.0.0", kind=START_END, end_tid=2), R(3, 7, "F2.0.0", kind=START_END, end_tid=1))
_WIDE_CALLS = (C(4, 5, 1), C(4, 5, 2, tid=2), C(4, 5, 3, tid=3, pid=2))

#: Kernels, calls, ranges, thread names, and the expected attribution of each kernel.
ATTRIBUTIONS = {
    "empty": ((), (), (), (), ""),
    # The driver call (4..5) is inside W.
    # The runtime call (1..6) started first, inside F only.
    "two calls": (
        [K(10, 12, 7)],
        (C(4, 5, 7), C(1, 6, 7)),
        (R(0, 8, "F0.0.0"), R(3, 6, "W0.0.0")),
        (),
        "range F0.0.0",
    ),
    # The second process has the same correlation id.
    # Its kernel has no call in that process.
    "one call for many": (
        [K(10, 12, 7), K(12, 13, 7), K(10, 11, 7, pid=2), K(1, 2, None), K(1, 2, 99)],
        (C(1, 2, 7), C(1, 2, 8, pid=2)),
        (R(0, 8, "F0.0.0"),),
        (),
        "range F0.0.0, range F0.0.0, unlinked, unlinked, unlinked",
    ),
    "identical: the later row": (
        [K(10, 12, 7)],
        (C(1, 2, 7),),
        (R(0, 8, "F0.0.0"), R(0, 8, "F1.0.0"), R(1, 3, "aten::mm")),
        (),
        "range F1.0.0",
    ),
    "equally short: the later start": (
        [K(10, 12, 7)],
        (C(3, 4, 7),),
        (R(2, 10, "F0.0.0"), R(0, 8, "F1.0.0")),
        (),
        "range F0.0.0",
    ),
    # The call [5, 5] is in both ranges, which are equally long, and B starts later.
    # The call [4, 6] is in neither range.
    "touching": (
        [K(10 + n, 11 + n, n) for n in (1, 2, 3, 4)],
        (C(5, 5, 1), C(4, 6, 2), C(0, 5, 3), C(10, 10, 4)),
        (R(0, 5, "F0.0.0"), R(5, 10, "B0.0.0")),
        (),
        "range B0.0.0, none, range F0.0.0, range B0.0.0",
    ),
    "no length": (
        [K(10, 12, 7)],
        (C(5, 5, 7),),
        (R(0, 9, "F0.0.0"), R(5, 5, "W0.0.0")),
        (),
        "range W0.0.0",
    ),
    "library ranges and nested receives": (
        [K(10, 12, 1), K(13, 14, 2, RECEIVE)],
        (C(1, 2, 1), C(6, 7, 2)),
        (R(0, 9, "F0.0.0"), R(1, 3, "aten::mm"), R(5, 8, "RECV_FORWARD.0.0.0")),
        (),
        "range F0.0.0, range RECV_FORWARD.0.0.0",
    ),
    # F1 ends on thread 2, so it covers both threads.
    # F2 ends where it starts, on thread 1 only.
    # On thread 1, the push/pop range F0 precedes both, although it is the longest.
    "start/end and push/pop": (
        [K(10, 11, 1), K(11, 12, 2), K(12, 13, 3, pid=2)],
        _WIDE_CALLS,
        (R(0, 20, "F0.0.0"), *_WIDE),
        (),
        "range F0.0.0, range F1.0.0, none",
    ),
    "start/end": (
        [K(10, 11, 1), K(11, 12, 2), K(12, 13, 3, pid=2)],
        _WIDE_CALLS,
        _WIDE,
        (),
        "range F2.0.0, range F1.0.0, none",
    ),
    "registered names": (
        [K(10, 12, 1)],
        (C(1, 2, 1),),
        (R(0, 9, "F0.0.0", registered=True), R(0, 9, None)),
        (),
        "range F0.0.0",
    ),
    # Thread 2 launches at 4, while thread 1 has B0 open, and W0 inside it.
    # The innermost range wins.
    "one candidate": (
        [K(10, 12, 1)],
        (C(4, 20, 1, tid=2),),
        (R(0, 9, "B0.0.0"), R(3, 6, "W0.0.0")),
        (),
        "cross W0.0.0",
    ),
    **{
        f"{name} is no backward": ([K(10, 12, 1)], _ONE_CALL, (R(0, 9, name),), (), "none")
        for name in ("F0.0.0", "Optimizer", "RECV_BACKWARD.0.0.0")
    },
    # Threads 2 and 3 open F and Optimizer elsewhere.
    # Thread 4 is a loader, and thread 5 has no name.
    "threads that never cross": (
        [K(10, 12, n) for n in (2, 3, 4, 5)],
        tuple(C(4, 5, n, tid=n) for n in (2, 3, 4, 5)),
        (R(0, 9, "B0.0.0"), R(20, 21, "F0.0.0", tid=2), R(20, 21, "Optimizer", tid=3)),
        (T(4, "pt_data_worker"),),
        "none, none, none, cross B0.0.0",
    ),
    # Threads 1 and 2 both have a B open at 4.
    # Thread 1 launches for device 0, and thread 2 for 1.
    "two candidates": (
        [K(10, 12, 1), K(10, 12, 2, device=1), K(12, 13, 3, device=1), K(12, 13, 4, device=2)],
        _TWO_OPENERS,
        _TWO_OPEN,
        (),
        "range B0.0.0, range B1.0.0, cross B1.0.0, ambiguous",
    ),
    "nothing tells them apart": (
        [K(10, 12, 1), K(10, 12, 2), K(12, 13, 3)],
        _TWO_OPENERS,
        _TWO_OPEN,
        (),
        "range B0.0.0, range B1.0.0, ambiguous",
    ),
}


@pytest.mark.parametrize(
    ("kernels", "calls", "ranges", "threads", "expected"), ATTRIBUTIONS.values(), ids=ATTRIBUTIONS
)
def test_kernels_are_attributed_to_ranges(
    kernels: list[K],
    calls: tuple[C, ...],
    ranges: tuple[R, ...],
    threads: tuple[T, ...],
    expected: str,
    folder: Path,
) -> None:
    attributions = check(Rows(tuple(kernels), calls, ranges, threads=threads), folder).attributions

    assert (
        ", ".join(f"{a.how} {a.range.name}" if a.range else a.how for a in attributions) == expected
    )


def test_ranks_that_do_not_pair(folder: Path) -> None:
    kernels, calls = (K(0, 1, 1), K(1, 2, 1, pid=2)), (C(1, 2, 1), C(1, 2, 1, pid=2))
    ranges = (R(0, 9, "F0.0.0"), R(0, 9, "F1.0.0", pid=2))

    assert check(Rows(kernels, calls, ranges), folder).iterations is None


#: An all-reduce, a receive launched elsewhere, and a send leave no gap in a forward.
_OTHER_HOLES = Rows(
    (
        K(10, 12, 1),
        K(30, 40, 1),
        K(12, 30, 2, "ncclDevKernel_AllReduce_Sum_f32_RING_LL"),
        K(12, 30, 3, RECEIVE),
        K(12, 30, 4, RECEIVE),
    ),
    (C(1, 2, 1), C(2, 3, 2), C(12, 13, 3), C(5, 6, 4)),
    (R(0, 9, "F0.0.0"), R(4, 7, "SEND_FORWARD.0.0.0")),
)
DRAWN = {"soups": strategies.soups(), "schedules": strategies.schedules()}


@pytest.mark.parametrize("kind", DRAWN)
def test_random_profiles(kind: str, folder: Path) -> None:
    compared = []

    @SETTINGS
    @given(DRAWN[kind])
    @example(_OTHER_HOLES)
    def agree(rows: Rows) -> None:
        compared.append(sum(o.span is not None for o in check(rows, folder).operations))

    agree()
    assert max(compared) >= 2


def list_reference_accounts(analysis: reference.Analysis) -> list[Accounts]:
    """Return extents, sums, accounts and ratios of each iteration with work, keyed by rank."""
    return [
        {
            rank: (*figures[:2], figures.accounts["schedule"].compute, active[rank], *figures[2:])
            for rank, figures in iteration.items()
        }
        for iteration, active in zip(analysis.iterations or (), analysis.active, strict=True)
        if iteration
    ]


def list_report_accounts(report: Report) -> list[Accounts]:
    """Return the numbers in the report, in the layout of :func:`list_reference_accounts`."""
    return [
        {
            (report.ranks[r.rank].pid, report.ranks[r.rank].device_id): (
                r.first_ns,
                r.last_ns,
                r.compute_ns,
                r.active_ns,
                {
                    name: (
                        (a.start_ns, a.end_ns),
                        a.compute_ns,
                        a.optimizer_ns,
                        a.overlap_ns,
                        a.unattributed_ns,
                        a.bubble_ns,
                    )
                    for name, a in r.accounts.items()
                },
                dict(r.bubble_ratio),
                r.missing is not None,
            )
            for r in iteration.ranks
        }
        for iteration in report.iterations
        if iteration.ranks
    ]


def _make_ranges(pid: int, *ranges: tuple[int, int, str]) -> tuple[R, ...]:
    return tuple(starmap(lambda start, end, name: R(start, end, name, pid=pid), ranges))


#: Two ranks have kernels and ranges, but only the calls of one rank launch kernels.
_ONE_WITHOUT_GPU_WORK = Rows(
    kernels=tuple(K(at, at + 1, at, "gemm", pid) for pid in (1, 2) for at in (0, 1)),
    calls=(C(0, 1, 2, tid=1, pid=1), C(0, 0, 1, tid=1, pid=2), C(0, 1, 2, tid=1, pid=2)),
    ranges=(
        *_make_ranges(1, (0, 0, "F0.0.0"), (0, 0, "RECV_BACKWARD0.0.0"), (1, 1, "Optimizer")),
        *_make_ranges(2, (0, 0, "F0.0.0"), (0, 1, "B0.0.0"), (0, 0, "RECV_BACKWARD0.0.0")),
        *_make_ranges(2, (1, 1, "Optimizer")),
    ),
)

#: Both iterations start at the same time, so the first one has no period.
_STARTING_TOGETHER = Rows(
    kernels=tuple(K(0, at in (3, 6), at, "gemm", 1) for at in range(1, 7)),
    calls=tuple(C(at > 3, at > 2, at, tid=1 + (at == 6), pid=1) for at in range(1, 7)),
    ranges=(
        *_make_ranges(1, (0, 0, "F0.0.0"), (0, 0, "B0.0.0"), (0, 0, "F1.0.0"), (0, 1, "B1.0.0")),
        *_make_ranges(1, (1, 1, "Optimizer"), (1, 1, "F0.0.0"), (1, 1, "B0.0.0")),
        *_make_ranges(1, (1, 1, "F1.0.0"), (1, 1, "B1.0.0"), (1, 1, "Optimizer")),
    ),
)


def test_numbers_of_one_rank(folder: Path) -> None:
    """A single rank needs no pairing, in which the reference is simpler than the definition."""

    @SETTINGS
    @given(strategies.schedules())
    @example(_ONE_WITHOUT_GPU_WORK)
    @example(_STARTING_TOGETHER)
    def agree(rows: Rows) -> None:
        report, analysis = analyze_both(rows, folder)
        if report is None or len({rank for i in analysis.iterations or () for rank in i}) != 1:
            return
        # The parts of the only microbatch may be several microbatches, which the reference joins.
        if ITERATIONS_UNMARKED in report.restrictions:
            return
        complete = [i.complete for i in report.iterations if i.ranks]
        assert drop_cut_ratios(list_report_accounts(report), complete) == drop_cut_ratios(
            list_reference_accounts(analysis), complete
        )

    agree()


def drop_cut_ratios(accounts: list[Accounts], complete: list[bool]) -> list[Accounts]:
    """Return the accounts without the ratios of cut iterations.

    The reference computes some of these ratios, but the report does not.
    """
    return [
        figures if is_complete else {rank: numbers[:-2] for rank, numbers in figures.items()}
        for figures, is_complete in zip(accounts, complete, strict=True)
    ]
