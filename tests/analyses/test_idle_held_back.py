"""Communication that was ready but started only with another kernel, in planted exports."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bubbleviz
from bubbleviz.analyses.idle.advice import advice
from bubbleviz.analyses.idle.outputs import as_json
from bubbleviz.analyses.idle.report import RankIdle
from bubbleviz.analyses.idle.text import first_screen, list_tables, sections
from bubbleviz.render.text.terminal import render_plain_text
from tests.support.idle_runs import US, c, get_only_rank, k, r
from tests.support.nsys_exports import C, K, M, write_profile
from tests.support.synchronized_exports import Rec, Wait, add_synchronization
from tests.support.torch_traces import write_traces

ALL_TO_ALL = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
CALLS = [c(-10, -8, 1), c(0, 2, 2), c(10, 12, 3)]
#: P ends at 100, X starts at 100 on the same stream, and C was ready at 30.
BEHIND_START = [
    k(0, 100, 1, "first"),
    k(100, 300, 2, "expert_gemm"),
    k(101, 200, 3, ALL_TO_ALL, stream=20),
]


#: A synchronization that delays nothing: the host waits for the device at the end.
HOST_WAIT = Wait(315)


def write(
    folder: Path,
    kernels: list[K],
    calls: list[C] = CALLS,
    *,
    copies: tuple[M, ...] = (),
    events: tuple[list[Rec], list[Wait]] | None = ([], [HOST_WAIT]),
) -> Path:
    """Write an export. Without ``events``, no synchronization was recorded."""
    steps = [r(-20, 150, "iteration 1"), r(150, 320, "iteration 2")]
    file = write_profile(folder, kernels, calls, steps, copies=list(copies))
    return file if events is None else add_synchronization(file, *events)


def list_held(rank: RankIdle) -> list[tuple[str, str, str, str, int, float]]:
    return [
        (e.communication.split("(")[0], e.stream, e.behind, e.moment, e.count, e.held_ns / US)
        for e in rank.held_back
    ]


def test_communication_behind_a_kernel_in_the_same_queue_is_found(tmp_path: Path) -> None:
    report = bubbleviz.idle(write(tmp_path, BEHIND_START))
    rank = get_only_rank(report)

    expected = ("ncclDevKernel_SendRecv", "stream 20", "expert_gemm", "start", 1, 71.0)
    assert list_held(rank) == [expected]
    assert (rank.held_back_ns, rank.are_events_recorded) == (71 * US, True)
    (sentence,) = [text for text in advice(report) if "had not started" in text]
    assert sentence.startswith("23.67 % of the time")
    assert "started only at the start of expert_gemm (stream 7)" in sentence
    assert "set CUDA_DEVICE_MAX_CONNECTIONS above 1" in sentence
    for text in (sections(report, 12), first_screen(report)):
        assert "start of expert_gemm" in render_plain_text(text)
    # There are two steps.
    assert list_tables(report)["Held back"].rows[0]["ms/step"] == "0.035"
    document = json.loads(as_json(report, 1))["ranks"][0]
    assert document["held_back"][0]["held_ns"] == document["held_back_ns"] == 71 * US


@pytest.mark.parametrize("has_event", [True, False])
def test_a_pytorch_trace_gives_the_same(has_event: bool, tmp_path: Path) -> None:
    calls = CALLS
    events: tuple[list[Rec], list[Wait]] = ([], [HOST_WAIT])
    if has_event:
        calls = [*CALLS, RECORDING, WAITING]
        events = ([Rec(7, 42, 8, pairing=9)], [Wait(4, 20, 42, 9, pairing=9)])
    file = write(tmp_path, BEHIND_START, calls, events=events)
    (trace,) = write_traces(file, tmp_path)
    rank, expected = (get_only_rank(bubbleviz.idle(path)) for path in (trace, file))

    assert rank.are_events_recorded
    assert list_held(rank) == list_held(expected)
    assert len(rank.held_back) == (0 if has_event else 1)


def test_communication_behind_a_kernel_that_fills_the_device_is_found(tmp_path: Path) -> None:
    kernels = [k(0, 300, 1, "large_gemm"), k(302, 350, 3, ALL_TO_ALL, stream=20)]
    report = bubbleviz.idle(write(tmp_path, kernels))

    expected = ("ncclDevKernel_SendRecv", "stream 20", "large_gemm", "end", 1, 272.0)
    assert list_held(get_only_rank(report)) == [expected]
    (sentence,) = [text for text in advice(report) if "had not started" in text]
    assert "started only at the end of large_gemm" in sentence
    assert "stream with high priority" in sentence


def test_the_start_of_a_kernel_is_no_reason_if_the_next_one_was_launched_earlier(
    tmp_path: Path,
) -> None:
    # With a single queue, the communication would start only after the last GEMM has started.
    kernels = [*BEHIND_START, k(300, 310, 4, "next_gemm")]
    path = write(tmp_path, kernels, [*CALLS, c(4, 6, 4)])

    (held,) = list_held(get_only_rank(bubbleviz.idle(path)))
    assert held[2:4] == ("first", "end")


def test_no_time_per_step_is_shown_if_steps_cover_little_of_the_time(tmp_path: Path) -> None:
    steps = [r(-20, 150, "iteration 1")]
    file = write_profile(tmp_path, BEHIND_START, CALLS, steps)
    report = bubbleviz.idle(add_synchronization(file, [], [HOST_WAIT]))

    assert list_tables(report)["Held back"].rows[0]["ms/step"] == "-"


#: The event is recorded after the first kernel and before the second one is launched.
RECORDING, WAITING = c(-5, -4, 8, name="cudaEventRecord"), c(4, 5, 9, name="cudaStreamWaitEvent")
LATE = [*CALLS[:2], c(85, 87, 3)]
EARLIER = k(20, 95, 4, ALL_TO_ALL, stream=20)


@pytest.mark.parametrize(
    ("kernels", "calls", "events"),
    [
        # C waited for an event that completed at the end of the first kernel.
        (
            BEHIND_START,
            [*CALLS, RECORDING, WAITING],
            ([Rec(7, 42, 8, pairing=9)], [Wait(4, 20, 42, 9, pairing=9)]),
        ),
        # The record of the event that C waited for is missing.
        (BEHIND_START, [*CALLS, WAITING], ([], [Wait(4, 20, 42, 9, pairing=9)])),
        # C was launched late.
        (BEHIND_START, LATE, ([], [HOST_WAIT])),
        # Earlier work on the stream of C ended shortly before.
        ([*BEHIND_START, EARLIER], [*CALLS, c(5, 6, 4)], ([], [HOST_WAIT])),
        # Kernel X was launched after C.
        (
            [k(0, 60, 1, "first"), *BEHIND_START[1:]],
            [CALLS[0], c(20, 22, 2), CALLS[2]],
            ([], [HOST_WAIT]),
        ),
        # X started long before C, and nothing ended when C started.
        (
            [*BEHIND_START[:2], k(140, 200, 3, ALL_TO_ALL, stream=20)],
            CALLS,
            ([], [HOST_WAIT]),
        ),
        # C is a compute kernel.
        ([*BEHIND_START[:2], k(101, 200, 3, "gemm", stream=20)], CALLS, ([], [HOST_WAIT])),
        # The launching call of C was not recorded.
        (BEHIND_START, CALLS[:2], ([], [HOST_WAIT])),
    ],
    ids=["event", "unknown event", "late", "busy", "later", "unrelated", "compute", "no call"],
)
def test_communication_that_was_not_ready_is_not_listed(
    kernels: list[K], calls: list[C], events: tuple[list[Rec], list[Wait]], tmp_path: Path
) -> None:
    report = bubbleviz.idle(write(tmp_path, kernels, calls, events=events))

    assert list_held(get_only_rank(report)) == []
    assert "Held back" not in list_tables(report)


def test_without_events_the_times_are_upper_bounds_and_give_no_advice(tmp_path: Path) -> None:
    report = bubbleviz.idle(write(tmp_path, BEHIND_START, events=None))
    rank = get_only_rank(report)

    assert (len(rank.held_back), rank.are_events_recorded) == (1, False)
    assert not any("had not started" in text for text in advice(report))
    shown = " ".join(render_plain_text(first_screen(report)).split())
    assert "only with another kernel" not in shown
    assert "for up to 23.67 % of the time, communication may have been ready" in shown
    text = render_plain_text(sections(report, 12))
    assert "only with another kernel (upper bound)" in text
    assert "CUDA events were not recorded" in " ".join(text.split())


def test_without_events_the_end_of_a_kernel_may_complete_an_event(tmp_path: Path) -> None:
    kernels = [k(0, 300, 1, "large_gemm"), k(302, 350, 3, ALL_TO_ALL, stream=20)]

    assert list_held(get_only_rank(bubbleviz.idle(write(tmp_path, kernels, events=None)))) == []


def test_copies_hold_nothing_back_but_delay_their_own_stream(tmp_path: Path) -> None:
    """A copy on another stream is no reason, and a copy on the same stream delays C."""
    kernels = [k(0, 90, 1, "first"), k(101, 200, 3, ALL_TO_ALL, stream=20)]
    other = M(100 * US, 300 * US, 2, stream=7)
    assert list_held(get_only_rank(bubbleviz.idle(write(tmp_path, kernels, copies=(other,))))) == []
    own = M(95 * US, 100 * US, 2, stream=20)
    folder = tmp_path / "own"
    folder.mkdir()
    report = bubbleviz.idle(write(folder, BEHIND_START[:1] + kernels[1:], copies=(own,)))
    assert list_held(get_only_rank(report)) == []


def test_each_rank_is_held_back_only_by_its_own_kernels(tmp_path: Path) -> None:
    kernels = [*BEHIND_START[:2], k(101, 200, 3, ALL_TO_ALL, stream=20, device=1)]
    report = bubbleviz.idle(write(tmp_path, kernels))

    assert [list_held(rank) for rank in report.ranks] == [[], []]


@dataclass(frozen=True)
class Work:
    """A kernel and its launch, with times in units of 5 us."""

    device: int
    stream: int
    start: int
    end: int
    launched: int
    is_communication: bool


@st.composite
def draw_work(draw: st.DrawFn) -> list[Work]:
    """Draw serial kernels on three streams of two devices, launched at different times."""
    work = []
    for device, stream in itertools.product((0, 1), (7, 20, 21)):
        time = 0
        for _ in range(draw(st.integers(0, 3))):
            start = time + draw(st.integers(0, 8))
            time = start + draw(st.integers(1, 8))
            launched = -draw(st.integers(-start + 1, 20))
            work.append(Work(device, stream, start, time, launched, draw(st.booleans())))
    return work


def is_last_launched(reason: Work, late: Work, work: Sequence[Work]) -> bool:
    """Return whether the next work on the reason's stream was launched after the late work."""
    following = [
        w
        for w in work
        if (w.device, w.stream) == (reason.device, reason.stream) and w.start > reason.start
    ]
    return not following or min(following, key=lambda w: w.start).launched >= late.launched


