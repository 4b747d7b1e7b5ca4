"""Every command and example in the README and the guides works, and the lists are complete."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import typer

import bubbleviz
from bubbleviz.cli.app import main, make_application
from bubbleviz.conventions.convention_file import built_in, load_convention
from bubbleviz.conventions.range_names import parse_range_names
from bubbleviz.count.ratios import list_ratios
from bubbleviz.render.formats import list_renderers
from bubbleviz.render.picture.picture import picture as render
from bubbleviz.report.view import View
from tests.support.documented_files import (
    GUIDES,
    write_documented_files,
    write_documented_jax_files,
)
from tests.support.places import CHECKOUT, FIXTURES

README = CHECKOUT / "README.md"
PAGES = [README, *sorted(GUIDES.glob("*.md"))]
#: Other pages of the site.
#: Their commands run on the same files.
SITE = sorted((CHECKOUT / "scripts" / "pages" / "docs").rglob("*.md"))
#: Options that need a cluster, which is not available in tests.
NEEDS_MORE = ("--dask",)
#: Commands that run until they are interrupted.
ENDLESS = ("view", "watch", "mcp")
#: Commands that write files; several pages may write the same file.
WRITERS = ("analyze", "inspect", "compare", "simulate", "plan", "layout", "idle", "nccl", "pgle")


def read_guide(name: str) -> str:
    return (GUIDES / f"{name}.md").read_text(encoding="utf-8")


def list_examples(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def list_commands(page: Path) -> list[str]:
    """Return the commands on a page, first from code blocks, then from text and tables."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    blocks = re.findall(r"^ {4}(bubbleviz .*)$", text, re.MULTILINE)
    return [*blocks, *re.findall(r"`(bubbleviz [^`]*)`", text)]


def split_arguments(command: str) -> list[str]:
    """Return the arguments of a command as a shell would split and expand them."""
    words = []
    for word in shlex.split(command, comments=True)[1:]:
        files = sorted(map(str, Path().glob(word))) if "*" in word and word[0] != "/" else []
        words += files or [word]
    return words


def test_the_readme_is_one_page() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 170


def test_the_picture_is_current() -> None:
    report = bubbleviz.analyze([FIXTURES / "1f1b"])

    assert render(report, View()) == (FIXTURES / "1f1b.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_printed_samples_are_current(
    page: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(CHECKOUT)
    monkeypatch.setenv("COLUMNS", "80")
    # The samples show a pipe, whose output does not depend on the height of a terminal.
    monkeypatch.delenv("LINES", raising=False)
    printed = r"<!-- printed by: bubbleviz ([^\n]*) -->\n```\n(.*?)```"

    for command, sample in re.findall(printed, page.read_text("utf-8"), re.DOTALL):
        assert main(command.split()) == 0
        assert sample in capsys.readouterr().out


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.parent.name == "guides"], ids=lambda page: page.stem
)
def test_guides_show_the_command_of_each_printed_sample(page: Path) -> None:
    """The comment before a sample is invisible on the website and on GitHub."""
    text = page.read_text(encoding="utf-8")

    for command in re.findall(r"<!-- printed by: ([^\n]*) -->", text):
        assert f"\n    {command}\n" in text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_files_of_the_package_in_text_exist(page: Path) -> None:
    """NAME, FOLDER and VIEW match any name, because they stand for files that users write."""
    text = page.read_text(encoding="utf-8")
    for file in re.findall(r"`((?:bubbleviz|sql|tests|scripts|fixtures)/[\w./]+)`", text):
        pattern = re.sub(r"\b(NAME|FOLDER|VIEW)\b", "*", file)
        assert list(CHECKOUT.glob(pattern)), file


@pytest.mark.parametrize(
    "change",
    [
        "framework",
        "statistic",
        "output format",
        "input format",
        "option",
        "SQL query",
        "schedule",
        "cause",
        "limitation",
        "command",
        "ratio",
    ],
)
def test_the_place_of_every_common_change_is_named(change: str) -> None:
    table = read_guide("contributing").partition("## Where a change goes")[2]
    rows = [line for line in table.splitlines() if line.startswith("| ")]
    places = [row.split("|")[2] for row in rows if change in row.split("|")[1]]

    assert places
    assert all("`" in place for place in places)


def test_every_guide_is_linked() -> None:
    readme = README.read_text(encoding="utf-8")

    for guide in GUIDES.glob("*.md"):
        assert f"](bubbleviz/guides/{guide.name})" in readme


@pytest.mark.parametrize("name", [ratio.name for ratio in list_ratios()])
def test_every_ratio_is_explained(name: str) -> None:
    assert f"| `{name}` |" in read_guide("ratios")


@pytest.mark.parametrize("name", [renderer.name for renderer in list_renderers()])
def test_every_output_is_named(name: str) -> None:
    assert f"--{name} " in read_guide("outputs")


@pytest.mark.parametrize("name", list(built_in()))
def test_every_convention_is_named(name: str) -> None:
    assert f"| `{name}` |" in read_guide("conventions")


