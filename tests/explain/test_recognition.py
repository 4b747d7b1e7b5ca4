"""Recognition of schedules from plans of every schedule, published orders, and deviations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bubbleviz
from bubbleviz.errors import MismatchError, UsageError
from bubbleviz.explain.recognition.deviations import Deviation
from bubbleviz.explain.recognition.recognition import (
    Recognition,
    compare_with_plan,
    recognize_schedule,
)
from bubbleviz.model.phases import Phase
from bubbleviz.render.text.report import render_text as render
from bubbleviz.report.methods import write_methods
from bubbleviz.report.view import View
from bubbleviz.schedules.communication import torch_csv
from bubbleviz.schedules.known import find_schedule, schedules
from bubbleviz.schedules.plan import Plan, Schedule
from tests.planting import Planting, plant
from tests.support.measured_orders import (
    Measured,
    Op,
    list_devices,
    make_iteration,
    make_measured,
    run_orders,
)
from tests.support.planted_runs import analyze_planting
from tests.support.published_orders import ONE_WAY, OURS, parse_listed_plan, read_reference

pytestmark = pytest.mark.thorough

F, B, W, BW, FB = Phase.F, Phase.B, Phase.W, Phase.BW, Phase.FB
#: Names that bubbleviz gives to the authors' schedulers, which place W by the given times.
#: If the result is a handcrafted order, it has the name of that order.
SEARCHED = {
    "ZB-1p": {"zb-h1", "zb-1p"},
    "ZB-2p": {"zb-h2", "zb-2p"},
    "ZB-H1": {"zb-h1", "zb-1p"},
    "ZB-H2": {"zb-h2", "zb-2p"},
    "ZB-V": {"zb-v"},
    "V-Half": {"v-half"},
    "V-Min": {"v-min"},
}


def recognize(run: Measured) -> Recognition:
    return recognize_schedule(run.ranks, run.operations, run.iterations)


@cache
def planned(name: str, p: int = 4, m: int = 8) -> Plan:
    rule = find_schedule(name)
    return rule.plan(p, m, rule.chunks)


def test_an_empty_run_has_no_schedule() -> None:
    nothing = make_measured([], [])
    assert recognize(nothing).name is None
    assert recognize(nothing).reason == "the capture contains no training iteration"

    evaluated = make_measured([(0, 0, [Op(F, 0)])], [(0, 0)], [make_iteration(0, "evaluation")])
    assert recognize(evaluated) == recognize(nothing)

    far = [(rank, 0, order) for rank, order in enumerate(list_devices(planned("1f1b", 2, 4)))]
    assert recognize(make_measured(far, [(0, 0), (10**9, 0)])).name is None


def is_searched(rule: Schedule) -> bool:
    """Return whether the order of a schedule depends on durations."""
    return rule.searched is not None and rule.searched.limit is not None


@pytest.mark.parametrize(
    "rule", [r for r in schedules() if is_searched(r)], ids=lambda rule: rule.name
)
@pytest.mark.parametrize(("p", "m"), [(4, 8), (4, 12)])
def test_searched_schedules_are_recognized_by_their_structure(
    rule: Schedule, p: int, m: int
) -> None:
    recognition = recognize(run_orders(list_devices(planned(rule.name, p, m)), times=2))

    # With few microbatches, the search finds the order of another schedule.
    assert rule.name in (recognition.name, *recognition.also) or recognition.exact


@pytest.mark.parametrize(
    "rule", [r for r in schedules() if not is_searched(r)], ids=lambda rule: rule.name
)
def test_every_schedule_is_recognized_by_its_plan(rule: Schedule) -> None:
    sizes = 0
    for p in (2, 4, 8):
        for m in (1, p, 2 * p, 4 * p, 5 * p + 1):
            for chunks in {rule.chunks, 2 * rule.chunks}:
                try:
                    plan = rule.plan(p, m, chunks)
                except UsageError:
                    continue
                run = run_orders(list_devices(plan), times=2)
                if plan.replicas > 1:
                    # Stages are ambiguous if microbatches enter the pipeline at both ends.
                    run = replace(run, ranks=tuple(replace(r, stage=None) for r in run.ranks))
                recognition = recognize(run)
                assert rule.name in (recognition.name, *recognition.also), (
                    p,
                    m,
                    chunks,
                    recognition,
                )
                assert (recognition.exact, recognition.distance, recognition.deviations) == (
                    True,
                    0.0,
                    (),
                )
                assert [i.exact for i in recognition.iterations] == [True, True]
                sizes += 1
    assert sizes >= 3


@pytest.mark.real_files
def test_orders_of_the_authors_schedulers_are_recognized(subtests: pytest.Subtests) -> None:
    """Only a dozen orders of each scheduler are tested, to limit the run time."""
    for name in [*SEARCHED, *(name for name in OURS if name not in SEARCHED)]:
        with subtests.test(name=name):
            # Without more microbatches than stages, most limits are never reached.
            rows = [
                row
                for row in read_reference("schedules.csv")
                if row["schedule"] == name and row["order"] and int(row["m"]) > int(row["p"])
            ]
            assert len(rows) >= 5
            for row in rows[:: max(1, len(rows) // 12)]:
                recognition = recognize(run_orders(list_devices(parse_listed_plan(row))))
                expected_names = {OURS[name]} if name not in SEARCHED else SEARCHED[name]
                assert recognition.name in expected_names, (
                    row["p"],
                    row["m"],
                    row["times"],
                    recognition,
                )


def replace_operations(
    name: str, change: Callable[[Op], list[Op]], p: int = 4, m: int = 8
) -> list[list[Op]]:
    """Return the orders of a schedule after replacing each operation by ``change``."""
    return [[one for op in o for one in change(op)] for o in list_devices(planned(name, p, m))]


def numbered(first: int, step: int = 1) -> Callable[[Op], list[Op]]:
    return lambda op: [replace(op, microbatch=step * op.microbatch + first)]


def split(op: Op) -> list[Op]:
    return [replace(op, phase=phase) for phase in (B, W)] if op.phase is BW else [op]


def swapped(orders: list[list[Op]]) -> list[list[Op]]:
    """Return orders in which rank 1 swaps its first backward with the operation before it."""
    order = [*orders[1]]
    turn = next(n for n, op in enumerate(order) if op.phase in (B, BW))
    order[turn - 1 : turn + 1] = reversed(order[turn - 1 : turn + 1])
    return [orders[0], order, *orders[2:]]


def overlapped(plan: Plan) -> list[list[Op]]:
    """Return orders in which each pair of overlapped operations is one operation."""
    orders = []
    for device in plan.orders:
        out: list[Op] = []
        forward: Op | None = None
        for planned_operation in device:
            op = Op(
                planned_operation.phase,
                planned_operation.microbatch,
                plan.chunk_of(planned_operation.virtual_stage),
            )
            if planned_operation in plan.together:
                forward = op
            elif forward is not None:
                out.append(replace(forward, phase=FB, second=(op.microbatch, op.chunk)))
                forward = None
            else:
                out.append(op)
        orders.append(out)
    assert any(op.phase is FB for order in orders for op in order)
    return orders


def backwards_in_reverse(p: int, m: int) -> list[list[Op]]:
    """Return GPipe in torchgpipe's order, and looped BFS with several chunks."""
    return replace_operations(
        "gpipe",
        lambda op: [replace(op, microbatch=m - 1 - op.microbatch) if op.phase is BW else op],
        p,
        m,
    )


