"""Measure bubbleviz on generated profiles: time against a bare scan, memory, growth, peers."""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from scripts.benchmark.example import ExampleOutcome, measure_example
from scripts.benchmark.failures import BenchmarkError
from scripts.benchmark.limits import SMALL_KERNELS
from scripts.benchmark.machine import commit_note, machine_note, versions_note
from scripts.benchmark.pairs import Outcome, Profile, Way, analyze, columnar_of, measure, reader_of
from scripts.benchmark.peers import PEERS, PeerResult, run_peer
from scripts.benchmark.processes import ROOT, memory_note
from scripts.benchmark.scan import Yardstick, importing_yardstick, yardstick_in
from scripts.benchmark.tables import Grid, example_grid, growth_grid, peer_grid, ratio_grid
from tests.planting.kernels.profiles import is_made_from
from tests.planting.kernels.timetable import KINDS, Recipe, timetable_of

_TINY_SIZE = "4k"
_WIDTH = 160
_READERS = ("compiled", "sqlite", "parquet")


@dataclass(frozen=True)
class Result:
    """All that a benchmark prints.

    Attributes:
        outcomes: of each profile and way.
        example: of the shipped example.
        peers: how peers did on the first profile.
        notes: what the numbers mean, and where they were measured.
    """

    outcomes: tuple[Outcome, ...]
    example: ExampleOutcome
    peers: tuple[PeerResult, ...]
    notes: tuple[str, ...]

    def grids(self) -> list[Grid]:
        """Return the tables that have rows."""
        found = [ratio_grid(self.outcomes), example_grid(self.example)]
        found += [growth_grid(self.outcomes), peer_grid(self.peers, self.outcomes[0])]
        return [grid for grid in found if grid.rows]

    def markdown(self) -> str:
        """Return it as Markdown."""
        notes = "\n".join(f"- {note}" for note in self.notes)
        return "\n\n".join([*(grid.markdown() for grid in self.grids()), notes]) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its tables; return the exit status."""
    options = _parser().parse_args(arguments)
    if options.tiny:
        options.sizes, options.rounds = [_TINY_SIZE], 1
    try:
        result = _benchmark(options, _progress)
    except BenchmarkError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    _print(result, markdown=options.markdown)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument(
        "sizes",
        nargs="*",
        default=["200k", "2M"],
        type=_size,
        metavar="SIZE",
        help="kernels of a profile, as 200k, 2M, 10M (default: 200k 2M)",
    )
    parser.add_argument(
        "--kinds",
        type=_kinds,
        default=list(KINDS),
        metavar="A,B",
        help="light: ranges of phases; deep: of every library call as well (default: both)",
    )
    parser.add_argument(
        "--jobs",
        type=_numbers,
        default=[1, 2],
        metavar="N,M",
        help="threads that read (default: 1,2)",
    )
    parser.add_argument(
        "--readers",
        type=_readers,
        default=list(_READERS),
        metavar="A,B",
        help="compiled: with the compiled part; sqlite: without it; parquet: the same profile "
        "as a directory of Parquet tables (default: all)",
    )
    parser.add_argument(
        "--rounds",
        type=_positive,
        default=3,
        metavar="N",
        help="how often yardsticks and bubbleviz run in turn (default: 3)",
    )
    parser.add_argument(
        "--seed", type=int, default=1, metavar="N", help="of what is generated (default: 1)"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=ROOT / "build" / "bench",
        metavar="DIR",
        help="where profiles lie; those that are there are used again (default: build/bench)",
    )
    parser.add_argument(
        "--yardstick",
        choices=("any", "c", "cli", "python"),
        default="any",
        help="what scans: scan.c, the sqlite3 program, Python (default: the first "
        "that this machine has)",
    )
    parser.add_argument(
        "--peer-limit",
        type=float,
        default=120,
        metavar="S",
        help="seconds that a peer may take (default: 120)",
    )
    parser.add_argument(
        "--tiny",
        action="store_true",
        help="one pair on a few thousand kernels, to see that all of it runs",
    )
    parser.add_argument("--markdown", action="store_true", help="print Markdown tables")
    return parser  # fmt: skip


def kernels_of(size: str) -> int:
    """Return the number of kernels that a size as ``200k`` stands for.

    Raises:
        ValueError: it is no size.
    """
    found = re.fullmatch(r"([1-9][0-9]*)([kM]?)", size)
    if found is None:
        raise ValueError(f"no size: {size!r}")
    return int(found[1]) * {"": 1, "k": 1_000, "M": 1_000_000}[found[2]]


def _size(text: str) -> str:
    try:
        kernels_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no size such as 200k or 2M") from error
    return text


def _positive(text: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no positive number")
    return int(text)


def _numbers(text: str) -> list[int]:
    return [_positive(word) for word in text.split(",")]


def _kinds(text: str) -> list[str]:
    return _words(text, KINDS)


def _readers(text: str) -> list[str]:
    return _words(text, _READERS)


def _words(text: str, known: Sequence[str]) -> list[str]:
    words = text.split(",")
    for word in words:
        if word not in known:
            raise argparse.ArgumentTypeError(f"{word!r} is none of {', '.join(known)}")
    return words


def _progress(text: str) -> None:
    """Say on standard error what runs, where somebody watches."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr)