def test_the_python_examples_run_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fixtures").symlink_to(FIXTURES)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    printed = []
    for page in (README, GUIDES / "python.md"):
        for example in list_examples(page, "python"):
            exec(compile(example, page.name, "exec"), names)
            printed.append(capsys.readouterr().out)

    (analyzed, report, stages, parts, worst, figure, comparison, causes, *further) = printed
    lengths, took, waited, advice, its, _, kernels = further
    ratio, first, stage, *_ = analyzed.splitlines()
    assert ratio == "schedule: 0.2727"
    assert first.startswith("The schedule itself causes the bubble: twice the microbatches")
    assert stage.startswith("0 0.2727")
    assert report.startswith("Report(schedule bubble ratio 0.2727, 4 ranks")
    assert stages.splitlines()[-1].split()[-1] == "3000000.0"
    assert "waiting for another rank to produce the input" in parts
    drain, mean = map(float, parts.splitlines()[-1].split())
    assert (drain > 0, mean) == (True, 3 / 11)
    assert worst == f"0 {3 / 11}\n"
    assert figure == ""
    assert (tmp_path / "figure.svg").read_text(encoding="utf-8").count('width="89mm"') == 1
    assert comparison.startswith(
        "Comparison(period bubble ratio 26.87 % -> 0.00 %)\nschedule: 1f1b"
    )
    # The last stage of an ideal 1F1B waits for 3 forwards of 1 ms, and for 6 more.
    # This repeats in each of 3 iterations.
    assert "warmup" in causes
    assert "9000000" in causes
    assert sum(json.loads(lengths)) == 45
    assert took == "[1000000.0, 1000000.0, 1000000.0, 1000000.0]\n"
    assert "BW" in waited
    assert advice.startswith(first)
    assert advice.count("Ideal(zb-h1") == 2
    assert "interleaved-zb" in advice
    assert "kernel" in kernels
    assert "bubble_ratio" in its


def list_documented_calls() -> Iterator[tuple[str, bool, str]]:
    """Yield the calls that the Python guide lists: code, whether it works, and the result."""
    for line in read_guide("python").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 3 and cells[1] in {"yes", "no"}:
            for code in cells[0].split("`, `"):
                yield code.strip("`"), cells[1] == "yes", cells[2]


def test_calls_that_the_python_guide_lists_work_as_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fixtures").symlink_to(FIXTURES)
    monkeypatch.chdir(tmp_path)
    names = {
        "bubbleviz": bubbleviz,
        "report": bubbleviz.analyze("fixtures/1f1b"),
        "idle": bubbleviz.idle("fixtures/1f1b"),
        "path": "fixtures/1f1b",
    }
    bubbleviz.analyze("fixtures/1f1b").save("report.json")
    calls = list(list_documented_calls())

    assert len(calls) >= 40
    for code, works, result in calls:
        if works:
            eval(code, names)
        else:
            with pytest.raises(AttributeError) as refused:
                eval(code, names)
            assert str(refused.value).endswith(f"; use {result.strip('`')}")
            eval(result.strip("`"), names)


@pytest.mark.parametrize("name", ["conventions", "traces"])
def test_conventions_in_guides_match_their_examples(name: str, tmp_path: Path) -> None:
    (example,) = list_examples(GUIDES / f"{name}.md", "toml")
    file = tmp_path / "mine.toml"
    file.write_text(example, encoding="utf-8")

    convention = load_convention(file)

    assert (parse_range_names(convention.examples, convention).phase >= 0).all()


@pytest.fixture(scope="module")
def documented(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("documented")
    write_documented_files(folder)
    return folder


@pytest.fixture(scope="module")
def documented_jax(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("jax")
    write_documented_jax_files(folder)
    return folder


@pytest.mark.parametrize("page", [*PAGES, *SITE], ids=lambda page: page.stem)
def test_every_command_runs(
    page: Path,
    documented: Path,
    documented_jax: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for command in list_commands(page):
        is_jax = page.stem == "pgle" or ("pgle" in command and "node" in command)
        monkeypatch.chdir(documented_jax if is_jax else documented)
        words = split_arguments(command)
        if not set(NEEDS_MORE).isdisjoint(words) or (words and words[0] in ENDLESS):
            continue
        if len(words) < 2:  # this is only the name of a command
            continue
        if words[0] == "inspect" and "-o" in words:  # the names of these runs are known
            continue
        writes = words[0] in WRITERS
        code = main([*words, "--force"] if writes else words)
        assert code == 0, f"{command}: {capsys.readouterr().err}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_reports_that_a_page_reads_are_written_earlier(page: Path) -> None:
    """Each report is written by an earlier command.

    In the README, only gate and simulate are checked.
    """
    available: set[str] = set()
    for command in list_commands(page):
        words = split_arguments(command)
        outputs = {
            b for a, b in pairwise(words) if a == "-o" or (a == "--json" and words[0] == "analyze")
        }
        read = {word for word in words if word.endswith(".json")} - outputs
        if "--dask" not in words and (page != README or words[0] in {"gate", "simulate"}):
            assert read <= available, command
        available |= outputs


@pytest.mark.parametrize("page", [*PAGES, *SITE], ids=lambda page: page.stem)
def test_options_in_text_exist(page: Path) -> None:
    """Options that a page names without a command exist in some command of bubbleviz."""
    mentioned = set(re.findall(r"`(--[a-z-]+)", page.read_text(encoding="utf-8")))
    commands = typer.main.get_command(make_application()).commands.values()  # type: ignore[attr-defined]
    existing = {
        word
        for c in commands
        for param in c.params
        for word in (*param.opts, *param.secondary_opts)
    }

    assert mentioned - {
        "--nvtx-ranges",
        "--profile-ranks",
        "--use-pytorch-profiler",
        "--tensorboard-dir",
        "--pipeline-model-parallel-layout",
        "--cuda-memory-usage",
        "--runtime-trace",
        "--hip-trace",
        "--rccl-trace",
        "--selected-regions",
    } <= existing | {"--profile", "--cuda-graph-trace", "--help"}