def forwards_of_the_last_from_one() -> list[list[Op]]:
    """Return 1F1B with the numbering of PyTorch's single-stage schedule."""
    *earlier_devices, last = list_devices(planned("1f1b"))
    return [
        *earlier_devices,
        [replace(op, microbatch=op.microbatch + (op.phase is F)) for op in last],
    ]


#: With p microbatches, both limits of the search are equal.
SEARCHES = (("zb-h1", 8, ("zb-1p",)), ("zb-h2", 8, ("zb-2p",)), ("zb-h1", 4, ("zb-1p", "zb-2p")))
OTHERS: tuple[Callable[[Op], list[Op]], ...] = (
    lambda op: [replace(op, phase=Phase.R), op] if op.phase is BW else [op],
    numbered(1),
    numbered(7, 10),
)
#: Orders, and the recognition expected for each.
ORDERS: list[tuple[list[list[Op]], Mapping[str, object]]] = [
    *(
        (change(list_devices(planned(name, 4, m))), {"name": name, "also": also, "exact": exact})
        for name, m, also in SEARCHES
        for change, exact in ((list, True), (swapped, False))
    ),
    (list_devices(planned("1f1b")), {"name": "1f1b", "also": ()}),
    # This order is the result of a search with long transfers.
    (replace_operations("1f1b", split), {"name": "1f1b", "also": ("zb-1p",), "exact": True}),
    # All of these orders warm up with all forwards.
    # Each W follows its B immediately, or all W are at the end.
    *(
        (replace_operations(name, split), {"name": name, "exact": True})
        for name in ("gpipe", "looped-bfs")
    ),
    *(
        (
            [sorted(o, key=lambda op: op.phase is W) for o in replace_operations(name, split)],
            {"name": None},
        )
        for name in ("gpipe", "looped-bfs")
    ),
    *(
        (backwards_in_reverse(p, m), {"name": "gpipe", "also": (), "exact": True})
        for p, m in ((2, 4), (4, 8), (8, 16))
    ),
    (
        [[o[1], o[0], *o[2:]] if not n else o for n, o in enumerate(backwards_in_reverse(4, 8))],
        {"name": "gpipe", "exact": False, "deviation_count": 1},
    ),
    *((overlapped(planned(n)), {"name": n, "exact": True}) for n in ("dualpipev", "combined-1f1b")),
    (
        replace_operations("1f1b", numbered(-1, 0)),
        {"name": None, "reason": "range names contain no microbatch numbers"},
    ),
    *(
        (replace_operations(name, change), {"name": name, "exact": True})
        for name in ("1f1b", "zb-v")
        for change in OTHERS
    ),
    (forwards_of_the_last_from_one(), {"name": "1f1b", "exact": True}),
    (
        [o[:6] + o[7:] if n == 3 else o for n, o in enumerate(forwards_of_the_last_from_one())],
        {"deviations": (Deviation(3, 0, F, 3, 0, "missing", 0),)},
    ),
    # Names are arbitrary.
    # Microbatch numbers that do not occur cost nothing.
    (replace_operations("1f1b", numbered(10**17), 2, 4), {"name": "1f1b"}),
    (
        [
            [replace(op, chunk=10**12 + n) for n, op in enumerate(o)]
            for o in replace_operations("1f1b", split)
        ],
        {"name": None},
    ),
]


