"""The terminal's table: what to know at a glance, and what could not be told."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bubbleviz.model.texts import one_line
from bubbleviz.render.formats import Renderer
from bubbleviz.render.text.cells import (
    in_percent,
    listed,
    milliseconds,
    percent,
    ruled,
    shortened,
    titled,
)
from bubbleviz.render.text.reasons import advice, causes, reasons, times

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import Console, RenderableType

    from bubbleviz.count.count import Iteration, RankIteration
    from bubbleviz.explain.recognition.recognition import Deviation, Recognition
    from bubbleviz.model.operations import ProfileSummary
    from bubbleviz.report.report import Report, View

#: Width of the table where it is not shown on a terminal.
WIDTH = 110
_LIMITATIONS = 12
_DEVIATIONS = 5
_RANKS = 64
_SHORTEST_LABEL = 12
_LONGEST_LABEL = 200
#: Wider than any table.
_UNBOUNDED = 10_000
#: Columns of the ranks that are shown even where they are nothing but zeros.
_ALWAYS = frozenset({"bubble", "ratio %", "told %"})
_NOTHING = frozenset({"0.000", "0.00", "-0.00", "-"})


def render(report: Report, view: View) -> str:
    """Return the table as plain text."""
    return plain_text(parts(report, view))


def plain_text(parts: Iterator[RenderableType]) -> str:
    """Return what rich would print, without colours; wider than usual only where tables are."""
    import io

    from rich.console import Console

    out = io.StringIO()
    console = Console(
        file=out,
        width=WIDTH,
        color_system=None,
        force_terminal=False,
        legacy_windows=False,
        emoji=False,
        highlight=False,
        markup=False,
    )
    print_parts(console, parts)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def print_parts(console: Console, parts: Iterator[RenderableType]) -> None:
    """Print on a console; a table that is wider than it is printed whole, for no digit may go.

    Text that says ``no_wrap`` is printed line by line as it is.
    """
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

    usual = console.width
    for part in parts:
        if isinstance(part, Table) and part.show_header:
            free = console.options.update(width=_UNBOUNDED)
            console.width = max(usual, Measurement.get(console, free, part).maximum)
        as_it_is = isinstance(part, Text) and bool(part.no_wrap)
        console.print(part, crop=False, soft_wrap=as_it_is)
        console.width = usual


def parts(report: Report, view: View, width: int = WIDTH) -> Iterator[RenderableType]:
    """Yield what to print, for any rich console of that width."""
    yield _headline(report)
    yield from _orders(report)
    yield from advice(report)
    yield from _ratios(report)
    yield from causes(report)
    drawn = _shown_iteration(report, view)
    if drawn is not None and drawn.ranks:
        yield from _ranks(report, view, drawn, width)
        yield from reasons(report, drawn)
    yield from times(report)
    if any(not i.averaged for i in report.iterations):
        yield from _others(report)
    yield from _clocks(report)
    yield from _coverage(report)
    if report.limitations:
        yield from _limitations(report)
    if report.summary.bubble_ratio[report.headline].mean is not None:
        yield from _methods(report)


def _headline(report: Report) -> RenderableType:
    from rich.text import Text

    value, bounds, *below = headline_lines(report)
    text = Text()
    text.append(value, style="bold")
    return text.append("\n".join((bounds, *below)))


def headline_lines(report: Report) -> tuple[str, str, str, str]:
    """Return the headline ratio, what bounds it, of what it is, and why it is that one."""
    spread = report.summary.bubble_ratio[report.headline]
    hosts = len({rank.host for rank in report.ranks})
    runs = (
        f"{len(report.ranks)} ranks on {hosts} host{'s' if hosts != 1 else ''}, "
        f"{report.summary.iterations} of {len(report.iterations)} iterations averaged, "
        f"naming {one_line(report.convention, 60)}"
    )
    bounds = ""
    if spread.ci95 is not None:
        bounds += f" ± {percent(spread.ci95)} (95 % CI of the mean, n = {spread.n})"
    interval = report.summary.bubble_interval.get(report.headline)
    if report.contradicted(report.headline):
        bounds += " ! (clocks contradict each other)"
    if interval is not None and interval[0] < interval[1]:
        bounds += f", clocks allow {_between(interval)} %"
    why = f"headline is {report.headline}: {one_line(report.headline_reason, 400)}"
    return f"bubble ratio ({report.headline}): {percent(spread.mean)}", bounds, runs, why


def _orders(report: Report) -> Iterator[RenderableType]:
    """Yield which schedule ran and how a plan was kept to, with some deviations of each."""
    from rich.text import Text

    for title, found in (("schedule", report.schedule), ("plan", report.plan)):
        if found is None:
            continue
        yield Text(f"{title}: {_recognised(found)}")
        if found.name is not None and found.deviations:
            lines = [_deviation(report, one) for one in found.deviations[:_DEVIATIONS]]
            if found.deviation_count > len(lines):
                lines.append(f"and {found.deviation_count - len(lines):,} more in --json")
            yield listed(lines)


def _recognised(found: Recognition) -> str:
    """Return which schedule ran, in one line."""
    if found.name is None:
        return f"not recognised: {found.reason}"
    also = f", which here is also {' and '.join(found.also)}" if found.also else ""
    agreeing = found.agreeing
    exact = sum(i.exact for i in agreeing)
    of_all = f"of {len(found.judged)} iterations"
    if exact == len(found.judged):
        how = f"exact in {exact} {of_all}"
    elif found.distance is None:
        how = f"by its structure, in {len(agreeing)} {of_all}"
    else:
        how = f"{percent(found.distance)} of operations elsewhere, exact in {exact} {of_all}"
    if found.inferred:
        how += "; microbatches are counted by order, another may look the same"
    others = [name for i in found.iterations for name in (i.name, *i.names) if name != found.name]
    unlike = sorted({name or "an order of its own" for name in others})
    return f"{one_line(found.name, 60)}{also} ({how})" + (
        f"; elsewhere {one_line(', '.join(unlike), 120)}" if unlike else ""
    )


def _deviation(report: Report, one: Deviation) -> str:
    """Return one operation that is not where the schedule has it, in one line."""
    rank, iteration = report.ranks[one.rank], report.iterations[one.iteration]
    chunk = f" of chunk {one.chunk}" if one.chunk > 0 else ""
    places = f" by {one.places}" if one.places else ""
    return (
        f"{one_line(rank.label, 40)}, iteration {one_line(iteration.name, 20)}: "
        f"{one.phase.label}{one.microbatch}{chunk} {one.what}{places}"
    )


def _in_percent(value: float | None) -> str:
    """Return a ratio as percent without the sign, for columns whose header has it."""
    return "-" if value is None else f"{100 * value:.2f}"


def _between(interval: tuple[float, float] | None) -> str:
    """Return between what percentages a ratio lies; nothing where it is exact or unknown."""
    if interval is None or interval[0] == interval[1]:
        return ""
    from bubbleviz.report.report import told_apart

    return " to ".join(told_apart(interval, 2, 4))


def _ratios(report: Report) -> Iterator[RenderableType]:
    rows = ratio_cells(report)
    table = ruled(*rows[0], left=("ratio", "window"))
    for row in rows:
        table.add_row(*row.values())
    return titled("Bubble ratios over the averaged iterations, in %", table)


def ratio_cells(report: Report) -> list[dict[str, str]]:
    """Return a row of cells by column for each ratio, without columns that say nothing."""
    from bubbleviz.count.ratios import ratio_definitions

    summary = report.summary
    rows = []
    for definition in ratio_definitions():
        ratio, low = summary.bubble_ratio[definition.name], summary.bubble_low[definition.name]
        window = summary.window_ns[definition.name]
        mark = " !" if report.contradicted(definition.name) else ""
        rows.append(
            {
                "ratio": definition.name,
                "mean": in_percent(ratio.mean) + mark,
                "low": in_percent(low.mean) if low.mean != ratio.mean else "",
                "by clocks": _between(summary.bubble_interval[definition.name])
                if definition.common_clock
                else "not needed",
                "std": in_percent(ratio.std),
                "min": in_percent(ratio.min),
                "max": in_percent(ratio.max),
                "n": str(ratio.n),
                "overhead": in_percent(summary.bubble_overhead[definition.name].mean),
                "window ms": milliseconds(window.mean),
                "std ms": milliseconds(window.std),
                "window": definition.summary,
            }
        )
    nothing = {"low": ("",), "by clocks": ("", "not needed")}
    columns = [c for c in rows[0] if any(row[c] not in nothing.get(c, ()) for row in rows)]
    return [{column: row[column] for column in columns} for row in rows]


def _shown_iteration(report: Report, view: View) -> Iteration | None:
    chosen = [i for i in report.iterations if i.index in view.iterations]
    return chosen[0] if chosen else report.typical_iteration()


def _ranks(
    report: Report, view: View, iteration: Iteration, width: int
) -> Iterator[RenderableType]:
    from bubbleviz.model.phases import COMPUTE
    from bubbleviz.render.rows import rows_of

    name = report.headline
    if all(name not in own.accounts for own in iteration.ranks):
        name = "schedule"
    own = {rank.rank: rank for rank in iteration.ranks}
    rows = [row for row in rows_of(report, replace(view, ranks=())) if set(row.replicas) & set(own)]
    shown = rows[:_RANKS]
    phases = [p.label for p in COMPUTE]
    cells = [
        _row_cells(report, [own[rank] for rank in row.replicas if rank in own], phases, name)
        for row in shown
    ]
    kept = [
        column
        for column in cells[0]
        if column in _ALWAYS or any(row[column] not in _NOTHING for row in cells)
    ]
    # What stands beside the label, with a blank and a rule's width between columns.
    beside = sum(max(len(column), *(len(row[column]) for row in cells)) + 2 for column in kept)
    stages = ["-" if row.rank.stage is None else str(row.rank.stage) for row in shown]
    labels = _labels(report, [row.rank.index for row in shown], width - beside - len("stage") - 8)
    table = ruled("#", "stage", "rank", *kept, left=("rank",))
    for row, stage, label, values in zip(shown, stages, labels, cells, strict=True):
        copies = len(row.replicas)
        text = label if copies == 1 else f"{copies} copies"
        index = str(row.rank.index) if copies == 1 else ""
        table.add_row(index, stage, text, *(values[column] for column in kept))
    if len(rows) > _RANKS:
        table.add_row("", "", f"… and {len(rows) - _RANKS} more in --json")
    by = "rank" if all(len(row.replicas) == 1 for row in rows) else "stage (mean of its copies)"
    title = (
        f"Iteration {one_line(iteration.name, 60)}: busy time and bubble by {by}, ms "
        f"({name} window)"
    )
    return titled(title, table)


def _row_cells(
    report: Report, copies: list[RankIteration], phases: list[str], name: str
) -> dict[str, str]:
    """Return a row's cells by column, in the order of the columns: means over its ranks."""
    accounts = [account for own in copies if (account := own.accounts.get(name)) is not None]
    compute, active = (sum(getattr(own, f) for own in copies) for f in ("compute_ns", "active_ns"))
    ratios = [own.bubble_ratio.get(name) for own in copies]
    told = {own.rank for own in copies}
    coverage = [own for own in report.coverage if own.rank in told]
    gpu_ns = sum(own.gpu_ns for own in coverage)
    return {
        **{p: milliseconds(_mean([own.busy_ns[p] for own in copies])) for p in phases},
        "overlap": milliseconds(_mean([account.overlap_ns for account in accounts])),
        "unattrib.": milliseconds(_mean([account.unattributed_ns for account in accounts])),
        "bubble": milliseconds(_mean([account.bubble_ns for account in accounts])),
        "ratio %": in_percent(_mean(ratios)),
        "hollow %": in_percent(1 - active / compute if compute else None),
        "told %": in_percent(
            sum(own.attributed_gpu_ns for own in coverage) / gpu_ns if gpu_ns else None
        ),
    }


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the mean, or None where any of them is not known."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def _labels(report: Report, ranks: list[int], width: int) -> list[str]:
    """Return the labels of ranks, without the host where all share it, else without its domain.

    They take at most ``width`` (and no less than a few letters), unless two would look alike.
    """
    hosts = {rank.host for rank in report.ranks}
    short = {host: host.split(".")[0] for host in hosts}
    if len(hosts) == 1:
        short = dict.fromkeys(hosts, "")
    elif len(set(short.values())) < len(hosts):
        short = {host: host for host in hosts}
    whole = []
    for rank in (report.ranks[index] for index in ranks):
        rest = rank.label.removeprefix(rank.host)
        label = f"{short[rank.host]}{rest}" if rest != rank.label else rank.label
        whole.append(one_line(label.strip() or rank.label, _LONGEST_LABEL))
    for room in range(max(width, _SHORTEST_LABEL), _LONGEST_LABEL):
        labels = [shortened(label, room) for label in whole]
        if len(set(labels)) == len(set(whole)):
            return labels
    return whole


