"""Rank tables.

In a run with very many ranks, the tables do not list all ranks. Instead, they show how each
quantity is distributed across ranks, and which groups of ranks stand out.
"""

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
from bubbleviz.render.rows import RankRow, make_rows
from bubbleviz.render.text.terminal import Display, wrap_paragraph
from bubbleviz.render.wrapping import measure_cells
from bubbleviz.report.labels import MARK
from bubbleviz.report.marked_ranks import MAX_NAMED_OUTLIERS, choose_marked_ranks
from bubbleviz.report.rank_means import (
    RankMeans,
    compute_rank_means,
    is_many_ranks,
    list_standouts,
    summarize_distribution,
)
from bubbleviz.report.report import Report
from bubbleviz.report.view import View

#: Number of bins in a text histogram, and the characters for bins, from empty to full.
_BINS, _BARS = 16, " ▁▂▃▄▅▆▇█"
#: Headers of the columns that summarize a distribution; see :func:`.summarize_distribution`.
_DISTRIBUTION = ("min", "median", "95 %", "max")
#: Maximum number of standout rank groups in the table and on the first screen.
_MAX_STANDOUTS = 20


def is_summarized(report: Report, view: View) -> bool:
    """Return whether tables summarize the ranks instead of listing all of them.

    Tables summarize very many ranks, unless the view selects ranks or requests one row per rank.
    """
    return is_many_ranks(len(report.ranks)) and not view.ranks and view.rows != "rank"


def list_rows(report: Report, view: View, iteration: Iteration) -> tuple[list[RankRow], int, str]:
    """Return the rows for tables that describe an iteration: one per rank, or one per stage.

    Only ranks that are active in the iteration are included. :func:`.make_rows` chooses between
    ranks and stages. In most runs, the tables contain all ranks, even if the view selects some, but
    at most ``MAX_ROWS`` rows. In runs with very many ranks:

    - If the view selects ranks, only those ranks have rows. By default, each of them has its own
      row.
    - If the view selects ranks or one row per rank, the number of rows is not limited.

    Returns:
        rows: The rows, with ``replicas`` limited to active ranks.
        n_omitted: Number of rows left out because of the limit.
        row_kind: ``rank`` if all rows are single ranks, else ``stage (mean of its replicas)``.
    """
    is_many, active = is_many_ranks(len(report.ranks)), set(list_indices(iteration.ranks))
    table_view = view if is_many else replace(view, ranks=())
    if is_many and view.ranks and view.rows is None:
        table_view = replace(view, rows="rank")
    rows = [
        replace(row, replicas=tuple(rank for rank in row.replicas if rank in active))
        for row in make_rows(report, table_view)
        if not active.isdisjoint(row.replicas)
    ]
    listed_rows = rows if is_many and not is_summarized(report, view) else rows[: doc.MAX_ROWS]
    is_by_rank = all(len(row.replicas) == 1 for row in rows)
    row_kind = "rank" if is_by_rank else "stage (mean of its replicas)"
    return listed_rows, len(rows) - len(listed_rows), row_kind


def _make_first_cells(row: RankRow) -> dict[str, str]:
    """Return the first two cells of a row: the rank number and the stage.

    The rank number is "" if the row represents several ranks.
    """
    number = str(row.rank.number) if len(row.replicas) == 1 else ""
    return {"#": number, "stage": doc.format_index(row.rank.stage)}


def _describe_rows(row_kind: str) -> str:
    """Return the words in a table title that say what a row is, or "" if each row is a rank."""
    return "" if row_kind == "rank" else f" per {row_kind}"


def list_idle_causes(report: Report, view: View, iteration: Iteration) -> Iterator[doc.Block]:
    """Yield a table of idle time by cause in one iteration.

    The rows are those of :func:`list_rows`, with a column for each cause that has idle time in the
    iteration. Yields nothing if no cause has idle time.
    """
    name = report.explanation.listed_ratio
    idle_ns = report.explanation.causes.idle_ns[name][iteration.index]
    active = list_indices(iteration.ranks)
    columns = [cause for cause in Cause if idle_ns[active, cause].any()]
    if not columns:
        return
    listed_rows, n_omitted, row_kind = list_rows(report, view, iteration)
    rows = []
    for row in listed_rows:
        means_ns = idle_ns[list(row.replicas)].mean(axis=0).tolist()
        times = {cause.label: doc.format_ms(means_ns[cause]) for cause in columns}
        rows.append(_make_first_cells(row) | times)
    quantity = f"idle time by cause{_describe_rows(row_kind)}, ms ({name} window)"
    yield doc.Table(_make_table_title(iteration, quantity), rows, n_omitted=n_omitted)


