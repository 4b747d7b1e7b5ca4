"""The draft of a naming convention."""

from __future__ import annotations

import io
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from rich.console import Console

import bubbleviz
from bubbleviz.cli.app import main
from bubbleviz.cli.overview import inspection_parts
from bubbleviz.conventions.convention_file import load_convention
from bubbleviz.conventions.draft import suggest
from bubbleviz.conventions.range_names import understand
from bubbleviz.model.phases import Phase
from bubbleviz.render.text.console import WIDTH, print_sections
from tests.support.places import FIXTURES

FIXTURE = FIXTURES / "1f1b" / "node0.sqlite"


def test_no_names_give_no_draft() -> None:
    assert suggest({}) is None
    assert suggest({"aten::mm, op_id = 3": 5, "Setup": 2}) is None


@pytest.mark.parametrize(
    ("name", "phase", "microbatch"),
    [
        ("fwd mb=3", Phase.F, 3),
        ("stage 2 forward microbatch 7", Phase.F, 7),
        ("bwd[12]", Phase.BW, 12),
        ("dgrad 4", Phase.B, 4),
        ("it's a wgrad 4?*", Phase.W, 4),
        ("optimizer step", Phase.OPTIMIZER, -1),
        ("recv_forward_5", Phase.RECV_F, 5),
    ],
)
def test_a_draft_understands_the_names_it_was_made_of(
    name: str, phase: Phase, microbatch: int, tmp_path: Path
) -> None:
    draft = suggest({name: 3})
    assert draft is not None
    file = tmp_path / "mine.toml"
    file.write_text(draft, encoding="utf-8")

    names = understand([name], load_convention(file))

    assert names.phase.tolist() == [phase]
    assert names.microbatch.tolist() == [microbatch]


def test_a_draft_analyses_a_run_named_in_no_known_way(tmp_path: Path) -> None:
    run = tmp_path / "run.sqlite"
    run.write_bytes(FIXTURE.read_bytes())
    with sqlite3.connect(run) as database:
        database.execute(
            "UPDATE NVTX_EVENTS SET text = REPLACE(REPLACE(text, 'F', 'fwd pass '), 'B', 'bwd ') "
            "WHERE text GLOB '[FB][0-9]*'"
        )
    database.close()
    draft = bubbleviz.inspect(run).suggestion
    assert draft is not None
    file = tmp_path / "mine.toml"
    file.write_text(draft, encoding="utf-8")

    report = bubbleviz.analyze([run], convention=[str(file)])

    assert report.summary.bubble_ratio["schedule"].mean == pytest.approx(3 / 11)


def named_at_length(folder: Path) -> Path:
    """Return a run whose names, and so whose regular expressions, are wider than a terminal."""
    run = folder / "run.sqlite"
    run.write_bytes(FIXTURE.read_bytes())
    with closing(sqlite3.connect(run)) as database, database:
        for letter, word in (("F", "forward"), ("B", "backward")):
            name = f"trainer/interleaved.schedule/model.part/stage0/{word} microbatch="
            database.execute(
                "UPDATE NVTX_EVENTS SET text = ? || SUBSTR(text, 2, 1) || "
                "' (a part)' WHERE text GLOB ?",
                (name, f"{letter}[0-9]*"),
            )
    return run


def printed_draft(shown: str) -> str:
    """Return what a reader would copy: everything below the sentence that says what it is."""
    _, first, below = shown.partition('name = "mine"')
    return first + below


def test_a_draft_is_printed_as_a_file_that_loads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, mine = named_at_length(tmp_path), tmp_path / "mine.toml"

    assert main(["inspect", str(run)]) == 0
    shown = capsys.readouterr().out
    mine.write_text(printed_draft(shown), encoding="utf-8")

    assert max(map(len, printed_draft(shown).splitlines())) > WIDTH
    report = bubbleviz.analyze([run], convention=[str(mine)])
    assert report.summary.bubble_ratio["schedule"].mean == pytest.approx(3 / 11)


def test_a_draft_is_whole_on_a_narrow_terminal(tmp_path: Path) -> None:
    inspection = bubbleviz.inspect(named_at_length(tmp_path))
    out = io.StringIO()
    print_sections(Console(file=out, width=80, force_terminal=True), inspection_parts(inspection))

    draft = inspection.suggestion
    assert draft is not None
    plain = printed_draft(out.getvalue()).replace("\x1b[0m", "")
    assert [line.rstrip() for line in plain.splitlines() if line] == [
        line for line in draft.splitlines() if line
    ]
