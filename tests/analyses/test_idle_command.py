"""The command idle: what it prints, its JSON, CSV and picture."""

from __future__ import annotations

import csv
import io
import json
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import bubbleviz
from bubbleviz.analyses.idle.analysis import NotebookIdleReport
from bubbleviz.analyses.idle.outputs import COLUMNS, as_json, sections
from bubbleviz.analyses.idle.picture import draw_idle
from bubbleviz.analyses.idle.report import BUSY, REST, IdleReport
from bubbleviz.cli.app import main
from bubbleviz.render.text.terminal import plain_text
from tests.support.idle_runs import c, k, planted, r
from tests.support.nsys_exports import C, K, R, profile
from tests.support.places import GOLDEN


def test_what_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    golden = GOLDEN / "idle.txt"

    assert main(["gaps", "-v", str(planted(tmp_path))]) == 0

    printed = capsys.readouterr()
    assert printed.err == ""
    assert printed.out == golden.read_text(encoding="utf-8")


def test_the_json_is_stable_and_adds_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = planted(tmp_path)

    assert main(["gaps", str(file), "--json", "-", "--top", "1"]) == 0

    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == "bubbleviz.idle/1"
    assert set(told) == {
        *("schema", "version", "definitions", "shortest_ns", "span_ns", "idle_ns", "advice"),
        *("activities", "meanings", "ranks", "limitations", "window", "proved_idle_ns"),
    }
    (rank,) = told["ranks"]
    assert rank["idle_ns"] == sum(own["idle_ns"] for own in rank["activities"])
    assert rank["duty_cycle"] == 0.75
    (gap,) = rank["longest_gaps"]
    assert sum(own["end_ns"] - own["start_ns"] for own in gap["chunks"]) == gap["idle_ns"] == 50_000
    assert all(a["end_ns"] == b["start_ns"] for a, b in pairwise(gap["chunks"]))
    assert gap["activity"] == "data loading"
    assert [step["name"] for step in rank["steps"]] == ["step 1", "step 2"]
    assert main(["gaps", str(file), "--json", "-", "--top", "1"]) == 0
    assert json.loads(capsys.readouterr().out) == told


def test_the_csv_has_a_row_a_gap(tmp_path: Path) -> None:
    out = tmp_path / "gaps.csv"

    assert main(["gaps", str(planted(tmp_path)), "--csv", str(out)]) == 0

    (row,) = csv.DictReader(io.StringIO(out.read_text(encoding="utf-8")))
    assert tuple(row) == COLUMNS
    assert (row["step"], row["idle_ns"], row["activity"]) == ("step 1", "50000", "data loading")
    chunks = json.loads(row["chunks"])
    assert chunks == {"no host trace": 10_000, "data loading": 35_000, "launch": 5_000}


HOSTILE = "=1+1\x00\x1b[31m<script>alert(1)</script>\n" + "x" * 10_000


