"""Fuzz the command line by running commands on small, randomly damaged inputs of every kind.

Each seed selects a kind of input, a valid input of this kind, damage to its bytes, values or
structure, and a command. Commands run one after the other in one process per core. A command must
end in time. Its exit code must be 0, or 3 if a limit is exceeded, or 1 or 2 with a one-sentence
error. The output must not contain control characters, and the input must not change. A command that
fails must not write any files, unless it names each output that it cannot write.

    python scripts/fuzz_commands.py [--inputs 100000] [--first SEED] [--failures FOLDER]

Inputs with a problem are copied to the folder of failures. To run one of them again, use ``--inputs
1 --first SEED``. The exit code is 0 if no input has a problem, and 1 otherwise.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.fuzzing.campaign import Counts, run_campaign  # imported after the path is set
from scripts.fuzzing.kinds import KINDS, write_inputs
from scripts.fuzzing.worker import Answer, Request

#: Limits per input, in seconds of wall time and of CPU time.
_MAX_S, _MAX_CPU_S = 60.0, 10.0
#: Number of inputs between two progress lines.
_PROGRESS = 1_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the inputs for a range of seeds, and return the exit code."""
    options = _build_parser().parse_args(arguments)
    if unknown := set(options.kind) - set(KINDS):
        print(f"unknown kinds {sorted(unknown)}; the kinds are {', '.join(KINDS)}", file=sys.stderr)
        return 2
    options.failures.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        inputs = Path(folder) / "inputs"
        write_inputs(inputs)
        request = Request(
            inputs=str(inputs),
            folder=f"{folder}/work",
            failures=str(options.failures.resolve()),
            seeds=tuple(range(options.first, options.first + options.inputs)),
            kinds=tuple(options.kind or KINDS),
            max_s=_MAX_S,
            max_cpu_s=_MAX_CPU_S,
        )
        Path(request.folder).mkdir()
        progress = _Progress(options.inputs)
        try:
            run_campaign(request, options.jobs, progress.show)
        finally:
            print("\n".join(progress.counts.lines()), flush=True)
    return 1 if progress.counts.problems else 0


def _build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="scripts/fuzz_commands.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    failures = Path("build/fuzz_failures")
    parser.add_argument(
        "--inputs", type=int, default=1_000, metavar="N", help="number of inputs [1000]"
    )
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="first seed [0]")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="worker processes"
    )
    parser.add_argument(
        "--kind", action="append", default=[], help="use only this kind (repeatable)"
    )
    parser.add_argument(
        "--failures",
        type=Path,
        default=failures,
        help=f"folder for inputs with a problem [{failures}]",
    )
    return parser


class _Progress:
    """Prints each problem when it occurs, and prints the number of finished inputs at intervals.

    Args:
        inputs: Number of inputs in the run.

    Attributes:
        counts: Outcomes of the finished inputs.
    """

    def __init__(self, inputs: int) -> None:
        self.counts = Counts()
        self._inputs, self._done, self._begin_s = inputs, 0, time.monotonic()

    def show(self, answer: Answer) -> None:
        """Count a finished input, and print its problems and the progress."""
        self.counts.add(answer)
        self._done += 1
        for problem in answer.problems:
            print(f"seed {answer.seed}: {problem}: {answer.command}", flush=True)
        if self._done % _PROGRESS == 0:
            seconds = time.monotonic() - self._begin_s
            print(f"{self._done:,} of {self._inputs:,} inputs in {seconds:,.0f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
