"""``bubbleviz layout``: from tables, reports and profiles to text, files and refusals."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bubbleviz.cli.app import main
from tests.planting import Planting, plant
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


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main(["layout", *words]) in {1, 2}
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    return err


def test_a_table_becomes_options_of_frameworks(
    layers: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["layout", "--layers", layers, *SIZES, "--schedule", "1f1b"]) == 0
    out = capsys.readouterr().out

    assert "8 layers on 2 devices, 4 microbatches" in out
    assert "--pipeline-model-parallel-layout 'Et*4|ttL'" in out
    assert '["layers.4", "layers.5", "norm", "output"]]' in out


def test_files_hold_all_schedules(layers: str, tmp_path: Path) -> None:
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


def test_a_file_is_named_once(
    layers: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    same = str(tmp_path / "x.memory.svg")
    given = "--layers", layers, *SIZES, "--schedule", "1f1b", "-o", same

    assert "same file" in refused(capsys, *given, "-o", same)
    assert "same file" in refused(capsys, *given, "--svg", same)
    assert not Path(same).exists()


def test_the_same_question_has_the_same_bytes(layers: str, tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.json" for number in range(2)]
    for file in files:
        assert main(["layout", "--layers", layers, *SIZES, "--json", str(file)]) == 0

    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_memory_limit_has_the_unit_of_the_table(
    layers: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["layout", "--layers", layers, *SIZES, "--schedule", "1f1b", "--json", "-"]
    assert main([*words, "--memory-limit", "20"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["memory"]["limit"] == [20, 20]
    assert max(document["schedules"][0]["peak_memory"]) <= 20
    assert main([*words, "--memory-limit", "2"]) == 0
    assert json.loads(capsys.readouterr().out)["schedules"][0]["layout"] is None
    in_bytes = tmp_path / "bytes.csv"
    in_bytes.write_text(TABLE.replace(",2,1\n", ",2GB,1GB\n").replace(",1,1\n", ",1GB,1GB\n"))
    words[2] = str(in_bytes)
    assert main([*words, "--memory-limit", "80GB"]) == 0
    assert json.loads(capsys.readouterr().out)["memory"]["in_bytes"]
    assert "memory is measured in bytes" in refused(capsys, *words[1:], "--memory-limit", "8")


def test_a_run_is_compared_with_its_own_layout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    layers = (100, 100, 100, 100, 100, 300)
    plant(Planting(stages=2, layers=layers, layer_counts=(3, 3)), tmp_path)
    assert main(["layout", str(tmp_path)]) == 0
    out = capsys.readouterr().out

    assert "1f1b (ran)" in out
    assert "before: the run's own layout" in out
    assert "halves of the backward" in out


def test_what_is_missing_is_told(
    layers: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = tmp_path / "few.csv"
    few.write_text("\n".join(TABLE.splitlines()[:2]))
    table = ("--layers", layers)

    assert "give the profiles of a run, or a table" in refused(capsys)
    assert "give -p P and -m M" in refused(capsys, *table)
    assert "leave out the run" in refused(capsys, str(FIXTURES / "1f1b"), *table)
    assert "no schedule is called 'x'" in refused(capsys, *table, *SIZES, "--schedule", "x")
    assert "no amount of memory" in refused(capsys, *table, *SIZES, "--memory-limit", "much")
    assert "no ranges of layers inside forwards" in refused(capsys, str(FIXTURES / "1f1b"))
    assert "each needs one" in refused(
        capsys, "--layers", str(few), *SIZES, "--schedule", "1f1b"
    )  # fmt: skip
    assert "no numbers" in refused(capsys, str(FIXTURES / "1f1b"), "--layers-per-stage", "a")


def test_a_report_needs_the_numbers_of_layers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.json"
    assert main(["analyze", str(FIXTURES / "1f1b"), "--json", str(report)]) == 0

    assert "give --layers-per-stage" in refused(capsys, str(report))
    many = refused(capsys, str(report), "--layers-per-stage", "999999999999")
    assert "more than 1,000 layers" in many
    assert main(["layout", str(report), "--layers-per-stage", "4", "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert len(document["layers"]) == 16
    assert "equal part" in document["assumptions"][0]