def _make_table_title(iteration: Iteration, quantity: str) -> str:
    """Return a table title that contains the iteration's name and the tabulated quantity."""
    return f"Iteration {to_one_line(iteration.name, 60)}: {quantity}"


#: Text below the communication table that explains its columns.
_COMMUNICATION = (
    "wait: time in receives before the peer has the data ready, and in collectives before the last "
    "member enters; transfer: time from then to the end; exposed: transfers while the rank is "
    "otherwise idle, and collectives inside operations while no compute kernel runs (≥: lower "
    "bound, because waiting and transfer cannot be separated); kernels: communication kernels from "
    "the first receive of the iteration to the end of the window; overlap: share of the kernel "
    "time during which compute kernels also run"
)


def list_communication(report: Report, view: View, iteration: Iteration) -> Iterator[doc.Block]:
    """Yield a table of communication and waiting times in one iteration.

    The rows are those of :func:`list_rows`. Yields nothing if no rank has communication kernels or
    waiting time in the iteration.
    """
    times = report.explanation.communication
    index, active = iteration.index, list_indices(iteration.ranks)
    has_kernels = times.communication_ns[index, active].any()
    if not has_kernels and not times.wait_ns[index, active].any():
        return
    # Waiting can be separated from transfer if the dependencies of any receive or collective are
    # known.
    is_split = bool(report.explanation.received.any()) or bool(times.wait_ns.any())
    listed_rows, n_omitted, row_kind = list_rows(report, view, iteration)
    rows = [
        _make_first_cells(row)
        | _make_communication_cells(times, index, list(row.replicas), is_split=is_split)
        for row in listed_rows
    ]
    quantity = f"communication{_describe_rows(row_kind)}, ms"
    yield doc.Table(_make_table_title(iteration, quantity), rows, n_omitted=n_omitted)
    yield doc.Sentence(_COMMUNICATION)


def _make_communication_cells(
    times: CommunicationTimes, iteration: int, ranks: list[int], *, is_split: bool
) -> dict[str, str]:
    """Return the table cells with the mean communication times of given ranks in an iteration.

    Cells are keyed by header, and times are in ms.

    Args:
        times: Communication times of all ranks in all iterations.
        iteration: Index of the iteration.
        ranks: Indices of the ranks to average over.
        is_split: Whether waiting and transfer times are known separately. If not, their cells are
            dashes, and ``exposed`` may be a lower bound.
    """

    def average_ns(column: Floats | Ints) -> float:
        return float(column[iteration, ranks].mean())

    kernels_ns, exposed_ns = average_ns(times.communication_ns), average_ns(times.exposed_ns)
    alone_ns = kernels_ns - average_ns(times.overlapped_ns)
    is_lower_bound = not is_split and alone_ns > exposed_ns
    overlap = (kernels_ns - alone_ns) / kernels_ns if kernels_ns else None
    return {
        "wait": doc.format_ms(average_ns(times.wait_ns)) if is_split else "-",
        "transfer": doc.format_ms(average_ns(times.transfer_ns)) if is_split else "-",
        "exposed": f"{'≥ ' if is_lower_bound else ''}{doc.format_ms(exposed_ns)}",
        "kernels": doc.format_ms(kernels_ns),
        "overlap %": doc.format_percent_cell(overlap),
    }


