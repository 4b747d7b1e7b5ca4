"""Very many ranks: how their numbers are spread, and what stands out, in place of a row each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from bubbleviz.count import rank_iterations
from bubbleviz.count.iterations import Iteration
from bubbleviz.count.rank_iterations import indices_of, own_ratios
from bubbleviz.explain.causes.cause import Cause
from bubbleviz.model.columns import Floats, Ints
from bubbleviz.model.phases import COMPUTE
from bubbleviz.model.texts import counted, one_line, percent
from bubbleviz.render import document as doc
from bubbleviz.render.document import cell_width
from bubbleviz.render.rows import RankRow, rows_of
from bubbleviz.render.text.terminal import Display, paragraph
from bubbleviz.report.rank_means import (
    distribution,
    many_ranks,
    rank_means,
    standouts,
)
from bubbleviz.report.report import Report
from bubbleviz.report.view import View

#: Bins of a histogram, and their characters by how many values they hold.
_BINS, _BARS = 16, " ▁▂▃▄▅▆▇█"
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
    many, at_work = many_ranks(len(report.ranks)), set(indices_of(iteration.ranks))
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
    at_work = indices_of(iteration.ranks)
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
    yield doc.Table(f"Iteration {one_line(iteration.name, 60)}: {of}", rows, omitted=omitted)


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
    at, at_work = iteration.index, indices_of(iteration.ranks)
    if not times.communication_ns[at, at_work].any() and not times.wait_ns[at, at_work].any():
        return
    # Without a receive whose input is known, or a collective whose members are, no time is known to
    # be waiting or transfer.
    known = bool(report.explanation.received.any()) or bool(times.wait_ns.any())
    columns = times.wait_ns, times.transfer_ns, times.communication_ns, times.exposed_ns
    rows = []
    listed, omitted, by = listed_ranks(report, view, iteration)
    for row in listed:
        ranks = list(row.replicas)
        wait_ns, transfer_ns, whole_ns, exposed_ns, overlapped_ns = (
            float(column[at, ranks].mean()) for column in (*columns, times.overlapped_ns)
        )
        alone_ns = whole_ns - overlapped_ns
        least = "" if known or alone_ns <= exposed_ns else "≥ "
        cells = {
            "wait": doc.milliseconds(wait_ns) if known else "-",
            "transfer": doc.milliseconds(transfer_ns) if known else "-",
            "exposed": f"{least}{doc.milliseconds(exposed_ns)}",
            "kernels": doc.milliseconds(whole_ns),
            "overlap %": doc.in_percent((whole_ns - alone_ns) / whole_ns if whole_ns else None),
        }
        rows.append(_head(row) | cells)
    title = f"Iteration {one_line(iteration.name, 60)}: communication{_of(by)}, ms"
    yield doc.Table(title, rows, omitted=omitted)
    yield doc.Sentence(_COMMUNICATION)


def spread_of_ranks(report: Report) -> Iterator[doc.Block]:
    """Yield how ranks, hosts and pipelines are spread, and what of them stands out."""
    means = rank_means(report)
    quantities = [("ratio %", means.bubble_ratio, doc.in_percent)]
    quantities += [
        ("bubble ms", means.bubble_ns, doc.milliseconds),
        *((f"{phase} ms", busy_ns, doc.milliseconds) for phase, busy_ns in means.busy_ns.items()),
        ("launch-gap %", means.launch_gap, doc.in_percent),
        *((f"idle: {c.label} ms", means.idle_ns[:, c], doc.milliseconds) for c in Cause),
    ]
    for name, column in means.communication_ns.items():
        label = name.removesuffix("_ns").replace("communication", "kernels")
        quantities.append((f"communication: {label} ms", column, doc.milliseconds))
    rows = []
    for name, values, cell in quantities:
        own = distribution(values)
        if own is not None and own[-1] > 0:
            of = zip(("least", "median", "95 %", "most"), map(cell, own), strict=True)
            rows.append({"over ranks": name, **dict(of), "from least to most": histogram(values)})
    title = f"How the {counted(len(report.ranks), 'rank')} are spread, means of the iterations"
    yield doc.Table(
        f"{title} ({means.ratio} window)",
        rows,
        left=("over ranks", "from least to most"),
        giving_way=("from least to most",),
        headers=("over ranks", "least", "median", "95 %", "most", "from least to most"),
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


def histogram(values: Floats) -> str:
    """Return how many values lie in equal parts from the least to the most, a character each."""
    known = values[~np.isnan(values)]
    if not len(known) or known.min() == known.max():
        return ""
    counts, _ = np.histogram(known, _BINS)
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
        lead = f"The {counted(len(report.ranks), 'rank')}: "
        low, middle, _, high = map(percent, own)
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


# Ranks: busy time by phase and bubble of each, in one iteration.


_LONGEST_LABEL = 200
#: Columns that are shown even where they are nothing but zeros.
_ALWAYS = frozenset({"bubble", "ratio %", "attributed %"})
#: A score from which on a rank is as fast as the fastest of its stage.
_AS_FAST = 0.995
_NOTHING = frozenset({"0.000", "0.00", "-0.00", "-"})


def ranks(report: Report, view: View, iteration: Iteration) -> Iterator[doc.Block]:
    """Yield the table of ranks of an iteration."""
    name = report.headline
    if not rank_iterations.has_account(iteration.ranks, name):
        name = "schedule"
    shown, omitted, by = listed_ranks(report, view, iteration)
    if not shown:
        return
    cells = _cells(report, iteration, name, [row.replicas for row in shown])
    columns = [
        column
        for column in cells[0]
        if column in _ALWAYS or any(row[column] not in _NOTHING for row in cells)
    ]
    labels = rank_labels(report, [row.rank.index for row in shown])
    table = []
    for row, label, values in zip(shown, labels, cells, strict=True):
        replicas = len(row.replicas)
        named = {"rank": label if replicas == 1 else f"{replicas} replicas"}
        table.append(_head(row) | named | {column: values[column] for column in columns})
    # Where a terminal is narrow, phases go, and in the end the rank.
    first = [
        c for c in ("score", "overlap", "unattrib.", "launch-gap %", "attributed %") if c in columns
    ]
    phases = [c for c in columns if c not in {*first, "bubble", "ratio %"}]
    yield doc.Table(
        f"Iteration {one_line(iteration.name, 60)}: busy time and bubble by {by}, ms "
        f"({name} window)",
        table,
        left=("rank",),
        giving_way=[*first, *reversed(phases), "stage", "rank", "bubble", "ratio %"],
        omitted=omitted,
        hint=" with -o report.json",
    )
    # Rows of stages have the means of their replicas, except for the score.
    score = "score" if by == "rank" else "lowest score of the replicas"
    of_run = " and ".join(["attributed %", *([score] if "score" in columns else [])])
    yield doc.Sentence(f"Of the whole run: {of_run}", "dim")
    if summarised(report, view):
        yield from spread_of_ranks(report)


def _score(scores: Floats) -> str:
    """Return the lowest score of some ranks."""
    known = scores[~np.isnan(scores)]
    return f"{known.min():.2f}" if len(known) else "-"


def _cells(
    report: Report, iteration: Iteration, name: str, rows: Sequence[Sequence[int]]
) -> list[dict[str, str]]:
    """Return the cells of rows by column, in the order of the columns: means over their ranks."""
    ranks = iteration.ranks
    places = {rank: place for place, rank in enumerate(indices_of(ranks))}
    known = {rank.rank: rank for rank in report.coverage}
    phase_ns = rank_iterations.rank_column(ranks, "phase_ns")
    ratios, has_window = own_ratios(ranks, name), rank_iterations.has_account(ranks, name)
    compute_ns, active_ns = (
        rank_iterations.rank_column(ranks, column) for column in ("compute_ns", "active_ns")
    )
    account_ns = {
        column: rank_iterations.account_column(ranks, name, attribute)
        for column, attribute in (
            ("overlap", "overlap_ns"),
            ("unattrib.", "unattributed_ns"),
            ("bubble", "bubble_ns"),
        )
    }
    relative = report.slowness.relative_score
    if not (relative < _AS_FAST).any():
        relative = np.full(len(relative), np.nan)
    cells = []
    for row in rows:
        own = [rank for rank in row if rank in places]
        at = [places[rank] for rank in own]
        windows = at if has_window else []
        computed, active = int(compute_ns[at].sum()), int(active_ns[at].sum())
        coverage = [known[rank] for rank in own if rank in known]
        gpu_ns = sum(rank.gpu_ns for rank in coverage)
        attributed_ns = sum(rank.attributed_gpu_ns for rank in coverage)
        times_ns: dict[str, Ints] = {
            **{phase.label: phase_ns[at, place] for place, phase in enumerate(COMPUTE)},
            **{column: times[windows] for column, times in account_ns.items()},
        }
        cells.append(
            {
                **{c: doc.milliseconds(_mean(times.tolist())) for c, times in times_ns.items()},
                "ratio %": doc.in_percent(_mean([ratios[place] for place in at])),
                "launch-gap %": doc.in_percent(1 - active / computed if computed else None),
                "attributed %": doc.in_percent(attributed_ns / gpu_ns if gpu_ns else None),
                "score": _score(relative[own]),
            }
        )
    return cells


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
        whole.append(one_line(label.strip() or rank.label, _LONGEST_LABEL))
    for room in range(width, _LONGEST_LABEL):
        labels = [doc.shortened(label, room) for label in whole]
        if len(set(labels)) == len(set(whole)):
            return labels
    return whole
