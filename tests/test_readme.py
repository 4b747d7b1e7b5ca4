"""The README names what there is, its example runs, and its picture is current."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

import bubbleviz
import bubbleviz.conventions
from bubbleviz.cli import app
from bubbleviz.conventions import built_in
from bubbleviz.render.formats import renderers
from bubbleviz.render.formats.svg import RENDERER
from bubbleviz.report.report import View
from bubbleviz.schedules import schedules
from bubbleviz.count.ratios import statistics

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [s.name for s in statistics()])
def test_every_statistic_is_explained(name: str) -> None:
    assert f"| `{name}` |" in README


@pytest.mark.parametrize("name", [r.name for r in renderers()])
def test_every_output_is_named(name: str) -> None:
    assert f"--{name} " in README


@pytest.mark.parametrize("name", list(built_in()))
def test_every_convention_is_named(name: str) -> None:
    assert f"`{name}`" in README


def test_there_are_schedules() -> None:
    assert {"gpipe", "1f1b", "zb-h1", "zb-h2"} <= {s.name for s in schedules()}


def test_the_python_examples_run_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    examples = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    monkeypatch.chdir(ROOT)
    names: dict[str, object] = {}
    printed = []

    for example in examples:
        exec(compile(example, "README.md", "exec"), names)
        printed.append(capsys.readouterr().out)

    analysed, tables, iterations = printed
    assert analysed.startswith("schedule: 0.2727 over 3 iterations\n0 8000000")
    # Stage s of an ideal 1F1B waits s forwards of 1 ms in each of three iterations.
    assert tables == "[3000000, 6000000, 9000000]\n['BW', 'F', 'Optimizer']\n"
    assert iterations.startswith("{'name': '0', 'bubble_ratio_schedule': 0.2727")


def test_the_examples_of_conventions_are_some(tmp_path: Path) -> None:
    examples = re.findall(r"```toml\n(.*?)```", README, re.DOTALL)
    assert len(examples) == 2
    for example in examples:
        file = tmp_path / "mine.toml"
        file.write_text(example, encoding="utf-8")

        convention = bubbleviz.conventions.load_convention(file)

        names = bubbleviz.conventions.understand(convention.examples, convention)
        assert (names.phase >= 0).all()


def test_the_picture_is_current() -> None:
    report = bubbleviz.analyze([ROOT / "fixtures" / "1f1b"])

    drawn = RENDERER.render(report, View())

    assert drawn == (ROOT / "fixtures" / "1f1b.svg").read_text(encoding="utf-8")


GUIDES = sorted((ROOT / "bubbleviz" / "guides").glob("*.md"))
_COMMAND = re.compile(r"^\s+(bubbleviz .*)$", re.MULTILINE)
_INLINE = re.compile(r"`(bubbleviz [^`]*)`")


def test_every_guide_is_named() -> None:
    assert GUIDES
    for guide in GUIDES:
        assert f"](bubbleviz/guides/{guide.name})" in README


@pytest.mark.parametrize("file", [ROOT / "README.md", *GUIDES], ids=lambda file: file.name)
def test_commands_and_options_of_examples_exist(file: Path) -> None:
    text = file.read_text(encoding="utf-8").replace("\\\n", " ")
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]  # a group's
    examples = [*_COMMAND.findall(text), *_INLINE.findall(text)]

    assert examples
    for example in examples:
        words = example.split("#")[0].split()
        if len(words) < 2 or "=" in words[1]:
            continue
        command = commands[words[1]]
        known = {option for parameter in command.params for option in parameter.opts}
        known |= {option for parameter in command.params for option in parameter.secondary_opts}
        used = {word.strip("'\",.)").split("=")[0] for word in words if word.startswith("-")}
        assert used - {"-", "--help"} <= known, example
