"""Published outputs name files relative to where the command ran, and count in words."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from bubbleviz.cli.app import main
from bubbleviz.model.texts import counted
from bubbleviz.report.labels import with_relative_paths
from tests.planting import Planting, plant
from tests.support.command_line import CommandLine
from tests.support.drawn_reports import report_of
from tests.support.places import FIXTURES


@pytest.mark.parametrize("place", ["here", "below", "beside"])
@pytest.mark.parametrize("output", ["svg", "latex", "text"])
def test_footers_and_comments_name_no_directory_of_the_machine(
    output: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "secret" / "run"
    folder = {"here": directory, "below": directory / "a", "beside": tmp_path / "b"}[place]
    folder.mkdir(parents=True)
    directory.mkdir(parents=True, exist_ok=True)
    shutil.copy(FIXTURES / "1f1b" / "node0.sqlite", folder / "node0.sqlite")
    (folder / "node1.sqlite").write_bytes(b"SQLite format 3\0 damaged")
    monkeypatch.chdir(directory)

    assert main(["analyze", str(folder), f"--{output}", "out"]) == 0

    written = Path("out").read_text()
    shown = {"here": "node1.sqlite", "below": "a/node1.sqlite", "beside": "../../b/node1.sqlite"}
    assert str(tmp_path) not in written
    assert "secret" not in written
    assert re.search(rf"(?<![/\w]){re.escape(shown[place])}", written.replace("\\_", "_"))


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ([], ""),
        (["{root}/run/node0.sqlite"], "node0.sqlite"),
        (["node0.sqlite", "{root}/run"], "node0.sqlite ."),
        (["{root}/run/*.sqlite"], "'*.sqlite'"),
        (["{root}/it's/node0.sqlite"], """'../it'"'"'s/node0.sqlite'"""),
        (["{root}/run/-odd.sqlite"], "./-odd.sqlite"),
        (["--html={root}/page.html", "--skip", "1"], "--html=../page.html --skip 1"),
        (["--dask", "tcp://scheduler:8786"], "--dask tcp://scheduler:8786"),
        (["--latex", "/"], "--latex {up}"),
    ],
)
def test_the_command_line_names_no_directory_of_the_machine(
    words: list[str], shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").mkdir()
    monkeypatch.chdir(tmp_path / "run")
    given = ["bubbleviz", "analyze", *(word.format(root=tmp_path) for word in words)]
    report = replace(report_of([]), command=shlex.join(given))

    command = with_relative_paths(report).command

    up = os.path.relpath("/")
    assert command == " ".join(["bubbleviz analyze", shown.format(up=up)]).rstrip()


def test_a_directory_that_is_gone_leaves_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bubbleviz.report.labels import relative

    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()

    assert relative(str(tmp_path / "node0.sqlite")) == "node0.sqlite"


# Numbers and what they count: one of a thing is no plural, in any output.


#: A lone 1, and a plural behind it; "1 of 2 ranks" and decimals are none.
PLURAL = re.compile(
    r"(?<![\d.,:/-])1 (?:(?:more|other|training|pipeline|model|CUDA API|Nsight Systems) )?"
    r"(stages|ranks|kernels|microbatches|iterations|operations|devices|GPUs|hosts|profiles|chunks"
    r"|times|steps|ranges|calls|copies|limitations|events|instructions|files|units|rows)\b"
)
ONE = Planting(stages=1, microbatches=1, iterations=1, kernels=1, communication=False)


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 copies"), (1, "1 copy"), (2, "2 copies"), (1000, "1,000 copies")]
)
def test_a_number_and_what_it_counts(number: int, text: str) -> None:
    assert counted(number, "copy", "copies") == text


@pytest.mark.parametrize("run", [ONE, Planting(stages=2, microbatches=1, iterations=1)], ids=str)
def test_one_of_a_thing_is_no_plural(run: Planting, tmp_path: Path, cli: CommandLine) -> None:
    plant(run, tmp_path)
    profile = str(next(tmp_path.glob("*.sqlite")))
    outputs = {
        f"--{kind}": tmp_path / f"out.{kind}" for kind in ("svg", "html", "latex", "json", "csv")
    }
    options = [word for option, file in outputs.items() for word in (option, str(file))]
    sizes = ["--tf", "1", "--tb", "1", "--tw", "1", "-p", "1", "-m", "1"]
    shown = [
        cli("analyze", profile, "--what-if", *options),
        cli("idle", profile),
        cli("inspect", profile),
        cli("simulate", "--schedule", "gpipe", *sizes),
    ]
    assert [code for code, *_ in shown] == [0] * 4
    texts = [text for _, *printed in shown for text in printed]
    texts += [file.read_text(encoding="utf-8") for file in outputs.values()]
    for text in texts:
        # Cells of a table, two blanks apart, are no sentence.
        assert PLURAL.findall(re.sub(r"<[^>]*>", "  ", text)) == []
