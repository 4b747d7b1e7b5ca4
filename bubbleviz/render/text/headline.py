"""The headline: the bubble ratio to quote, its uncertainty, and what it is of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bubbleviz.model.texts import counted, one_line
from bubbleviz.render.text.cells import between, percent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from bubbleviz.report.report import Report


def headline(report: Report) -> RenderableType:
    """Return the headline as the first lines of the text."""
    from rich.text import Text

    value, bounds, *below = headline_lines(report)
    text = Text()
    text.append(value, style="bold")
    return text.append("\n".join((bounds, *below)))


def headline_lines(report: Report) -> tuple[str, str, str, str]:
    """Return the primary ratio, its uncertainty, the run that it is of, and why it is primary."""
    from bubbleviz.report.measure import measure_of

    spread = report.summary.bubble_ratio[report.headline]
    ranks, hosts = len(report.ranks), len({rank.host for rank in report.ranks})
    nvtx = "NVTX " if all(profile.format == "nsys" for profile in report.profiles) else ""
    run = (
        f"{counted(ranks, 'rank')} on {counted(hosts, 'host')}, {report.summary.iterations} of "
        f"{counted(len(report.iterations), 'iteration')} averaged, "
        f"{nvtx}convention: {one_line(report.convention, 60)}"
    )
    bounds = ""
    if spread.ci95 is not None:
        bounds += f" ± {percent(spread.ci95)} (95 % CI of the mean, n = {spread.n})"
    bounds += "".join(f" ! ({restriction.text})" for restriction in report.restrictions)
    interval = report.summary.bubble_interval.get(report.headline)
    if report.contradicted(report.headline):
        bounds += " ! (clocks contradict each other)"
    if interval is not None and interval[0] < interval[1]:
        bounds += f", clock bounds {between(interval)} %"
    low = report.lower_bound(report.headline)
    if low is not None:
        bounds += f"; {percent(low)} with compute outside every operation counted as work"
    bounds += _kernel_share(report)
    why = f"primary ratio: {report.headline} ({one_line(report.headline_reason, 400)})"
    return f"{measure_of(report)}: {percent(spread.mean)}", bounds, run, why


def _kernel_share(report: Report) -> str:
    """Return the share of time in which any kernel ran, where much else than the bubble is lost."""
    from bubbleviz.report.kernel_time import kernel_time_of

    if report.summary.iterations == 0:
        return ""
    kernels = kernel_time_of(report).sentence
    return "" if kernels is None else f"; {kernels}"


def advice(report: Report) -> Iterator[RenderableType]:
    """Yield the first advice, and what it would save."""
    from rich.text import Text

    from bubbleviz.report.advice import first_thing

    sentence = first_thing(report)
    if sentence is not None:
        yield Text(f"what to do first: {one_line(sentence, 600)}")
    elif report.summary.iterations == 0:
        skipped = any(i.complete and i.kind == "training" for i in report.iterations)
        remedy = "leave out fewer with --skip, or record more" if skipped else "record whole ones"
        yield Text(
            "what to do first: nothing can be advised, since no iteration is averaged; " + remedy
        )
