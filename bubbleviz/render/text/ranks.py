"""Very many ranks: how their numbers are spread, and what stands out, in place of a row each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from bubbleviz.count import rank_iterations
from bubbleviz.count.iterations import Iteration
from bubbleviz.count.rank_iterations import compute_rank_ratios, list_indices
from bubbleviz.explain.causes.cause import Cause
from bubbleviz.explain.communication_times import CommunicationTimes
from bubbleviz.model.columns import Floats, Ints
from bubbleviz.model.operations import RankCoverage
from bubbleviz.model.phases import COMPUTE
from bubbleviz.model.texts import format_count, format_percent, to_one_line
from bubbleviz.render import document as doc
from bubbleviz.render.rows import RankRow, rows_of
from bubbleviz.render.text.terminal import Display, paragraph
from bubbleviz.render.wrapping import cell_width
from bubbleviz.report.rank_means import (
    RankMeans,
    distribution,
    many_ranks,
    rank_means,
    standouts,
)
from bubbleviz.report.report import Report
from bubbleviz.report.view import View

#: Number of bins of a histogram, and their characters from empty to full.
_BINS, _BARS = 16, " ▁▂▃▄▅▆▇█"
#: Columns with the summary of a distribution, see :func:`.distribution`.
_DISTRIBUTION = ("least", "median", "95 %", "most")
#: What stands out: rows of a table, and sentences on the first screen.
_LISTED, _NAMED = 20, 2


def summarised(report: Report, view: View) -> bool:
    """Return whether tables summarise the ranks: of very many, unless some or all are asked for."""
    return many_ranks(len(report.ranks)) and not view.ranks and view.rows != "rank"


def listed_ranks(
    report: Report, view: View, iteration: Iteration
) -> tuple[list[RankRow], int, str]:
    """Return the rows of an iteration's ranks that are listed: a rank each, or a stage of many.

    Their replicas are those at work. Behind them: how many more rows there are, and what a row is.
    """
    # Of very many ranks those that are asked for are all listed.
    many, at_work = many_ranks(len(report.ranks)), set(list_indices(iteration.ranks))
    listed = view if many else replace(view, ranks=())
    if many and view.ranks and view.rows is None:
        listed = replace(view, rows="rank")
    rows = [
        replace(row, replicas=tuple(rank for rank in row.replicas if rank in at_work))
        for row in rows_of(report, listed)
        if not at_work.isdisjoint(row.replicas)
    ]
    shown = rows if many and not summarised(report, view) else rows[: doc.MOST_ROWS]
    by = "rank" if all(len(row.replicas) == 1 for row in rows) else "stage (mean of its replicas)"
    return shown, len(rows) - len(shown), by


def _head(row: RankRow) -> dict[str, str]:
    """Return the first cells of a row."""
    alone = str(row.rank.number) if len(row.replicas) == 1 else ""
    return {"#": alone, "stage": doc.numbered(row.rank.stage)}


def _of(by: str) -> str:
    """Return what a row is, for titles, where it is no rank."""
    return "" if by == "rank" else f" by {by}"


def by_rank(report: Report, view: View, iteration: Iteration) -> Iterator[doc.Block]:
    """Yield the causes of each rank's idle time in an iteration; of each stage's, of very many."""
    name = report.explanation.listed_ratio
    idle_ns = report.explanation.causes.idle_ns[name][iteration.index]
    at_work = list_indices(iteration.ranks)
    columns = [cause for cause in Cause if idle_ns[at_work, cause].any()]
    if not columns:
        return
    listed, omitted, by = listed_ranks(report, view, iteration)
    rows = []
    for row in listed:
        means_ns = idle_ns[list(row.replicas)].mean(axis=0).tolist()
        times = {cause.label: doc.milliseconds(means_ns[cause]) for cause in columns}
        rows.append(_head(row) | times)
    of = f"idle time by cause{_of(by)}, ms ({name} window)"
    yield doc.Table(f"Iteration {to_one_line(iteration.name, 60)}: {of}", rows, omitted=omitted)


#: The columns of communication.
_COMMUNICATION = (
    "wait: a receive runs whose input is not ready on the peer, or a collective whose last member "
    "has not entered; transfer: from then to its end; exposed: transfer while the rank runs "
    "nothing, and collectives inside operations while no compute kernel runs (≥: for the rest, "
    "waiting and transfer cannot be separated); kernels: communication kernels in the window, and "
    "from the iteration's first receive on; overlap: the share of that in which compute kernels run"
)


def communication(report: Report, view: View, iteration: Iteration) -> Iterator[doc.Block]:
    """Yield how long each rank communicated in an iteration, and waited for it."""
    times = report.explanation.communication
    index, at_work = iteration.index, list_indices(iteration.ranks)
    has_kernels = times.communication_ns[index, at_work].any()
    if not has_kernels and not times.wait_ns[index, at_work].any():
        return
    # Waiting and transfer are known if the input of any receive, or the members of any collective,
    # are known.
    is_split = bool(report.explanation.received.any()) or bool(times.wait_ns.any())
    listed, omitted, by = listed_ranks(report, view, iteration)
    rows = [
        _head(row) | _communication_cells(times, index, list(row.replicas), is_split=is_split)
        for row in listed
    ]
    title = f"Iteration {to_one_line(iteration.name, 60)}: communication{_of(by)}, ms"
    yield doc.Table(title, rows, omitted=omitted)
    yield doc.Sentence(_COMMUNICATION)


def _communication_cells(
    times: CommunicationTimes, iteration: int, ranks: list[int], *, is_split: bool
) -> dict[str, str]:
    """Return the mean communication of some ranks in an iteration, keyed by column.

    Args:
        times: The times of all ranks and iterations.
        iteration: Index of the iteration.
        ranks: Indices of the ranks.
        is_split: Whether waiting and transfer are known separately.
    """

    def mean_ns(column: Floats | Ints) -> float:
        return float(column[iteration, ranks].mean())

    kernels_ns, exposed_ns = mean_ns(times.communication_ns), mean_ns(times.exposed_ns)
    alone_ns = kernels_ns - mean_ns(times.overlapped_ns)
    is_lower_bound = not is_split and alone_ns > exposed_ns
    overlap = (kernels_ns - alone_ns) / kernels_ns if kernels_ns else None
    return {
        "wait": doc.milliseconds(mean_ns(times.wait_ns)) if is_split else "-",
        "transfer": doc.milliseconds(mean_ns(times.transfer_ns)) if is_split else "-",
        "exposed": f"{'≥ ' if is_lower_bound else ''}{doc.milliseconds(exposed_ns)}",
        "kernels": doc.milliseconds(kernels_ns),
        "overlap %": doc.in_percent(overlap),
    }


def spread_of_ranks(report: Report) -> Iterator[doc.Block]:
    """Yield how ranks, hosts and pipelines are spread, and what of them stands out."""
    means = rank_means(report)
    rows = []
    for name, values in _list_quantities(means):
        summary = distribution(values)
        if summary is not None and summary[-1] > 0:
            in_cell = doc.in_percent if name.endswith("%") else doc.milliseconds
            cells = dict(zip(_DISTRIBUTION, map(in_cell, summary), strict=True))
            bars = {"from least to most": histogram(values)}
            rows.append({"over ranks": name} | cells | bars)
    title = f"How the {format_count(len(report.ranks), 'rank')} are spread, means of the iterations"
    yield doc.Table(
        f"{title} ({means.ratio} window)",
        rows,
        left=("over ranks", "from least to most"),
        giving_way=("from least to most",),
        headers=("over ranks", *_DISTRIBUTION, "from least to most"),
    )
    found = standouts(report, means)
    if not found:
        yield doc.Sentence("\nNo rank, host, pipeline or stage stands out")
        return
    rows = [
        {
            "what": each.name,
            "ranks": f"{len(each.ranks):,}",
            "ratio %": doc.in_percent(each.ratio),
            "to the median": f"{100 * each.above:+.2f}",
            "why": each.why,
        }
        for each in found
    ]
    yield doc.Table(
        "What stands out (--ranks, --pipelines or --hosts lists some ranks, --rows rank all)",
        doc.first_rows(rows, "what", most=_LISTED),
        left=("what", "why"),
    )


def _list_quantities(means: RankMeans) -> Iterator[tuple[str, Floats]]:
    """Yield the name, ending in its unit, and the values of each quantity."""
    yield "ratio %", means.bubble_ratio
    yield "bubble ms", means.bubble_ns
    for phase, busy_ns in means.busy_ns.items():
        yield f"{phase} ms", busy_ns
    yield "launch-gap %", means.launch_gap
    for cause in Cause:
        yield f"idle: {cause.label} ms", means.idle_ns[:, cause]
    for name, column in means.communication_ns.items():
        label = name.removesuffix("_ns").replace("communication", "kernels")
        yield f"communication: {label} ms", column


def histogram(values: Floats) -> str:
    """Return a text histogram of the values, one character per equal-width bin."""
    numbers = values[~np.isnan(values)]
    if not len(numbers) or numbers.min() == numbers.max():
        return ""
    counts, _ = np.histogram(numbers, _BINS)
    heights = np.ceil(counts * (len(_BARS) - 1) / counts.max()).astype(np.int64)
    return "".join(_BARS[height] for height in heights.tolist())


def first_lines(report: Report, display: Display) -> list[doc.Line]:
    """Return how very many ranks are spread, and what of any stands out, for the first screen."""
    means = rank_means(report)
    own = distribution(means.bubble_ratio)
    if own is None:
        return []
    lines: list[doc.Line] = []
    if many_ranks(len(report.ranks)):
        bars = display.shown(histogram(means.bubble_ratio))
        lead = f"The {format_count(len(report.ranks), 'rank')}: "
        low, middle, _, high = map(format_percent, own)
        text = f"{low} {bars} {high}, median {middle}"
        if cell_width(lead + text) > display.width:
            text = f"{low} to {high}"
        # Blanks of the histogram stay.
        lines.append((doc.Span(lead, "bold"), doc.Span(text)))
    found = standouts(report, means)
    named = [standout.sentence for standout in found[:_NAMED]]
    if len(found) > _NAMED:
        named.append(f"{len(found) - _NAMED:,} more (-v ranks)")
    if named:
        lines += paragraph("; ".join(named), display, lead="Standing out:", most=2)
    return lines


_LONGEST_LABEL = 200
#: Columns that are shown even where they are nothing but zeros.
_ALWAYS = frozenset({"bubble", "ratio %", "attributed %"})
#: A score from which on a rank is as fast as the fastest of its stage.
_AS_FAST = 0.995
_NOTHING = frozenset({"0.000", "0.00", "-0.00", "-"})
#: Columns that a narrow terminal drops first.
_DROPPED_FIRST = ("score", "overlap", "unattrib.", "launch-gap %", "attributed %")
#: Columns with times in the window of a ratio, and the attributes of an account with these times.
_ACCOUNT_COLUMNS = {
    "overlap": "overlap_ns",
    "unattrib.": "unattributed_ns",
    "bubble": "bubble_ns",
}


def ranks(report: Report, view: View, iteration: Iteration) -> Iterator[doc.Block]:
    """Yield the table of ranks of an iteration."""
    name = report.headline
    if not rank_iterations.has_account(iteration.ranks, name):
        name = "schedule"
    shown, omitted, by = listed_ranks(report, view, iteration)
    if not shown:
        return
    cells = _cells(report, iteration, name, [row.replicas for row in shown])
    columns = [column for column in cells[0] if _is_shown(column, cells)]
    labels = rank_labels(report, [row.rank.index for row in shown])
    table = []
    for row, label, values in zip(shown, labels, cells, strict=True):
        replicas = len(row.replicas)
        rank = {"rank": label if replicas == 1 else f"{replicas} replicas"}
        table.append(_head(row) | rank | {column: values[column] for column in columns})
    title = f"Iteration {to_one_line(iteration.name, 60)}: busy time and bubble by {by}, ms"
    yield doc.Table(
        f"{title} ({name} window)",
        table,
        left=("rank",),
        giving_way=_order_of_giving_way(columns),
        omitted=omitted,
        hint=" with -o report.json",
    )
    # Rows of stages have the means of their replicas, except for the score.
    score = "score" if by == "rank" else "lowest score of the replicas"
    of_run = " and ".join(["attributed %", *([score] if "score" in columns else [])])
    yield doc.Sentence(f"Of the whole run: {of_run}", "dim")
    if summarised(report, view):
        yield from spread_of_ranks(report)


def _is_shown(column: str, rows: Sequence[Mapping[str, str]]) -> bool:
    """Return whether a column is always shown, or has any value."""
    return column in _ALWAYS or any(row[column] not in _NOTHING for row in rows)


def _order_of_giving_way(columns: Sequence[str]) -> list[str]:
    """Return the columns in the order in which a narrow terminal drops them."""
    first = [column for column in _DROPPED_FIRST if column in columns]
    phases = [column for column in columns if column not in {*first, "bubble", "ratio %"}]
    return [*first, *reversed(phases), "stage", "rank", "bubble", "ratio %"]


def _score(scores: Floats) -> str:
    """Return the lowest of some scores, or a dash if all are unknown."""
    numbers = scores[~np.isnan(scores)]
    return f"{numbers.min():.2f}" if len(numbers) else "-"


def _cells(
    report: Report, iteration: Iteration, name: str, rows: Sequence[Sequence[int]]
) -> list[dict[str, str]]:
    """Return the cells of rows, keyed by column in display order: means over the ranks of a row."""
    entries = iteration.ranks
    index_of_rank = {rank: index for index, rank in enumerate(list_indices(entries))}
    times_ns = _list_times(iteration, name)
    ratios = compute_rank_ratios(entries, name)
    compute_ns = rank_iterations.get_rank_column(entries, "compute_ns")
    active_ns = rank_iterations.get_rank_column(entries, "active_ns")
    coverage = {rank.rank: rank for rank in report.coverage}
    scores = report.slowness.relative_score
    if not (scores < _AS_FAST).any():
        scores = np.full(len(scores), np.nan)
    cells = []
    for row in rows:
        ranks = [rank for rank in row if rank in index_of_rank]
        members = [index_of_rank[rank] for rank in ranks]
        row_cells = {
            column: doc.milliseconds(_mean(column_ns[members].tolist() if len(column_ns) else []))
            for column, column_ns in times_ns.items()
        }
        gap = _complement(int(active_ns[members].sum()), int(compute_ns[members].sum()))
        row_cells["ratio %"] = doc.in_percent(_mean([ratios[index] for index in members]))
        row_cells["launch-gap %"] = doc.in_percent(gap)
        covered = [coverage[rank] for rank in ranks if rank in coverage]
        row_cells["attributed %"] = doc.in_percent(_attributed_share(covered))
        row_cells["score"] = _score(scores[ranks])
        cells.append(row_cells)
    return cells


def _list_times(iteration: Iteration, name: str) -> dict[str, Ints]:
    """Return the times of all ranks in an iteration, keyed by column.

    Times in the window of a ratio are empty if the iteration has no such window.
    """
    ranks = iteration.ranks
    phase_ns = rank_iterations.get_rank_column(ranks, "phase_ns")
    times_ns = {phase.label: phase_ns[:, index] for index, phase in enumerate(COMPUTE)}
    has_window = rank_iterations.has_account(ranks, name)
    for column, attribute in _ACCOUNT_COLUMNS.items():
        account_ns = rank_iterations.get_account_column(ranks, name, attribute)
        times_ns[column] = account_ns if has_window else np.zeros(0, np.int64)
    return times_ns


def _attributed_share(ranks: Sequence[RankCoverage]) -> float | None:
    """Return the share of the GPU time of some ranks that is attributed, or None without any."""
    gpu_ns = sum(rank.gpu_ns for rank in ranks)
    attributed_ns = sum(rank.attributed_gpu_ns for rank in ranks)
    return attributed_ns / gpu_ns if gpu_ns else None


def _complement(part: int, total: int) -> float | None:
    """Return the share of the total that is not in the part, or None if the total is 0."""
    return 1 - part / total if total else None


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the mean; None where any value is unknown."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def rank_labels(report: Report, ranks: list[int], width: int = 24) -> list[str]:
    """Return the labels of ranks, without the host where all share it, else without its domain.

    They are at most ``width`` wide, unless two would look alike.
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
        whole.append(to_one_line(label.strip() or rank.label, _LONGEST_LABEL))
    for room in range(width, _LONGEST_LABEL):
        labels = [doc.shortened(label, room) for label in whole]
        if len(set(labels)) == len(set(whole)):
            return labels
    return whole