def summarize_ranks(report: Report) -> Iterator[doc.Block]:
    """Yield two summary tables for a run with very many ranks.

    The first table shows how each quantity is distributed across ranks. Quantities are means over
    the iterations. A quantity that is unknown or 0 on all ranks is left out. The second table lists
    groups of ranks that stand out, or a sentence says that there are none.
    """
    means = compute_rank_means(report)
    rows = []
    for name, values in _list_quantities(means):
        summary = summarize_distribution(values)
        if summary is not None and summary[-1] > 0:
            in_cell = doc.format_percent_cell if name.endswith("%") else doc.format_ms
            cells = dict(zip(_DISTRIBUTION, map(in_cell, summary), strict=True))
            bars = {"histogram": draw_histogram(values)}
            rows.append({"quantity": name} | cells | bars)
    title = f"Distribution over {format_count(len(report.ranks), 'rank')}, mean of the iterations"
    yield doc.Table(
        f"{title} ({means.ratio} window)",
        rows,
        left=("quantity", "histogram"),
        drop_order=("histogram",),
        headers=("quantity", *_DISTRIBUTION, "histogram"),
    )
    groups = list_standouts(report, means)
    if not groups:
        yield doc.Sentence("\nNo rank, host, pipeline or stage stands out")
        return
    rows = [
        {
            "what": group.name,
            "ranks": f"{len(group.ranks):,}",
            "ratio %": doc.format_percent_cell(group.ratio),
            "vs. median": f"{100 * group.above:+.2f}",
            "why": group.why,
        }
        for group in groups
    ]
    yield doc.Table(
        "Outliers (to list ranks: --ranks, --pipelines, --hosts, or --rows rank for all)",
        doc.truncate_rows(rows, "what", max_rows=_MAX_STANDOUTS),
        left=("what", "why"),
    )


def _list_quantities(means: RankMeans) -> Iterator[tuple[str, Floats]]:
    """Yield (name, values) for each quantity whose distribution is shown.

    The quantities are the ratio, the bubble, the busy time of each phase, the launch gap, the idle
    time of each cause, and the communication times. Each name ends in the quantity's unit. There is
    one value per rank.
    """
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


def draw_histogram(values: Floats) -> str:
    """Return a histogram as text, with one character for each of ``_BINS`` equal-width bins.

    The fullest bin has the highest bar, and bar heights are rounded up. NaNs are ignored. The
    result is "" if there are fewer than two distinct values.
    """
    numbers = values[~np.isnan(values)]
    if not len(numbers) or numbers.min() == numbers.max():
        return ""
    counts, _ = np.histogram(numbers, _BINS)
    heights = np.ceil(counts * (len(_BARS) - 1) / counts.max()).astype(np.int64)
    return "".join(_BARS[height] for height in heights.tolist())


def make_first_lines(report: Report, display: Display) -> list[doc.Line]:
    """Return the lines about ranks for the first screen.

    If there are very many ranks, the first line shows how their bubble ratios are distributed,
    unless no bubble ratio is known. The last lines name the first groups of ranks that stand out,
    if any.
    """
    means = compute_rank_means(report)
    quantiles = summarize_distribution(means.bubble_ratio)
    lines: list[doc.Line] = []
    if quantiles is not None and is_many_ranks(len(report.ranks)):
        bars = display.translate(draw_histogram(means.bubble_ratio))
        lead = f"The {format_count(len(report.ranks), 'rank')}: "
        low, middle, _, high = map(format_percent, quantiles)
        text = f"{low} {bars} {high}, median {middle}"
        if measure_cells(lead + text) > display.width:
            text = f"{low} to {high}"
        # A wrapped paragraph would merge consecutive blanks in the histogram.
        lines.append((doc.Span(lead, "bold"), doc.Span(text)))
    groups = list_standouts(report, means)
    sentences = [group.sentence for group in groups[:MAX_NAMED_OUTLIERS]]
    if len(groups) > MAX_NAMED_OUTLIERS:
        sentences.append(f"{len(groups) - MAX_NAMED_OUTLIERS:,} more (-v ranks)")
    if sentences:
        lines += wrap_paragraph("; ".join(sentences), display, lead="Outliers:", max_lines=2)
    return lines


_LONGEST_LABEL = 200
#: Headers of columns shown even if all their cells are zero or unknown.
_ALWAYS = frozenset({"bubble", "ratio %", "attributed %"})
#: Minimum score for a rank to be considered as fast as the fastest rank of its stage.
_AS_FAST = 0.995
#: Cell texts for values that are zero or unknown.
_NOTHING = frozenset({"0.000", "0.00", "-0.00", "-"})
#: Headers of the columns that are dropped first on a narrow terminal, in this order.
_DROPPED_FIRST = ("score", "overlap", "unattrib.", "launch-gap %", "attributed %")
#: Time columns for a ratio's window: header, and field name in the ratio's account.
_ACCOUNT_COLUMNS = {
    "overlap": "overlap_ns",
    "unattrib.": "unattributed_ns",
    "bubble": "bubble_ns",
}