@pytest.mark.parametrize(("orders", "expected"), ORDERS, ids=range(len(ORDERS)))
def test_orders_are_recognized_under_their_name(
    orders: list[list[Op]], expected: Mapping[str, object]
) -> None:
    recognition = recognize(run_orders(orders))

    assert {name: getattr(recognition, name) for name in expected} == expected


@pytest.mark.real_files
def test_1f1b_in_a_v_has_no_known_name() -> None:
    rows = [row for row in read_reference("schedules.csv") if row["schedule"] == "1F1B-V"]
    row = next(row for row in rows if row["order"])
    recognition = recognize(run_orders(list_devices(parse_listed_plan(row))))

    assert (recognition.name, recognition.exact, recognition.distance, recognition.deviations) == (
        None,
        False,
        None,
        (),
    )
    assert recognition.reason == "no known schedule has this order"


#: A changed order of rank 1, the deviations that may be reported, and their number.
#: The schedule is 1F1B with p = 4 and m = 8.
#: The unchanged order is F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7.
Told = list[tuple[Phase, int, str, int]]
CHANGES: list[tuple[Callable[[list[Op]], list[Op]], Told, int]] = [
    (lambda o: [*o[:3], o[4], o[3], *o[5:]], [(BW, 0, "late", 1), (F, 3, "early", 1)], 1),
    (lambda o: [*o[:3], *o[4:8], o[3], *o[8:]], [(BW, 0, "late", 4)], 1),
    (lambda o: [*o[:4], o[7], *o[4:7], *o[8:]], [(BW, 2, "early", 3)], 1),
    (lambda o: [*o[:3], *o[4:]], [(BW, 0, "missing", 0)], 1),
    (lambda o: o[1:], [(F, 0, "missing", 0)], 1),
    (lambda o: [*o[:5], replace(o[0], occurrence=1), *o[5:]], [(F, 0, "repeated", 0)], 1),
    (lambda o: [*o, Op(F, 99)], [(F, 99, "extra", 0)], 1),
    (lambda o: [*o[1:5], *o[6:]], [(F, 0, "missing", 0), (BW, 1, "missing", 0)], 2),
]