def find_by_hand(work: Sequence[Work], moments: Sequence[str]) -> set[tuple[int, int, str, int]]:
    """Return the number of each held-back kernel, its reason, the moment, and the time in units."""
    ready = {}
    for number, c_ in enumerate(work):
        ends = [
            w.end
            for w in work
            if (w.device, w.stream) == (c_.device, c_.stream) and w.start < c_.start
        ]
        ready[number] = max([c_.launched + 4, *ends])
    late = {n for n, w in enumerate(work) if w.is_communication and w.start - ready[n] >= 4}
    found = set()
    for number in late:
        c_ = work[number]
        for moment in moments:
            reasons = [
                (getattr(w, moment), n)
                for n, w in enumerate(work)
                if n not in late
                and w.device == c_.device
                and w.stream != c_.stream
                and w.launched < c_.launched
                and 0 <= c_.start - getattr(w, moment) <= 2
                and (moment == "end" or is_last_launched(w, c_, work))
            ]
            if reasons:
                found.add((number, max(reasons)[1], moment, c_.start - ready[number]))
                break
    return found


@pytest.mark.parametrize("has_events", [True, False])
@settings(max_examples=40, deadline=None)
@given(work=draw_work())
def test_random_profiles_give_the_same_as_a_search_by_hand(
    has_events: bool, work: list[Work], tmp_path_factory: pytest.TempPathFactory
) -> None:
    # The kernel that is launched first makes the span begin, and holds nothing back.
    work = [*work, Work(0, 30, 0, 1, -100, False), Work(1, 30, 0, 1, -100, False)]
    kernels = [
        k(5 * w.start, 5 * w.end, n + 1, f"{'nccl' if w.is_communication else 'gemm'}{n}x",
          device=w.device, stream=w.stream)
        for n, w in enumerate(work)
    ]  # fmt: skip
    calls = [c(5 * w.launched, 5 * w.launched + 1, n + 1) for n, w in enumerate(work)]
    folder = tmp_path_factory.mktemp("random")
    events: tuple[list[Rec], list[Wait]] | None = ([], [HOST_WAIT]) if has_events else None
    report = bubbleviz.idle(write(folder, kernels, calls, events=events))

    found = {
        (int(e.communication[4:-1]), int(e.behind[4:-1]), e.moment, e.held_ns // (5 * US))
        for rank in report.ranks
        for e in rank.held_back
    }
    assert found == find_by_hand(work, ("start", "end") if has_events else ("start",))
