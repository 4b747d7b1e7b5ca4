"""The report as text: its sections in the order in which they are printed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from bubbleviz.model.operations import ProfileSummary
from bubbleviz.model.texts import one_line
from bubbleviz.render.document import (
    Block,
    Bullets,
    Heading,
    Sentence,
    Table,
    first_rows,
    in_percent,
    milliseconds,
    shortened,
)
from bubbleviz.render.markdown import markdown
from bubbleviz.render.text import ranks
from bubbleviz.render.text import sections as own
from bubbleviz.render.text.headline import advice_sentence, headline_lines
from bubbleviz.render.text.terminal import WIDTH, plain_text
from bubbleviz.report.advice import first_thing
from bubbleviz.report.bubbles import (
    bubble_parts,
    longest_bubbles,
    longest_implied,
    rounded_shares,
)
from bubbleviz.report.methods import methods
from bubbleviz.report.rank_means import idle_of, many_ranks
from bubbleviz.report.report import Report
from bubbleviz.report.view import View


def causes(report: Report) -> Table:
    """Return the causes of the bubble of the averaged iterations, a row each, and their sum.

    It has no rows where nothing is known of them.
    """
    what = f"What the {idle_of(report)} is made of ({report.explanation.listed_ratio} window)"
    parts = bubble_parts(report)
    shares = [part.share for part in parts]
    total = sum(shares)
    rows = zip(
        (*(part.name for part in parts), "all"),
        (*rounded_shares(shares), in_percent(total)),
        (*rounded_shares([share / total for share in shares]), in_percent(1.0)) if total else (),
        (*(part.time_ns for part in parts), sum(part.time_ns for part in parts)),
        (*(part.meaning for part in parts), ""),
        strict=bool(total),
    )
    return Table(
        f"{what}, mean of ranks and averaged iterations",
        [
            {
                "cause": name,
                "% of window": of_window,
                "% of bubble": of_bubble,
                "ms": milliseconds(time_ns),
                "meaning": meaning,
            }
            for name, of_window, of_bubble, time_ns, meaning in rows
        ],
        left=("cause", "meaning"),
        wrap=("meaning",),
        giving_way=("% of bubble",),
    )


def longest(report: Report) -> Iterator[Block]:
    """Yield the longest bubbles of the averaged iterations that the schedule does not imply."""
    bubbles, implied = longest_bubbles(report), longest_implied(report)
    if not bubbles:
        return
    which = "" if implied is None else " that the schedule does not imply"
    yield Heading(f"Longest idle intervals{which} (all of them: --bubbles FILE)")
    lines = [one_line(bubble.sentence, 400) for bubble in bubbles]
    if implied is not None:
        lines.append(f"the longest that it implies: {one_line(implied.sentence, 400)}")
    yield Bullets(lines)


# Profiles: the clock of each host, and the coverage of each profile.


def clocks(report: Report) -> Iterator[Block]:
    """Yield the offset of each host's clock, where there are several."""
    first: dict[tuple[str, float, int | None], ProfileSummary] = {}
    for number, profile in enumerate(report.profiles):
        first.setdefault(report.clock(number), profile)
    if len(first) < 2:
        return
    shown = [
        (float("inf") if p.clock_uncertainty_ns is None else p.clock_uncertainty_ns / 1e3, p)
        for p in first.values()
    ]
    if many_ranks(len(report.ranks)):
        shown.sort(key=lambda pair: -pair[0])
    rows = [
        {
            "host": shortened(one_line(profile.host, 200), 28),
            "offset ms": milliseconds(profile.clock_offset_ns),
            "± us": "-" if profile.clock_uncertainty_ns is None else f"{uncertainty:,.1f}",
            "drift ppm": f"{profile.clock_drift_ppm:.3f}" if profile.clock_drift_ppm else "-",
        }
        for uncertainty, profile in shown
    ]
    title = "Clocks: offset of each host to the first, and its uncertainty"
    yield Table(title, first_rows(rows, "host"), left=("host",))


