"""Deadlocks of plans: found as ranks that step through them do, and named."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bubbleviz.errors import MismatchError
from bubbleviz.model.choices import CARRIERS
from bubbleviz.schedules.communication import torch_csv
from bubbleviz.schedules.communication.lowered import (
    BLOCKING,
    BUFFERED,
    RENDEZVOUS,
    STREAMS,
    TRANSPORTS,
    LoweredPlan,
    Step,
    Transport,
)
from bubbleviz.schedules.communication.lowering import batched, lowered
from bubbleviz.schedules.communication.precedence import (
    check_lowered,
    check_messages,
    check_order,
    deadlock_of,
    deadlock_of_order,
    deadlock_text,
)
from bubbleviz.schedules.files import torch_csv as compute_csv
from bubbleviz.schedules.known import schedule_named
from bubbleviz.schedules.plan import Plan
from tests.support.stepping_ranks import SteppingRanks


def plan_of(text: str) -> Plan:
    return compute_csv.read(text, "plan.csv")


def lowered_of(*rows: str) -> LoweredPlan:
    return torch_csv.read("\n".join(rows), "plan.csv")


def test_transports_are_those_to_choose_from() -> None:
    assert tuple(each.name for each in TRANSPORTS) == CARRIERS


def test_one_stage_alone_waits_for_nobody() -> None:
    made = lowered(plan_of("0F0,0B0\n"))

    assert all(not deadlock_of(made, transport) for transport in TRANSPORTS)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n",
            "rank 0 waits at 0B0 for rank 1's 1B0, which is behind 1F1; "
            "rank 1 waits at 1F1 for rank 0's 0F1, which is behind 0B0",
        ),
        (
            "0F0,0I0,0F1,0W0,0I1,0W1\n1F1,1I1,1W1,1F0,1I0,1W0\n",
            "rank 0 waits at 0I0 for rank 1's 1I0, which is behind 1F1; "
            "rank 1 waits at 1F1 for rank 0's 0F1, which is behind 0I0",
        ),
        # A forward that runs beside a backward is sent after both.
        (
            "0F0,(0F1;0B0)OVERLAP_F_B,0B1\n1F0,1F1,1B0,1B1\n",
            "rank 0 waits at 0B0 for rank 1's 1B0, which is behind 1F1; "
            "rank 1 waits at 1F1 for rank 0's 0F1, which is behind 0B0",
        ),
        # A stage of a V before the one below it, on one rank.
        ("0F0,3F0,3B0,0B0\n2F0,1F0,2B0,1B0\n", "rank 1 has 2F0 before 1F0, which it needs"),
        (
            "0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n2F1,2F0,2B1,2B0\n",
            "rank 0 waits at 0B0 for rank 1's 1B0, which is behind 1F1; "
            "rank 1 waits at 1F1 for rank 0's 0F1, which is behind 0B0",
        ),
    ],
)
def test_an_order_that_deadlocks_is_named(text: str, sentence: str) -> None:
    plan = plan_of(text)
    found = deadlock_of_order(plan)

    assert deadlock_text(found) == sentence
    with pytest.raises(MismatchError, match="the order deadlocks: rank"):
        check_order(plan)
    with pytest.raises(MismatchError, match="the order deadlocks: rank"):
        lowered(plan)


#: Two ranks, two microbatches: the last rank's line, in which nothing is wrong.
BEHIND = "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1"


@pytest.mark.parametrize(
    ("rows", "transports", "sentence"),
    [
        (  # Both receive first.
            ("0F0,0SEND_F0,0F1,0RECV_B0,0SEND_F1,0B0,0RECV_B1,0B1", BEHIND),
            (STREAMS, BLOCKING),
            "rank 0 waits at 0RECV_B0 for rank 1's 1RECV_F1; "
            "rank 1 waits at 1RECV_F1 for rank 0's 0RECV_B0",
        ),
        (  # Both send first.
            (
                "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1",
                "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1",
            ),
            (STREAMS, BLOCKING),
            "rank 0 waits at 0SEND_F1 for rank 1's 1SEND_B0; "
            "rank 1 waits at 1SEND_B0 for rank 0's 0SEND_F1",
        ),
        (  # A send before what it sends.
            ("0SEND_F0,0F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1", BEHIND),
            TRANSPORTS,
            "rank 0 has 0SEND_F0 before 0F0, which it needs",
        ),
        (  # A receive behind what needs it.
            (
                "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1",
                "1F0,1RECV_F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1",
            ),
            TRANSPORTS,
            "rank 1 has 1F0 before 1RECV_F0, which it needs",
        ),
    ],
)
def test_communication_that_deadlocks_is_named(
    rows: tuple[str, str], transports: tuple[Transport, ...], sentence: str
) -> None:
    made = lowered_of(*rows)
    check_messages(made)
    found = {transport: deadlock_of(made, transport) for transport in TRANSPORTS}

    assert {each for each, deadlock in found.items() if deadlock} == set(transports)
    assert deadlock_text(found[transports[0]]) == sentence


def in_common_order(order: str, stages: int, ranks: int) -> list[list[str]]:
    """Return the lines of operations in one order, each with its message at once."""
    lines: list[list[str]] = [[] for _ in range(ranks)]
    for cell in order.split():
        stage, letter, microbatch = int(cell[0]), cell[1], cell[2]
        lines[stage % ranks].append(cell)
        other = stage + (1 if letter == "F" else -1)
        if 0 <= other < stages:
            lines[stage % ranks].append(f"{stage}SEND_{letter}{microbatch}")
            lines[other % ranks].append(f"{other}RECV_{letter}{microbatch}")
    return lines


def test_a_ring_of_three_ranks_deadlocks_where_sends_block() -> None:
    """Each waits for the next; between no two of them is anything out of order."""
    order = "0F0 1F0 2F0 0F1 1F1 0F2 1F2 2F1 2F2 3F0 3F1 3F2 4F0 4F1 4F2 5F0 5F1 5F2 "
    order += " ".join(f"{stage}B{mb}" for mb in range(3) for stage in reversed(range(6)))
    lines = in_common_order(order, 6, 3)
    assert deadlock_of(lowered_of(*map(",".join, lines)), BLOCKING) == []

    first = lines[0]
    first.remove("3RECV_F0")
    first.insert(first.index("0SEND_F2") + 1, "3RECV_F0")
    made = lowered_of(*map(",".join, lines))
    found = deadlock_of(made, BLOCKING)

    assert [deadlock_of(made, each) for each in (BUFFERED, RENDEZVOUS, STREAMS)] == [[]] * 3
    assert deadlock_text(found) == (
        "rank 0 waits at 0SEND_F2 for rank 1's 1RECV_F2, which is behind 1SEND_F1; "
        "rank 1 waits at 1SEND_F1 for rank 2's 2RECV_F1, which is behind 2SEND_F0; "
        "rank 2 waits at 2SEND_F0 for rank 0's 3RECV_F0, which is behind 0SEND_F2"
    )
    with pytest.raises(MismatchError, match=r"deadlocks \(blocking\): rank 0 waits at"):
        check_lowered(made, BLOCKING)


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (
            ("0F0,0SEND_F0,0RECV_B0,0B0", "1F0,1B0,1SEND_B0"),
            "rank 1 lacks 1RECV_F0, which 1F0 needs",
        ),
        (
            ("0F0,0RECV_B0,0B0", "1RECV_F0,1F0,1B0,1SEND_B0"),
            "rank 0 lacks 0SEND_F0, which 1F0 needs",
        ),
        (
            ("0F0,0SEND_F0,0SEND_F0,0RECV_B0,0B0", "1RECV_F0,1F0,1B0,1SEND_B0"),
            "rank 0: 0SEND_F0 stands twice",
        ),
        (
            (
                "0F0,0F1,0SEND_F1,0SEND_F0,0RECV_B0,0B0,0RECV_B1,0B1",
                "1RECV_F0,1RECV_F1,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1",
            ),
            "rank 0 sends 0SEND_F1 where rank 1 receives 1RECV_F0",
        ),
    ],
)
def test_messages_that_do_not_match_are_refused(rows: tuple[str, str], reason: str) -> None:
    with pytest.raises(MismatchError) as refused:
        check_lowered(lowered_of(*rows), BUFFERED)

    assert str(refused.value).startswith(reason)


@st.composite
def shuffled(draw: st.DrawFn) -> LoweredPlan:
    """Return a lowered plan with some steps of some lines elsewhere."""
    name = draw(st.sampled_from(["1f1b", "zb-h1", "zb-v", "interleaved-1f1b", "dualpipev", "b"]))
    stages = draw(st.integers(2, 3))
    rule = schedule_named("1f1b" if name == "b" else name)
    least = 2 * stages if name == "dualpipev" else stages
    plan = rule.plan(stages, least, rule.chunks)
    made = batched(plan) if name == "b" else lowered(plan)
    lines = [list(line) for line in made.lines]
    for _ in range(draw(st.integers(0, 6))):
        line = draw(st.sampled_from(lines))
        step: Step = line.pop(draw(st.integers(0, len(line) - 1)))
        line.insert(draw(st.integers(0, len(line))), step)
    orders = tuple(tuple(op for step in line for op in step.operations) for line in lines)
    return LoweredPlan(replace(plan, orders=orders), tuple(map(tuple, lines)))


@settings(max_examples=250, deadline=None)
@given(made=shuffled(), transport=st.sampled_from(TRANSPORTS))
def test_what_deadlocks_is_what_stepping_ranks_cannot_end(
    made: LoweredPlan, transport: Transport
) -> None:
    try:
        check_messages(made)
    except MismatchError:
        return
    found = deadlock_of(made, transport)

    assert (not found) == SteppingRanks(made, transport).end()
    ranks = [rank for rank, _, _, _ in found]
    assert [other for _, _, other, _ in found] == ranks[1:] + ranks[:1]
