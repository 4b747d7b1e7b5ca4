"""``bubbleviz plan`` turns reports and profiles into orders that other programs read."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bubbleviz.cli.app import main
from bubbleviz.model.phases import Phase
from bubbleviz.schedules.communication.torch_csv import read_file
from tests.planting import Planting, plant
from tests.support.command_line import CommandLine
from tests.support.places import FIXTURES

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a report of each of two fixtures."""
    folder = tmp_path_factory.mktemp("reports")
    for name in ("1f1b", "zb-v"):
        out = str(folder / f"{name}.json")
        assert main(["analyze", str(FIXTURES / name), "--json", out]) == 0
    return folder


def planned(*words: str) -> dict[str, object]:
    file = Path(words[-1])
    assert main(["plan", *words[:-1], "-o", str(file)]) == 0
    document = json.loads(file.read_text())
    assert isinstance(document, dict)
    return document


def test_plan_files_are_in_formats_that_runtimes_read(reports: Path, tmp_path: Path) -> None:
    endings = ("csv", "json", "svg")
    files = {ending: tmp_path / f"plan.{ending}" for ending in endings}
    outputs = [word for file in files.values() for word in ("-o", str(file))]
    assert main(["plan", str(reports / "zb-v.json"), *outputs]) == 0
    document = json.loads(files["json"].read_text())
    plan = read_file(str(files["csv"])).plan

    assert document["schema"] == "bubbleviz.plan/1"
    assert plan.placement == (0, 1, 2, 3, 3, 2, 1, 0)
    rows = [
        [(op.virtual_stage, op.phase.label, op.microbatch) for op in order] for order in plan.orders
    ]
    ran = [
        [(op["virtual_stage"], op["phase"], op["microbatch"]) for op in order]
        for order in document["best"]["orders"]
    ]
    assert ran == rows
    assert document["lower_bound_ns"] <= document["best"]["makespan_ns"]
    assert document["best"]["makespan_ns"] <= document["run"]["simulated"]["makespan_ns"]
    assert max(document["best"]["peak_memory"]) <= max(document["workload"]["memory_limit"])
    ElementTree.parse(files["svg"])


def test_profiles_and_their_report_give_the_same_plan(reports: Path, tmp_path: Path) -> None:
    of_report = planned(str(reports / "1f1b.json"), str(tmp_path / "a.json"))
    of_profiles = planned(str(FIXTURES / "1f1b"), str(tmp_path / "b.json"))

    assert of_report == of_profiles


def test_uneven_stages_have_a_better_order(tmp_path: Path) -> None:
    uneven = Planting(
        schedule="interleaved-1f1b",
        chunks=2,
        stages=4,
        microbatches=8,
        slow_stage=1,
        slow_factor=1.5,
        transfer_ns=100_000,
        slow_link=2,
        slow_link_factor=8,
    )
    plant(uneven, tmp_path)
    document = planned(str(tmp_path), str(tmp_path / "plan.json"))

    best = document["best"]
    assert isinstance(best, dict)
    assert best["saving"] > 0


def test_a_limit_in_bytes_needs_bytes(reports: Path, cli: CommandLine) -> None:
    report = str(reports / "1f1b.json")

    assert "pass --memory-b in bytes as well" in cli.refused(
        "plan", report, "--memory-limit", "8GB"
    )
    assert "pass a size such as 80GB" in cli.refused(
        "plan", report, "--memory-b", "2GB", "--memory-limit", "8"
    )
    assert "different units" in cli.refused("plan", report, "--memory-b", "2GB", "--memory-w", "1")
    assert "cannot exceed M_B" in cli.refused("plan", report, "--memory-b", "2", "--memory-w", "3")
    assert "is too small: on device 0, a single microbatch needs" in cli.refused(
        "plan", report, "--memory-limit", "0.5"
    )
    words = ["--memory-b", "2GB", "--memory-w", "1GB", "--memory-limit", "6GB"]
    out = cli.printed("plan", report, *words)
    assert "at most 6.00 GB of activations per device" in out
    assert "more memory" in out


def test_a_split_backward_is_planned_if_it_is_allowed(reports: Path, tmp_path: Path) -> None:
    file = str(tmp_path / "split.csv")
    assert main(["plan", str(reports / "1f1b.json"), "--backward", "split", "-o", file]) == 0
    plan = read_file(file).plan

    assert any(op.phase is Phase.W for order in plan.orders for op in order)


def test_what_cannot_be_planned_is_refused(reports: Path, tmp_path: Path, cli: CommandLine) -> None:
    report = str(reports / "1f1b.json")

    assert "one report" in cli.refused("plan", report, report)
    assert "apply only to profiles" in cli.refused("plan", report, "--skip", "1")
    assert "unknown suffix" in cli.refused("plan", report, "-o", str(tmp_path / "x.parquet"))
    csv_path = str(tmp_path / "x.csv")
    assert "two outputs have this path" in cli.refused(
        "plan", report, "--csv", csv_path, "-o", csv_path
    )
    (tmp_path / "empty.json").write_text("{}")
    assert "is not a bubbleviz report" in cli.refused("plan", str(tmp_path / "empty.json"))