@pytest.mark.parametrize(("change_order", "possible", "count"), CHANGES)
def test_planted_deviations_are_named(
    change_order: Callable[[list[Op]], list[Op]], possible: Told, count: int
) -> None:
    plan = planned("1f1b")
    good = list_devices(plan)
    bad = [change_order(order) if n == 1 else order for n, order in enumerate(good)]
    orders = enumerate((good, bad, good))
    cells = [(rank, n, order) for n, every in orders for rank, order in enumerate(every)]
    run = make_measured(cells, [(rank, 0) for rank in range(4)])

    for recognition in (
        recognize(run),
        compare_with_plan(run.ranks, run.operations, run.iterations, plan),
    ):
        assert (recognition.name, recognition.exact, recognition.deviation_count) == (
            "1f1b",
            False,
            count,
        )
        assert [i.exact for i in recognition.iterations] == [True, False, True]
        assert recognition.iterations[1].distance == pytest.approx(count / 64)
        assert recognition.distance == pytest.approx(count / 64 / 3)
        options = {Deviation(1, 1, phase, mb, 0, what, n) for phase, mb, what, n in possible}
        assert len(recognition.deviations) == count
        assert set(recognition.deviations) <= options


def test_a_schedule_whose_weights_were_moved_is_named_by_its_structure() -> None:
    orders = list_devices(planned("zb-h1", 4, 16))
    moved_orders = []
    for order in orders:
        weights = [op for op in order if op.phase is W]
        rest = [op for op in order if op.phase is not W]
        # As in the result of a search, each W waits for three more backwards.
        out, done, ran = [], 0, 0
        for op in rest:
            out.append(op)
            done += op.phase is B
            if done > ran + 3:
                out.append(weights[ran])
                ran += 1
        moved_orders.append([*out, *weights[ran:]])
    recognition = recognize(run_orders(moved_orders))

    assert (recognition.name, recognition.exact, recognition.distance) == ("zb-1p", False, None)
    assert recognition.reason == "by its structure"


@pytest.mark.parametrize(
    ("name", "m", "gone", "first"),
    [
        ("1f1b", 16, (3,), 0),
        ("1f1b", 8, (3,), 1),
        ("gpipe", 8, (3,), 0),
        ("zb-h1", 16, (2, 7, 8), 0),
        ("interleaved-1f1b", 8, (5,), 0),
        ("zb-v", 12, (1,), 5),
    ],
)
def test_a_microbatch_that_no_rank_ran_is_missing(
    name: str, m: int, gone: tuple[int, ...], first: int
) -> None:
    plan = planned(name, 4, m)
    devices = list_devices(plan)
    orders = replace_operations(
        name, lambda op: numbered(first)(op) if op.microbatch not in gone else [], 4, m
    )
    run = run_orders(orders)
    expected_cells = sorted(
        (rank, int(op.phase), op.microbatch + first, op.chunk)
        for rank, order in enumerate(devices)
        for op in order
        if op.microbatch in gone
    )
    for recognition in (
        recognize(run),
        compare_with_plan(run.ranks, run.operations, run.iterations, plan),
    ):
        assert (recognition.name, recognition.exact) == (name, False)
        assert {d.what for d in recognition.deviations} == {"missing"}
        missing = sorted(
            (d.rank, int(d.phase), d.microbatch, d.chunk) for d in recognition.deviations
        )
        assert missing == expected_cells
        assert recognition.distance == pytest.approx(len(expected_cells) / sum(map(len, devices)))

    # There is another additional operation elsewhere.
    recognition = recognize(run_orders(swapped(orders)))
    assert (recognition.name, recognition.deviation_count) == (name, len(expected_cells) + 1)


def cleared(plan: Plan) -> list[list[Op]]:
    """Return the orders of devices after merging the last W of each chunk into one range."""
    orders = []
    for order in list_devices(plan):
        keep = max(n for n, op in enumerate(order) if op.phase is not W) + 1
        left = sorted({op.chunk for op in order[keep:]}, reverse=True)
        orders.append([*order[:keep], *(Op(W, -1, chunk) for chunk in left)])
    return orders


@pytest.mark.parametrize(
    ("name", "p", "m"),
    [
        ("zb-1p", 4, 9),
        ("zb-1p", 4, 12),
        ("zb-2p", 4, 9),
        ("zb-2p", 4, 12),
        ("zb-2p", 2, 5),
        ("v-min", 2, 5),
        ("v-min", 2, 6),
        ("v-min", 4, 8),
        ("v-half", 4, 8),
    ],
)
def test_searched_schedules_may_clear_remaining_weights(name: str, p: int, m: int) -> None:
    plan = planned(name, p, m)
    complete_recognition, cleared_recognition = (
        recognize(run_orders(list_devices(plan))),
        recognize(run_orders(cleared(plan))),
    )
    assert name in (cleared_recognition.name, *cleared_recognition.also)
    assert (cleared_recognition.name, cleared_recognition.also, cleared_recognition.reason) == (
        complete_recognition.name,
        complete_recognition.also,
        complete_recognition.reason,
    )


