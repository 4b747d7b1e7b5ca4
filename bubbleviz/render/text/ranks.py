"""Tables of ranks.

If a run has very many ranks, the tables summarise them: the distribution of each quantity over the
ranks, and the groups of ranks that stand out.
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
from bubbleviz.report.rank_means import (
    RankMeans,
    compute_rank_means,
    is_many_ranks,
    list_standouts,
    summarize_distribution,
)
from bubbleviz.report.report import Report
from bubbleviz.report.view import View

#: Number of bins of a histogram, and their characters from empty to full.
_BINS, _BARS = 16, " ▁▂▃▄▅▆▇█"
#: Columns with the summary of a distribution; see :func:`.summarize_distribution`.
_DISTRIBUTION = ("least", "median", "95 %", "most")
#: Maximum number of standouts in the table, and on the first screen.
_MAX_STANDOUTS, _MAX_NAMED_STANDOUTS = 20, 2


def is_summarised(report: Report, view: View) -> bool:
    """Return whether tables summarise the ranks: there are very many, and the view selects none."""
    return is_many_ranks(len(report.ranks)) and not view.ranks and view.rows != "rank"


def list_rows(report: Report, view: View, iteration: Iteration) -> tuple[list[RankRow], int, str]:
    """Return the rows that tables of an iteration list: one per rank, or one per stage if many.

    Only ranks that are active in the iteration are listed. If a run has very many ranks and the
    view selects some, all selected ranks are listed. Otherwise at most ``MAX_ROWS`` rows are
    listed, and in a run with fewer ranks the selection of the view is ignored.

    Returns:
        rows: The rows, with only the active ranks as replicas.
        n_omitted: Number of further rows, which are not listed.
        row_kind: What a row stands for: ``rank``, or ``stage (mean of its replicas)``.
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
    listed_rows = rows if is_many and not is_summarised(report, view) else rows[: doc.MAX_ROWS]
    is_by_rank = all(len(row.replicas) == 1 for row in rows)
    row_kind = "rank" if is_by_rank else "stage (mean of its replicas)"
    return listed_rows, len(rows) - len(listed_rows), row_kind


def _make_first_cells(row: RankRow) -> dict[str, str]:
    """Return the first cells of a row: its rank number, or "" if it has several, and its stage."""
    number = str(row.rank.number) if len(row.replicas) == 1 else ""
    return {"#": number, "stage": doc.format_index(row.rank.stage)}


def _describe_rows(row_kind: str) -> str:
    """Return words for a title that explain what a row represents, or "" if it is a rank."""
    return "" if row_kind == "rank" else f" by {row_kind}"


def list_idle_causes(report: Report, view: View, iteration: Iteration) -> Iterator[doc.Block]:
    """Yield a table of idle time by cause, with one row per rank, or per stage if very many.

    A cause without idle time in this iteration has no column. Nothing is yielded if no cause has
    idle time.
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
    """Return the title of a table of ranks: the name of the iteration, and what is tabulated."""
    return f"Iteration {to_one_line(iteration.name, 60)}: {quantity}"


#: Explanation of the columns of the communication table.
_COMMUNICATION = (
    "wait: a receive runs but its input is not ready on the peer, or a collective runs but its "
    "last member has not entered; transfer: from then to the end; exposed: transfer while the rank "
    "runs nothing, and collectives inside operations while no compute kernel runs (≥: for the "
    "rest, waiting and transfer cannot be separated); kernels: communication kernels from the "
    "first receive of the iteration to the end of the window; overlap: share of their time in "
    "which compute kernels run"
)


def list_communication(report: Report, view: View, iteration: Iteration) -> Iterator[doc.Block]:
    """Yield a table of the communication and waiting time of each rank in an iteration.

    Nothing is yielded if no rank has communication kernels or waiting time.
    """
    times = report.explanation.communication
    index, active = iteration.index, list_indices(iteration.ranks)
    has_kernels = times.communication_ns[index, active].any()
    if not has_kernels and not times.wait_ns[index, active].any():
        return
    # Waiting and transfer are known if the input of any receive, or the members of any collective,
    # are known.
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
    """Return the mean communication times of the given ranks in an iteration, keyed by column.

    Args:
        times: The times of all ranks and iterations.
        iteration: Index of the iteration.
        ranks: Indices of the ranks to average over.
        is_split: Whether waiting and transfer are known separately.
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
    """Yield a table of the distribution of each quantity over the ranks, and one of standouts.

    Quantities are means over the iterations. A quantity that is unknown or 0 on all ranks has no
    row.
    """
    means = compute_rank_means(report)
    rows = []
    for name, values in _list_quantities(means):
        summary = summarize_distribution(values)
        if summary is not None and summary[-1] > 0:
            in_cell = doc.format_percent_cell if name.endswith("%") else doc.format_ms
            cells = dict(zip(_DISTRIBUTION, map(in_cell, summary), strict=True))
            bars = {"from least to most": draw_histogram(values)}
            rows.append({"over ranks": name} | cells | bars)
    title = f"How the {format_count(len(report.ranks), 'rank')} are spread, means of the iterations"
    yield doc.Table(
        f"{title} ({means.ratio} window)",
        rows,
        left=("over ranks", "from least to most"),
        drop_order=("from least to most",),
        headers=("over ranks", *_DISTRIBUTION, "from least to most"),
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
            "to the median": f"{100 * group.above:+.2f}",
            "why": group.why,
        }
        for group in groups
    ]
    yield doc.Table(
        "What stands out (--ranks, --pipelines or --hosts lists some ranks, --rows rank all)",
        doc.truncate_rows(rows, "what", max_rows=_MAX_STANDOUTS),
        left=("what", "why"),
    )


