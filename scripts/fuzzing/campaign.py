"""Runs the inputs for a range of seeds in worker processes, and counts the outcomes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path

from scripts.fuzzing.worker import Answer, Request, Started, keep_failure
from tests.support.places import CHECKOUT

#: Number of inputs per worker process.
#: Each new process starts with empty caches.
_BATCH = 500
#: Maximum number of seeds listed for each problem.
_MAX_SEEDS = 5


@dataclass
class Counts:
    """Counts of the outcomes of all inputs.

    Attributes:
        outcomes: Number of inputs, keyed by kind and outcome (an exit code or ``problem``).
        problems: Number of inputs, keyed by kind and problem.
        seeds: First seeds with each problem, keyed by kind and problem.
    """

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    problems: Counter[tuple[str, str]] = field(default_factory=Counter)
    seeds: dict[tuple[str, str], list[int]] = field(default_factory=dict)

    def add(self, answer: Answer) -> None:
        """Count an input."""
        outcome = "problem" if answer.problems else f"exit {answer.code}"
        self.outcomes[answer.kind, outcome] += 1
        for problem in answer.problems:
            key = answer.kind, problem
            self.problems[key] += 1
            seeds = self.seeds.setdefault(key, [])
            if len(seeds) < _MAX_SEEDS:
                seeds.append(answer.seed)

    def lines(self) -> Iterator[str]:
        """Yield the lines of a table of outcomes by kind, and then those of a list of problems."""
        columns = ("exit 0", "exit 1", "exit 2", "exit 3", "problem")
        kinds = sorted({kind for kind, _ in self.outcomes})
        yield f"{'kind':<16}{'inputs':>9}" + "".join(f"{column:>9}" for column in columns)
        for kind in [*kinds, "all"]:
            members = kinds if kind == "all" else [kind]
            row = [sum(self.outcomes[member, column] for member in members) for column in columns]
            yield f"{kind:<16}{sum(row):>9,}" + "".join(f"{count:>9,}" for count in row)
        for (kind, problem), count in sorted(self.problems.items()):
            seeds = ", ".join(map(str, self.seeds[kind, problem]))
            yield f"{count:>9,}  {kind}: {problem} (seeds {seeds})"


def run_campaign(request: Request, jobs: int, report: Callable[[Answer], None]) -> None:
    """Run all inputs in a request.

    Args:
        request: Seeds of all inputs. Each worker gets a separate folder.
        jobs: Number of concurrent worker processes.
        report: Callback for each input, called by one thread at a time.
    """
    lock = threading.Lock()
    seeds = iter(request.seeds)

    def next_batch() -> tuple[int, ...]:
        with lock:
            return tuple(islice(seeds, _BATCH))

    def take(answer: Answer) -> None:
        with lock:
            report(answer)

    def work(number: int) -> None:
        folder = f"{request.folder}/{number}"
        while batch := next_batch():
            while batch:
                values = {**asdict(request), "seeds": batch, "folder": folder}
                batch = _run_batch(Request(**values), take)

    with ThreadPoolExecutor(jobs) as threads:
        for future in [threads.submit(work, number) for number in range(jobs)]:
            future.result()


def _run_batch(request: Request, take: Callable[[Answer], None]) -> tuple[int, ...]:
    """Run a batch in a new process.

    Returns:
        Seeds that were not run because an earlier seed ended the process.
    """
    started: Started | None = None
    with (
        Path(f"{request.folder}.stacks").open("w+", encoding="utf-8") as stacks,
        subprocess.Popen(
            [sys.executable, "-m", "scripts.fuzzing.worker", json.dumps(asdict(request))],
            cwd=CHECKOUT,
            stdout=subprocess.PIPE,
            stderr=stacks,
            text=True,
        ) as process,
    ):
        for line in process.stdout or ():
            message = json.loads(line)
            if "code" in message:
                started = None
                take(Answer(**message))
            else:
                started = Started(**message)
    if process.returncode == 0:
        return ()
    stack = Path(f"{request.folder}.stacks").read_text(encoding="utf-8", errors="replace")
    if started is None:
        raise RuntimeError(f"a worker failed between two inputs: {stack[-2_000:]}")
    problem = _name_death(process.returncode, request.max_s)
    Path(request.folder, "stacks").write_text(stack, encoding="utf-8")
    keep_failure(request, started, [problem])
    take(Answer(**asdict(started), code=None, problems=(problem,), cpu_s=request.max_s))
    return request.seeds[request.seeds.index(started.seed) + 1 :]


def _name_death(code: int, max_s: float) -> str:
    """Describe how a worker ended in the middle of an input."""
    if code == -signal.SIGALRM:
        return f"no end within {max_s:g} s"
    return (
        f"killed by {signal.Signals(-code).name}" if code < 0 else f"the process ended with {code}"
    )
