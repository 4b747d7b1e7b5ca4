"""Instruction costs compared with estimates, and the command."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from bubbleviz.analyses.pgle import measure_costs
from bubbleviz.analyses.pgle import text as pgle_text
from bubbleviz.analyses.pgle.costs import compare_costs, csv_of_comparison
from bubbleviz.analyses.pgle.files import pb, pbtxt, read_costs
from bubbleviz.cli.app import main
from bubbleviz.render.text.terminal import plain_text
from tests.support.xla_runs import NCCL, Run, notes, steps, told


def test_estimates_are_held_against_a_profile(tmp_path: Path) -> None:
    costs = measure_costs(steps(2).written(tmp_path))
    found = compare_costs(
        costs.instructions, {"fusion.1": 0.5, "all-gather-start.2": 2.54, "gone.1": 3.0}
    )

    # 0.540 us and 1.001 us were measured.
    assert [(own.name, us) for own, us in found.differences] == [
        ("all-gather-start.2", 2.54),
        ("fusion.1", 0.5),
    ]
    assert [own.cost_us for own, _ in found.differences] == pytest.approx([0.54, 1.001])
    assert (found.unmeasured, found.unestimated) == ({"gone.1": 3.0}, {})
    rows = list(csv.DictReader(io.StringIO(csv_of_comparison(found))))
    assert [float(row["off_us"]) for row in rows] == pytest.approx([-2.0, 0.501])
    assert [float(row["ratio"]) for row in rows] == pytest.approx([0.54 / 2.54, 2.002])
    shown = plain_text(pgle_text.comparison_sections(found))
    assert "sum of 2" in shown
    assert "sum of absolute errors: 2.501 us" in shown
    assert "estimated, not in the profile: 1 instruction, 3.000 us (gone.1)" in shown

    # Fingerprints of modules are taken off; of equal differences the names decide.
    for estimates, names in (
        ({"90ab::fusion.1": 1.0, "12cd::fusion.1": 2.0}, ["fusion.1"]),
        ({"fusion.1": 1.001, "all-gather-start.2": 0.54}, ["all-gather-start.2", "fusion.1"]),
        ({"fusion.1": 0.0}, ["fusion.1"]),
        ({}, []),
    ):
        again = compare_costs(costs.instructions, estimates)
        assert [own.name for own, _ in again.differences] == names
        assert len(again.unestimated) == 2 - len(names)
    assert csv_of_comparison(compare_costs(costs.instructions, {"fusion.1": 0.0})).count(",,") == 1


# The command


def called(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(["pgle", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_command_writes_text_and_binary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = steps(4).written(tmp_path)
    before = path.read_bytes()
    expected = {"all-gather-start.2": 0.54, "fusion.1": 1.002}

    text, binary = tmp_path / "costs.pbtxt", tmp_path / "costs.pb"
    code, out, err = called(capsys, path, "-o", text)
    assert (code, err) == (0, "")
    assert (
        "2 instructions, of them 1 collective; p90 of executions and devices: 6 executions" in out
    )
    assert "--xla_gpu_enable_latency_hiding_scheduler=false" in out
    assert f"--xla_gpu_pgle_profile_file_or_directory_path={text}\n" in out
    assert called(capsys, path, "-o", binary)[0] == 0
    assert read_costs(str(text)) == read_costs(str(binary)) == expected
    assert pbtxt.read(text.read_bytes()) == pb.read(binary.read_bytes())
    assert called(capsys, path, "-o", "-")[:2] == (0, text.read_text())
    assert path.read_bytes() == before
    assert {file.name for file in tmp_path.iterdir()} == {"jax.sqlite", text.name, binary.name}


def test_nothing_is_replaced_without_force(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, file = steps(2).written(tmp_path), tmp_path / "costs.pbtxt"
    file.write_text("mine")

    code, out, err = called(capsys, path, "-o", file)
    assert (code, out, file.read_text()) == (1, "", "mine")
    assert "--force" in err
    assert called(capsys, path, "-o", file, "--force")[0] == 0
    assert file.read_text() != "mine"
    assert called(capsys, path, "-o", path, "-f")[0] == 1
    (tmp_path / "costs.jit_step_7_.pbtxt").write_text("mine")
    code, _, err = called(capsys, path, "--modules", "-o", file)
    assert (code, (tmp_path / "costs.jit_step_7_.pbtxt").read_text()) == (1, "mine")
    assert "costs.jit_step_7_.pbtxt: exists already" in err
    code, out, _ = called(capsys, path, "--modules", "-o", tmp_path / "apart.pbtxt")
    assert code == 0
    apart = tmp_path / "apart.jit_step_7_.pbtxt"
    assert read_costs(str(apart))["fusion.1"] == 1.001
    assert f"path={apart}\n" in out
    assert not (tmp_path / "apart.pbtxt").exists()

    # Without a file they are shown; what XLA does not read is told.
    code, out, err = called(capsys, path)
    assert (code, err) == (0, "")
    shown = [line.split() for line in out.splitlines() if line.startswith("fusion.1")]
    assert shown == [["fusion.1", "1.001", "1", "compute"]]
    other = tmp_path / "costs.txt"
    assert called(capsys, path, "-o", other)[2].endswith(
        f"{other}: written as text, but XLA reads files that end with .pb or .pbtxt alone; "
        "name it so\n"
    )


def test_the_command_compares(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, file, table = steps(2).written(tmp_path), tmp_path / "a.pb", tmp_path / "off.csv"
    file.write_bytes(pb.write({"fusion.1": 0.5, "=gone": 3.0, "all-gather-start.2": 0.54}))
    code, out, err = called(capsys, path, "--against", file, "--csv", table)

    assert (code, err) == (0, "")
    lines = out.splitlines()
    rows = [at for at, line in enumerate(lines) if line.startswith(("fusion.1 ", "all-gather"))]
    assert lines[rows[0]].split() == ["fusion.1", "0.500", "1.001", "2.002", "+0.501", "1"]
    assert lines[rows[1]].startswith("all-gather-start.2")
    assert "estimated, not in the profile: 1 instruction, 3.000 us (=gone)" in out
    read = list(csv.DictReader(io.StringIO(table.read_text())))
    assert [row["instruction"] for row in read] == ["fusion.1", "all-gather-start.2"]
    assert float(read[0]["ratio"]) == pytest.approx(2.002)


def test_limitations_go_to_standard_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run()
    for _ in range(2):
        with run.module():
            run.thunk("all-gather-start.1", 1_000, kernel=NCCL, stream=8)
            run.thunk("fusion.2", 1_000)
            run.thunk("all-gather-done.1")
    code, out, err = called(capsys, run.written(tmp_path), "-o", "-")

    assert code == 0
    assert set(pbtxt.read(out.encode())) == {("all-gather-start.1", 1.0), ("fusion.2", 1.0)}
    assert [line.split(": ")[:3] for line in err.splitlines()] == [
        ["bubbleviz", "warning", "collectives overlap compute"],
        ["bubbleviz", "warning", "asynchronous collectives (2 times)"],
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--aggregate", "p101"], "not one of"),
        (["--aggregate-collectives", "most"], "not one of"),
        (["--csv", "x.csv"], "--against"),
        (["--modules", "--against", "x.pb"], "--module NAME"),
        (["--modules", "-o", "-"], "name a file"),
        (["--module", "jit_other"], "jit_step(7)"),
        (["--skip", "-1"], "--skip"),
    ],
)
def test_wrong_usage_is_one_sentence(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = called(capsys, steps(2).written(tmp_path), *arguments)

    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


def test_hostile_names_are_inert_everywhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["<script>x", "a\nb\x1b[2J", "=1+1", '" } costs { name: "', "z" * 10_000, "größe"]
    run = Run()
    for _ in range(2):
        with run.module("<b>\n" + "m" * 10_000):
            for name in names:
                run.thunk(name, 1_000)
    path, file = run.written(tmp_path), tmp_path / "costs.pbtxt"
    assert called(capsys, path, "-o", file)[0] == 0
    _, shown, _ = called(capsys, path)
    code, out, _ = called(capsys, path, "--against", file, "--csv", "-")

    assert code == 0
    assert read_costs(str(file)) == dict.fromkeys(names, 1.0)
    assert all(c.isprintable() or c == "\n" for c in shown)
    assert max(map(len, shown.splitlines())) < 250
    cells = {row["instruction"] for row in csv.DictReader(io.StringIO(out))}
    assert not any(cell.startswith("=") for cell in cells)


def test_a_report_is_exported_and_goes_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = steps(2)
    run.launch(10)
    export = run.written(tmp_path)
    report, program = tmp_path / "jax.nsys-rep", tmp_path / "bin" / "nsys"
    report.write_bytes(b"not what SQLite writes")
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nshift 4; cp {export} "$1"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    costs = measure_costs(report)

    assert told(costs) == told(measure_costs(export))
    loose = [n for n in costs.limitations if n.what == "work outside every instruction"]
    assert [n.reason.split(":")[0] for n in loose] == [str(report)]


@pytest.mark.parametrize("content", ["", 'costs { name: "other" cost_us: 7 }\n'])
def test_that_no_instruction_is_compared_is_reported(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    estimates = tmp_path / "estimates.pbtxt"
    estimates.write_text(content)
    code, out, _ = called(capsys, steps(2).written(tmp_path), "--against", estimates)

    assert code == 0
    assert "no instruction is both estimated and in the profile" in out
    assert "sum of absolute errors: -\n" in out
    assert "largest error first" not in out


def test_limitations_of_clocks_are_no_warnings(tmp_path: Path) -> None:
    costs = measure_costs(steps(2).written(tmp_path))

    assert "what the GPUs are" in notes(costs)
    assert pgle_text.warnings(costs.limitations) == ()
