"""The gate on runs and edited reports whose ratios are restricted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bubbleviz import analyze
from bubbleviz.cli.app import main
from bubbleviz.errors import InputError
from bubbleviz.report.restrictions import RESTRICTIONS, read_restrictions
from bubbleviz.report.saved import read_pipeline, read_saved
from tests.support.command_line import CommandLine
from tests.support.edited_databases import edit_database
from tests.support.places import EXAMPLE, FIXTURES

LIMIT = ("--max-bubble", "schedule=0.999")
KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"


OF_DEVICE_1 = f"IN (SELECT globalPid >> 24 FROM {KERNELS} WHERE deviceId = 1)"
#: Kernels of some forwards have lost their calls as well.
LOST = (
    "SELECT call.correlationId FROM CUPTI_ACTIVITY_KIND_RUNTIME AS call JOIN NVTX_EVENTS AS own "
    "ON own.globalTid = call.globalTid AND call.start BETWEEN own.start AND own.end "
    f"WHERE own.text GLOB 'F[345].0.0' AND own.globalTid >> 24 {OF_DEVICE_1}"
)
#: Statements that edit the profile, and the expected text of the restriction.
RESTRICTED = {
    "kernels-lost": (
        [f"DELETE FROM {KERNELS} WHERE rowid * 7 % 10 = 3"],
        "incomplete: kernels that were launched are not in the profile",
    ),
    "kernels-left-out": (
        [
            f"UPDATE {KERNELS} SET start = start - 20000000, end = end - 20000000 "
            "WHERE rowid % 47 = 1"
        ],
        "incomplete: kernels have invalid timestamps",
    ),
    "operations-without-gpu-work": (
        [
            f"CREATE TEMP TABLE lost AS {LOST}",
            f"DELETE FROM {KERNELS} WHERE correlationId IN lost",
            "DELETE FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE correlationId IN lost",
        ],
        "incomplete: the GPU work of some operations is not in the profile",
    ),
    "ranks-without-operations": (
        [f"DELETE FROM NVTX_EVENTS WHERE globalTid >> 24 {OF_DEVICE_1}"],
        "maybe incomplete: some GPUs computed as long as the others but ran no named operation",
    ),
}
#: Restrictions that only say that ranks or stages are missing.
PARTS = {"ranks-without-operations", "stages-without-gpu-work"}


def _write_report(arguments: list[str], folder: Path) -> Path:
    file = folder / "report.json"
    assert main(["analyze", *arguments, "--json", str(file)]) == 0
    return file


def _run_gate(cli: CommandLine, report: Path, *options: str) -> tuple[int, str]:
    return cli("gate", str(report), *LIMIT, *options)[:2]


@pytest.mark.parametrize("code", RESTRICTED)
def test_a_restricted_ratio_fails_and_every_output_says_why(
    code: str, tmp_path: Path, cli: CommandLine
) -> None:
    statements, words = RESTRICTED[code]
    path = edit_database(tmp_path / "node0.sqlite", *statements, source=EXAMPLE)
    svg, latex, report = (tmp_path / name for name in ("a.svg", "a.tex", "report.json"))
    outputs = ["--svg", str(svg), "--latex", str(latex), "--json", str(report)]
    head = " ".join(cli.printed("analyze", str(path), *outputs).split("\n\n")[0].split())

    assert f"! {words}" in head
    assert words in svg.read_text()
    assert f"{words[0].upper()}{words[1:]}." in latex.read_text()
    assert {"code": code, "text": words} in json.loads(report.read_text())["restrictions"]
    assert words in " ".join(cli.printed("compare", str(report), str(report)).split())
    simulated = cli.printed("simulate", "--from", str(report), "--schedule", "1f1b")
    assert words in " ".join(simulated.split())
    exit_code, line = _run_gate(cli, report)
    assert (exit_code, line.partition(":")[0]) == (3, "FAILED")
    assert words in line
    # An option can allow only missing ranks and stages.
    allowed, line = _run_gate(cli, report, "--allow-incomplete")
    assert (allowed, line.partition(":")[0]) == ((0, "ok") if code in PARTS else (3, "FAILED"))


@pytest.fixture
def complete_report(saved: Path) -> dict[str, Any]:
    """Return the document of the 1F1B example. It passes the gate."""
    document: dict[str, Any] = json.loads(saved.read_text())
    assert document["restrictions"] == []
    return document


def _write_document(folder: Path, document: dict[str, Any]) -> Path:
    report = folder / "report.json"
    report.write_text(json.dumps(document))
    return report


LATER = "incomplete: something that a later version knows"


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"code": "later", "text": LATER}, LATER),
        ({"code": "later"}, "later"),
        ({"text": LATER}, LATER),
        (
            {"code": "kernels-lost", "text": "in words of a later version"},
            "incomplete: kernels that were launched are not in the profile",
        ),
        ({"code": "stages-may-be-missing"}, "maybe incomplete: stages may be missing"),
    ],
)
def test_no_restricted_report_passes(
    entry: dict[str, str],
    words: str,
    complete_report: dict[str, Any],
    tmp_path: Path,
    cli: CommandLine,
) -> None:
    report = _write_document(tmp_path, {**complete_report, "restrictions": [entry]})

    code, line = _run_gate(cli, report)
    assert (code, line.partition(":")[0]) == (3, "FAILED")
    assert words in line
    allowed = _run_gate(cli, report, "--allow-incomplete")[0]
    assert allowed == (0 if words.startswith("maybe") else 3)


@pytest.mark.parametrize("value", [None, [{"code": 1}], "absent"])
def test_a_report_without_its_restrictions_is_refused(
    value: object, complete_report: dict[str, Any], tmp_path: Path, cli: CommandLine
) -> None:
    document = {**complete_report, "restrictions": value}
    if value == "absent":
        del document["restrictions"]

    message = cli.refused("gate", str(_write_document(tmp_path, document)), *LIMIT, code=1)
    assert "is not a bubbleviz report (" in message
    assert "restrictions" in message


def test_missing_ranks_excuse_no_lost_kernels(
    complete_report: dict[str, Any], tmp_path: Path, cli: CommandLine
) -> None:
    restrictions = [{"code": code, "text": ""} for code in ("kernels-lost", "ranks-missing")]
    code, line = _run_gate(
        cli,
        _write_document(tmp_path, {**complete_report, "restrictions": restrictions}),
        "--allow-incomplete",
    )
    assert code == 3
    assert line.index("ranks of the run") < line.index("kernels that were launched")


@pytest.mark.parametrize("text", ["", "a\n\x1b[2J" + "x" * 10_000])
def test_hostile_words_stay_on_their_line(
    text: str, complete_report: dict[str, Any], tmp_path: Path, cli: CommandLine
) -> None:
    entry = {"code": "later\n", "text": text}
    report = _write_document(tmp_path, {**complete_report, "restrictions": [entry]})

    code, line = _run_gate(cli, report)
    assert code == 3
    assert line.count("\n") == 1
    assert "\x1b" not in line
    assert len(line) < 400


@pytest.mark.parametrize("names", [["rank1"], ["rank0", "rank1"], ["rank0", "rank1", "rank3"]])
def test_a_report_and_its_saved_one_have_the_same_restrictions(
    names: list[str], tmp_path: Path
) -> None:
    profiles = [FIXTURES / "zb-v" / f"{name}.sqlite" for name in names]
    saved = read_saved(str(_write_report([str(path) for path in profiles], tmp_path)))
    report = analyze(profiles)

    assert report.restrictions == read_restrictions(saved.restrictions)
    assert report.restrictions


@pytest.mark.parametrize(
    "code", [restriction.code for restriction in RESTRICTIONS if restriction.no_pipeline_reason]
)
def test_times_without_a_pipeline_are_refused(
    code: str, complete_report: dict[str, Any], tmp_path: Path
) -> None:
    report = _write_document(tmp_path, {**complete_report, "restrictions": [{"code": code}]})

    with pytest.raises(InputError, match="so its times do not describe the stages of a pipeline"):
        read_pipeline(str(report))
    assert read_pipeline(str(_write_document(tmp_path, complete_report))).restrictions == []
