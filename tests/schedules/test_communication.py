"""Communication of plans: PyTorch's lowering, transfer times, and detection of deadlocks."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bubbleviz.cli.app import main
from bubbleviz.errors import MismatchError
from bubbleviz.model.choices import CARRIERS
from bubbleviz.schedules.communication import torch_csv
from bubbleviz.schedules.communication.deadlocks import (
    check_lowered,
    check_messages,
    check_order,
    compute_makespan,
    describe_deadlock,
    find_deadlock,
)
from bubbleviz.schedules.communication.lowered import LoweredPlan, get_cell
from bubbleviz.schedules.communication.lowering import lower_plan
from bubbleviz.schedules.communication.reordering import order_messages
from bubbleviz.schedules.communication.transports import (
    BLOCKING,
    BUFFERED,
    STREAMS,
    TRANSPORTS,
    Transport,
)
from bubbleviz.schedules.known import find_schedule
from bubbleviz.schedules.plan import Plan
from bubbleviz.schedules.simulation import simulate_outcome
from bubbleviz.schedules.workload import Workload, build_device_workload
from tests.support.command_line import CommandLine
from tests.support.needs import get_reference_file

TIMES = ("--tf", "1", "--tb", "1", "--tw", "1")
#: Unidirectional schedules, each with its minimum number of microbatches per stage.
NAMES = ("gpipe", "1f1b", "zb-h1", "interleaved-1f1b", "interleaved-zb", "zb-v", "looped-bfs")


def workload_of(plan: Plan, seed: int) -> Workload:
    """Return a workload with uneven times and transfers, determined by the seed."""
    draw = random.Random(seed)
    count = plan.virtual_stages

    def times() -> tuple[int, ...]:
        return tuple(draw.randint(5, 60) for _ in range(count))

    def edges() -> tuple[int, ...]:
        far = [a != b for a, b in zip(plan.placement, plan.placement[1:], strict=False)]
        return tuple(draw.randint(0, 30) if each else 0 for each in far)

    backward, weight = times(), times()
    return Workload(
        placement=plan.placement,
        microbatches=plan.microbatches,
        forward_ns=times(),
        backward_ns=backward,
        weight_ns=weight,
        fused_ns=tuple(b + w for b, w in zip(backward, weight, strict=True)),
        down_ns=(*edges(), 0),
        up_ns=(0, *edges()),
        activation=(1.0,) * count,
        weight_activation=(1.0,) * count,
    )


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    rule = find_schedule(draw(st.sampled_from(NAMES)))
    stages = draw(st.integers(2, 4))
    return rule.plan(stages, stages * draw(st.integers(1, 2)), rule.chunks)


def list_lines(lowered_plan: LoweredPlan) -> list[str]:
    """Return the lines of a lowered plan in PyTorch's format, without cells for parameters."""
    lines = []
    for line in lowered_plan.lines:
        cells = []
        for step in line:
            pair = ";".join(map(get_cell, step.operations))
            cells += [f"({pair})OVERLAP_F_B"] if len(step.operations) == 2 else [pair] * bool(pair)
            cells += map(str, step.transfers)
        lines.append(",".join(cells))
    return lines


@pytest.mark.parametrize(
    "lines",
    [
        ["0F0,0B0,0F1,0B1"],
        [
            "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1",
            "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1",
        ],
    ],
)
def test_ranks_take_turns(lines: list[str]) -> None:
    assert list_lines(lower_plan(find_schedule("1f1b").plan(len(lines), 2, 1))) == lines


@pytest.mark.real_files
def test_a_file_that_pytorch_lowered_is_lowered_the_same_way() -> None:
    file = get_reference_file("torch_csv/ZBVZeroBubble.2ranks.4mb.comms.csv")
    theirs = torch_csv.read(file.read_text(encoding="utf-8"), "theirs")

    assert theirs == lower_plan(theirs.plan)


@settings(max_examples=60, deadline=None)
@given(plan=plans(), seed=st.integers(0, 1000))
def test_a_lowered_plan_is_the_plan_with_its_messages(plan: Plan, seed: int) -> None:
    lowered_plan = lower_plan(plan)

    for transport in TRANSPORTS:
        check_lowered(lowered_plan, transport)
    assert torch_csv.read("\n".join(list_lines(lowered_plan)), plan.name) == lowered_plan
    times = workload_of(plan, seed)
    zeros = (0,) * plan.virtual_stages
    instant = replace(times, down_ns=zeros, up_ns=zeros)
    simulated_ns = simulate_outcome(plan, times).makespan_ns
    # A message that is needed first may wait for an earlier, slower message between the same ranks.
    assert compute_makespan(lowered_plan, times, BUFFERED) >= simulated_ns
    simulated_ns = simulate_outcome(plan, instant).makespan_ns
    assert compute_makespan(lowered_plan, instant, BUFFERED) == simulated_ns