def _others(report: Report) -> Iterator[RenderableType]:
    table = ruled(
        "iteration",
        "kind",
        "complete",
        "microbatches",
        report.headline,
        left=("iteration", "kind", "complete"),
    )
    others = [i for i in report.iterations if not i.averaged]
    for iteration in others[:_LIMITATIONS]:
        table.add_row(
            one_line(iteration.name, 60),
            iteration.kind,
            "yes" if iteration.complete else "no",
            "-" if iteration.microbatches is None else str(iteration.microbatches),
            percent(iteration.ratios[report.headline].value),
        )
    if len(others) > _LIMITATIONS:
        table.add_row(f"… {len(others) - _LIMITATIONS} more", "", "", "", "")
    return titled("Iterations not averaged", table)


def _clocks(report: Report) -> Iterator[RenderableType]:
    """Yield how the hosts were put on one clock, where there are several."""
    first: dict[tuple[str, float, int | None], ProfileSummary] = {}
    for number, profile in enumerate(report.profiles):
        first.setdefault(report.clock(number), profile)
    if len(first) < 2:
        return
    table = ruled("host", "offset ms", "± us", "drift ppm", left=("host",))
    for profile in list(first.values())[:_RANKS]:
        uncertainty_ns = profile.clock_uncertainty_ns
        table.add_row(
            shortened(one_line(profile.host, 200), 28),
            milliseconds(profile.clock_offset_ns),
            "-" if uncertainty_ns is None else f"{uncertainty_ns / 1e3:,.1f}",
            f"{profile.clock_drift_ppm:.3f}" if profile.clock_drift_ppm else "-",
        )
    if len(first) > _RANKS:
        table.add_row(f"… and {len(first) - _RANKS} more")
    yield from titled("Clocks: offset of each host to the first, and how far it can be off", table)


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.2f}" if whole else "-"


