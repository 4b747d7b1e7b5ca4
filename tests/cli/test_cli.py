"""Output, files and exit codes of the command line."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path

import pytest

from bubbleviz.cli.app import main
from bubbleviz.render.formats import list_renderers
from tests.support.command_line import CommandLine
from tests.support.nsys_exports import C, K, R, write_profile
from tests.support.places import FIXTURES

ONE = str(FIXTURES / "1f1b")


def test_outputs_are_written_and_replaced_only_with_force(tmp_path: Path, cli: CommandLine) -> None:
    names = [renderer.name for renderer in list_renderers()]
    outputs = [(f"--{name}", tmp_path / f"out.{name}") for name in names]
    words = ("analyze", ONE, "--what-if")
    cli.printed(*words, *chain(*outputs))
    first = {file: file.read_bytes() for file in tmp_path.iterdir()}
    assert set(first) == {file for _, file in outputs}
    for output in outputs:
        assert "--force" in cli.refused(*words, *output, code=1)
    cli.printed(*words, *chain(*outputs), "-f")
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == first


def test_the_first_screen_is_printed(cli: CommandLine) -> None:
    assert "analyze" in cli.printed()
    assert cli.printed("--version").startswith("bubbleviz 0.")
    assert cli.printed("analyze", ONE).startswith("Bubble ratio (schedule): 27.27 %")


def test_iterations_are_selected_for_the_picture_only(tmp_path: Path) -> None:
    ratios = set()
    for selection in ("0", "1-2", "all"):
        svg, text = tmp_path / f"{selection}.svg", tmp_path / f"{selection}.json"
        arguments = ["--iteration", selection, "--svg", str(svg), "--json", str(text)]
        assert main(["analyze", ONE, *arguments]) == 0
        ratios.add(json.loads(text.read_text())["summary"]["bubble_ratio"]["schedule"]["mean"])

    assert len(ratios) == 1
    assert len((tmp_path / "all.svg").read_text()) > len((tmp_path / "0.svg").read_text())


@pytest.mark.parametrize(
    "arguments",
    [
        "--iteration=9",
        "--iteration=x",
        "--ranks=7",
        "--stages=4-9",
        "--order=0,1",
        "--iteration=0-1,9",
        "--iteration=7-9",
        "--ranks=a-b",
        "--ranks=0-99999999999",
        "--order=0,0",
        "--skip=many",
        "--convention=nothing.toml",
        "--same-clock=a,b",
        "--skip=-1",
        "--align=ptp",
        "--rows=host",
        "--parallel=tp",
        "--parallel=tp=0",
        "--parallel=tp=2,tp=2",
        "--bogus",
        "--parallel=ep=2",
        "--parallel=tp=9999999,dp=9999999",
        "--parallel=pp=3",
        "--parallel=",
    ],
)
def test_wrong_usage_is_one_sentence(arguments: str, cli: CommandLine) -> None:
    option, _, value = arguments.partition("=")
    message = cli.refused("analyze", ONE, arguments)

    assert (value if option == "--convention" else option) in message


@pytest.mark.parametrize("option", ["--causes", "--critical-path", "--heat-map"])
def test_picture_options_need_a_picture(option: str, tmp_path: Path, cli: CommandLine) -> None:
    """The formats table and JSON are not pictures, and panels cannot contain a heat map."""
    outputs_without_picture = [[], ["--json", str(tmp_path / "a.json")]]
    outputs_without_picture += (
        [["--panels", str(tmp_path / "a.svg")]] if option == "--heat-map" else []
    )
    for outputs in outputs_without_picture:
        message = cli.refused("analyze", ONE, option, *outputs, code=2)
        assert message.startswith(f"bubbleviz: {option}: only affects pictures; add --")
    assert not list(tmp_path.iterdir())
    assert main(["analyze", ONE, option, "--svg", str(tmp_path / "b.svg")]) == 0


def test_inspect_says_what_can_be_done(cli: CommandLine) -> None:
    printed = cli.printed("inspect", ONE)

    assert "analyze can compute bubble ratios" in printed
    assert "zero-bubble: 96 F" in printed
    printed_of_four = cli.printed("inspect", "fixtures/zb-v")
    assert printed_of_four.count("analyze can compute bubble ratios") == 1
    assert "and 3 similar files (-v): " in printed_of_four


def test_inspect_counts_a_single_row_in_the_singular(tmp_path: Path, cli: CommandLine) -> None:
    file = write_profile(tmp_path, [K(0, 10, 1)], [C(-5, -4, 1)], [R(-9, 9, "F0"), R(10, 12, "F1")])

    printed = cli.printed("inspect", file)

    assert "rows         1 kernel, 1 CUDA API call, 2 NVTX rows, 0 copies" in printed
