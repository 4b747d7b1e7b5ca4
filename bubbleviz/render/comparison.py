"""A comparison as text, as JSON, as CSV, and as panels on one axis of time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from bubbleviz.errors import UsageError
from bubbleviz.model.limitations import written
from bubbleviz.model.texts import counted, csv_text, document_text, inert, one_line, percent
from bubbleviz.render import document as doc
from bubbleviz.render.markdown import markdown
from bubbleviz.render.picture.typesetting import as_pdf, as_png
from bubbleviz.report.comparison import (
    ASSUMPTIONS,
    Cell,
    Comparison,
    MeanDifference,
    common_headline,
    longest,
)
from bubbleviz.report.followed import NOT_FOLLOWED, same_work

if TYPE_CHECKING:
    from bubbleviz.report.gate import Check
    from bubbleviz.report.saved import SavedReport
    from bubbleviz.report.view import View


def _causes(saved: SavedReport, title: str = "") -> list[str]:
    """Return what most of a run's bubble is, and what to do first, behind the title of the run."""
    sentences = []
    if saved.first_cause is not None:
        label, share = saved.first_cause
        idle = "bubble" if saved.no_pipeline is None else "idle time"
        sentences.append(f"first cause: {label}, {percent(share)} of the {idle}")
    if saved.what_to_do_first is not None:
        sentences.append(f"what to do first: {saved.what_to_do_first}")
    return [title + "; ".join(sentences)] if sentences else []


def gate_markdown(
    saved: SavedReport, checks: Sequence[Check], promises: Sequence[tuple[str, bool]] = ()
) -> str:
    """Return the checks of a report: verdict, one row per limit, doubts, and the first cause."""
    failed = [check for check in checks if not check.passed]
    broken = not all(kept for _, kept in promises)
    verdict = f"✅ {counted(len(checks), 'value')} within the limit"
    if failed:
        verdict = f"❌ {counted(len(failed), 'value')} above the limit, or not known to be below"
    rows = [
        {
            "ratio": check.name,
            "mean": doc.milliseconds(1e6 * check.value)
            if check.limit.unit == "ms"
            else doc.in_percent(check.value),
            "SD": "" if check.limit.unit == "ms" else doc.in_percent(check.ratio.bubble.std),
            "limit": check.limit.written,
            "iterations": str(check.ratio.bubble.n),
            "verdict": "ok" if check.passed else "FAILED",
        }
        for check in checks
    ]
    blocks: list[doc.Block] = [
        *([doc.Sentence(verdict, style="bold")] if checks else []),
        doc.Table("", rows, left=("ratio", "verdict")),
        doc.bullets(
            [*(check.line for check in failed), *(line for line, _ in promises), *_causes(saved)]
        ),
    ]
    return markdown(blocks, f"Pipeline bubbles: {'FAILED' if failed or broken else 'ok'}")


def gate_json(
    saved: SavedReport, checks: Sequence[Check], promises: Sequence[tuple[str, bool]] = ()
) -> str:
    """Return the checks of a report as JSON: values and limits as fractions, or in ms."""
    lines = [*((check.line, check.passed) for check in checks), *promises]
    return document_text(
        "bubbleviz.gate/1",
        {
            "passed": all(passed for _, passed in lines),
            "checks": [
                {
                    "ratio": check.limit.ratio,
                    "of": "window" if check.limit.window else "bubble",
                    "unit": "ms" if check.limit.unit == "ms" else None,
                    "value": check.value,
                    "most": check.limit.most,
                    "passed": check.passed,
                    "text": check.line,
                }
                for check in checks
            ],
            "promises": [{"text": text, "kept": kept} for text, kept in promises],
            **written(saved.restrictions),
        },
    )