def _coverage(report: Report) -> Iterator[RenderableType]:
    table = ruled(
        "profile",
        "kernels",
        "linked %",
        "attributed %",
        "cross-thread",
        "told %",
        "comm. ms",
        "copies ms",
        left=("profile",),
    )
    for profile in report.profiles[:_RANKS]:
        table.add_row(
            shortened(one_line(Path(profile.path).name, 200), 28),
            f"{profile.kernels:,}",
            _share(profile.linked_kernels, profile.kernels),
            _share(profile.attributed_kernels, profile.kernels),
            f"{profile.cross_thread_kernels:,}",
            _share(profile.attributed_gpu_ns, profile.gpu_ns),
            milliseconds(profile.comm_ns),
            milliseconds(profile.copy_ns),
        )
    if len(report.profiles) > _RANKS:
        table.add_row(f"… and {len(report.profiles) - _RANKS} more")
    yield from titled("Coverage: kernels, and compute time told by operations", table)
    largest = sorted(report.unattributed_kernels, key=lambda k: (-k.gpu_ns, k.rank, k.name))[:5]
    if largest:
        yield listed(
            f"not explained: {milliseconds(k.gpu_ns)} ms in {k.count:,} x {one_line(k.name, 60)} "
            f"on {one_line(report.ranks[k.rank].label, 40)}, {one_line(k.where, 80)}"
            for k in largest
        )