def list_ranks(report: Report, view: View, iteration: Iteration) -> Iterator[doc.Block]:
    """Yield a table of each rank's or stage's busy time and bubble in one iteration.

    The rows are those of :func:`list_rows`. Bubbles are measured in the primary ratio's window. If
    the iteration has no such window, the ``schedule`` window is used. For very many ranks, the
    tables of :func:`summarize_ranks` follow (see :func:`is_summarized`).
    """
    name = report.headline
    if not rank_iterations.has_account(iteration.ranks, name):
        name = "schedule"
    rows, n_omitted, row_kind = list_rows(report, view, iteration)
    if not rows:
        return
    cells = _make_rank_cells(report, iteration, name, [row.replicas for row in rows])
    columns = [column for column in cells[0] if _is_shown(column, cells)]
    names = _name_rows(report, rows)
    table = [
        _make_first_cells(row) | {"rank": name} | {column: row_cells[column] for column in columns}
        for row, name, row_cells in zip(rows, names, cells, strict=True)
    ]
    quantity = f"busy time and bubble by {row_kind}, ms ({name} window)"
    yield doc.Table(
        _make_table_title(iteration, quantity),
        table,
        left=("rank",),
        drop_order=_list_drop_order(columns),
        n_omitted=n_omitted,
        hint=" with -o report.json",
    )
    # A stage row contains means over the stage's replicas, except in the score column.
    score = "score" if row_kind == "rank" else "lowest score of the replicas"
    of_run = " and ".join(["attributed %", *([score] if "score" in columns else [])])
    yield doc.Sentence(f"Measured over the whole run: {of_run}", "dim")
    marked = choose_marked_ranks(report)
    if any(not set(marked.ranks).isdisjoint(row.replicas) for row in rows):
        yield doc.Sentence(f"{MARK} {marked.sentence or marked.meaning}", "dim")
    if is_summarized(report, view):
        yield from summarize_ranks(report)


def _name_rows(report: Report, rows: Sequence[RankRow]) -> list[str]:
    """Return the label of each row's rank, or the number of its replicas.

    A mark precedes the names of rows that represent a marked rank.
    """
    marked = frozenset(choose_marked_ranks(report).ranks)
    labels = rank_labels(report, [row.rank.index for row in rows])
    names = []
    for row, label in zip(rows, labels, strict=True):
        name = label if len(row.replicas) == 1 else f"{len(row.replicas)} replicas"
        names.append(name if marked.isdisjoint(row.replicas) else f"{MARK} {name}")
    return names


def _is_shown(column: str, rows: Sequence[Mapping[str, str]]) -> bool:
    """Return whether a column is in ``_ALWAYS``, or has a cell that is neither 0 nor unknown."""
    return column in _ALWAYS or any(row[column] not in _NOTHING for row in rows)


def _list_drop_order(columns: Sequence[str]) -> list[str]:
    """Return the column headers in the order in which a narrow terminal drops the columns."""
    first = [column for column in _DROPPED_FIRST if column in columns]
    phases = [column for column in columns if column not in {*first, "bubble", "ratio %"}]
    return [*first, *reversed(phases), "stage", "rank", "bubble", "ratio %"]


def _format_score(scores: Floats) -> str:
    """Return the lowest score as text, ignoring NaNs, or a dash if all scores are NaN."""
    numbers = scores[~np.isnan(scores)]
    return f"{numbers.min():.2f}" if len(numbers) else "-"


def _make_rank_cells(
    report: Report, iteration: Iteration, name: str, rows: Sequence[Sequence[int]]
) -> list[dict[str, str]]:
    """Return the cells of the rank table, which are means over each row's ranks.

    A mean is a dash if the value is unknown for any rank in the row. The score is the minimum over
    the ranks in the row. All scores are dashes if no rank in the run is noticeably slower than the
    fastest rank of its stage.

    Args:
        report: The report.
        iteration: The iteration that the table describes.
        name: Name of the bubble ratio whose window is used.
        rows: For each row, the indices of its ranks. Ranks that are not active in the iteration
            are ignored.

    Returns:
        One mapping per row, from column header to cell text, in display order.
    """
    entries = iteration.ranks
    index_of_rank = {rank: index for index, rank in enumerate(list_indices(entries))}
    times_ns = _list_times(iteration, name)
    ratios = compute_rank_ratios(entries, name)
    compute_ns = rank_iterations.get_rank_column(entries, "compute_ns")
    active_ns = rank_iterations.get_rank_column(entries, "active_ns")
    coverage = {rank.rank: rank for rank in report.coverage}
    scores = _list_scores(report)
    cells = []
    for row in rows:
        ranks = [rank for rank in row if rank in index_of_rank]
        members = [index_of_rank[rank] for rank in ranks]
        row_cells = {
            column: doc.format_ms(
                _average_if_all_known(column_ns[members].tolist() if len(column_ns) else [])
            )
            for column, column_ns in times_ns.items()
        }
        row_cells["ratio %"] = doc.format_percent_cell(
            _average_if_all_known([ratios[index] for index in members])
        )
        row_cells["launch-gap %"] = doc.format_percent_cell(
            _compute_remaining_share(int(active_ns[members].sum()), int(compute_ns[members].sum()))
        )
        row_cells["attributed %"] = doc.format_percent_cell(
            _measure_attributed_share([coverage[rank] for rank in ranks if rank in coverage])
        )
        row_cells["score"] = _format_score(scores[ranks])
        cells.append(row_cells)
    return cells