SCHEMA = "bubbleviz.comparison/1"
COLUMNS = (
    *("ratio", "run", "mean", "std", "n", "window_ns", "window_std_ns"),
    *("difference", "difference_low", "difference_high", "t", "df", "p", "window_difference_ns"),
)
#: Of a run's title in the table, characters.
_TITLE = 30
#: On one screen: runs in the table, lines above it, notes below it.
_MOST_RUNS, _MOST_SUMMARIES, _MOST_NOTES, _MOST_PARTS = 6, 6, 3, 8
#: What the parts that have no row take together.
_REST = "everything else"
#: What time is spent on beside idling.
_WORK = ("work", "busy")
#: Causes of less time than this in every run are not listed, in ns.
_LEAST_NS = 500.0


def document(comparison: Comparison) -> dict[str, Any]:
    """Return a comparison as JSON values."""
    return {
        "headline": comparison.headline,
        # Whose windows tell how long iterations are.
        "longest": comparison.longest,
        "runs": [
            {
                "title": run.title,
                "path": run.path,
                "version": run.saved.version,
                "headline": run.saved.headline,
                "ranks": run.saved.ranks,
                "iterations": run.saved.iterations,
                **written(run.saved.restrictions),
            }
            for run in comparison.runs
        ],
        "ratios": [
            {
                "ratio": name,
                "runs": [
                    {
                        "bubble_ratio": cell.ratio and asdict(cell.ratio.bubble),
                        "window_ns": cell.ratio and asdict(cell.ratio.window_ns),
                        "difference": cell.bubble and asdict(cell.bubble),
                        "window_difference_ns": cell.window_ns and asdict(cell.window_ns),
                        # Null where iterations have as many microbatches, or are the same batch.
                        "microbatch_difference_ns": cell.microbatch_ns
                        and asdict(cell.microbatch_ns),
                    }
                    for cell in cells
                ],
            }
            for name, cells in comparison.ratios.items()
        ],
        # What changed from the first run: what ranks spend time on, and why, in sentences.
        "changes": [
            {"run": run.title, "time_ns": run.saved.time_ns, "text": list(changes)}
            for run, changes in zip(comparison.runs, comparison.changes, strict=True)
        ],
        # What became of the first run's advice in each other run.
        "advice": [
            {"run": run.title, **asdict(own), "text": own.line}
            for run, followed in zip(comparison.runs, comparison.followed, strict=True)
            for own in followed
        ],
        "notes": list(comparison.notes),
        "test": ASSUMPTIONS,
    }


def as_json(comparison: Comparison) -> str:
    """Return a comparison as JSON text."""
    return document_text(SCHEMA, document(comparison))


def as_csv(comparison: Comparison) -> str:
    """Return a comparison as CSV: one row per ratio and run, empty cells for what is unknown."""
    rows = []
    for row in document(comparison)["ratios"]:
        for run, own in zip(comparison.runs, row["runs"], strict=True):
            ratio, window_ns, apart, longer_ns, _ = (known or {} for known in own.values())
            low, high = apart.get("ci95") or (None, None)
            rows.append(
                (
                    *(inert(row["ratio"]), inert(run.title)),
                    *(ratio.get(name) for name in ("mean", "std", "n")),
                    *(window_ns.get("mean"), window_ns.get("std")),
                    *(apart.get("mean"), low, high),
                    *(apart.get(name) for name in ("t", "df", "p")),
                    longer_ns.get("mean"),
                )
            )
    return csv_text(COLUMNS, rows)


def check_drawable(saved: Mapping[str, bool]) -> None:
    """Check that no run was read from a saved report, which cannot be drawn.

    Args:
        saved: by path of each run, whether it is a saved report.

    Raises:
        UsageError: one is.
    """
    for path in (path for path, is_saved in saved.items() if is_saved):
        raise UsageError(
            f"{path}: a JSON report has no operations to draw; give the profiles of this run "
            "instead, or leave out the picture"
        )


