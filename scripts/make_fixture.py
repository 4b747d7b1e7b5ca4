"""Write synthetic profiles: ``python scripts/make_fixture.py [options] DIRECTORY``.

``--all fixtures`` writes the repository's fixtures and their README. The files are always the same,
byte for byte. Every field of ``tests.planting.Planting`` is an option (``--late-stage 2``);
``--recipe 1f1b`` starts with the settings of a fixture. The truth is written next to the exports;
``tests/planting/truth.py`` describes its format.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Sequence
from dataclasses import Field, dataclass, fields, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bubbleviz.errors import UsageError
from tests.planting import Planting, Truth, plant
from tests.planting.options import CHOICES


@dataclass(frozen=True)
class Recipe:
    """A fixture: its description, and the properties of its run."""

    summary: str
    planting: Planting


#: The fixtures, keyed by folder name.
RECIPES = {
    "1f1b": Recipe(
        "1F1B on one server with four GPUs. Backwards take twice as long as forwards, transfers "
        "take no time, and a barrier precedes each optimizer step. This is the textbook case: the "
        "bubble ratio is (p-1)/(m+p-1) = 3/11 on every rank.",
        Planting(iterations=3, kernels=2, kernel_gap_ns=20_000, barrier=True),
    ),
    "zb-h2": Recipe(
        "ZB-H2 on two servers with four GPUs each. Iterations follow each other without a barrier "
        "and overlap, so no GPU is idle between the first and the last iteration. As published, "
        "the ratios `stage` and `period` are 0 and `schedule` is 7/55.",
        Planting(
            schedule="zb-h2",
            stages=8,
            microbatches=16,
            iterations=3,
            kernels=1,
            servers=2,
            optimizer_ns=250_000,
            iteration_ranges=True,
        ),
    ),
    "zb-v": Recipe(
        "ZB-V on one server, with one export per rank. Every process sees device 0, strings are "
        "registered, the thread pt_autograd_0 launches backwards, transfers take 20 us, durations "
        "vary by 5 %, and there are library ranges.",
        Planting(
            schedule="zb-v",
            iterations=2,
            kernels=2,
            transfer_ns=20_000,
            jitter=0.05,
            barrier=True,
            autograd="named",
            library_depth=2,
            text="registered",
            files="rank",
            devices="zero",
            seed=1,
        ),
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the profiles that are requested on the command line."""
    parser = _build_parser()
    options = parser.parse_args(arguments)
    if options.all:
        write_all(options.directory)
        return 0
    start = RECIPES[options.recipe].planting if options.recipe else Planting()
    options_given = {
        field.name: getattr(options, field.name)
        for field in fields(Planting)
        if getattr(options, field.name) is not None
    }
    try:
        truth = plant(replace(start, **options_given), options.directory)
    except (ValueError, UsageError) as error:
        parser.error(str(error))
    _write_truth(truth, options.directory)
    for file in truth.files:
        print(f"{options.directory / file.path}: {file.kernels} kernels")
    print(f"{options.directory / 'truth.json'}: {len(truth.operations)} operations")
    return 0


def _build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line, with one option per field of a planting."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path, help="folder to write to; created if missing")
    parser.add_argument("--all", action="store_true", help="write every fixture of the repository")
    parser.add_argument("--recipe", choices=sorted(RECIPES), help="start from this fixture")
    for field in fields(Planting):
        parser.add_argument("--" + field.name.replace("_", "-"), **_make_option(field))
    return parser


def _make_option(field: Field[Any]) -> dict[str, Any]:
    """Return the arguments that define a field's option. Options that are not given stay None."""
    if isinstance(field.default, bool):
        return {"action": argparse.BooleanOptionalAction, "default": None}
    if isinstance(field.default, tuple):
        return {"type": int, "nargs": "*", "default": None}
    return {"type": type(field.default), "choices": CHOICES.get(field.name), "default": None}


def _write_truth(truth: Truth, directory: Path) -> None:
    (directory / "truth.json").write_text(truth.to_json(), encoding="utf-8")


def write_all(directory: Path) -> None:
    """Write every fixture to a folder of the same name, and write the README that lists them."""
    sections = []
    for name, recipe in RECIPES.items():
        truth = plant(recipe.planting, directory / name)
        _write_truth(truth, directory / name)
        sections.append(_format_section(name, recipe, truth, directory / name))
    (directory / "README.md").write_text(_INTRODUCTION + "\n".join(sections), encoding="utf-8")


_INTRODUCTION = """# Fixtures

Each folder contains a synthetic run: a simulated pipeline, written in the tables of an Nsight
Systems export (schema 3.25.0). `truth.json` contains the true operations and ratios;
`tests/planting/truth.py` describes its format. bubbleviz can analyze each folder. This command
writes the same bytes again (the same content with another version of SQLite):

    python scripts/make_fixture.py --all fixtures

"""


def _format_section(name: str, recipe: Recipe, truth: Truth, folder: Path) -> str:
    """Return the README's section about a fixture."""
    default = Planting()
    changed = {
        field.name: getattr(recipe.planting, field.name)
        for field in fields(Planting)
        if getattr(recipe.planting, field.name) != getattr(default, field.name)
    }
    options = " ".join(_format_option(key, value) for key, value in changed.items())
    lines = [
        f"## {name}",
        "",
        recipe.summary,
        "",
        f"    python scripts/make_fixture.py fixtures/{name} {options}",
        "",
        "| iteration | schedule | stage | step | period |",
        "|---|---|---|---|---|",
    ]
    for iteration in truth.iterations:
        cells = " | ".join(
            "-" if value is None else f"{value:.6f}" for value in iteration.bubble_ratio.values()
        )
        lines.append(f"| {iteration.index} | {cells} |")
    lines += ["", "| file | kernels | sha256 |", "|---|---|---|"]
    for file in truth.files:
        digest = hashlib.sha256((folder / file.path).read_bytes()).hexdigest()
        lines.append(f"| {file.path} | {file.kernels} | `{digest}` |")
    return "\n".join([*lines, ""])


def _format_option(name: str, value: object) -> str:
    """Return an option and its value as they appear on a command line."""
    flag = "--" + name.replace("_", "-")
    if isinstance(value, bool):
        return flag
    if isinstance(value, tuple):
        return " ".join([flag, *map(str, value)])
    return f"{flag} {value}"


if __name__ == "__main__":
    sys.exit(main())
