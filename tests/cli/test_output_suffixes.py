"""``-o FILE`` derives the format from the suffix, which each renderer declares."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import bubbleviz
from bubbleviz.errors import UsageError
from bubbleviz.render.formats import format_of_suffix, get_renderer, list_renderers
from tests.support.command_line import CommandLine
from tests.support.places import FIXTURES

ONE = str(FIXTURES / "1f1b")
SIZES = ["--schedule", "1f1b", "-p", "2", "-m", "2", "--tf=1", "--tb=1", "--tw=1"]
NAMES = [renderer.name for renderer in list_renderers()]


def test_every_format_has_a_separate_suffix() -> None:
    suffixes = [suffix for renderer in list_renderers() for suffix in renderer.suffixes]

    assert len(set(suffixes)) == len(suffixes)
    for renderer in list_renderers():
        assert renderer.suffixes
        assert len(renderer.summary) <= 48
        assert all(
            format_of_suffix(f"x{suffix}", NAMES) == renderer.name for suffix in renderer.suffixes
        )


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("a.json", "json"),
        ("a.trace.json", "chrome"),
        ("trace.json", "json"),
        ("A.SVG", "svg"),
        ("a.panels.svg", "panels"),
        ("a.panels.PNG", "panels"),
        ("a.bubbles.csv", "bubbles"),
        ("a.md", "markdown"),
        (".svg", "svg"),
    ],
)
def test_the_longest_suffix_determines_the_format(file: str, name: str) -> None:
    assert format_of_suffix(file, NAMES) == name


def test_an_empty_file_name_is_refused_with_a_list_of_suffixes() -> None:
    with pytest.raises(UsageError, match=r"the file name is empty; .*\.svg"):
        format_of_suffix("", NAMES)


@pytest.mark.parametrize("file", ["svg", "a.doc", "a.svg.bak", "a" * 5000])
def test_an_unknown_suffix_is_refused_with_a_list_of_suffixes(file: str) -> None:
    with pytest.raises(
        UsageError, match=r"unknown suffix; the name must end in one of .*\.svg"
    ) as refusal:
        format_of_suffix(file, NAMES)
    assert len(str(refusal.value)) < 500
    with pytest.raises(UsageError, match=r"in one of \.json$"):
        format_of_suffix("a.svg", ["json"])


@pytest.mark.parametrize(
    "file",
    [
        "x.bubbles.parquet",
        "X.Iterations.PARQUET",
        "x.pftrace",
        "x.perfetto-trace",
        "x.chunks.svg",
        "x.chunks.pdf",
        "x.Slowdowns.svg",
        "x.slowdowns.png",
        "x.memory.svg",
    ],
)
def test_a_former_ending_does_not_get_other_content(file: str, tmp_path: Path) -> None:
    """Without this check, most of these names would get a table or picture of operations."""
    with pytest.raises(
        UsageError, match=r"unknown suffix; the name must end in one of .*\.bubbles\.csv.*\.parquet"
    ):
        format_of_suffix(file, NAMES)
    report = bubbleviz.analyze(ONE)
    with pytest.raises(UsageError, match="unknown suffix; the name must end in one of"):
        report.save(tmp_path / file)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("file", ["x.comms.csv", "X.Comms.CSV", "x.zb.json"])
def test_a_former_ending_of_plans_does_not_get_other_content(file: str) -> None:
    with pytest.raises(UsageError, match=r"unknown suffix; the name must end in one of .*\.csv"):
        format_of_suffix(file, ["json", "csv"])


@pytest.mark.parametrize("name", NAMES)
def test_every_format_is_one_file(name: str, tmp_path: Path, cli: CommandLine) -> None:
    suffix = get_renderer(name).suffixes[0]
    for words in ([f"--{name}"], ["-o"]):
        message = cli.refused("analyze", ONE, *words, f"{tmp_path}/x{suffix}/", code=2)
        assert message.endswith(f"--{name} writes a single file; remove the trailing slash\n")
    message = cli.refused("analyze", ONE, f"--{name}", f"{tmp_path}", "--force", code=1)
    assert "is a directory; choose a file name in it" in message
    assert not list(tmp_path.iterdir())


def test_reports_in_python_are_one_file(tmp_path: Path) -> None:
    report = bubbleviz.analyze(ONE)
    with pytest.raises(UsageError, match="--json writes a single file; remove the trailing slash"):
        report.save(f"{tmp_path}/x.json/")
    assert not list(tmp_path.iterdir())


def test_standard_output_needs_the_name_of_a_format() -> None:
    with pytest.raises(
        UsageError, match="standard output has no suffix; choose a format with --json -, --svg -"
    ):
        format_of_suffix("-", ["json", "svg"])


@pytest.mark.parametrize(
    ("option", "file", "advised"),
    [
        ("svg", "x.png", "use -o x.png, or a name that ends in .svg"),
        ("svg", "X.PDF", "use -o X.PDF, or a name that ends in .svg"),
        ("png", "x.svg", "use -o x.svg, or a name that ends in .png"),
        ("html", "x.json", "use -o x.json, or a name that ends in .html"),
        ("json", "x.csv", "use -o x.csv, or a name that ends in .json"),
        ("csv", "a.b.parquet", "use -o a.b.parquet, or a name that ends in .csv"),
        ("markdown", "x.htm", "use -o x.htm, or a name that ends in .md"),
    ],
)
def test_an_option_writes_no_file_with_the_suffix_of_another_format(
    option: str, file: str, advised: str, tmp_path: Path, cli: CommandLine
) -> None:
    path = tmp_path / file
    message = cli.refused("analyze", ONE, f"--{option}", str(path), code=2)
    shortened = message.replace(f"{tmp_path}/", "")
    assert f"--{option} {file}: .{file.lower().rpartition('.')[2]} is the suffix of" in shortened
    assert advised in shortened
    assert not list(tmp_path.iterdir())


def test_a_command_does_not_advise_a_format_that_it_lacks(tmp_path: Path, cli: CommandLine) -> None:
    message = cli.refused("idle", ONE, "--svg", f"{tmp_path}/x.parquet", code=2)
    assert message.endswith("use a name that ends in .svg\n")


@pytest.mark.parametrize(
    ("option", "file"),
    [
        ("svg", "x"),
        ("svg", "x.svgz"),
        ("svg", ".png"),
        ("svg", "x.png.tmp"),
        ("json", "x.trace.json"),
        ("chrome", "x.json"),
        ("bubbles", "x.csv"),
        ("markdown", "x.txt"),
        ("panels", "x.svg"),
        ("html", "X.HTM"),
    ],
)
def test_an_option_writes_any_suffix_that_names_no_other_content(
    option: str, file: str, tmp_path: Path, cli: CommandLine
) -> None:
    cli.printed("analyze", ONE, f"--{option}", str(tmp_path / file))
    assert [path.name for path in tmp_path.iterdir()] == [file]


def test_two_outputs_cannot_share_a_file(tmp_path: Path, cli: CommandLine) -> None:
    file = str(tmp_path / "x.svg")
    for option in ("--svg", "-o"):
        message = cli.refused("analyze", ONE, "-o", file, option, file, code=2)
        assert f"{file}: two outputs have this path" in message
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "suffixes"),
    [
        (["idle", ONE], ["json", "csv", "svg"]),
        (["nccl", ONE], ["json", "csv"]),
        (["compare", ONE, ONE], ["json", "csv", "svg", "md", "tex"]),
        (["simulate", *SIZES], ["json", "svg", "tex"]),
    ],
    ids=lambda value: value[0],
)
def test_other_commands_write_by_suffix(
    words: list[str], suffixes: list[str], tmp_path: Path, cli: CommandLine
) -> None:
    files = [str(tmp_path / f"x.{suffix}") for suffix in suffixes]
    code, _, err = cli(*words, *(word for file in files for word in ("-o", file)))

    if words[0] != "nccl":  # the fixture contains no communication
        assert code == 0, err
        assert json.loads((tmp_path / "x.json").read_text())
        assert sorted(map(str, tmp_path.iterdir())) == sorted(files)
    refused = cli.refused(*words, "-o", str(tmp_path / "x.trace"), code=2)
    assert "unknown suffix; the name must end in one of" in refused
    assert words[0] != "idle" or ".html" in refused