def _list_quantities(means: RankMeans) -> Iterator[tuple[str, Floats]]:
    """Yield each quantity: its name, which ends in its unit, and its values, one per rank."""
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
    """Return a text histogram of the values, one character per equal-width bin.

    NaNs are ignored. The result is "" if there are fewer than two distinct values.
    """
    numbers = values[~np.isnan(values)]
    if not len(numbers) or numbers.min() == numbers.max():
        return ""
    counts, _ = np.histogram(numbers, _BINS)
    heights = np.ceil(counts * (len(_BARS) - 1) / counts.max()).astype(np.int64)
    return "".join(_BARS[height] for height in heights.tolist())


def make_first_lines(report: Report, display: Display) -> list[doc.Line]:
    """Return the lines about ranks on the first screen.

    They show the distribution of bubble ratios if there are very many ranks, and in any case the
    first groups of ranks that stand out. There are no lines if no bubble ratio is known.
    """
    means = compute_rank_means(report)
    quantiles = summarize_distribution(means.bubble_ratio)
    if quantiles is None:
        return []
    lines: list[doc.Line] = []
    if is_many_ranks(len(report.ranks)):
        bars = display.translate(draw_histogram(means.bubble_ratio))
        lead = f"The {format_count(len(report.ranks), 'rank')}: "
        low, middle, _, high = map(format_percent, quantiles)
        text = f"{low} {bars} {high}, median {middle}"
        if measure_cells(lead + text) > display.width:
            text = f"{low} to {high}"
        # Not a paragraph, which would merge the blanks of the histogram.
        lines.append((doc.Span(lead, "bold"), doc.Span(text)))
    groups = list_standouts(report, means)
    sentences = [group.sentence for group in groups[:_MAX_NAMED_STANDOUTS]]
    if len(groups) > _MAX_NAMED_STANDOUTS:
        sentences.append(f"{len(groups) - _MAX_NAMED_STANDOUTS:,} more (-v ranks)")
    if sentences:
        lines += wrap_paragraph("; ".join(sentences), display, lead="Standing out:", max_lines=2)
    return lines


_LONGEST_LABEL = 200
#: Columns that are shown even if all their cells are zero.
_ALWAYS = frozenset({"bubble", "ratio %", "attributed %"})
#: Minimum score of a rank that counts as fast as the fastest rank of its stage.
_AS_FAST = 0.995
#: Cells that are zero or unknown.
_NOTHING = frozenset({"0.000", "0.00", "-0.00", "-"})
#: Columns that a narrow terminal drops first.
_DROPPED_FIRST = ("score", "overlap", "unattrib.", "launch-gap %", "attributed %")
#: Columns with times in the window of a ratio, and the fields of its account that contain them.
_ACCOUNT_COLUMNS = {
    "overlap": "overlap_ns",
    "unattrib.": "unattributed_ns",
    "bubble": "bubble_ns",
}