def test_a_clearing_range_without_work_found_no_weights_left() -> None:
    orders = [[*order, Op(W, -1)] for order in list_devices(planned("1f1b"))]
    run = run_orders(orders)
    idle = run.operations.replace_columns(has_span=(run.operations.phase != W).astype(np.int64))
    recognition = recognize(replace(run, operations=idle))
    assert (recognition.name, recognition.exact) == ("1f1b", True)


def test_the_averaged_iterations_decide() -> None:
    first, usual = list_devices(planned("gpipe")), list_devices(planned("1f1b"))
    cells = [(rank, 0, order) for rank, order in enumerate(first)]
    cells += [(rank, n, order) for n in (1, 2) for rank, order in enumerate(usual)]
    run = make_measured(
        cells,
        [(rank, 0) for rank in range(4)],
        [make_iteration(0, averaged=False), make_iteration(1), make_iteration(2)],
    )
    recognition = recognize(run)
    assert (recognition.name, recognition.exact, recognition.judged) == ("1f1b", True, (1, 2))
    assert [i.name for i in recognition.iterations] == ["gpipe", "1f1b", "1f1b"]


def test_pipelines_of_an_iteration_may_differ() -> None:
    gpipe, one_f_one_b = list_devices(planned("gpipe")), list_devices(planned("1f1b"))
    cells = [(rank, 0, order) for rank, order in enumerate([*gpipe, *one_f_one_b, *one_f_one_b])]
    run = make_measured(cells, [(n % 4, n // 4) for n in range(12)])
    recognition = recognize(run)
    assert (recognition.name, recognition.exact) == ("1f1b", False)
    assert recognition.iterations[0].names == ("gpipe", "1f1b", "1f1b")


def test_one_iteration_that_differs_decides_how_all_are_numbered() -> None:
    """One iteration lacks the first of the numbers 5 to 12; only that microbatch is missing."""
    regular = replace_operations("1f1b", numbered(5))
    cut = [[op for op in order if op.microbatch > 5] for order in regular]
    cells = [(rank, n, order) for n in (0, 1) for rank, order in enumerate((regular, cut)[n])]
    recognition = recognize(make_measured(cells, [(rank, 0) for rank in range(4)]))
    assert (recognition.name, recognition.iterations[0].exact) == ("1f1b", True)
    assert recognition.iterations[1].name == "1f1b"


@settings(max_examples=20, deadline=None)  # searched schedules are searched first
@given(
    rule=st.sampled_from(ONE_WAY),
    copies=st.integers(2, 4),
    with_stages=st.booleans(),
    swaps=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 14)), max_size=2),
)
def test_replicas_are_recognized_like_one_pipeline(
    rule: Schedule, copies: int, with_stages: bool, swaps: list[tuple[int, int]]
) -> None:
    """Replicas are recognized with and without known pipelines."""
    orders = list_devices(planned(rule.name))
    for device, index in swaps:
        orders[device][index : index + 2] = reversed(orders[device][index : index + 2])
    recognition = recognize(run_orders(orders))
    cells = [(4 * n + rank, 0, order) for n in range(copies) for rank, order in enumerate(orders)]
    places = [(rank, n if with_stages else None) for n in range(copies) for rank in range(4)]
    recognition_of_copies = recognize(make_measured(cells, places))

    assert (
        recognition_of_copies.name,
        recognition_of_copies.also,
        recognition_of_copies.exact,
    ) == (
        recognition.name,
        recognition.also,
        recognition.exact,
    )
    assert recognition_of_copies.distance == (
        None if recognition.distance is None else pytest.approx(recognition.distance)
    )
    assert recognition_of_copies.deviation_count == copies * recognition.deviation_count