def test_a_needed_message_may_wait_for_a_slower_one_before_it() -> None:
    """The rarest case of the test above: messages between two ranks arrive in the sent order."""
    plan = find_schedule("interleaved-zb").plan(2, 4, 2)
    times = workload_of(plan, 210)

    assert compute_makespan(lower_plan(plan), times, BUFFERED) == 915
    assert simulate_outcome(plan, times).makespan_ns == 903


@settings(max_examples=25, deadline=None)
@given(plan=plans(), seed=st.integers(0, 1000), transport=st.sampled_from(TRANSPORTS))
def test_an_order_by_time_is_never_slower_and_never_deadlocks(
    plan: Plan, seed: int, transport: Transport
) -> None:
    times = workload_of(plan, seed)
    default_ns = compute_makespan(lower_plan(plan), times, transport)
    reordered, makespan_ns, own_ns = order_messages(plan, times, transport)

    assert own_ns == default_ns
    assert makespan_ns == compute_makespan(reordered, times, transport)
    assert reordered.plan == plan
    for other_transport in TRANSPORTS:
        check_lowered(reordered, other_transport)
    assert compute_makespan(reordered, times, transport) <= default_ns


def test_a_receive_at_the_head_of_a_stream_is_moved_after_what_it_holds_up() -> None:
    """Rank 0 starts to receive a gradient before it sends data that rank 1 needs next."""
    plan = find_schedule("1f1b").plan(2, 2, 1)
    times = build_device_workload((0, 1), 2, [(20, 10), (10, 60), (10, 10)], 5)
    plan_ = torch_csv.read(
        "0F0,0SEND_F0,0RECV_B0,0F1,0SEND_F1,0B0,0RECV_B1,0B1\n"
        "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n",
        "held",
    )
    reordered = order_messages(plan, times, STREAMS)[0]

    assert compute_makespan(plan_, times, BUFFERED) == 20 + 5 + 10 + 70 + 10 + 70 + 5 + 20
    assert compute_makespan(plan_, times, STREAMS) == 20 + 5 + 10 + 70 + 5 + 5 + 10 + 70 + 5 + 20
    assert compute_makespan(reordered, times, STREAMS) == 20 + 5 + 10 + 70 + 10 + 70 + 5 + 20


def test_a_file_with_communication_is_simulated_with_it(cli: CommandLine, tmp_path: Path) -> None:
    plan = find_schedule("zb-h1").plan(3, 4, 1)
    file = tmp_path / "zb-h1.comms.csv"
    # PyTorch also writes operations on parameters and gradients.
    lines = [
        f"{rank}UNSHARD,{line},{rank}RESHARD"
        for rank, line in enumerate(list_lines(lower_plan(plan)))
    ]
    file.write_text("\n".join(lines), encoding="utf-8")
    printed = []
    for transport in ("streams", "blocking"):
        read = ("--plan", str(file), "--transport", transport, "--json", "-")
        printed.append(cli.json("simulate", *read, *TIMES))

    assert [each["makespan_ms"] for each in printed] == [14.0, 14.0]
    assert [each["carried_makespan_ms"] for each in printed] == [14.0, 17.0]
    sizes = ("--schedule", "zb-h1", "-p", "3", "-m", "4")
    order, carried = tmp_path / "order.csv", ("--transport", "blocking")
    assert main(["simulate", *sizes, "-o", str(order), *TIMES]) == 0
    for words in (sizes, ("--plan", order)):
        unused = cli.refused("simulate", *words, *carried, *TIMES, code=2)
        assert "--transport blocking: only applies to a plan with sends" in unused


