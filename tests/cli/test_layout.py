"""``bubbleviz layout`` on tables, reports and profiles: text, files and refusals."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bubbleviz.cli.app import main
from tests.planting import Planting, plant
from tests.support.command_line import CommandLine
from tests.support.places import FIXTURES

ROWS = ["embedding,0.3,0.2,0.3,1,1"] + [f"layers.{n},1,1.1,0.9,2,1" for n in range(6)]
TABLE = "\n".join(
    ["name,forward_ms,backward_ms,weight_ms,memory,resident", *ROWS, "head,2,2,2,1,1", ""]
)
SIZES = ("-p", "2", "-m", "4")


@pytest.fixture
def layers(tmp_path: Path) -> str:
    file = tmp_path / "layers.csv"
    file.write_text(TABLE)
    return str(file)


def test_a_table_becomes_options_of_frameworks(layers: str, cli: CommandLine) -> None:
    out = cli.printed("layout", "--layers", layers, *SIZES, "--schedule", "1f1b")

    assert "8 layers on 2 devices, 4 microbatches" in out
    assert "--pipeline-model-parallel-layout 'Et*4|ttL'" in out
    assert '["layers.4", "layers.5", "norm", "output"]]' in out


def test_files_contain_all_schedules(layers: str, tmp_path: Path) -> None:
    files = [str(tmp_path / f"out.{suffix}") for suffix in ("json", "csv", "svg")]
    outputs = [word for file in files for word in ("-o", file)]
    assert main(["layout", "--layers", layers, *SIZES, *outputs]) == 0
    document = json.loads(Path(files[0]).read_text())

    assert document["schema"] == "bubbleviz.layout/1"
    by_name = {row["schedule"]: row for row in document["schedules"]}
    best = by_name["1f1b"]
    assert best["proven"]
    assert best["layout"]["megatron"] == "Et*4|ttL"
    assert [len(stage["layers"]) for stage in best["layout"]["stages"]] == [5, 3]
    assert best["before"]["own"] is False
    assert best["least_makespan_ns"] == best["makespan_ns"]
    rows = list(csv.DictReader(Path(files[1]).read_text().splitlines()))
    assert [row["stage:1f1b"] for row in rows] == ["0"] * 5 + ["1"] * 3
    ElementTree.parse(files[2])
    assert main(["layout", "--layers", files[1], *SIZES]) == 0


def test_a_picture_says_if_no_layer_moves(tmp_path: Path) -> None:
    table, svg = tmp_path / "even.csv", tmp_path / "out.svg"
    table.write_text("name,forward_ms,backward_ms\n" + "".join(f"l.{i},1,2\n" for i in range(4)))
    assert (
        main(["layout", "--layers", str(table), *SIZES, "-o", str(svg), "--schedule", "gpipe"]) == 0
    )

    content = svg.read_text()
    assert "ms; no layer moves" in content
    assert ">after<" not in content


def test_devices_have_stages_of_both_directions(
    layers: str, tmp_path: Path, cli: CommandLine
) -> None:
    svg = tmp_path / "out.svg"
    words = ("--schedule", "dualpipe", "-o", svg)
    out = cli.printed("layout", "--layers", layers, *SIZES, *words)

    assert "    0    0, 1       4" in out
    # Both devices have all layers, so the time is 0.8 + 6 x 3 + 6 ms.
    assert svg.read_text().count(">24.80") == 2


def test_a_memory_limit_has_the_unit_of_the_table(
    cli: CommandLine, layers: str, tmp_path: Path
) -> None:
    words = ["layout", "--layers", layers, *SIZES, "--schedule", "1f1b", "--json", "-"]
    document = cli.json(*words, "--memory-limit", "20")
    assert document["memory"]["limit"] == [20, 20]
    assert max(document["schedules"][0]["peak_memory"]) <= 20
    assert cli.json(*words, "--memory-limit", "2")["schedules"][0]["layout"] is None
    printed = cli.printed(*words[:-2], "--memory-limit", "2")
    assert "No layout found fits in memory; the closest is the old layout with 1f1b, " in printed
    assert "best of all" not in printed
    in_bytes = tmp_path / "bytes.csv"
    in_bytes.write_text(TABLE.replace(",2,1\n", ",2GB,1GB\n").replace(",1,1\n", ",1GB,1GB\n"))
    words[2] = str(in_bytes)
    assert cli.json(*words, "--memory-limit", "80GB")["memory"]["in_bytes"]
    assert "the memory of the layers is in bytes" in cli.refused(
        "layout", *words[1:], "--memory-limit", "8"
    )


def test_a_run_is_compared_with_its_own_layout(tmp_path: Path, cli: CommandLine) -> None:
    layers = (100, 100, 100, 100, 100, 300)
    plant(Planting(stages=2, layers=layers, layer_counts=(3, 3)), tmp_path)
    out = cli.printed("layout", str(tmp_path))

    assert "1f1b (ran)" in out
    assert "before: the run's own layout" in out
    assert "assumed to take half of the backward" in out


def test_missing_arguments_are_named(layers: str, tmp_path: Path, cli: CommandLine) -> None:
    short_table = tmp_path / "few.csv"
    short_table.write_text("\n".join(TABLE.splitlines()[:2]))
    table = ("--layers", layers)

    assert "pass the profiles of a run, or a table" in cli.refused("layout")
    assert "pass -p P and -m M" in cli.refused("layout", *table)
    assert "remove the run" in cli.refused("layout", str(FIXTURES / "1f1b"), *table)
    assert "unknown schedule 'x'" in cli.refused("layout", *table, *SIZES, "--schedule", "x")
    assert "not an amount" in cli.refused("layout", *table, *SIZES, "--memory-limit", "much")
    assert "the forwards contain no layer ranges" in cli.refused("layout", str(FIXTURES / "1f1b"))
    assert "each device needs at least one" in cli.refused(
        "layout", "--layers", str(short_table), *SIZES, "--schedule", "1f1b"
    )  # fmt: skip
    assert "1 layer for 2 devices: each device needs at least one" in cli.refused(
        "layout", "--layers", str(short_table), *SIZES
    )
    assert "not a number" in cli.refused(
        "layout", str(FIXTURES / "1f1b"), "--layers-per-stage", "a"
    )