def _list_scores(report: Report) -> Floats:
    """Return the score of each rank; see :attr:`.Slowness.relative_score`.

    All scores are NaN if no rank is noticeably slower than the fastest rank of its stage.
    """
    scores = report.slowness.relative_score
    return scores if (scores < _AS_FAST).any() else np.full(len(scores), np.nan)


def _list_times(iteration: Iteration, name: str) -> dict[str, Ints]:
    """Return the times of all active ranks in an iteration, in ns, keyed by column header.

    There is one column per compute phase. The columns ``overlap``, ``unattrib.`` and ``bubble``
    contain times in the window of the given ratio. All three are empty arrays if the iteration has
    no window of this ratio.

    Args:
        iteration: The iteration.
        name: Name of the ratio.
    """
    ranks = iteration.ranks
    phase_ns = rank_iterations.get_rank_column(ranks, "phase_ns")
    times_ns = {phase.label: phase_ns[:, index] for index, phase in enumerate(COMPUTE)}
    has_window = rank_iterations.has_account(ranks, name)
    for column, attribute in _ACCOUNT_COLUMNS.items():
        account_ns = rank_iterations.get_account_column(ranks, name, attribute)
        times_ns[column] = account_ns if has_window else np.zeros(0, np.int64)
    return times_ns


def _measure_attributed_share(ranks: Sequence[RankCoverage]) -> float | None:
    """Return the share of GPU time attributed to operations, summed over ranks.

    The result is None if the ranks have no GPU time.
    """
    gpu_ns = sum(rank.gpu_ns for rank in ranks)
    attributed_ns = sum(rank.attributed_gpu_ns for rank in ranks)
    return attributed_ns / gpu_ns if gpu_ns else None


def _compute_remaining_share(part: int, total: int) -> float | None:
    """Return ``1 - part / total``, or None if the total is 0."""
    return 1 - part / total if total else None


def _average_if_all_known(values: Sequence[float | None]) -> float | None:
    """Return the mean of the values, or None if there are no values or any value is None."""
    numbers = [value for value in values if value is not None]
    return sum(numbers) / len(numbers) if numbers and len(numbers) == len(values) else None


def rank_labels(report: Report, ranks: list[int], width: int = 24) -> list[str]:
    """Return a short label for each rank. Labels remain distinct if the full labels are distinct.

    If all ranks run on one host, host names are left out. Otherwise their domains are left out,
    unless two hosts would then have the same name. Labels are shortened in the middle to ``width``
    characters. More characters are kept if two labels would otherwise be equal.

    Args:
        report: The report.
        ranks: Indices of the ranks.
        width: Desired maximum length of a label.
    """
    hosts = {rank.host for rank in report.ranks}
    short = {host: host.split(".")[0] for host in hosts}
    if len(hosts) == 1:
        short = dict.fromkeys(hosts, "")
    elif len(set(short.values())) < len(hosts):
        short = {host: host for host in hosts}
    full_labels = []
    for rank in (report.ranks[index] for index in ranks):
        suffix = rank.label.removeprefix(rank.host)
        label = f"{short[rank.host]}{suffix}" if suffix != rank.label else rank.label
        full_labels.append(to_one_line(label.strip() or rank.label, _LONGEST_LABEL))
    n_distinct = len(set(full_labels))
    for max_length in range(width, _LONGEST_LABEL):
        labels = [doc.truncate_middle(label, max_length) for label in full_labels]
        if len(set(labels)) == n_distinct:
            return labels
    return full_labels