def as_svg(comparison: Comparison, view: View) -> str:
    """Return the typical iterations of runs as panels on one axis of time, in a view's style.

    Raises:
        UsageError: a run was read from a saved report, or is on idle time.
    """
    from bubbleviz.render.picture.panels import draw_panels, of_typical

    if not comparison.runs[0].saved.of_pipeline:
        raise UsageError(
            f"{comparison.runs[0].path}: its idle time is compared, and there are no operations to "
            "draw; leave out the picture, or draw each run by bubbleviz idle RUN -o idle.svg"
        )
    check_drawable({run.path: run.report is None for run in comparison.runs})
    panels = [
        (run.title, run.report, of_typical(run.report, view))
        for run in comparison.runs
        if run.report is not None
    ]
    return draw_panels(panels, f"{len(panels)} runs on one axis of time")


def as_markdown(comparison: Comparison) -> str:
    """Return a comparison as Markdown: what changed, one row per ratio and run, notes, causes."""
    causes = [line for run in comparison.runs for line in _causes(run.saved, f"{run.title}: ")]
    blocks = [*sections(comparison), doc.bullets(causes)]
    return markdown(blocks, "Pipeline bubbles: comparison")


#: The outputs of a comparison, by the names of their options.
RENDERINGS: Mapping[str, Callable[[Comparison, View], str | bytes]] = {
    "json": lambda comparison, _: as_json(comparison),
    "csv": lambda comparison, _: as_csv(comparison),
    "markdown": lambda comparison, _: as_markdown(comparison),
    "svg": as_svg,
    "pdf": lambda comparison, view: as_pdf(as_svg(comparison, view)),
    "png": lambda comparison, view: as_png(as_svg(comparison, view)),
}
#: Those that draw operations.
PICTURES = frozenset({"svg", "pdf", "png"})


def sections(comparison: Comparison, *, screen: bool = False) -> Iterator[doc.Block]:
    """Yield what came of the change, and why; what fits one screen, or all with its tests."""
    titles, notes = _titles(comparison), comparison.notes
    most = _MOST_NOTES if screen else None
    summary = [*_summary(comparison, titles)][: _MOST_SUMMARIES if screen else None]
    yield doc.Sentence("\n".join([*summary, *_restricted(comparison, titles)]), style="bold")
    yield _lines(comparison, titles, most)
    shown = titles[: _MOST_RUNS if screen else None]
    yield from _times(comparison, shown, _MOST_PARTS if screen else None)
    yield _followed(comparison, titles, most)
    if not screen:
        yield from _table(comparison.ratios, titles)
    yield doc.bullets([one_line(note, 600) for note in notes[:most]])
    last = ASSUMPTIONS
    if screen:
        more = f"{counted(len(titles), 'run')}, {counted(len(comparison.ratios), 'ratio')}"
        left = max(len(notes) - _MOST_NOTES, 0)
        noted = f", {counted(left, 'more note')}" if left else ""
        last = f"More: -v ({more} with their spread and tests{noted})"
    yield doc.Sentence(f"\n{last}", style="dim")


def _times(comparison: Comparison, titles: Sequence[str], most: int | None) -> Iterator[doc.Block]:
    """Yield what a rank spends its time on in some runs, and by how much that differs."""
    unit, times = _spent([run.saved for run in comparison.runs[: len(titles)]])
    first, *others = times
    if not first or not any(others):
        return
    names = dict.fromkeys(name for own in times for name in own)

    def change(name: str) -> float:
        return max(abs(own.get(name, 0.0) - first.get(name, 0.0)) for own in others)

    # Work stands first, then what changed most.
    listed = sorted(names, key=lambda name: (name not in _WORK, -change(name)))
    listed = [
        name
        for name in listed
        if name in _WORK or any(own.get(name, 0.0) >= _LEAST_NS for own in times)
    ]
    whole = [sum(own.values()) if own else None for own in times]
    if most is not None and len(listed) > most:
        listed, rest = listed[: most - 1], listed[most - 1 :]
        times = [own | {_REST: sum(own.get(name, 0.0) for name in rest)} for own in times]
        listed.append(_REST)
    rows = [
        _row(name, [own.get(name, 0.0) if own else None for own in times], titles)
        for name in listed
    ]
    rows += [{}, _row("in all", whole, titles)]
    yield doc.Table(unit, rows, left=("spent on",))


