"""Reports by parts: a folder is written whole or not at all, and read as the whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bubbleviz.api import analyze
from bubbleviz.cli.app import main
from bubbleviz.errors import InputError, OutputError
from bubbleviz.render import json_document as json_format
from bubbleviz.render.files import write_outputs
from bubbleviz.render.formats import File, renderers
from bubbleviz.report import rank_means
from bubbleviz.report.report import Report
from bubbleviz.report.saved import looks_saved, read_document, read_pipeline, read_saved
from bubbleviz.report.view import View
from tests.planting import Planting, plant
from tests.support.drawn_reports import report_of

RENDERERS = {renderer.name: renderer for renderer in renderers()}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return three pipelines of four stages with collectives and waits inside operations."""
    folder = tmp_path_factory.mktemp("run")
    planting = Planting(
        schedule="zb-h1",
        stages=4,
        microbatches=5,
        replicas=3,
        jitter=0.1,
        iterations=2,
        reduce_ns=500_000,
    )
    plant(planting, folder)
    return folder


@pytest.fixture(scope="module")
def report(run: Path) -> Report:
    return analyze(run)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each pipeline of four ranks be a part."""
    monkeypatch.setattr(rank_means, "_FEWEST_RANKS", 4)


def called(*arguments: str | Path) -> int:
    return main([*map(str, arguments)])


def folder_of(report: Report, name: str, path: Path) -> Path:
    """Write a report by parts in a format."""
    parts = RENDERERS[name].content(report, View(), f"{path}/")
    assert callable(parts)
    path.mkdir()
    for file, content in parts():
        data = content.encode() if isinstance(content, str) else content
        (path / file).write_bytes(data)
    return path


def test_a_report_of_no_ranks_is_an_index(tmp_path: Path) -> None:
    empty = replace(report_of([]), iterations=report_of([]).iterations)
    folder = folder_of(empty, "json", tmp_path / "empty.json")

    assert [file.name for file in folder.iterdir()] == ["index.json"]


def test_the_parts_of_a_report_are_its_json(report: Report, tmp_path: Path) -> None:
    folder = folder_of(report, "json", tmp_path / "report.json")
    whole = json.loads(json_format.render(report, View()))

    assert sorted(file.name for file in folder.iterdir()) == [
        "index.json",
        "part-00000.json",
        "part-00001.json",
        "part-00002.json",
    ]
    for path in (folder, folder / "index.json"):
        assert read_document(str(path)) == {**whole, "timeline": None}


def test_ratios_and_times_are_read_from_the_index(report: Report, tmp_path: Path) -> None:
    folder = folder_of(report, "json", tmp_path / "report.json")
    file = tmp_path / "whole.json"
    file.write_text(json_format.render(report, View()))

    assert looks_saved(str(folder))
    # An index names no ranks.
    whole, parted = read_saved(str(file)), read_saved(str(folder))
    assert parted == replace(whole, slowdowns=parted.slowdowns)
    assert read_pipeline(str(folder)) == parted


def test_a_folder_of_profiles_is_no_report(run: Path, tmp_path: Path) -> None:
    (tmp_path / "index.json").write_text('{"schema": "of something else"}')

    assert not looks_saved(str(run))
    assert not looks_saved(str(tmp_path))


@pytest.mark.parametrize(
    ("file", "changes", "says"),
    [
        ("part-00001.json", None, "part-00001.json: is missing"),
        ("part-00001.json", "{", "is not part of a report"),
        ("part-00001.json", {"ranks": []}, "is not the part that its index names"),
        (
            "index.json",
            {"parts": [{"file": "../part-00000.json", "ranks": 4}]},
            "is not a bubbleviz report",
        ),
    ],
)
def test_a_broken_part_is_named(
    file: str, changes: dict[str, object] | str | None, says: str, report: Report, tmp_path: Path
) -> None:
    folder = folder_of(report, "json", tmp_path / "report.json")
    own = json.loads((folder / file).read_text())
    if changes is None:
        (folder / file).unlink()
    else:
        text = changes if isinstance(changes, str) else json.dumps(own | changes)
        (folder / file).write_text(text)

    with pytest.raises(InputError, match=says):
        read_document(str(folder))


@pytest.mark.parametrize("name", ["parquet", "bubbles-parquet"])
def test_the_parts_of_a_table_are_its_rows(name: str, report: Report, tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    folder = folder_of(report, name, tmp_path / "table.parquet")
    whole = tmp_path / "whole.parquet"
    whole.write_bytes(RENDERERS[name].render(report, View()))
    parts = [parquet.read_table(file) for file in sorted(folder.iterdir())]

    assert len(parts) == 3
    assert pa.concat_tables(parts).to_pylist() == parquet.read_table(whole).to_pylist()


def test_the_parts_of_operations_are_analysed_as_one_run(report: Report, tmp_path: Path) -> None:
    folder = folder_of(report, "parquet", tmp_path / "operations.parquet")
    whole = tmp_path / "whole.parquet"
    whole.write_bytes(RENDERERS["parquet"].render(report, View()))
    again, at_once = analyze(folder), analyze(whole)

    assert again.summary == at_once.summary
    assert again.iterations == at_once.iterations
    assert again.bubbles.cause.tolist() == at_once.bubbles.cause.tolist()


# The command line


def test_a_slash_asks_for_parts(run: Path, tmp_path: Path) -> None:
    folder, table = tmp_path / "report.json", tmp_path / "operations.parquet"
    result = called("analyze", run, "-o", f"{folder}/", "--parquet", f"{table}/")

    assert result == 0
    assert (folder / "index.json").is_file()
    assert len([*table.iterdir()]) == 3
    assert called("gate", folder, "--max-bubble", "schedule=99%") == 0
    assert called("compare", folder, f"{folder}/") == 0
    assert sorted(tmp_path.iterdir()) == sorted([folder, table])


def test_a_folder_is_replaced_with_force_alone(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "report.json"
    assert called("analyze", run, "-o", f"{folder}/") == 0
    (folder / "part-00099.json").write_text("left over")

    result = called("analyze", run, "-o", f"{folder}/")
    assert result == 1
    assert "exists already; replace it with --force" in capsys.readouterr().err
    assert called("analyze", run, "-o", f"{folder}/", "--force") == 0
    assert not (folder / "part-00099.json").exists()
    assert [*tmp_path.iterdir()] == [folder]


@pytest.mark.parametrize(
    ("there", "command", "code", "says"),
    [
        ("thesis.tex", "run --json there/ --force", 1, "holds 'thesis.tex', which is not part of"),
        ("part-00000.parquet", "there --parquet there/ --force", 1, "holds an input"),
        ("part-00000.json", "run -o there.svg/", 2, "--svg writes a file; leave the slash out"),
    ],
)
def test_no_other_folder_is_replaced(
    there: str,
    command: str,
    code: int,
    says: str,
    run: Path,
    report: Report,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    kept = RENDERERS["parquet"].render(report, View())
    (tmp_path / "there" / there).write_bytes(kept)
    (tmp_path / "run").symlink_to(run)

    assert called("analyze", *command.split()) == code
    assert says in capsys.readouterr().err
    assert (tmp_path / "there" / there).read_bytes() == kept


def test_a_folder_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    def files() -> Iterator[File]:
        yield "part-00000.json", "{}"
        raise OSError("no space left on device")

    with pytest.raises(OutputError, match="no space"):
        write_outputs({str(tmp_path / "report.json/"): files}, force=False)
    assert not [*tmp_path.iterdir()]


def test_an_interrupted_replacement_leaves_the_folder_that_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tmp_path / "report.json"
    there.mkdir()
    (there / "index.json").write_text("old")
    rename = Path.rename

    def interrupted(path: Path, target: Path) -> Path:
        if (path / "index.json").read_text() == "new":
            raise KeyboardInterrupt
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_outputs({f"{there}/": lambda: iter([("index.json", "new")])}, force=True)

    assert (there / "index.json").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]
