"""Reports do not depend on the order of rows and events in a file."""

from __future__ import annotations

import csv
import gzip
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import bubbleviz
from bubbleviz.render.json_document import make_document
from tests.planting import Planting, plant
from tests.support.columnar_exports import ARROW, PARQUET, write_columnar
from tests.support.edited_databases import edit_database, read_columns, rebuild_table
from tests.support.processes import read_processes
from tests.support.recorded_runs import record_run
from tests.support.rocm_profiles import write_rocpd, write_rpd
from tests.support.torch_traces import write_traces

SEEDS = (1, 2)
PLANTINGS = {
    "1f1b": Planting(stages=4, microbatches=6),
    "interleaved": Planting(schedule="interleaved-1f1b", stages=2, microbatches=4, chunks=2),
    "zb-h1": Planting(schedule="zb-h1", stages=3, microbatches=6),
}


@pytest.fixture(scope="module", params=PLANTINGS)
def export(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a planted export of nsys."""
    folder = tmp_path_factory.mktemp("planted")
    plant(PLANTINGS[request.param], folder)
    (path,) = folder.glob("*.sqlite")
    return path


def _shuffle_tables(path: Path, source: Path, seed: int) -> Path:
    """Write a copy of a database in which the rows of each table are in another order."""
    order = f"(rowid * 2654435761 + {seed * 7919}) % 1000003"
    statements = [
        step for table in read_columns(source) for step in rebuild_table(table, order=order)
    ]
    return edit_database(path, *statements, source=source)


def _report(files: Sequence[Path]) -> dict[str, Any]:
    """Return the content of a report without name ids and without the folder of the files."""
    report_document = make_document(bubbleviz.analyze([str(file) for file in files]))
    del report_document["timeline"]
    text = json.dumps(report_document, default=str)
    report_document = json.loads(text.replace(str(files[0].parent), ""))
    assert report_document["iterations"]
    return dict(report_document)


def _check_same_reports(in_order: Sequence[Path], shuffled: Sequence[Path]) -> None:
    first, second = _report(in_order), _report(shuffled)
    for key in first:
        assert first[key] == second[key], key
    for file, other in zip(in_order, shuffled, strict=True):
        idle = [bubbleviz.idle(path).ranks for path in (file, other)]
        spans = [[(r.compute_ns, r.idle_ns, r.start_ns, r.end_ns) for r in ranks] for ranks in idle]
        assert spans[0] == spans[1]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("is_compiled", [True, False], ids=["compiled", "SQL"])
def test_the_order_of_nsys_rows_does_not_matter(
    export: Path,
    seed: int,
    is_compiled: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not is_compiled:
        monkeypatch.setenv("BUBBLEVIZ_NATIVE", "0")

    _check_same_reports([export], [_shuffle_tables(tmp_path / export.name, export, seed)])


@pytest.mark.parametrize("form", [PARQUET, ARROW], ids=["parquet", "arrow"])
def test_the_order_of_rows_in_exported_tables_does_not_matter(
    export: Path, form: Any, tmp_path: Path
) -> None:
    shuffled = _shuffle_tables(tmp_path / export.name, export, 1)

    _check_same_reports(
        [write_columnar(export, tmp_path / "written", form)],
        [write_columnar(shuffled, tmp_path / "shuffled", form)],
    )


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("write", [write_rocpd, write_rpd], ids=["rocpd", "rpd"])
def test_the_order_of_rocm_rows_does_not_matter(
    export: Path, write: Callable[..., Path], seed: int, tmp_path: Path
) -> None:
    for folder in ("written", "shuffled"):
        (tmp_path / folder).mkdir()
    in_order = write(tmp_path / "written" / "trace.db", read_processes(export))

    _check_same_reports(
        [in_order], [_shuffle_tables(tmp_path / "shuffled" / "trace.db", in_order, seed)]
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_the_order_of_pytorch_events_does_not_matter(
    export: Path, seed: int, tmp_path: Path
) -> None:
    in_order = write_traces(export, tmp_path)
    (tmp_path / "shuffled").mkdir()
    shuffled = [tmp_path / "shuffled" / trace.name for trace in in_order]
    for trace, file in zip(in_order, shuffled, strict=True):
        content = json.loads(gzip.decompress(trace.read_bytes()))
        random.Random(seed).shuffle(content["traceEvents"])
        file.write_bytes(gzip.compress(json.dumps(content).encode()))

    _check_same_reports(in_order, shuffled)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_the_order_of_table_rows_does_not_matter(
    export: Path, kind: str, seed: int, tmp_path: Path
) -> None:
    report = bubbleviz.analyze(export)
    for folder in ("written", "shuffled"):
        (tmp_path / folder).mkdir()
    in_order, shuffled = (
        tmp_path / folder / f"operations.{kind}" for folder in ("written", "shuffled")
    )
    report.save(in_order)
    if kind == "csv":
        with in_order.open(newline="") as file:
            header, *rows = csv.reader(file)
        random.Random(seed).shuffle(rows)
        with shuffled.open("w", newline="") as file:
            csv.writer(file).writerows([header, *rows])
    else:
        from pyarrow import parquet

        table = parquet.read_table(in_order)
        order = random.Random(seed).sample(range(len(table)), len(table))
        parquet.write_table(table.take(order), shuffled)

    first, second = _report([in_order]), _report([shuffled])
    for key in first:
        assert first[key] == second[key], key


@pytest.mark.parametrize("seed", SEEDS)
def test_the_order_of_recording_lines_does_not_matter(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    truth = plant(Planting(stages=2, iterations=5), tmp_path / "planted")
    record_run(truth, tmp_path / "written", monkeypatch)
    (tmp_path / "shuffled").mkdir()
    in_order = sorted((tmp_path / "written").iterdir())
    shuffled = [tmp_path / "shuffled" / file.name for file in in_order]
    for file, other in zip(in_order, shuffled, strict=True):
        header, *lines = file.read_bytes().splitlines(keepends=True)
        random.Random(seed).shuffle(lines)
        other.write_bytes(b"".join([header, *lines]))

    first, second = _report(in_order), _report(shuffled)
    for key in first:
        assert first[key] == second[key], key
