"""PDF files contain vectors and text, PNG files have double resolution, and both are reproducible.

The tests read the content of a PDF from its streams. The appearance of the PDF was compared with
the SVG by eye. Neither format is written to a terminal.
"""

from __future__ import annotations

import re
import struct
import sys
import zlib
from pathlib import Path

import pytest

from bubbleviz.cli.app import main
from bubbleviz.errors import OutputError
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.phases import Phase
from bubbleviz.render.picture.picture import picture
from bubbleviz.render.picture.typesetting import as_pdf, as_png
from bubbleviz.report.view import View
from tests.support.command_line import CommandLine
from tests.support.drawn_reports import MS, Op, make_report, parse_svg, run_1f1b
from tests.support.places import FIXTURES

ONE = str(FIXTURES / "1f1b")
SIMULATION = ("simulate", "--schedule", "1f1b", "-p", "2", "-m", "2")
TIMES = ("--tf", "1", "--tb", "1", "--tw", "1")


def decompress_pdf(pdf: bytes) -> bytes:
    """Return a PDF followed by its decompressed streams."""
    streams = re.findall(rb"stream\r?\n(.*?)\r?\nendstream", pdf, re.DOTALL)
    parts = [pdf]
    for stream in streams:
        try:
            parts.append(zlib.decompress(stream))
        except zlib.error:  # not compressed
            parts.append(stream)
    return b"\n".join(parts)


def read_png_size(png: bytes) -> tuple[int, int]:
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", png[16:24])
    return width, height


# Tests of the content.


def test_a_pdf_contains_no_pixels_and_a_png_twice_those_of_the_svg() -> None:
    svg = picture(make_report(run_1f1b(4, 8)), View())
    width, height = (float(number) for number in parse_svg(svg).get("viewBox", "").split()[2:])
    pdf = as_pdf(svg)
    content = decompress_pdf(pdf)

    assert pdf.startswith(b"%PDF-1.5"), "a version that LaTeX takes"
    assert not re.search(rb"/Subtype\s*/Image", content)
    assert re.search(rb"/PatternType\s*1", content), "the hatch of bubbles"
    assert re.search(rb"/Type\s*/Font\b", content), "text as text"
    assert content.count(b"BT") >= svg.count("<text") // 2
    assert read_png_size(as_png(svg)) == (2 * width, 2 * height)


def test_a_png_of_a_huge_picture_is_kept_small() -> None:
    svg = (
        '<svg xmlns="http://www.w3.org/2000/svg" width="1200" height="100000">'
        '<path d="M0 0h9v9z"/></svg>'
    )
    width, height = read_png_size(as_png(svg))

    assert 60_000_000 < width * height < 65_000_000


@pytest.mark.parametrize(
    "name",
    ["<script>", "#panic()", '"); #read("/etc/passwd")', "\0\n\x1b[2J", "😀é日本", "x" * 10_000],
)
def test_hostile_names_are_text(name: str) -> None:
    ops = [Op(0, Phase.F, 0, 0, 5 * MS, name=name)]
    svg = picture(make_report(ops, limitations=(Limitation(name, name),)), View())

    assert as_pdf(svg).startswith(b"%PDF-")
    assert as_png(svg).startswith(b"\x89PNG")


def test_a_text_that_is_not_a_picture_is_refused_in_a_sentence() -> None:
    with pytest.raises(OutputError, match=r"cannot be converted to PDF \(.*\); write -o FILE.svg"):
        as_pdf("no picture")


# Tests of the command line.


@pytest.mark.parametrize("kind", ["pdf", "png"])
def test_analyze_and_simulate_write_pdf_and_png(kind: str, tmp_path: Path) -> None:
    measured, simulated = tmp_path / f"m.{kind}", tmp_path / f"s.{kind}"

    assert main(["analyze", ONE, f"--{kind}", str(measured)]) == 0
    assert main([*SIMULATION, *TIMES, f"--{kind}", str(simulated)]) == 0

    for file in (measured, simulated):
        assert file.read_bytes()[:4] in {b"%PDF", b"\x89PNG"}
    assert main(["analyze", ONE, f"--{kind}", str(measured)]) == 1, "it is there already"


@pytest.mark.parametrize("command", [("analyze", ONE), (*SIMULATION, *TIMES)])
@pytest.mark.parametrize("kind", ["pdf", "png"])
def test_binary_data_is_not_written_to_a_terminal(
    command: tuple[str, ...], kind: str, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)

    err = cli.refused(*command, f"--{kind}", "-", code=1)
    assert err == (
        f"bubbleviz: --{kind} -: refusing to write binary data to a terminal; "
        "use a file or a pipe\n"
    )


@pytest.mark.parametrize("kind", ["pdf", "png"])
def test_without_typst_the_next_step_is_printed_before_any_work(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    monkeypatch.setitem(sys.modules, "typst", None)
    file = tmp_path / "x"

    for command in (("analyze", "nowhere.sqlite"), (*SIMULATION, *TIMES)):
        message = cli.refused(*command, f"--{kind}", str(file), code=1)
        assert "install it in your clone of bubbleviz with: pip install '.[paper]'" in message
    assert not file.exists()