def test_a_file_whose_communication_deadlocks_is_refused(cli: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "plan.csv"
    file.write_text(
        "0F0,0SEND_F0,0F1,0RECV_B0,0SEND_F1,0B0,0RECV_B1,0B1\n"
        "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n",
        encoding="utf-8",
    )
    assert (
        cli.refused("simulate", "--plan", str(file), *TIMES, code=1)
        .replace("\n", " ")
        .startswith(
            f"bubbleviz: {file}: the communication deadlocks (transport: streams): rank 0 waits at "
            "0RECV_B0 for rank 1's 1RECV_F1"
        )
    )
    assert main(["simulate", "--plan", str(file), "--transport", "buffered", *TIMES]) == 0
    assert main(["simulate", "--plan", str(file), "--transport", "nccl", *TIMES]) == 2
    assert tuple(transport.name for transport in TRANSPORTS) == CARRIERS
    # The same applies to plans whose operations wait for each other.
    file.write_text("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n", encoding="utf-8")
    assert "this order of operations deadlocks" in cli.refused(
        "simulate", "--plan", str(file), *TIMES, code=1
    )


def read_lowered(*rows: str) -> LoweredPlan:
    return torch_csv.read("\n".join(rows), "plan.csv")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n",
            "rank 0 waits at 0B0 for rank 1's 1B0, which comes after 1F1; "
            "rank 1 waits at 1F1 for rank 0's 0F1, which comes after 0B0",
        ),
        (
            "0F0,0I0,0F1,0W0,0I1,0W1\n1F1,1I1,1W1,1F0,1I0,1W0\n",
            "rank 0 waits at 0I0 for rank 1's 1I0, which comes after 1F1; "
            "rank 1 waits at 1F1 for rank 0's 0F1, which comes after 0I0",
        ),
        # The result of a forward that overlaps a backward is sent after both of them.
        (
            "0F0,(0F1;0B0)OVERLAP_F_B,0B1\n1F0,1F1,1B0,1B1\n",
            "rank 0 waits at 0B0 for rank 1's 1B0, which comes after 1F1; "
            "rank 1 waits at 1F1 for rank 0's 0F1, which comes after 0B0",
        ),
        # A rank of a V-shaped pipeline runs a stage before the stage that it depends on.
        (
            "0F0,3F0,3B0,0B0\n2F0,1F0,2B0,1B0\n",
            "rank 1 runs 2F0 before 1F0, although it needs 1F0 first",
        ),
        (
            "0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n2F1,2F0,2B1,2B0\n",
            "rank 0 waits at 0B0 for rank 1's 1B0, which comes after 1F1; "
            "rank 1 waits at 1F1 for rank 0's 0F1, which comes after 0B0",
        ),
    ],
)
def test_a_deadlocked_order_is_named(text: str, sentence: str) -> None:
    plan = torch_csv.read(text, "plan.csv").plan
    for refused in (check_order, lower_plan):
        with pytest.raises(MismatchError) as error:
            refused(plan)
        assert f"this order of operations deadlocks: {sentence};" in str(error.value)


#: A valid line for the last of two ranks, with two microbatches.
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
        (  # A send before its data exists.
            ("0SEND_F0,0F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1", BEHIND),
            TRANSPORTS,
            "rank 0 runs 0SEND_F0 before 0F0, although it needs 0F0 first",
        ),
        (  # A receive after the operation that needs it.
            (
                "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1",
                "1F0,1RECV_F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1",
            ),
            TRANSPORTS,
            "rank 1 runs 1F0 before 1RECV_F0, although it needs 1RECV_F0 first",
        ),
    ],
)
def test_deadlocked_communication_is_named(
    rows: tuple[str, str], transports: tuple[Transport, ...], sentence: str
) -> None:
    lowered_plan = read_lowered(*rows)
    check_messages(lowered_plan)
    deadlocks = {transport: find_deadlock(lowered_plan, transport) for transport in TRANSPORTS}

    assert {each for each, deadlock in deadlocks.items() if deadlock} == set(transports)
    assert describe_deadlock(deadlocks[transports[0]]) == sentence


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (
            ("0F0,0SEND_F0,0RECV_B0,0B0", "1F0,1B0,1SEND_B0"),
            "rank 1: 1RECV_F0 is missing, but 1F0 needs it",
        ),
        (
            ("0F0,0RECV_B0,0B0", "1RECV_F0,1F0,1B0,1SEND_B0"),
            "rank 0: 0SEND_F0 is missing, but 1F0 needs it",
        ),
        (
            ("0F0,0SEND_F0,0SEND_F0,0RECV_B0,0B0", "1RECV_F0,1F0,1B0,1SEND_B0"),
            "rank 0: 0SEND_F0 appears twice",
        ),
        (
            (
                "0F0,0F1,0SEND_F1,0SEND_F0,0RECV_B0,0B0,0RECV_B1,0B1",
                "1RECV_F0,1RECV_F1,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1",
            ),
            "rank 0 sends 0SEND_F1 when rank 1 expects 1RECV_F0",
        ),
    ],
)
def test_messages_that_do_not_match_are_refused(rows: tuple[str, str], reason: str) -> None:
    with pytest.raises(MismatchError) as refused:
        check_lowered(read_lowered(*rows), BUFFERED)

    assert str(refused.value).startswith(reason)
