"""In every output, a count of one is followed by a singular noun."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bubbleviz.model.texts import format_count
from tests.planting import Planting, plant
from tests.support.command_line import CommandLine

#: Matches a count of 1 followed by a plural noun.
#: "1 of 2 ranks" and decimals do not match.
PLURAL = re.compile(
    r"(?<![\d.,:/-])1 (?:(?:more|other|training|pipeline|model|CUDA API|Nsight Systems) )?"
    r"(stages|ranks|kernels|microbatches|iterations|operations|devices|GPUs|hosts|profiles|chunks"
    r"|times|steps|ranges|calls|copies|limitations|events|instructions|files|units|rows)\b"
)
ONE = Planting(stages=1, microbatches=1, iterations=1, kernels=1, communication=False)


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 copies"), (1, "1 copy"), (2, "2 copies"), (1000, "1,000 copies")]
)
def test_a_number_agrees_with_its_noun(number: int, text: str) -> None:
    assert format_count(number, "copy", "copies") == text


@pytest.mark.parametrize("run", [ONE, Planting(stages=2, microbatches=1, iterations=1)], ids=str)
def test_no_output_has_a_plural_after_one(run: Planting, tmp_path: Path, cli: CommandLine) -> None:
    plant(run, tmp_path)
    profile = str(next(tmp_path.glob("*.sqlite")))
    outputs = {
        f"--{kind}": tmp_path / f"out.{kind}" for kind in ("svg", "html", "latex", "json", "csv")
    }
    options = [word for option, file in outputs.items() for word in (option, str(file))]
    sizes = ["--tf", "1", "--tb", "1", "--tw", "1", "-p", "1", "-m", "1"]
    outcomes = [
        cli("analyze", profile, "--what-if", *options),
        cli("idle", profile),
        cli("inspect", profile),
        cli("simulate", "--schedule", "gpipe", *sizes),
    ]
    assert [code for code, *_ in outcomes] == [0] * 4
    texts = [text for _, *printed in outcomes for text in printed]
    texts += [file.read_text(encoding="utf-8") for file in outputs.values()]
    for text in texts:
        # Two blanks separate table cells, which are not sentences.
        assert PLURAL.findall(re.sub(r"<[^>]*>", "  ", text)) == []