def _benchmark(options: argparse.Namespace, say: Callable[[str], None]) -> Result:
    notes = [commit_note(), machine_note(), versions_note(), memory_note()]
    folder = options.folder.resolve()
    yardstick = yardstick_in(folder, options.yardstick)
    profiles = _profiles(options, folder, say)
    ways, lack = _ways(options, profiles[0])
    outcomes: list[Outcome] = []
    importing: Yardstick | None = None
    for profile in profiles:
        say(f"measuring {profile.name}")
        yardsticks = [yardstick]
        if profile.recipe.kernels < SMALL_KERNELS:
            importing = importing or importing_yardstick(analyze(profile.path, 1))
            yardsticks.append(importing)
        outcomes += measure(profile, ways, yardsticks, options.rounds)
    say("measuring the example")
    example = measure_example(options.rounds)
    notes += [lack] if lack else []
    notes += [found.note for found in (yardstick, importing) if found]
    notes.append(
        f"medians over {options.rounds} rounds; in each, whole processes of every yardstick and "
        "way in turn, files in the page cache"
    )
    peers = []
    for peer in PEERS:
        say(f"running {peer.name}, if it is here")
        peers.append(run_peer(peer, outcomes[0].profile.path, options.peer_limit))
    return Result(tuple(outcomes), example, tuple(peers), tuple(notes))


def _ways(options: argparse.Namespace, profile: Profile) -> tuple[list[Way], str]:
    """Return the ways to measure, and why one that was asked for is not among them, or "".

    Raises:
        BenchmarkError: none is left.
    """
    ways, lack = [], ""
    for word in options.readers:
        if word == "parquet":
            ways += [Way(jobs, compiled=True, columnar=True) for jobs in options.jobs]
            continue
        compiled = word == "compiled"
        found = reader_of(profile.path, Way(1, compiled))
        if compiled == (found == "compiled reader"):
            ways += [Way(jobs, compiled) for jobs in options.jobs]
        else:
            lack = f"not measured: the {word} reader, for profiles are read by {found}"
    if not ways:
        raise BenchmarkError(lack)
    return ways, lack


def _profiles(
    options: argparse.Namespace, folder: Path, say: Callable[[str], None]
) -> list[Profile]:
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for size in options.sizes:
        for kind in options.kinds:
            recipe = Recipe(kernels_of(size), kind, options.seed)
            path = folder / f"{size}-{kind}.sqlite"
            if not is_made_from(recipe, path):
                say(f"generating {path.name}")
                _generate(recipe, path)
            tables = columnar_of(path)
            if "parquet" in options.readers and not _is_newer(tables, path):
                say(f"generating {tables.name}")
                _write_tables(path, tables)
            found.append(Profile(size, recipe, path, timetable_of(recipe).bubble_ratio))
    return found


def _is_newer(tables: Path, path: Path) -> bool:
    return tables.is_dir() and tables.stat().st_mtime > path.stat().st_mtime


def _write_tables(path: Path, tables: Path) -> None:
    """Write the tables of a profile as Parquet, in a process of its own as well."""
    shutil.rmtree(tables, ignore_errors=True)
    command = [sys.executable, "-m", "tests.support.columnar_exports", str(path), str(path.parent)]
    if subprocess.run(command, cwd=ROOT, check=False).returncode:
        raise BenchmarkError(f"cannot write {tables}")


def _generate(recipe: Recipe, path: Path) -> None:
    """Write a profile in a process of its own, whose memory children of this one do not inherit."""
    command = [sys.executable, "-m", "tests.planting.kernels.profiles"]
    command += [str(recipe.kernels), recipe.kind, str(recipe.seed), str(path)]
    if subprocess.run(command, cwd=ROOT, check=False).returncode:
        raise BenchmarkError(f"cannot generate {path}")


def _print(result: Result, *, markdown: bool) -> None:
    if markdown:
        print(result.markdown(), end="")
        return
    console = Console(width=_WIDTH, highlight=False)
    for grid in result.grids():
        grid.print_on(console)
        console.print()
    for note in result.notes:
        console.print(note, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