def coverage(report: Report) -> Iterator[Block]:
    """Yield how many kernels of each profile are attributed, and the largest that are not."""

    def share(part: int, whole: int) -> str:
        return f"{100 * part / whole:.2f}" if whole else "-"

    profiles = list(report.profiles)
    if many_ranks(len(report.ranks)):
        # Of very many, those of which least is explained.
        profiles.sort(key=lambda own: own.attributed_gpu_ns / own.gpu_ns if own.gpu_ns else 0.0)
    rows = [
        {
            "profile": shortened(one_line(Path(profile.path).name, 200), 28),
            "kernels": f"{profile.kernels:,}",
            "linked %": share(profile.linked_kernels, profile.kernels),
            "attributed %": share(profile.attributed_kernels, profile.kernels),
            "cross-thread": f"{profile.cross_thread_kernels:,}",
            "attributed time %": share(profile.attributed_gpu_ns, profile.gpu_ns),
            "comm. ms": milliseconds(profile.comm_ns),
            "copies ms": milliseconds(profile.copy_ns),
        }
        for profile in profiles
    ]
    yield Table(
        "Coverage: kernels, and compute time attributed to operations",
        first_rows(rows, "profile"),
        left=("profile",),
        giving_way=("cross-thread", "copies ms", "comm. ms", "attributed %", "linked %", "kernels"),
    )
    largest = sorted(report.unattributed_kernels, key=lambda k: (-k.gpu_ns, k.rank, k.name))[:5]
    if largest:
        yield Bullets(
            [
                f"unattributed: {milliseconds(k.gpu_ns)} ms in {k.count:,} x "
                f"{one_line(k.name, 60)} on {one_line(report.ranks[k.rank].label, 40)}, "
                f"{one_line(k.where, 80)}"
                for k in largest
            ]
        )


# All sections, those of some names, and what files hold.


def sections(report: Report, view: View, width: int = WIDTH) -> Iterator[Block]:
    """Yield the sections of a report, for a console of that width."""
    for _, blocks in _sections(report, view, width):
        yield from blocks


def details(
    report: Report, view: View, names: Sequence[str], width: int = WIDTH
) -> Iterator[Block]:
    """Yield some tables of a report, in the order named.

    Args:
        report: any report.
        view: the iteration and the ranks that are listed.
        names: as in ``--details``.
        width: of the console.
    """
    for name in names:
        listed = [b for n, blocks in _sections(report, view, width) if n == name for b in blocks]
        yield from listed or [Sentence(f"\n{name}: this run has nothing to list")]


def _sections(report: Report, view: View, width: int) -> Iterator[tuple[str, Iterable[Block]]]:
    """Yield sections in the order in which they are printed, with their names in ``--details``."""
    value, *lines = headline_lines(report)
    yield "", [Sentence("\n".join(lines), lead=value)]
    yield "operations", own.orders(report)
    if (advice := advice_sentence(report)) is not None:
        yield "", [Sentence(f"what to do first: {advice}")]
    yield "ratios", [own.ratios(report)]
    yield "causes", [table for table in [causes(report)] if table.rows]
    iteration = own.shown_iteration(report, view)
    if iteration is not None and iteration.ranks:
        yield "ranks", ranks.ranks(report, view, iteration, width)
        yield "causes", ranks.by_rank(report, view, iteration)
        yield "communication", ranks.communication(report, view, iteration)
        yield "causes", longest(report)
    yield "operations", own.phase_times(report)
    yield "operations", own.critical_path(report)
    yield "operations", own.what_if(report)
    yield "operations", own.alternatives(report)
    yield "operations", own.memory(report)
    yield "advice", own.advice_table(report)
    yield "slowdown", own.slowdowns(report)
    yield "ratios", own.not_averaged(report)
    yield "clocks", clocks(report)
    yield "coverage", coverage(report)
    if report.limitations:
        yield "coverage", [Heading("Limitations"), Bullets(own.limitation_lines(report))]
    # There is a ratio of a pipeline to quote.
    if report.no_pipeline is None and report.summary.bubble_ratio[report.headline].mean is not None:
        ready = Sentence(one_line(methods(report), None))
        yield "ratios", [Heading("Methods, ready to paste"), ready]


def as_text(report: Report, view: View) -> str:
    """Return the tables as plain text."""
    return plain_text(sections(report, view))


def as_markdown(report: Report, view: View) -> str:
    """Return the headline, the ratios and the causes of a report, whatever the view."""
    del view
    value, bounds, run, why = headline_lines(report)
    first = first_thing(report)
    return markdown(
        [
            Sentence(bounds, lead=value),
            Sentence(f"{run}; {why}"),
            *([] if first is None else [Sentence(f"What to do first: {first}")]),
            replace(own.ratios(report), title="Bubble ratios, in %"),
            causes(report),
        ]
    )
