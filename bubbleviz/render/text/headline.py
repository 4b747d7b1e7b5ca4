"""The headline: the bubble ratio to quote, its uncertainty, and what it is of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bubbleviz.model.phase_masks import EVALUATION
from bubbleviz.model.texts import counted, one_line
from bubbleviz.render.document import Sentence, between, percent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bubbleviz.render.document import Block
    from bubbleviz.report.report import Report


def headline(report: Report) -> Sentence:
    """Return the headline as the first lines of the text."""
    value, *lines = headline_lines(report)
    return Sentence("\n".join(lines), lead=value)


def headline_lines(report: Report) -> tuple[str, str, str, str]:
    """Return the primary ratio, its uncertainty, the run that it is of, and why it is primary."""
    from bubbleviz.report.rank_means import measure_of

    marked = "".join(f" ! ({mark})" for mark in restriction_marks(report))
    bounds = "".join(f"{joint}{text}" for joint, text in bounds_of(report))
    spread = report.summary.bubble_ratio[report.headline]
    why = f"primary ratio: {report.headline} ({one_line(report.headline_reason, 400)})"
    value = f"{measure_of(report)}: {percent(spread.mean)}"
    return value, f"{spread_of(report)}{marked}{bounds}", run_of(report), why


def spread_of(report: Report) -> str:
    """Return the confidence interval of the primary ratio, or its two values; empty for one."""
    spread = report.summary.bubble_ratio[report.headline]
    if spread.pair is not None:
        return " ({} and {} in two iterations)".format(*map(percent, spread.pair))
    if spread.ci95 is None or spread.mean is None:
        return ""
    return f" ± {percent(spread.ci95)} (95 % CI of the mean, n = {spread.n})"


def restriction_marks(report: Report) -> tuple[str, ...]:
    """Return what restricts the primary ratio, what weighs most first."""
    marks = tuple(restriction.text for restriction in report.restrictions)
    contradicted = report.contradicted(report.headline)
    return (*marks, "clocks contradict each other") if contradicted else marks


def bounds_of(report: Report) -> Iterator[tuple[str, str]]:
    """Yield what bounds the primary ratio and what stands beside it, each with its joint."""
    interval = report.summary.bubble_interval.get(report.headline)
    if interval is not None and interval[0] < interval[1]:
        yield ", ", f"clock bounds {between(interval)} %"
    low = report.lower_bound(report.headline)
    if low is not None:
        yield "; ", f"{percent(low)} with compute outside every operation counted as work"
    kernels = _kernel_share(report)
    if kernels is not None:
        yield "; ", kernels


def run_of(report: Report) -> str:
    """Return the ranks, hosts and iterations that the primary ratio is of."""
    ranks, hosts = len(report.ranks), len({rank.host for rank in report.ranks})
    nvtx = "NVTX " if all(profile.format == "nsys" for profile in report.profiles) else ""
    return (
        f"{counted(ranks, 'rank')} on {counted(hosts, 'host')}, {report.summary.iterations} of "
        f"{counted(len(report.iterations), 'iteration')} averaged, "
        f"{nvtx}convention: {one_line(report.convention, 60)}"
    )


def _kernel_share(report: Report) -> str | None:
    """Return the share of time in which any kernel ran, where much else than the bubble is lost."""
    from bubbleviz.report.kernel_time import kernel_time_of

    return None if report.summary.iterations == 0 else kernel_time_of(report).sentence


def advice(report: Report) -> Iterator[Block]:
    """Yield the first advice, and what it would save."""
    sentence = advice_sentence(report)
    if sentence is not None:
        yield Sentence(f"what to do first: {sentence}")


def advice_sentence(report: Report) -> str | None:
    """Return the first advice, and what it would save; None where there is none."""
    from bubbleviz.report.advice import first_thing

    sentence = first_thing(report)
    if sentence is not None:
        return one_line(sentence, 600)
    if report.summary.iterations > 0:
        return None
    skipped = any(i.complete and i.kind != EVALUATION for i in report.iterations)
    remedy = "leave out fewer with --skip, or record more" if skipped else "record whole ones"
    return f"nothing can be advised, since no iteration is averaged; {remedy}"
