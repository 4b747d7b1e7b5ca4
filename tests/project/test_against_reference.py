"""Random small profiles: the vectorised stages agree with the plain slow reference."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from pathlib import Path

import hypothesis
import pytest
from hypothesis import HealthCheck, example, find, given, settings
from hypothesis import strategies as st

from bubbleviz import api
from bubbleviz.errors import ProfileError
from bubbleviz.model.columns import NONE
from bubbleviz.model.phases import Phase
from bubbleviz.report.report import Report
from tests.support import reference, strategies
from tests.support.nsys_exports import C, K, R

EXAMPLES = int(os.environ.get("BUBBLEVIZ_EXAMPLES", "120"))
SETTINGS = settings(
    max_examples=EXAMPLES,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

#: Numbers of the ranks of one iteration.
Accounts = dict[tuple[int, int], tuple[object, ...]]


def both(rows: strategies.Rows) -> tuple[Report | None, reference.Analysis]:
    """Return the report (None where nothing can be analysed) and the reference's analysis."""
    with tempfile.TemporaryDirectory() as folder:
        path = rows.write(Path(folder))
        found = reference.analyse(path)
        try:
            return api.analyze([path], convention="zero-bubble"), found
        except ProfileError:
            return None, found


def numbers(values: tuple[int | None, ...]) -> int:
    return NONE if not values or values[0] is None else values[0]


def of_reference(found: reference.Analysis) -> Counter[tuple[object, ...]]:
    """Return the reference's operations as a bag of tuples."""
    bag: Counter[tuple[object, ...]] = Counter()
    for o in found.operations:
        process, device = o.rank
        bag[
            (process >> 24 & 0xFFFFFF, device),
            o.phase,
            numbers(o.named.microbatches),
            o.occurrence,
            o.span,
            o.busy_ns,
            o.active,
            o.host[0],
            o.cut,
            o.name,
            len(o.kernels),
        ] += 1
    return bag


def of_report(report: Report) -> Counter[tuple[object, ...]]:
    bag: Counter[tuple[object, ...]] = Counter()
    t = report.operations
    for i in range(len(t)):
        rank = report.ranks[t.rank[i]]
        bag[
            (rank.pid, rank.device_id),
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
        ] += 1
    return bag


def check(rows: strategies.Rows) -> None:
    report, found = both(rows)
    if report is None:
        return
    covered = reference.coverage(found)
    profile = report.profiles[0]
    assert (
        profile.kernels,
        profile.linked_kernels,
        profile.attributed_kernels,
        profile.cross_thread_kernels,
        profile.gpu_ns,
        profile.attributed_gpu_ns,
        profile.comm_ns,
        profile.copy_ns,
    ) == (
        covered.kernels,
        covered.linked,
        covered.attributed,
        covered.cross,
        covered.gpu_ns,
        covered.attributed_gpu_ns,
        covered.comm_ns,
        covered.copy_ns,
    )
    assert of_report(report) == of_reference(found)


@pytest.mark.parametrize("kind", ["soups", "crossings", "schedules"])
def test_something_is_compared(kind: str) -> None:
    drawn: st.SearchStrategy[strategies.Rows] = getattr(strategies, kind)()

    # Any will do: none is made smaller.
    any_one = settings(SETTINGS, phases=[hypothesis.Phase.generate])
    rows = find(drawn, lambda rows: _compares_much(both(rows)[0]), settings=any_one)

    assert rows.kernels


def _compares_much(report: Report | None) -> bool:
    return report is not None and int(report.operations.has_span.sum()) >= 2


@SETTINGS
@given(strategies.soups())
def test_soups(rows: strategies.Rows) -> None:
    check(rows)


@SETTINGS
@given(strategies.crossings())
def test_crossings(rows: strategies.Rows) -> None:
    check(rows)


@SETTINGS
@given(strategies.schedules())
def test_schedules(rows: strategies.Rows) -> None:
    check(rows)


def accounts_of_reference(found: reference.Analysis) -> list[Accounts]:
    """Return for each iteration with work: by rank, its extents, sums, accounts and ratios."""
    return [
        {
            (r.rank[0] >> 24 & 0xFFFFFF, r.rank[1]): (
                r.first,
                r.last,
                r.compute,
                r.active,
                {
                    name: (
                        a.window,
                        a.compute,
                        a.optimizer,
                        a.overlap,
                        a.unattributed,
                        a.bubble,
                    )
                    for name, a in r.accounts.items()
                },
                {name: r.ratio.get(name) for name in reference.WINDOWS},
                bool(r.missing),
            )
            for r in iteration.ranks
        }
        for iteration in found.iterations or ()
        if iteration.ranks
    ]


def accounts_of_report(report: Report) -> list[Accounts]:
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


def _ranges(pid: int, *named: tuple[int, int, str]) -> tuple[R, ...]:
    return tuple(R(start, end, name, tid=1, pid=pid) for start, end, name in named)


#: Two ranks: kernels and ranges of both, and only one with a call that launches any.
_ONE_WITHOUT_GPU_WORK = strategies.Rows(
    kernels=tuple(K(at, at + 1, at, "gemm", pid) for pid in (1, 2) for at in (0, 1)),
    calls=(C(0, 1, 2, tid=1, pid=1), C(0, 0, 1, tid=1, pid=2), C(0, 1, 2, tid=1, pid=2)),
    ranges=(
        *_ranges(1, (0, 0, "F0.0.0"), (0, 0, "RECV_BACKWARD0.0.0"), (1, 1, "Optimizer")),
        *_ranges(2, (0, 0, "F0.0.0"), (0, 1, "B0.0.0"), (0, 0, "RECV_BACKWARD0.0.0")),
        *_ranges(2, (1, 1, "Optimizer")),
    ),
)


#: The second iteration starts with the first, which has no period then.
_STARTING_TOGETHER = strategies.Rows(
    kernels=tuple(K(0, at in (3, 6), at, "gemm", 1) for at in range(1, 7)),
    calls=tuple(C(at > 3, at > 2, at, tid=1 + (at == 6), pid=1) for at in range(1, 7)),
    ranges=(
        *_ranges(1, (0, 0, "F0.0.0"), (0, 0, "B0.0.0"), (0, 0, "F1.0.0"), (0, 1, "B1.0.0")),
        *_ranges(1, (1, 1, "Optimizer"), (1, 1, "F0.0.0"), (1, 1, "B0.0.0")),
        *_ranges(1, (1, 1, "F1.0.0"), (1, 1, "B1.0.0"), (1, 1, "Optimizer")),
    ),
)


@SETTINGS
@given(strategies.schedules())
@example(_ONE_WITHOUT_GPU_WORK)
@example(_STARTING_TOGETHER)
def test_numbers_of_one_rank(rows: strategies.Rows) -> None:
    """One rank needs no pairing, where the reference is simpler than the definition allows."""
    report, found = both(rows)
    working = {r for i in found.iterations or () for r in (own.rank for own in i.ranks)}
    if report is None or len(working) != 1:
        return

    complete = [i.complete for i in report.iterations if i.ranks]
    assert without_cut(accounts_of_report(report), complete) == without_cut(
        accounts_of_reference(found), complete
    )


def without_cut(accounts: list[Accounts], complete: list[bool]) -> list[Accounts]:
    """Leave the ratios of cut iterations out, which the reference gives where they can be told."""
    return [
        own if whole else {rank: numbers[:-2] for rank, numbers in own.items()}
        for own, whole in zip(accounts, complete, strict=True)
    ]
