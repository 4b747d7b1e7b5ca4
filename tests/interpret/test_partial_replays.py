"""Graph launches of which only some kernels are recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

import bubbleviz
from tests.interpret.test_graphs import LAUNCH
from tests.interpret.test_unrecorded_work import UNRECORDED, US
from tests.support.export_forms import WRITERS
from tests.support.idle_runs import list_times
from tests.support.notes import list_restriction_texts
from tests.support.nsys_exports import C, K, R, write_profile

#: Kernels of each graph launch, 100 us each, and the time between launches.
NAMES = "abcdefgh"
PERIOD = 1_000 * US
MARK = "incomplete: only some kernels of 1 of 10 graph launches are recorded"

Edit = Callable[[int, list[K]], Sequence[K]]


def write_replays(
    folder: Path,
    edit: Edit,
    *,
    n_launches: int = 10,
    names: str = NAMES,
    ranges: Sequence[R] = (),
) -> Path:
    """Write an export of graph launches. ``edit`` changes the kernels of each launch."""
    kernels: list[K] = []
    calls = []
    for i in range(n_launches):
        start = PERIOD * (i + 1)
        calls.append(C(start, start + 5 * US, 10 + i, name=LAUNCH))
        rows = [
            K(start + (20 + 100 * n) * US, start + (120 + 100 * n) * US, 10 + i, name, graph_node=n)
            for n, name in enumerate(names)
        ]
        kernels += edit(i, rows)
    return write_profile(folder, kernels, calls, tuple(ranges))


def keep_slices(slice_of_launch: Mapping[int, slice]) -> Edit:
    """Return an edit that keeps slices of the kernels of some launches, and all other kernels."""
    return lambda i, rows: rows[slice_of_launch[i]] if i in slice_of_launch else rows


@pytest.mark.parametrize("form", WRITERS)
@pytest.mark.parametrize("recorded_kernels", [slice(3), slice(3, None)])
def test_partial_replays_are_counted_in_every_format(
    tmp_path: Path, form: str, recorded_kernels: slice
) -> None:
    report = bubbleviz.idle(
        WRITERS[form](write_replays(tmp_path, keep_slices({4: recorded_kernels})), tmp_path)
    )
    assert list_restriction_texts(report) == [MARK]
    # The unknown time lasts from the launch to the first kernel of the next launch.
    # Each recorded kernel takes 100 us of this time.
    assert list_times(report.ranks[0])[UNRECORDED] == 1_020 - 100 * len(NAMES[recorded_kernels])
    (note,) = [note for note in report.limitations if "graph launches" in note.what]
    assert "idle time around these launches is unknown" in note.reason


def test_kernels_may_be_lost_in_the_middle(tmp_path: Path) -> None:
    report = bubbleviz.idle(
        write_replays(tmp_path, lambda i, rows: rows[:2] + rows[6:] if i == 4 else rows)
    )
    assert list_restriction_texts(report) == [MARK]


def test_replays_of_equal_kernels_may_be_partial(tmp_path: Path) -> None:
    assert list_restriction_texts(
        bubbleviz.idle(write_replays(tmp_path, keep_slices({4: slice(5, None)}), names="aaaaaaaa"))
    )


def test_a_loss_may_begin_and_end_inside_launches(tmp_path: Path) -> None:
    slice_of_launch = {3: slice(5), 4: slice(0), 5: slice(0), 6: slice(6, None)}
    report = bubbleviz.idle(write_replays(tmp_path, keep_slices(slice_of_launch)))
    assert list_restriction_texts(report) == [
        "incomplete: 2 of 10 graph launches have no recorded kernels, and 2 only some"
    ]
    # The unknown time begins at the first of these launches.
    # It ends with the kernels of the next complete launch.
    assert list_times(report.ranks[0])[UNRECORDED] == 4_020 - 500 - 200


def write_queued(folder: Path, edit: Edit, *, every_us: int = 800) -> Path:
    """Write an export in which all graph launches are queued before the first one runs."""
    kernels: list[K] = []
    for i in range(10):
        rows = [
            K(begin, begin + 100 * US, 10 + i, name, stream=7 + i)
            for n, name in enumerate(NAMES)
            for begin in (PERIOD + (every_us * i + 100 * n) * US,)
        ]
        kernels += edit(i, rows)
    calls = [C(10 * US * i, 10 * US * i + 5 * US, 10 + i, name=LAUNCH) for i in range(10)]
    return write_profile(folder, kernels, calls)


def skip_kernels(i: int, rows: list[K]) -> list[K]:
    """Return the kernels of a launch. The fifth launch of the run skips its last five kernels."""
    ahead_ns = 500 * US * (i > 4)
    kept_rows = rows[:3] if i == 4 else rows
    return [K(k.start - ahead_ns, k.end - ahead_ns, k.correlation, k.name) for k in kept_rows]


def test_kernels_that_a_graph_did_not_run_are_not_lost(tmp_path: Path) -> None:
    (tmp_path / "lost").mkdir()
    (tmp_path / "skipped").mkdir()
    n_lost = bubbleviz.idle(write_queued(tmp_path / "lost", keep_slices({4: slice(3)})))
    assert list_restriction_texts(n_lost) == [MARK]
    assert list_times(n_lost.ranks[0])[UNRECORDED] == 500
    assert not list_restriction_texts(
        bubbleviz.idle(write_queued(tmp_path / "skipped", skip_kernels))
    )


def test_launches_that_run_concurrently_are_not_partial(tmp_path: Path) -> None:
    assert not list_restriction_texts(
        bubbleviz.idle(write_queued(tmp_path, keep_slices({4: slice(3)}), every_us=100))
    )


@pytest.mark.parametrize(
    "edit",
    {
        # The capture ends while the last launch runs.
        "the last": keep_slices({9: slice(3)}),
        # Many launches have few kernels, so they may be launches of another graph.
        "many": keep_slices({2: slice(3), 5: slice(3), 8: slice(3)}),
        # Every second kernel is missing, so the launch may be of another graph.
        "another graph": keep_slices({4: slice(None, None, 2)}),
        "no": keep_slices({}),
    }.items(),
    ids=lambda edit: edit[0],
)
def test_some_short_launches_are_not_known_to_be_partial(
    tmp_path: Path, edit: tuple[str, Edit]
) -> None:
    assert not list_restriction_texts(bubbleviz.idle(write_replays(tmp_path, edit[1])))


def test_few_launches_show_no_partial_replay(tmp_path: Path) -> None:
    edit = keep_slices({1: slice(3)})
    assert not list_restriction_texts(bubbleviz.idle(write_replays(tmp_path, edit, n_launches=4)))
    assert list_restriction_texts(bubbleviz.idle(write_replays(tmp_path, edit, n_launches=5)))


def test_a_bubble_in_a_partial_replay_is_unknown(tmp_path: Path) -> None:
    names = [f"{phase}{i}.0.0" for phase in "FB" for i in range(5)]
    ranges = [R(PERIOD * (i + 1) - US, PERIOD * (i + 1) + 900 * US, n) for i, n in enumerate(names)]
    report = bubbleviz.analyze([write_replays(tmp_path, keep_slices({4: slice(3)}), ranges=ranges)])
    assert MARK in list_restriction_texts(report)
    unknown = [(row.start_ns, row.end_ns) for row in report.bubbles if row.cause == "unknown"]
    launched_ns, next_start_ns = PERIOD * 5, PERIOD * 6 + 20 * US
    assert unknown == [
        (launched_ns, launched_ns + 20 * US),
        (launched_ns + 320 * US, next_start_ns),
    ]
