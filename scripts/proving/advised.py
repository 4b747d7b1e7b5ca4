"""Run jobs with a fault, do what ``bubbleviz analyze`` advises, and run them again.

    python -m scripts.proving.advised
    python -m scripts.proving.advised microbatch

Prints what each advice promised and what came of it, by the clock of the ranks and by ``bubbleviz
compare``. Each advice is followed alone; what it moves is still done, elsewhere.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import bubbleviz
from bubbleviz.report.compared.followed import AdviceResult
from bubbleviz.report.promise import format_saving
from bubbleviz.schedules.known import schedule_named
from scripts.proving.jobs import Job, cut, repaired
from scripts.proving.predicting import bubbleviz as command
from scripts.proving.training import Order, Ranks, RunError

_PLACEMENT = (0, 1, 2, 3)
_EVEN, _UNEVEN = (100.0,) * 4, (100.0, 100.0, 160.0, 100.0)
_LENGTHS = (1.0, 1.0, 1.0, 3.0, 1.0, 1.0, 1.0, 1.0)
#: Jobs with one fault each, and the schedule that they run under.
_FAULTY = (
    (Job("stages", _PLACEMENT, 8, _UNEVEN, _UNEVEN, _UNEVEN), "1F1B"),
    (Job("microbatch", _PLACEMENT, 8, _EVEN, _EVEN, _EVEN, lengths=_LENGTHS), "1F1B"),
    (Job("order", _PLACEMENT, 8, _EVEN, _EVEN, _EVEN), "GPipe"),
    (Job("rank", (0, 1), 8, *(_EVEN[:2],) * 3, replicas=2, slow=((1, 0, 1.5),)), "1F1B"),
)
#: A promise may be off by this share of the iteration.
_OFF = 0.02
#: Gradients may be off by this.
_GRADIENT = 1e-9


@dataclass(frozen=True)
class Followed:
    """An advice that was followed.

    Attributes:
        job: that it is on.
        advice: with the verdict of ``bubbleviz compare``.
        came: the share by which the median iteration is shorter, by the clock of the ranks.
    """

    job: Job
    advice: AdviceResult
    came: float

    @property
    def off(self) -> float:
        """How much more came than was promised, as a share of the iteration."""
        return self.came - self.advice.promised_ratio


def main() -> int:
    """Run what the command line asks for; fail where a promise is off."""
    known = {job.name: (job, schedule) for job, schedule in _FAULTY}
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("jobs", nargs="*", metavar="JOB", help=", ".join(known))
    parser.add_argument("--iterations", type=int, default=6, help="timed, of each run")
    given = parser.parse_args()
    unknown = [name for name in given.jobs if name not in known]
    if unknown:
        parser.error(f"no job is called {unknown[0]}; known are {', '.join(known)}")
    rows: list[Followed] = []
    with tempfile.TemporaryDirectory() as scratch:
        for name in given.jobs or known:
            folder = Path(scratch) / name
            folder.mkdir()
            try:
                for row in _follow(*known[name], folder, given.iterations):
                    rows.append(row)
                    print(_line(row), flush=True)
            except RunError as error:
                print(f"{name}: {error}", file=sys.stderr)
                return 1
    return 0 if all(abs(row.off) <= _OFF for row in rows) else 1


def _follow(job: Job, schedule: str, folder: Path, iterations: int) -> Iterator[Followed]:
    """Yield what came of each advice on a job that ``compare`` has a verdict on.

    Raises:
        RunError: a rank failed, or there is no advice to follow.
    """
    before, report = folder / "before", folder / "before.json"
    first_s = _seconds(job, Order(schedule, record=before, iterations=iterations))
    command("analyze", before, "--what-if", "-o", report, "--force")
    found = {own.kind: own for own in reversed(bubbleviz.load(report).advice)}
    if not found:
        raise RunError("there is no advice on it")
    for advice in reversed(found.values()):
        after = folder / f"after-{advice.kind}"
        fixed, order = repaired(job, advice.kind), Order(schedule)
        if advice.kind == "schedule":
            fixed, order = _scheduled(job, advice.place, folder / "order.csv")
        elif fixed == job:
            # What else ran on the machine disturbed it, which nothing here can change.
            print(f"{job.name}: not planted, {advice.action}", file=sys.stderr)
            continue
        last_s = _seconds(fixed, replace(order, record=after, iterations=iterations))
        for own in bubbleviz.compare(report, after).followed[-1]:
            if own.kind == advice.kind:
                yield Followed(job, own, 1 - last_s / first_s)


def _scheduled(job: Job, schedule: str, file: Path) -> tuple[Job, Order]:
    """Return a job of one stage a rank with its stages cut as a schedule needs, and its order."""
    known = schedule_named(schedule)
    placement = known.plan(job.ranks, job.microbatches, known.chunks).placement
    sizes = ("-p", job.ranks, "-m", job.microbatches, "--tf", 1, "--tb", 1, "--tw", 1)
    command("simulate", "--schedule", schedule, *sizes, "--csv", file, "--force")
    return cut(job, placement), Order(str(file), "compute_only")


def _seconds(job: Job, order: Order) -> float:
    """Run a job, and return its median iteration.

    Raises:
        RunError: a rank failed, or gradients are not those of the model in one piece.
    """
    with Ranks(job) as ranks:
        result = ranks.run(order)
    if result.gradient_error > _GRADIENT:
        raise RunError(f"{order.name}: gradients are off by {result.gradient_error:.0e}")
    return result.seconds


def _line(row: Followed) -> str:
    own = row.advice
    promised = format_saving(own.kind, own.place, own.promised_ratio, own.error_ratio)
    return (
        f"{row.job.name}, {own.action}: promised {promised}, came {-100 * row.came:.1f} %, "
        f"{100 * row.off:+.1f} points; compare says {own.verdict}"
    )


if __name__ == "__main__":
    sys.exit(main())