def _limitations(report: Report) -> Iterator[RenderableType]:
    from rich.text import Text

    yield Text("\nLimitations", style="bold")
    yield listed(limitation_lines(report))


def limitation_lines(report: Report) -> list[str]:
    """Return what could not be told, a line each, no more than people read."""
    # Those of one reason are one.
    merged: dict[str, tuple[list[str], int]] = {}
    shorter = _shorter_paths(report)
    for entry in report.limitations:
        what, reason = shorter(entry.what), shorter(entry.reason)
        subjects, count = merged.get(reason, ([], 0))
        if what not in subjects:
            subjects.append(what)
        merged[reason] = (subjects, count + entry.count)
    lines = [
        f"{one_line('; '.join(subjects), 160)}{f' ({count:,})' if count != 1 else ''}: "
        f"{one_line(reason, 400)}"
        for reason, (subjects, count) in merged.items()
    ]
    if len(lines) > _LIMITATIONS:
        lines[_LIMITATIONS:] = [f"and {len(lines) - _LIMITATIONS} more in --json"]
    return lines


def _methods(report: Report) -> Iterator[RenderableType]:
    from rich.text import Text

    from bubbleviz.report.methods import methods

    yield Text("\nMethods, ready to paste", style="bold")
    yield Text(one_line(methods(report), None))


def _shorter_paths(report: Report) -> Callable[[str], str]:
    """Return what replaces paths of profiles by their file names, where these tell them apart."""
    paths = {profile.path for profile in report.profiles}
    folders = {Path(path).parent for path in paths}
    # A profile that could not be read is in no other place than at the head of its refusal.
    heads = {entry.reason.split(": ", 1)[0] for entry in report.limitations}
    paths |= {head for head in heads if Path(head).parent in folders and Path(head).name}
    names = [Path(path).name for path in paths]
    short = {path: Path(path).name for path in paths if names.count(Path(path).name) == 1}
    longest_first = "|".join(re.escape(path) for path in sorted(short, key=len, reverse=True))
    pattern = re.compile(rf"(?<!\S)(?:{longest_first})(?=$|[\s:;,)])") if short else None
    return lambda text: pattern.sub(lambda match: short[match[0]], text) if pattern else text


RENDERER = Renderer(name="text", summary="the table, as plain text", render=render, order=4)
