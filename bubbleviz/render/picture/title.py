"""Draws a picture's title: the primary bubble ratio, its iterations, and why it was chosen."""

from __future__ import annotations

from bubbleviz.count.iterations import Iteration, Ratio
from bubbleviz.count.summary import has_overlap
from bubbleviz.model.texts import format_count, to_one_line
from bubbleviz.render.picture.numbers import UNKNOWN, percent
from bubbleviz.render.picture.page import Page
from bubbleviz.render.selection import Selection
from bubbleviz.report.measure import name_measure
from bubbleviz.report.report import Report

#: Minimum difference between a ratio and its lower bound for which the bound is printed.
_RATIO_GRAIN = 0.01


def shows_lower_bound(ratio: Ratio | None) -> bool:
    """Return whether to print a ratio as a range.

    This is the case if the ratio exceeds its lower bound by more than ``_RATIO_GRAIN``.
    """
    if ratio is None or ratio.value is None or ratio.low is None:
        return False
    return ratio.value - ratio.low > _RATIO_GRAIN


def format_iteration_ratio(report: Report, iteration: Iteration) -> str:
    """Return the primary ratio of an iteration as text, or a dash if it is unknown.

    The text is a range if the lower bound is much smaller than the ratio; see
    :func:`shows_lower_bound`. A ``!`` follows if the ratio depends on clocks that contradict each
    other.
    """
    ratio = iteration.ratios.get(report.headline)
    if ratio is None or ratio.value is None:
        return UNKNOWN
    mark = " !" if ratio.contradicted else ""
    low = f"{100 * ratio.low:.1f} to " if ratio.low is not None and shows_lower_bound(ratio) else ""
    return f"{low}{percent(ratio.value)}{mark}"


def write_headings(report: Report, selection: Selection) -> tuple[str, str]:
    """Return the texts that make up the title.

    The title shows the mean of the primary ratio over the averaged iterations and its confidence
    interval. If two iterations are averaged, both values are shown instead of the interval. If
    fewer than two iterations are averaged and a single iteration is drawn, the title shows the
    ratio of the drawn iteration.

    Returns:
        head: Name and value of the primary ratio.
        rest: Restrictions, the number of averaged iterations, the drawn iteration, and the share of
            time in which kernels run, separated by dots. Parts that do not apply are left out.
    """
    measure = f"{to_one_line(report.headline, 40)} bubble ratio"
    head = f"{measure if report.no_pipeline is None else name_measure(report).name} "
    value, parts = percent(None), []
    spread = report.summary.bubble_ratio.get(report.headline)
    if spread is not None and spread.mean is not None and spread.n > 0:
        bounds = "" if spread.ci95 is None else f" ± {percent(spread.ci95)} (95 % CI)"
        if spread.pair is not None:
            bounds = " ({} and {})".format(*map(percent, spread.pair))
        value = percent(spread.mean) + bounds
        parts = [f"mean over {format_count(spread.n, 'iteration')}"] if spread.n > 1 else []
    if len(selection.iterations) == 1:
        (iteration,) = selection.iterations
        name = f"iteration {to_one_line(iteration.name, 40)}"
        ratio = format_iteration_ratio(report, iteration)
        if not parts:
            value = ratio if ratio != UNKNOWN else value
            parts = [name]
        elif ratio == UNKNOWN:
            parts.append(f"drawn: {name}")
        else:
            parts.append(f"drawn: {name} with {ratio}")
    parts[:0] = [restriction.text for restriction in report.restrictions]
    kernels = report.kernel_time.sentence
    if kernels is not None:
        # Without a pipeline, the ratio alone would be misleading, so this part comes first.
        parts.insert(len(parts) if report.no_pipeline is None else 0, kernels)
    head += "unknown" if value == UNKNOWN else value
    return head, " · ".join(parts)


def draw_title(page: Page, report: Report, selection: Selection) -> None:
    """Draw the title below the page's cursor, and move the cursor below the title.

    The title consists of a heading, a paragraph with further facts, and a paragraph that says why
    the ratio is the primary one. The last paragraph is left out if the ratio needs no explanation
    (:func:`_is_usual_ratio`).
    """
    head, rest = write_headings(report, selection)
    letters = page.style.letters
    page.heading(head)
    page.y += 4
    page.paragraph(rest, letters.subtitle, lines=3)
    if not _is_usual_ratio(report):
        reason = f"{report.headline}, because {report.headline_reason}"
        page.paragraph(to_one_line(reason, 300), letters.axis)
    page.y += 4


def _is_usual_ratio(report: Report) -> bool:
    """Return whether the primary ratio is the known ``schedule`` of iterations without overlap."""
    spread = report.summary.bubble_ratio.get(report.headline)
    is_known = spread is not None and spread.mean is not None
    return is_known and report.headline == "schedule" and not has_overlap(list(report.iterations))
