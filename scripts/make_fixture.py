"""Write planted profiles: ``python scripts/make_fixture.py [options] DIRECTORY``.

``--all fixtures`` writes the fixtures of the repository again, byte for byte, with their README.
Every field of ``tests.planting.Planting`` is an option (``--late-stage 2``); ``--recipe 1f1b``
starts from one of the fixtures. The truth is written beside the exports; its shape is described
in ``tests/planting/truth.py``.
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
    """A fixture: what it shows, and how it is planted."""

    summary: str
    planting: Planting


#: The fixtures, by folder.
RECIPES = {
    "1f1b": Recipe(
        "1F1B on one server of four GPUs, backward twice as long as forward, free transfers, "
        "a barrier before each optimizer; the textbook case (p-1)/(m+p-1) = 3/11 on every rank",
        Planting(iterations=3, kernels=2, kernel_gap_ns=20_000, barrier=True),
    ),
    "zb-h2": Recipe(
        "ZB-H2 on two servers of four GPUs, iterations back to back without a barrier, so that "
        "they overlap and no GPU idles between the first and the last one; the published case: "
        "no bubble by stage and by period, 7/55 by schedule",
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
        "ZB-V on one server, one export a rank, every process sees device 0; registered strings, "
        "backward launched by pt_autograd_0, transfers of 20 us, a jitter of 5 %, library ranges",
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
    """Plant what the command line asks for."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.all:
        write_all(options.directory)
        return 0
    start = RECIPES[options.recipe].planting if options.recipe else Planting()
    given = {
        field.name: getattr(options, field.name)
        for field in fields(Planting)
        if getattr(options, field.name) is not None
    }
    try:
        truth = plant(replace(start, **given), options.directory)
    except (ValueError, UsageError) as error:
        parser.error(str(error))
    _write_truth(truth, options.directory)
    for file in truth.files:
        print(f"{options.directory / file.path}: {file.kernels} kernels")
    print(f"{options.directory / 'truth.json'}: {len(truth.operations)} operations")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path, help="where to write; made if it does not exist")
    parser.add_argument("--all", action="store_true", help="write every fixture of the repository")
    parser.add_argument("--recipe", choices=sorted(RECIPES), help="start from this fixture")
    for field in fields(Planting):
        parser.add_argument("--" + field.name.replace("_", "-"), **_option(field))
    return parser


def _option(field: Field[Any]) -> dict[str, Any]:
    """Return how argparse reads that field; absent options stay None."""
    if isinstance(field.default, bool):
        return {"action": argparse.BooleanOptionalAction, "default": None}
    if isinstance(field.default, tuple):
        return {"type": int, "nargs": "*", "default": None}
    return {"type": type(field.default), "choices": CHOICES.get(field.name), "default": None}


def _write_truth(truth: Truth, directory: Path) -> None:
    (directory / "truth.json").write_text(truth.to_json(), encoding="utf-8")


def write_all(directory: Path) -> None:
    """Write every fixture into a folder of its name, and the README that lists them."""
    sections = []
    for name, recipe in RECIPES.items():
        truth = plant(recipe.planting, directory / name)
        _write_truth(truth, directory / name)
        sections.append(_section(name, recipe, truth, directory / name))
    (directory / "README.md").write_text(_INTRODUCTION + "\n".join(sections), encoding="utf-8")


_INTRODUCTION = """# Fixtures

Planted, not measured: a simulated pipeline written in the tables of a real Nsight Systems export
(schema 3.25.0), with the true spans and ratios beside it in `truth.json`, whose shape is described
in `tests/planting/truth.py`. Each has its own folder, a directory that bubbleviz can be given.
The same command writes the same bytes (with another SQLite library, the same content):

    python scripts/make_fixture.py --all fixtures

"""


def _section(name: str, recipe: Recipe, truth: Truth, folder: Path) -> str:
    """Return the README's section of one fixture."""
    default = Planting()
    changed = {
        field.name: getattr(recipe.planting, field.name)
        for field in fields(Planting)
        if getattr(recipe.planting, field.name) != getattr(default, field.name)
    }
    options = " ".join(_as_option(key, value) for key, value in changed.items())
    lines = [
        f"## {name}",
        "",
        recipe.summary + ".",
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


def _as_option(name: str, value: object) -> str:
    flag = "--" + name.replace("_", "-")
    if isinstance(value, bool):
        return flag
    if isinstance(value, tuple):
        return " ".join([flag, *map(str, value)])
    return f"{flag} {value}"


if __name__ == "__main__":
    sys.exit(main())
