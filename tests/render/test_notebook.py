"""Notebooks show complete and well-formed output of limited size, without scripts."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest
from IPython.core.formatters import DisplayFormatter

import bubbleviz
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.phases import Phase
from bubbleviz.render.notebook import MAX_ROWS, draw_bounded_picture, render_fragment
from bubbleviz.render.picture.picture import picture as render
from bubbleviz.render.text.report import render_text as table_of
from bubbleviz.report.report import Report
from bubbleviz.report.view import View
from tests.support.drawn_reports import HOSTILE, SVG, Op, make_rank, make_report, rename_all
from tests.support.places import FIXTURES


class Read:
    """The tags, attributes and texts of a fragment of well-formed XML with one root element."""

    def __init__(self, html: str) -> None:
        root = ET.fromstring(html)
        assert root.tag == "div"
        elements = list(root.iter())
        self.tags = [element.tag.rpartition("}")[2] for element in elements]
        self.names = {name for element in elements for name in element.attrib}
        for element, tag in zip(elements, self.tags, strict=True):
            element.text = "" if tag == "style" else element.text
        self.text = " ".join(root.itertext())


def test_an_empty_report_is_shown_as_empty() -> None:
    empty = make_report([], limitations=(Limitation("all of it", "nothing ran"),))

    elements = Read(render_fragment(empty))

    assert "Bubble ratio (schedule): -" in elements.text
    assert "Nothing to draw: no GPU ran any operation" in elements.text
    assert "all of it: nothing ran" in elements.text
    assert elements.tags.count("svg") == 1
    assert draw_bounded_picture(empty)[2] == 0


def test_the_fragment_contains_the_text_of_the_table(report: Report) -> None:
    text = Read(render_fragment(report)).text
    flat = " ".join(text.split())

    for line in table_of(report, View()).splitlines()[:3]:
        assert line in flat
    assert "schedule = 1 - sum of the ranks' compute / (ranks x (last end - first start" in flat
    assert "Bubble ratios over the averaged iterations, in % ratio mean SD" in flat
    assert "schedule 27.27 0.00 27.27 27.27 3 37.50 33.000 0.000" in flat
    assert "dependency 13.64 50.00 4.500 waiting for another rank to produce" in flat
    assert "Limitations" not in flat


def test_limitations_are_listed(report: Report) -> None:
    notes = tuple(Limitation(f"what {n}", f"because {n}") for n in range(500))

    elements = Read(render_fragment(replace(report, limitations=notes)))

    assert elements.tags.count("li") == 13
    assert "and 488 more" in elements.text


def test_the_picture_equals_the_file(report: Report) -> None:
    picture, *_ = draw_bounded_picture(report)
    inline = ET.fromstring(render_fragment(report)).find(f".//{SVG}svg")

    assert picture == render(report, View())
    assert inline is not None
    assert len(list(inline.iter())) == len(list(ET.fromstring(picture).iter()))


def test_the_output_needs_no_script_or_network_and_styles_only_its_elements(report: Report) -> None:
    html = render_fragment(report)
    elements = Read(html)

    assert not {"script", "link", "iframe", "object", "img", "a", "use"} & set(elements.tags)
    assert not {n for n in elements.names if n.startswith("on")} | elements.names & {"href", "src"}
    assert re.findall(r"url\((?!#)|@import", html) == []
    for sheet in ET.fromstring(html).iter("style"):
        for selector in re.findall(r"(?:^|\})([^{}]+)\{", sheet.text or "", re.MULTILINE):
            assert all(part.strip().startswith(".bubbleviz-report") for part in selector.split(","))


def test_ids_of_two_reports_in_one_notebook_differ(report: Report) -> None:
    other = replace(report, limitations=(Limitation("one", "more"),))
    ids = [set(re.findall(r'\bid="([^"]+)"', render_fragment(one))) for one in (report, other)]
    used = set(re.findall(r"url\(#([^)]+)\)", render_fragment(report)))

    assert used
    assert used == ids[0]
    assert not ids[0] & ids[1]


def test_hostile_names_are_inert() -> None:
    ops = [Op(0, Phase.F, 0, 0, 10), Op(0, Phase.BW, 0, 20, 30)]
    hostile = rename_all(make_report(ops), HOSTILE)

    html = render_fragment(hostile)
    elements = Read(html)

    assert "<script" not in html
    assert "<script>alert(1)</script>" in elements.text
    assert "script" not in elements.tags
    assert not re.search("[\x00-\x08\x0b-\x1f\u202e\ud800-\udfff]", html)
    assert len(html) < 60_000


@pytest.mark.parametrize("stage", [None, 0])
def test_very_many_ranks_are_drawn_in_part(stage: int | None) -> None:
    count = 300
    ops = [Op(rank, Phase.F, 0, rank, rank + 10) for rank in range(count)]
    ranks = tuple(
        replace(make_rank(r), stage=None if stage is None else r // 2) for r in range(count)
    )
    large_report = make_report(ops, ranks=ranks)

    _, *row_counts = draw_bounded_picture(large_report)

    assert row_counts == [MAX_ROWS, 300 if stage is None else 150]
    assert f"Only the first 64 of {row_counts[1]} rows" in Read(render_fragment(large_report)).text


def test_jupyter_shows_a_report(report: Report) -> None:
    formats, _ = DisplayFormatter().format(report)  # type: ignore[no-untyped-call]  # theirs

    assert formats["text/html"] == render_fragment(report)
    assert formats["image/svg+xml"] == render(report, View())
    assert formats["text/plain"] == repr(report)
    assert len(formats["text/plain"].splitlines()) == 1


def test_idle_time_is_shown_as_html_and_printed_as_a_line(tmp_path: Path) -> None:
    idle = bubbleviz.idle([FIXTURES / "1f1b"])
    for suffix in ("svg", "json", "csv", "html"):
        idle.save(tmp_path / f"idle.{suffix}")
        assert (tmp_path / f"idle.{suffix}").stat().st_size > 1_000
    assert (tmp_path / "idle.svg").read_text(encoding="utf-8") == idle._repr_svg_()

    formats, _ = DisplayFormatter().format(idle)  # type: ignore[no-untyped-call]  # theirs
    assert formats["text/plain"] == "<IdleReport: 4 devices, idle for 1.01 % of the time>"
    fragment = ET.fromstring(formats["text/html"])
    assert [caption.text for caption in fragment.iter("caption")] == [
        "Devices",
        "Longest kernels",
        "What hosts did while devices were idle",
    ]
    assert ET.fromstring(formats["image/svg+xml"].encode()).tag == f"{SVG}svg"
