"""What the command line's ``--iteration``, ``--ranks`` and ``--stages`` select in a report."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from bubbleviz.errors import UsageError

if TYPE_CHECKING:
    from bubbleviz.align.pipelines import Parallel
    from bubbleviz.render.formats import Renderer
    from bubbleviz.report.report import Report, View

#: More ranks or iterations than any report holds.
_MOST = 1_000_000
_SIZE = re.compile(r"^\s*(tp|pp|dp)\s*=\s*([1-9][0-9]{0,6})\s*$")
_RANGE = re.compile(r"^\s*([0-9]{1,18})\s*(?:-\s*([0-9]{1,18})\s*)?$")


def numbers(text: str, option: str) -> tuple[int, ...]:
    """Return the numbers of ``0,2,4-7``, in the order written.

    Raises:
        UsageError: it is not of that form.
    """
    found: list[int] = []
    shown = repr(text if len(text) <= 60 else f"{text[:59]}…")
    for part in text.split(","):
        match = _RANGE.match(part)
        if match is None:
            raise UsageError(f"{option} {shown}: not of the form 3 or 0-3 or 0,2,4-7")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise UsageError(f"{option} {shown}: ends before it begins")
        if last - first + len(found) > _MOST:
            raise UsageError(f"{option} {shown}: more than {_MOST:,} numbers")
        found.extend(range(first, last + 1))
    return tuple(found)


def _listed(held: set[int | None]) -> str:
    """Return numbers as ``0-3, 6``."""
    known = sorted(number for number in held if number is not None)
    runs: list[list[int]] = []
    for number in known:
        if runs and runs[-1][-1] == number - 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ", ".join("-".join(map(str, run)) for run in runs) or "none"


def parallel_of(text: str) -> Parallel:
    """Return the sizes of ``tp=2,pp=4,dp=8``; those that are not given are 1.

    Raises:
        UsageError: it is not of that form.
    """
    sizes: dict[str, int] = {}
    for part in text.split(","):
        match = _SIZE.match(part)
        if match is None or match[1] in sizes:
            wrong = "twice" if match else "not of the form tp=2,pp=4,dp=8"
            raise UsageError(f"--parallel: {part[:60]!r} is {wrong}")
        sizes[match[1]] = int(match[2])
    from bubbleviz.align.pipelines import Parallel

    return Parallel(**sizes)


def check_drawn(wanted: Mapping[str, bool], outputs: Iterable[Renderer[Any]]) -> None:
    """Check that what is to be drawn is drawn by an output.

    Args:
        wanted: by option, whether it was given.
        outputs: that are to be written.

    Raises:
        UsageError: none of them draws it.
    """
    from bubbleviz.render.formats import renderers

    drawn = frozenset().union(*(renderer.draws for renderer in outputs))
    for option, given in wanted.items():
        if given and option not in drawn:
            able = [f"--{one.name}" for one in renderers() if option in one.draws]
            raise UsageError(
                f"--{option}: nothing is drawn without a picture; give {', '.join(able[:-1])} or "
                f"{able[-1]} as well"
            )


def view_of(
    report: Report,
    *,
    iteration: str | None,
    ranks: str | None,
    stages: str | None,
    communication: bool,
    rows: str | None = None,
    causes: bool = False,
    heat_map: bool = False,
    critical: bool = False,
) -> View:
    """Return the view that options ask for.

    Raises:
        UsageError: an option selects something that the report does not hold.
    """
    from bubbleviz.report.report import View

    return View(
        iterations=_iterations(report, iteration),
        ranks=_ranks(report, ranks, stages),
        communication=communication,
        rows=rows,
        causes=causes,
        heat_map=heat_map,
        critical=critical,
    )


def _iterations(report: Report, text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    if text == "all":
        return tuple(i.index for i in report.iterations)
    named = {i.name: i.index for i in report.iterations}
    wanted = numbers(text, "--iteration")
    chosen = tuple(sorted({named[str(n)] for n in wanted if str(n) in named}))
    if not chosen or ("-" not in text and len(chosen) < len(set(wanted))):
        names = [i.name for i in report.iterations]
        held = f"{names[0]} to {names[-1]}" if names else "none"
        raise UsageError(f"--iteration {text}: no such iteration; the capture holds {held}")
    return chosen


def _ranks(report: Report, ranks: str | None, stages: str | None) -> tuple[int, ...]:
    chosen = [rank.index for rank in report.ranks]
    for text, option, of in ((ranks, "--ranks", "index"), (stages, "--stages", "stage")):
        if text is None:
            continue
        wanted = set(numbers(text, option))
        kept = [i for i in chosen if getattr(report.ranks[i], of) in wanted]
        held = {getattr(rank, of) for rank in report.ranks}
        if not wanted <= held or not kept:
            lacking = min(wanted - held, default=None)
            lost = "selects nothing" if lacking is None else f"there is no {lacking}"
            raise UsageError(f"{option} {text}: {lost}; the report holds {_listed(held)}")
        chosen = kept
    return () if ranks is None and stages is None else tuple(chosen)