def test_replicas_of_a_pipeline_fed_from_both_ends_are_recognized() -> None:
    orders = list_devices(planned("dualpipe", 4, 8))
    cells = [(4 * n + rank, 0, order) for n in range(3) for rank, order in enumerate(orders)]
    recognition = recognize(make_measured(cells, [(None, 0)] * 12))
    assert (recognition.name, recognition.exact) == ("dualpipe", True)

    # Each direction may have separate microbatch numbers, and the stages may be wrong.
    # Waiting times place the first and the last stage next to each other.
    shifted_orders = [
        [replace(op, microbatch=op.microbatch + 4 * op.chunk) for op in o] for o in orders
    ]
    for ran, places in (
        (shifted_orders, [(None, 0)] * 4),
        ([orders[device] for device in (0, 3, 1, 2)], [(rank, 0) for rank in range(4)]),
    ):
        recognition = recognize(
            make_measured([(rank, 0, order) for rank, order in enumerate(ran)], places)
        )
        assert (recognition.name, recognition.exact) == ("dualpipe", True)

    cells[5] = (5, 0, [*orders[1][:4], *orders[1][5:]])
    recognition = recognize(make_measured(cells[:8], [(None, 0)] * 8))
    assert (recognition.name, recognition.exact, recognition.deviation_count) == (
        "dualpipe",
        False,
        1,
    )
    assert (recognition.deviations[0].rank, recognition.deviations[0].what) == (5, "missing")


def test_a_plan_of_different_sizes_is_refused() -> None:
    run = run_orders(list_devices(planned("1f1b", 4, 8)))
    for plan in (planned("1f1b", 4, 6), planned("1f1b", 8, 8), planned("zb-v", 4, 8)):
        with pytest.raises(
            MismatchError, match="the profiles have 4 stages with 1 chunk each and 8 micro"
        ):
            compare_with_plan(run.ranks, run.operations, run.iterations, plan)


PLANTED = {
    **{rule.name: Planting(schedule=rule.name) for rule in schedules()},
    "zb-v, cleared, post-validation": Planting(
        schedule="zb-v", w_clear=True, iterations=3, postponed_ns=200_000, iteration_ranges=True
    ),
    "dualpipe, cleared, an evaluation": Planting(
        schedule="dualpipe", w_clear=True, iterations=3, evaluation_at=1
    ),
    "dualpipe, copies that are told wrong stages": Planting(
        schedule="dualpipe", replicas=2, slow_stage=0, iteration_ranges=True
    ),
    "1f1b, constant names": Planting(names="constant", iterations=3),
    "1f1b, an evaluation": Planting(iterations=3, evaluation_at=1),
    "zb-h2, copies on two hosts": Planting(
        schedule="zb-h2", replicas=2, tensor=2, servers=2, barrier=True, iteration_ranges=True
    ),
    "interleaved-1f1b, backward on its own thread": Planting(
        schedule="interleaved-1f1b", chunks=4, autograd="named", run_ahead_ns=3_000_000
    ),
}


def plantable(schedule: str) -> str:
    """Return the name or the order to plant for a schedule on 4 devices with 8 microbatches.

    The planter knows no searched schedules, so their orders are given as PyTorch's CSV.
    """
    if is_searched(find_schedule(schedule)):
        return torch_csv.write(planned(schedule))
    return schedule


@pytest.mark.parametrize(
    ("schedule", "name"), [("1f1b", "1f1b"), ("looped-bfs", "gpipe"), ("v-min", None)]
)
def test_if_microbatches_are_counted_by_order_no_name_is_certain(
    schedule: str, name: str | None
) -> None:
    planting = Planting(
        schedule=plantable(schedule), microbatches=8, iterations=1, names="constant"
    )
    report = analyze_planting(planting)
    recognition = report.schedule
    assert recognition is not None
    assert (recognition.name, recognition.inferred) == (name, True)
    assert "so one schedule may look like another" in recognition.reason
    if name is not None:
        # The line may be wrapped.
        text = " ".join(render(report, View()).split())
        assert "numbered by order, so another schedule may look the same" in text
        assert f"of what looks like the schedule {name}" in write_methods(report)


@pytest.mark.parametrize("name", PLANTED)
def test_planted_runs_are_recognized(tmp_path: Path, name: str) -> None:
    schedule = PLANTED[name].schedule
    planting = replace(
        PLANTED[name],
        schedule=plantable(schedule),
        microbatches=8,
        kernels=1,
        jitter=0.2,
        transfer_ns=20_000,
        library_depth=0,
    )
    truth = plant(planting, tmp_path)
    report = bubbleviz.analyze([tmp_path / file.path for file in truth.files])
    recognition = report.schedule

    assert recognition is not None
    # A searched order may equal the order of another schedule, whose name it then has.
    searched = is_searched(find_schedule(schedule))
    assert schedule in (recognition.name, *recognition.also) or (searched and recognition.exact)
    assert recognition.exact or searched
    training = [i.index for i in report.iterations if i.kind == "training"]
    assert [i.iteration for i in recognition.iterations] == training
    assert len(training) == planting.iterations - (planting.evaluation_at >= 0)