def _spent(runs: Sequence[SavedReport]) -> tuple[str, list[dict[str, float]]]:
    """Return of what times are, and for each run what a rank spends it on, in ns.

    Where primary ratios differ, so do their windows: then it is work and bubble in those of the
    ratio that they are compared by. Those that are not whole iterations are named. Where
    iterations have other numbers of microbatches, it is of each microbatch.
    """
    first, *others = runs
    unit, times = "ms per rank and iteration", [own.time_ns for own in runs]
    if not first.of_pipeline:
        unit = f"ms per device and {'step' if first.of_iterations else 'capture'}"
    headline = common_headline(runs)
    differ = any(own.headline != first.headline for own in others)
    if differ or headline != longest(runs):
        unit += f", in the window of {headline}"
    if differ:
        times = [own.of_window_ns(headline) for own in runs]
    numbers = [own.microbatches or 1 for own in runs]
    shares = [same_work(first, own) for own in others]
    if set(shares) != {1.0} and shares == [numbers[0] / number for number in numbers[1:]]:
        unit = unit.replace("iteration", "microbatch", 1)
        times = [
            {name: ns / number for name, ns in own.items()}
            for own, number in zip(times, numbers, strict=True)
        ]
    return unit, times


def _row(name: str, spent: Sequence[float | None], titles: Sequence[str]) -> dict[str, str]:
    """Return times of runs, and of two how far they are apart."""
    row = {"spent on": one_line(name, 40)}
    row |= {title: doc.milliseconds(ns) for title, ns in zip(titles, spent, strict=True)}
    first, other = spent[0], spent[-1]
    if len(spent) == 2 and first is not None and other is not None:
        row["change"] = f"{(other - first) / 1e6:+,.3f}"
        row["%"] = f"{100 * (other / first - 1):+.1f}" if first else ""
    return row


def _lines(comparison: Comparison, titles: Sequence[str], most: int | None) -> doc.Block:
    """Return what changed in each run, some of it at most."""
    lines = [
        one_line(text if len(titles) == 2 else f"{title}: {text}", 300)
        for title, changes in zip(titles, comparison.changes, strict=False)
        for text in changes[:most]
    ]
    return doc.bullets(lines if most is None else lines[: 2 * most])


def _followed(comparison: Comparison, titles: Sequence[str], most: int | None) -> doc.Block:
    """Return what became of the first run's advice in the others; some of what was followed."""
    lines = [
        one_line(f"{title}: {own.line}", 600)
        for title, followed in zip(titles, comparison.followed, strict=False)
        for own in followed
        if most is None or own.verdict != NOT_FOLLOWED
    ]
    return doc.bullets(lines[:most])


def _titles(comparison: Comparison) -> list[str]:
    shown = [doc.shortened(one_line(run.title, 200), _TITLE) for run in comparison.runs]
    if len(set(shown)) == len(shown):
        return shown
    return [f"{place}: {title}" for place, title in enumerate(shown, 1)]


def _table(ratios: Mapping[str, tuple[Cell, ...]], titles: list[str]) -> Iterator[doc.Block]:
    """Yield the table of ratios and windows."""
    yield doc.Sentence("\nBubble ratios in %; differences to the first run in percentage points")
    rows = []
    for ratio, cells in ratios.items():
        for place, (title, cell) in enumerate(zip(titles, cells, strict=False)):
            name = "" if place else one_line(ratio, 40)
            rows.append({"ratio": name, "run": title, **_printed(cells[0], cell)})
    giving_way = ("by %", "n", "SD", "window ms", "95 % CI", "p")
    yield doc.Table("", rows, left=("ratio", "run"), giving_way=giving_way)


