"""Plan files: read, written, simulated, and compared with the executed order."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bubbleviz
from bubbleviz.errors import InputError, UsageError
from bubbleviz.model.phases import Phase
from bubbleviz.schedules.communication import torch_csv
from bubbleviz.schedules.communication.torch_csv import read_file
from bubbleviz.schedules.known import find_schedule
from bubbleviz.schedules.plan import Plan, PlannedOperation
from tests.planting import Planting, plant
from tests.support.command_line import CommandLine
from tests.support.needs import get_reference_file
from tests.support.published_orders import ONE_WAY

TIMES = ("--tf", "1", "--tb", "1", "--tw", "1")


def read(text: str) -> Plan:
    return torch_csv.read(text, "plan.csv").plan


@pytest.mark.real_files
def test_files_written_by_pytorch_are_the_schedules(subtests: pytest.Subtests) -> None:
    for file, name in [
        ("DualPipeV.2ranks.4mb.csv", "dualpipev"),
        ("Interleaved1F1B.2ranks.4mb.csv", "interleaved-1f1b"),
        ("ZBVZeroBubble.2ranks.4mb.csv", "zb-v"),
        ("ZBVZeroBubble.2ranks.4mb.comms.csv", "zb-v"),
    ]:
        with subtests.test(file=file):
            plan = read_file(str(get_reference_file(f"torch_csv/{file}"))).plan
            expected_plan = find_schedule(name).plan(2, 4, 2)

            assert plan.name == file
            assert (plan.orders, plan.placement) == (expected_plan.orders, expected_plan.placement)
            assert (plan.chunks, plan.microbatches) == (2, 4)
            assert plan.together == expected_plan.together


@settings(max_examples=60)
@given(st.sampled_from(ONE_WAY), st.integers(1, 5), st.integers(1, 4), st.integers(1, 3))
def test_a_plan_equals_its_file(rule: Any, p: int, groups: int, chunks: int) -> None:
    try:
        plan = rule.plan(p, p * groups, chunks)
    except UsageError:
        plan = rule.plan(p, 2 * p * groups, rule.chunks)

    assert torch_csv.read(torch_csv.write(plan), plan.name).plan == plan


@settings(max_examples=60)
@given(st.data())
def test_any_valid_order_equals_its_file(data: st.DataObject) -> None:
    """Stages may be on any rank, with operations in any sequence that begins with F."""
    p, v, m = (data.draw(st.integers(1, 3)) for _ in range(3))
    placement = data.draw(st.permutations([device for device in range(p) for _ in range(v)]))
    chains: list[list[list[PlannedOperation]]] = [[] for _ in range(p)]
    for stage, device in enumerate(placement):
        for microbatch in range(m):
            fused = data.draw(st.booleans())
            phases = (Phase.F, Phase.BW) if fused else (Phase.F, Phase.B, Phase.W)
            chains[device].append([PlannedOperation(stage, x, microbatch) for x in phases])
    orders = []
    for chains_of_rank in chains:
        order = []
        while any(chains_of_rank):
            chosen = data.draw(st.sampled_from([chain for chain in chains_of_rank if chain]))
            order.append(chosen.pop(0))
        orders.append(tuple(order))
    together = frozenset(
        one
        for order in orders
        for one, after in pairwise(order)
        if one.phase is Phase.F and after.phase in (Phase.B, Phase.BW) and data.draw(st.booleans())
    )
    plan = Plan("x", p, m, v, tuple(placement), tuple(orders), together=together)

    assert torch_csv.read(torch_csv.write(plan), "x").plan == plan


@pytest.mark.parametrize(
    ("line", "phases"),
    [
        ("0F0,0B0,0W0", (Phase.F, Phase.B, Phase.W)),
        ("0F0,0I0,0W0", (Phase.F, Phase.B, Phase.W)),
        ("0F0,0BW0", (Phase.F, Phase.BW)),
        (" 0F0 ,, 0B0 ,,", (Phase.F, Phase.BW)),
    ],
)
def test_letters_of_old_and_new_files_are_read(line: str, phases: tuple[Phase, ...]) -> None:
    assert tuple(op.phase for op in read(line).orders[0]) == phases


def test_numbers_count_from_zero() -> None:
    """So do forwards of the last rank, which PyTorch numbers from 1 to m in single-stage 1F1B."""
    slipped = read("0F0,0F1,0B0,0B1\n1F1,1B0,1F2,1B1\n")
    from_one = read("0F1,0F2,0B1,0B2\n1F1,1B1,1F2,1B2\n")
    plan = find_schedule("1f1b").plan(2, 2, 1)

    assert slipped.orders == from_one.orders == plan.orders


BAD = {
    **dict.fromkeys(("", "\n\n", ",,\n", "0SEND_F0,0RECV_B0"), "contains no operation"),
    "0F0,0X0": "row 1, cell 2: '0X0' is not an operation; write cells as 0F3",
    "0F0,F0": "row 1, cell 2: 'F0' is not an operation",
    "stage,order\n0F0,0B0": "row 1, cell 1: 'stage' is not an operation",
    "0F0,=HYPERLINK(1)": "'=HYPERLINK\\(1\\)' is not an operation",
    "0F0,\x1b[31m": r"'\[31m' is not an operation",
    "0F0,<script>": "'<script>' is not an operation",
    "0F٣": "is not an operation",
    "0F0," + "9" * 5000: "9…' is not an operation",
    "999999F0": "row 1, cell 1: stage 999999 is out of range",
    "0F0,0F0,0B0": "row 1, cell 2: 0F0 repeats 0F0 in row 1, cell 1",
    "0F0,0B0,0I0,0W0": "row 1, cell 3: 0I0 repeats 0B0 in row 1, cell 2",
    "0F0\n0B0": "row 2, cell 1: stage 0 is already in row 1",
    "0F0,0B0\n\n1F0,1B0": "row 2 is empty",
    "1F0,1B0": "no row contains stage 0 of 2",
    "0F0,0B0\n1F0,1B0,2F0,2B0": "row 2 has 2 stages, but row 1 has 1",
    "0F0,0I0": "row 1: the weight gradient \\(W\\) of microbatch 0",
    "0F0,0F1,0BW0,0B1": "the weight gradient \\(W\\) of microbatch 1",
    "0F0,0W0": "row 1: the backward of microbatch 0",
    "0F0,0B0\n1F0,1B0,1F1,1B1": "row 1: the forward of microbatch 1",
    "0B0,0F0": "row 1, cell 2: 0F0 comes after an operation that needs it",
    "(0F0;0F1)OVERLAP_F_B": "'\\(0F0;0F1\\)OVERLAP_F_B' is not a forward overlapped with",
    "(0F0;0W1)OVERLAP_F_B": "is not a forward overlapped with a backward",
    "(0F0;1B0;2B0)OVERLAP_F_B": "is not an operation",
    "0F0,1SEND_F0,0B0\n1F0,1B0\n": "row 1, cell 2: 1SEND_F0 involves stage 2",
    "0F0,1RECV_F0,0B0\n1F0,1B0\n": "row 1, cell 2: 1RECV_F0 is on rank 0",
    "0F0,1F0,0SEND_F0,1B0,0B0\n": "row 1, cell 3: 0SEND_F0 stays on rank 0",
    "0F0\0": "a NUL character",
    '"' + "a" * 200_000: "not a valid CSV file",
}


@pytest.mark.parametrize("text", BAD, ids=lambda text: repr(text[:24]))
def test_invalid_plans_are_refused_with_row_and_cell(text: str) -> None:
    with pytest.raises(InputError, match=BAD[text]) as refused:
        read(text)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 400


@settings(max_examples=100)
@given(st.text(alphabet='0123FIWB_,;()\n "OVERLAPSEND', max_size=60))
def test_any_text_is_a_plan_or_refused(text: str) -> None:
    try:
        plan = read(text)
    except InputError:
        return
    assert torch_csv.read(torch_csv.write(plan), plan.name).plan == plan


def test_unreadable_plan_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "binary.csv").write_bytes(b"0F0,\xff\xfe")
    (tmp_path / "marked.csv").write_bytes(b"\xef\xbb\xbf0F0,0B0\r\n")
    for name, message in (
        ("none.csv", "no such file"),
        ("binary.csv", "not UTF-8 text \\(byte 4\\)"),
        ("plan.yaml", "plans are read from .csv files"),
        (".csv", "not a plan file"),
    ):
        with pytest.raises(InputError, match=message):
            read_file(str(tmp_path / name))
    with pytest.raises(InputError, match="cannot be read"):
        read_file("a\0.csv")
    with pytest.raises(UsageError, match="the two directions of dualpipe"):
        torch_csv.write(find_schedule("dualpipe").plan(4, 8, 1))
    assert read_file(str(tmp_path / "marked.csv")).plan.microbatches == 1


@pytest.mark.parametrize("name", ["zb-h1", "zb-v", "dualpipev", "interleaved-1f1b"])
def test_a_written_plan_costs_what_its_schedule_costs(
    cli: CommandLine, tmp_path: Path, name: str
) -> None:
    file = tmp_path / "plan.csv"
    sizes = ("--schedule", name, "-p", "4", "-m", "8")
    cli.printed("simulate", *sizes, *TIMES, "--csv", file)
    written_cost, expected_cost = (
        cli.json("simulate", *words, *TIMES, "--json", "-") for words in (("--plan", file), sizes)
    )

    assert written_cost.pop("schedule") == "plan.csv"
    assert expected_cost.pop("schedule") == name
    assert written_cost == expected_cost
    printed = cli.printed("simulate", "--plan", file, *TIMES)
    assert "plan.csv: the order in this file" in printed
    # Input files are never overwritten.
    cli.refused("simulate", "--plan", file, *TIMES, "--csv", file, "--force", code=1)


@pytest.mark.parametrize(
    ("options", "expected", "code"),
    [
        ((), "pass --schedule NAME, -p P and -m M, or --plan FILE", 2),
        (("--schedule", "1f1b", "-p", "2"), "pass -m M, or --plan FILE", 2),
        (("--plan", "x.csv", "--schedule", "1f1b"), "remove the options for them", 2),
        (("--plan", "x.csv", "--chunks", "2"), "remove the options for them", 2),
        (("--plan", "nowhere.csv"), "nowhere.csv: no such file; check the path", 1),
    ],
)
def test_wrong_usage(cli: CommandLine, options: tuple[str, ...], expected: str, code: int) -> None:
    assert expected in cli.refused("simulate", *options, *TIMES, code=code)


def test_the_order_that_ran_is_compared_with_a_plan(cli: CommandLine, tmp_path: Path) -> None:
    truth = plant(Planting(kernels=1), tmp_path)
    profile = str(tmp_path / truth.files[0].path)
    meant, other, wrong = (tmp_path / name for name in ("same.csv", "=1+1.csv", "wrong.csv"))
    plan = find_schedule("1f1b").plan(4, 8, 1)
    meant.write_text(torch_csv.write(plan), encoding="utf-8")
    text = torch_csv.write(plan).replace("2B0,2F2,2B1", "2F2,2B0,2B1")
    other.write_text(text, encoding="utf-8")
    wrong.write_text(torch_csv.write(find_schedule("1f1b").plan(4, 4, 1)), encoding="utf-8")

    matching_plan = bubbleviz.analyze(profile, plan=meant).plan
    assert matching_plan is not None
    assert (matching_plan.name, matching_plan.exact, matching_plan.deviations) == (
        "same.csv",
        True,
        (),
    )

    document = cli.json("analyze", profile, "--plan", str(other), "--json", "-")
    assert document["schedule"]["name"] == "1f1b"
    assert document["schedule"]["exact"] is True
    assert document["plan"]["exact"] is False
    assert document["plan"]["deviation_count"] == 2
    deviation = document["plan"]["deviations"][0]
    assert (deviation["rank"], deviation["iteration"], deviation["places"]) == (2, 0, 1)
    assert (deviation["phase"], deviation["microbatch"], deviation["what"]) in (
        ("F", 2, "late"),
        ("BW", 0, "early"),
    )

    table = " ".join(cli.printed("analyze", profile, "--plan", str(other)).split())
    assert "1f1b on 4 ranks of 1 host, 2 of 2 iterations averaged" in table
    assert (
        "plan: =1+1.csv (1.56 % of operations out of order, order matches in 0 of 2 iterations)"
        in table
    )
    operation = f"{deviation['phase']}{deviation['microbatch']}"
    assert f"node0 GPU 2, iteration 0: {operation} {deviation['what']} by 1" in table

    assert (
        "--plan wrong.csv: the plan has 4 stages with 1 chunk each and 4 microbatches"
        in cli.refused("analyze", profile, "--plan", str(wrong), code=1)
    )