def list_ranks(report: Report, view: View, iteration: Iteration) -> Iterator[doc.Block]:
    """Yield a table of busy time and bubble in an iteration, by rank, or by stage if very many.

    Bubbles are counted in the window of the primary ratio, or of ``schedule`` if the iteration has
    no such window. If the ranks are summarised, the tables of :func:`summarize_ranks` follow.
    """
    name = report.headline
    if not rank_iterations.has_account(iteration.ranks, name):
        name = "schedule"
    rows, n_omitted, row_kind = list_rows(report, view, iteration)
    if not rows:
        return
    cells = _make_rank_cells(report, iteration, name, [row.replicas for row in rows])
    columns = [column for column in cells[0] if _is_shown(column, cells)]
    labels = rank_labels(report, [row.rank.index for row in rows])
    table = [
        _make_first_cells(row)
        | {"rank": label if len(row.replicas) == 1 else f"{len(row.replicas)} replicas"}
        | {column: row_cells[column] for column in columns}
        for row, label, row_cells in zip(rows, labels, cells, strict=True)
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
    # A stage has the means of its replicas, except for the score.
    score = "score" if row_kind == "rank" else "lowest score of the replicas"
    of_run = " and ".join(["attributed %", *([score] if "score" in columns else [])])
    yield doc.Sentence(f"Measured over the whole run: {of_run}", "dim")
    if is_summarised(report, view):
        yield from summarize_ranks(report)


def _is_shown(column: str, rows: Sequence[Mapping[str, str]]) -> bool:
    """Return whether a column is always shown, or has a cell other than zero and unknown."""
    return column in _ALWAYS or any(row[column] not in _NOTHING for row in rows)


def _list_drop_order(columns: Sequence[str]) -> list[str]:
    """Return the columns in the order in which a narrow terminal drops them."""
    first = [column for column in _DROPPED_FIRST if column in columns]
    phases = [column for column in columns if column not in {*first, "bubble", "ratio %"}]
    return [*first, *reversed(phases), "stage", "rank", "bubble", "ratio %"]


def _format_score(scores: Floats) -> str:
    """Return the lowest known score, or a dash if all are NaN."""
    numbers = scores[~np.isnan(scores)]
    return f"{numbers.min():.2f}" if len(numbers) else "-"


def _make_rank_cells(
    report: Report, iteration: Iteration, name: str, rows: Sequence[Sequence[int]]
) -> list[dict[str, str]]:
    """Return the cells of the table of ranks: means over the ranks of each row.

    A mean is a dash if it is unknown for any rank of the row. The score is the minimum over the
    ranks, or a dash if no rank of the run is noticeably slower than the fastest rank of its stage.

    Args:
        report: The report.
        iteration: The iteration.
        name: Name of the ratio.
        rows: Indices of the ranks of each row. Ranks that are not in the iteration are ignored.

    Returns:
        The cells of each row, keyed by column in display order.
    """
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
            column: doc.format_ms(
                _average_if_all_known(column_ns[members].tolist() if len(column_ns) else [])
            )
            for column, column_ns in times_ns.items()
        }
        gap = _compute_remaining_share(
            int(active_ns[members].sum()), int(compute_ns[members].sum())
        )
        row_cells["ratio %"] = doc.format_percent_cell(
            _average_if_all_known([ratios[index] for index in members])
        )
        row_cells["launch-gap %"] = doc.format_percent_cell(gap)
        covered = [coverage[rank] for rank in ranks if rank in coverage]
        row_cells["attributed %"] = doc.format_percent_cell(_measure_attributed_share(covered))
        row_cells["score"] = _format_score(scores[ranks])
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


def _measure_attributed_share(ranks: Sequence[RankCoverage]) -> float | None:
    """Return the attributed share of the ranks' GPU time, or None if they have no GPU time."""
    gpu_ns = sum(rank.gpu_ns for rank in ranks)
    attributed_ns = sum(rank.attributed_gpu_ns for rank in ranks)
    return attributed_ns / gpu_ns if gpu_ns else None


def _compute_remaining_share(part: int, total: int) -> float | None:
    """Return the share of the total that is not in the part, or None if the total is 0."""
    return 1 - part / total if total else None


def _average_if_all_known(values: Sequence[float | None]) -> float | None:
    """Return the mean, or None if any value is unknown or there are no values."""
    numbers = [value for value in values if value is not None]
    return sum(numbers) / len(numbers) if numbers and len(numbers) == len(values) else None


def rank_labels(report: Report, ranks: list[int], width: int = 24) -> list[str]:
    """Return short, distinct labels of ranks.

    The host is left out if all ranks run on it, otherwise its domain is left out if the host names
    stay distinct. Labels are shortened in the middle to ``width`` characters, or to more if two
    labels would be equal.

    Args:
        report: The report.
        ranks: Indices of the ranks.
        width: Maximum length of a label.
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