def test_hostile_names_are_inert(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    named = HOSTILE.replace("\x00", "\x01")
    file = profile(
        tmp_path,
        [k(0, 10, 1, named), k(100, 110, 2, named)],
        [c(-9, 0, 1), c(90, 91, 2, name=named)],
        [r(20, 80, named), r(-10, 50, f"{named}1"), r(50, 120, f"{named}2")],
    )
    out = tmp_path / "gaps.csv"

    assert main(["gaps", str(file), "--csv", str(out)]) == 0

    printed = capsys.readouterr().out
    assert not set(printed) & {"\x01", "\x1b"}
    assert max(map(len, printed.splitlines())) < 400
    text = out.read_text(encoding="utf-8")
    assert "\x01" not in text
    assert "\x1b" not in text
    assert not any(cell.startswith("=") for row in csv.reader(io.StringIO(text)) for cell in row)
    json.loads(as_json(bubbleviz.idle(file), 5))


def test_the_picture_is_whole_and_the_same_each_time(tmp_path: Path) -> None:
    report = bubbleviz.idle(planted(tmp_path))

    drawn = draw_idle(report)

    root = ElementTree.fromstring(drawn)
    words = ["".join(text.itertext()) for text in root.iter("{http://www.w3.org/2000/svg}text")]
    words = [text.replace("\u00a0", " ") for text in words]
    assert words[0] == "1 device, idle for 25.0 % of the time"
    assert {"step 1", "step 2", "host GPU 0", "75.0 %", "data loading  17.5 %"} <= set(words)
    assert drawn == draw_idle(bubbleviz.idle(tmp_path / "profile.sqlite"))
    (rank,) = report.ranks
    slices_ns = rank.slice_ns.sum(axis=0)
    assert (slices_ns.sum(), rank.slice_ns[:3].sum()) == (rank.span_ns, rank.busy_ns)
    assert slices_ns.max() - slices_ns.min() <= 1
    # A device alone has nothing beside it.
    assert TITLE not in drawn
    assert TITLE not in texts(report)


def test_a_picture_of_hostile_names_and_many_devices(tmp_path: Path) -> None:
    kernels = [k(at, at + 5, None, device=d) for d in range(40) for at in (0, 20 + d)]
    calls = [c(30, 35, 7)]
    file = profile(tmp_path, kernels, calls, hostname="<script>\x01" + "x" * 10_000)

    drawn = draw_idle(bubbleviz.idle(file))

    ElementTree.fromstring(drawn)
    assert "<script>" not in drawn
    assert "and 8 more devices" in drawn
    assert len(drawn) < 300_000


# Devices that ran a single kernel or copy: no window, so no duty cycle.


@pytest.mark.parametrize("ranges", [(), (R(0, 5, "work"),), (R(0, 5, "iter_0_0"),)])
@pytest.mark.parametrize("end_ns", [1_000, 1_000_000])
def test_a_single_kernel_gives_no_duty_cycle(
    end_ns: int, ranges: tuple[R, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = profile(tmp_path, [K(10, 10 + end_ns, 1)], [C(1, 2, 1)], ranges)
    written = tmp_path / "idle.json"
    assert main(["idle", str(run), "--json", str(written)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    document = json.loads(written.read_text(encoding="utf-8"))
    assert "1 device with a single kernel or copy" in shown
    assert "100.00" not in shown
    assert "profile more of the run" in shown
    assert document["ranks"][0]["duty_cycle"] is None
    assert document["span_ns"] == 0
    assert "duty cycle" in {note["what"] for note in document["limitations"]}
    report = bubbleviz.idle(run)
    assert isinstance(report, NotebookIdleReport)
    assert "1 device with a single kernel or copy" in report._repr_html_()


def test_a_device_with_a_single_kernel_counts_in_no_sum(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kernels = [K(10, 20, 1), K(50, 60, 2), K(10, 900, 3, device=1)]
    calls = [C(1, 2, 1), C(3, 4, 2), C(5, 6, 3)]
    assert main(["idle", str(profile(tmp_path, kernels, calls, []))]) == 0
    assert "2 devices, idle for 60.00 % of the time" in capsys.readouterr().out


# Devices side by side.


TITLE = "Devices side by side"


def device(tmp_path: Path, name: str, idle_us: int, activity: str = "DataLoader") -> Path:
    """Return a profile of 1 ms: compute, then idle inside a range of the host, then compute."""
    return profile(
        tmp_path,
        [k(0, 1000 - idle_us - 10, 1), k(990, 1000, 2)],
        [c(0, 1, 1), c(990, 991, 2)],
        [r(500 - idle_us // 2, 990, activity)],
        name=f"{name}.sqlite",
        hostname=name,
    )


def texts(report: IdleReport, top: int = 12) -> str:
    return plain_text(sections(report, top))


def test_shares_add_up_and_the_idlest_goes_first(tmp_path: Path) -> None:
    files = [device(tmp_path, name, us) for name, us in (("a", 200), ("b", 500), ("c", 200))]
    report = bubbleviz.idle([str(file) for file in files])

    _, names, shares = report.device_shares(5)
    assert names[: len(BUSY)] == BUSY
    assert np.allclose(shares.sum(axis=1), 1)
    assert shares[:, len(BUSY) :].sum(axis=1).tolist() == [0.2, 0.5, 0.2]
    assert report.device_shares(0)[1] == (*BUSY, REST)
    bars = draw_idle(report).partition(TITLE)[2]
    assert all(label in bars for label in (">a ", ">b ", "20.0\u00a0%", "50.0\u00a0%"))
    lines = texts(report).partition(TITLE)[2].splitlines()
    # Devices that are equally idle keep their order.
    assert [line[0] for line in lines[3:6]] == ["b", "a", "c"]
    assert lines[6].startswith("idle: 20.00 % (c ")
    assert "median 20.00 % of 3 devices" in lines[6]
