"""``bubbleviz guide`` lists all pages, prints plain text to a pipe, and renders on a terminal."""

from __future__ import annotations

import pytest

from tests.support.command_line import CommandLine, run_on_terminal
from tests.support.places import CHECKOUT

GUIDES = sorted((CHECKOUT / "bubbleviz" / "guides").glob("*.md"))


def test_guides_are_listed_with_their_titles(cli: CommandLine) -> None:
    lines = cli.printed("guide").splitlines()

    assert [line.split()[0] for line in lines[: len(GUIDES)]] == [file.stem for file in GUIDES]
    for line, file in zip(lines, GUIDES, strict=False):
        title = file.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        assert line.endswith(f"  {title}")


@pytest.mark.parametrize("name", [file.stem for file in GUIDES])
def test_a_guide_is_its_markdown_when_piped(name: str, cli: CommandLine) -> None:
    page = (CHECKOUT / "bubbleviz" / "guides" / f"{name}.md").read_text(encoding="utf-8")
    assert cli.printed("guide", name) == page


def test_a_mistyped_name_is_corrected(cli: CommandLine) -> None:
    assert "did you mean ratios?" in cli.refused("guide", "ratio", code=2)


def test_a_guide_is_rendered_on_a_terminal() -> None:
    output = run_on_terminal("guide", "ratios")

    assert "\x1b[" in output
    assert "# " not in output.splitlines()[0]