def _summary(comparison: Comparison, titles: list[str]) -> Iterator[str]:
    """Yield a line for each run but the first: its ratio and window by the first's."""
    headline, longest = comparison.headline, comparison.longest
    cells = comparison.ratios[headline]
    before = cells[0].ratio
    kind = " bubble ratio" if comparison.runs[0].saved.of_pipeline else ""
    for place, (title, cell) in enumerate(zip(titles[1:], cells[1:], strict=True)):
        old, new = (r.bubble.mean if r is not None else None for r in (before, cell.ratio))
        line = f"{one_line(headline, 40)}{kind} {percent(old)} ({titles[0]})"
        # The first run stands in the first line.
        line = f"{' ' if place else line} -> {percent(new)} ({title})"
        line += f": {_apart(cell.bubble)}" if cell.bubble is not None else ""
        own, whole = (_windows_longer(comparison, name, place + 1) for name in (headline, longest))
        if own != whole:
            line += f"; {one_line(headline, 40)} windows {own}"
            whole += f" ({longest})"
        yield f"{line}; {_windows(comparison)} {whole}" if whole else line


def _windows_longer(comparison: Comparison, name: str, place: int) -> str:
    """Return how much longer windows of a ratio are in a run than in the first one."""
    first, cell = comparison.ratios[name][0].ratio, comparison.ratios[name][place]
    if cell.window_ns is None or first is None or not first.window_ns.mean:
        return ""
    told = _longer(cell.window_ns.mean / first.window_ns.mean)
    if cell.microbatch_ns is not None:
        each = first.window_ns.mean / (comparison.runs[0].saved.microbatches or 1)
        told += f", {_longer(cell.microbatch_ns.mean / each)} per microbatch"
    return told


def _longer(by: float) -> str:
    return f"{abs(100 * by):.2f} % {'shorter' if by < 0 else 'longer'}" if by else "as long"


def _windows(comparison: Comparison) -> str:
    """Return what the windows are of the ratio that runs are compared by."""
    return "iterations" if comparison.runs[0].saved.of_iterations else "whole captures are"


def _restricted(comparison: Comparison, titles: list[str]) -> Iterator[str]:
    """Yield what restricts the ratios of runs, in one line."""
    restricted = [
        f"{title}: {one_line(own.text, 120)}"
        for title, run in zip(titles, comparison.runs, strict=True)
        for own in run.saved.restrictions
    ]
    if restricted:
        yield f"! ({'; '.join(restricted)})"


def _apart(apart: MeanDifference) -> str:
    """Return how far ratios are apart, and whether chance may be all of it."""
    if not apart.mean:
        return "the same"
    points = f"{100 * abs(apart.mean):.2f} points {'lower' if apart.mean < 0 else 'higher'}"
    if apart.p is None:
        return f"{points} (no test)"
    chance = "" if apart.significant else ", may be chance"
    return f"{points} (p {_probability(apart.p, ' = ')}{chance})"


def _printed(first: Cell, cell: Cell) -> dict[str, str]:
    """Return what is known of a ratio of a run, by column."""
    ratio, apart, longer = cell.ratio, cell.bubble, cell.window_ns
    by = ""
    if first.ratio is not None and longer is not None and first.ratio.window_ns.mean:
        by = _signed(100 * longer.mean / first.ratio.window_ns.mean)
    return {
        "mean": "-" if ratio is None else doc.in_percent(ratio.bubble.mean),
        "SD": "-" if ratio is None else doc.in_percent(ratio.bubble.std),
        "n": "0" if ratio is None else str(ratio.bubble.n),
        "difference": "" if apart is None else _signed(100 * apart.mean),
        "95 % CI": "" if apart is None else _between(apart),
        "p": "" if apart is None else _probability(apart.p, ""),
        "window ms": doc.milliseconds(None if ratio is None else ratio.window_ns.mean),
        # How much longer a window is than the first's.
        "by %": by,
    }


def _signed(value: float) -> str:
    return f"{round(value, 2) + 0.0:+.2f}"


def _between(apart: MeanDifference) -> str:
    return "-" if apart.ci95 is None else " to ".join(_signed(100 * end) for end in apart.ci95)


def _probability(p: float | None, equals: str) -> str:
    if p is None:
        return "-"
    return "< 0.0001" if p < 0.0001 else f"{equals.lstrip()}{p:.4f}"
