"""The terminal's table: what to know at a glance, and what could not be told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bubbleviz.renderers import Renderer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType
    from rich.table import Table

    from bubbleviz.count import Iteration, RankIteration
    from bubbleviz.report import Report, View

#: Width of the table where it is not shown on a terminal.
WIDTH = 110
_LIMITATIONS = 12
_RANKS = 64


def render(report: Report, view: View) -> str:
    """Return the table as plain text."""
    return plain_text(parts(report, view))


def plain_text(parts: Iterator[RenderableType]) -> str:
    """Return what rich would print, without colours and always as wide."""
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
    for part in parts:
        console.print(part)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def parts(report: Report, view: View) -> Iterator[RenderableType]:
    """Yield what to print, for any rich console."""
    yield _headline(report)
    yield _ratios(report)
    drawn = _shown_iteration(report, view)
    if drawn is not None and drawn.ranks:
        yield _ranks(report, drawn)
    if any(not i.averaged for i in report.iterations):
        yield _others(report)
    yield _coverage(report)
    if report.limitations:
        yield _limitations(report)


def percent(value: float | None) -> str:
    """Return a ratio as percent, or a dash."""
    return "-" if value is None else f"{100 * value:.2f} %"


def milliseconds(value: float | None) -> str:
    """Return nanoseconds as milliseconds, or a dash."""
    return "-" if value is None else f"{value / 1e6:,.3f}"


def clean(text: str, width: int = 60) -> str:
    """Return a text from a profile for the terminal: printable, on one line, not too long."""
    flat = "".join(c if c.isprintable() else " " for c in text)
    return flat if len(flat) <= width else flat[: width - 1] + "…"


def _table(title: str) -> Table:
    from rich import box
    from rich.table import Table

    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
    )


def _headline(report: Report) -> RenderableType:
    from rich.text import Text

    spread = report.summary.bubble_ratio[report.headline]
    hosts = len({rank.host for rank in report.ranks})
    runs = (
        f"{len(report.ranks)} ranks on {hosts} host{'s' if hosts != 1 else ''}, "
        f"{report.summary.iterations} of {len(report.iterations)} iterations averaged, "
        f"naming {report.convention}"
    )
    text = Text(f"bubble ratio ({report.headline}): ", style="bold")
    text.append(percent(spread.mean), style="bold")
    if spread.ci95 is not None:
        text.append(f" ± {100 * spread.ci95:.2f} (95 % CI, n = {spread.n})")
    text.append(f"\n{runs}\nheadline is {report.headline}: {report.headline_reason}\n")
    return text


def _ratios(report: Report) -> RenderableType:
    from bubbleviz.statistics import statistics

    table = _table("Bubble ratios")
    for column in ("ratio", "mean", "low", "std", "min", "max", "bubble/work", "window ms", "± ms"):
        table.add_column(column, justify="left" if column == "ratio" else "right", no_wrap=True)
    table.add_column("of")
    summary = report.summary
    for statistic in statistics():
        ratio, low = summary.bubble_ratio[statistic.name], summary.bubble_low[statistic.name]
        window = summary.window_ns[statistic.name]
        table.add_row(
            statistic.name,
            percent(ratio.mean),
            percent(low.mean) if low.mean != ratio.mean else "",
            percent(ratio.std),
            percent(ratio.min),
            percent(ratio.max),
            percent(summary.bubble_overhead[statistic.name].mean),
            milliseconds(window.mean),
            milliseconds(window.std),
            statistic.summary,
        )
    return table


def _shown_iteration(report: Report, view: View) -> Iteration | None:
    chosen = [i for i in report.iterations if i.index in view.iterations]
    return chosen[0] if chosen else report.typical_iteration()


def _ranks(report: Report, iteration: Iteration) -> RenderableType:
    from bubbleviz.phases import COMPUTE

    phases = [p.label for p in COMPUTE if any(own.busy_ns[p.label] for own in iteration.ranks)]
    name = report.headline
    if all(name not in own.accounts for own in iteration.ranks):
        name = "schedule"
    rows = [_rank_row(report, own, phases, name) for own in iteration.ranks[:_RANKS]]
    columns = ["stage", "rank", *phases, "overlap", "other", "bubble", "ratio", "hollow"]
    shown = [
        i
        for i, column in enumerate(columns)
        if column not in {"overlap", "other"} or any(row[i] not in {"0.000", "-"} for row in rows)
    ]
    table = _table(f"Iteration {iteration.name}: busy time and bubble by rank, ms ({name} window)")
    for i in shown:
        table.add_column(
            columns[i], justify="left" if columns[i] == "rank" else "right", no_wrap=True
        )
    for row in rows:
        table.add_row(*(row[i] for i in shown))
    if len(iteration.ranks) > _RANKS:
        table.add_row("", f"… and {len(iteration.ranks) - _RANKS} more in --json")
    return table


def _rank_row(report: Report, own: RankIteration, phases: list[str], name: str) -> list[str]:
    rank = report.ranks[own.rank]
    account = own.accounts.get(name)
    hollow = 1 - own.active_ns / own.compute_ns if own.compute_ns else None
    return [
        "-" if rank.stage is None else str(rank.stage),
        short_label(report, rank.index),
        *(milliseconds(own.busy_ns[phase]) for phase in phases),
        milliseconds(account.overlap_ns if account else None),
        milliseconds(account.unattributed_ns if account else None),
        milliseconds(account.bubble_ns if account else None),
        percent(own.bubble_ratio.get(name)),
        percent(hollow),
    ]


def short_label(report: Report, rank: int, width: int = 26) -> str:
    """Return a rank's label, without the host where all ranks share it, shortened in front."""
    label = clean(report.ranks[rank].label, 200)
    host = clean(report.ranks[rank].host, 200)
    if len({r.host for r in report.ranks}) == 1:
        label = label.removeprefix(host).lstrip()
    return label if len(label) <= width else f"…{label[1 - width :]}"


def _others(report: Report) -> RenderableType:
    table = _table("Iterations not averaged")
    for column in ("iteration", "kind", "complete", "microbatches", report.headline):
        table.add_column(column)
    others = [i for i in report.iterations if not i.averaged]
    for iteration in others[:_LIMITATIONS]:
        table.add_row(
            iteration.name,
            iteration.kind,
            "yes" if iteration.complete else "no",
            "-" if iteration.microbatches is None else str(iteration.microbatches),
            percent(iteration.ratios[report.headline].value),
        )
    if len(others) > _LIMITATIONS:
        table.add_row(f"… {len(others) - _LIMITATIONS} more", "", "", "", "")
    return table


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.2f} %" if whole else "-"


def _coverage(report: Report) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    table = _table("Coverage: what was explained")
    for column in (
        "profile",
        "kernels",
        "linked",
        "in operations",
        "cross-thread",
        "GPU time told",
        "comm. ms",
        "copies ms",
    ):
        table.add_column(column, justify="left" if column == "profile" else "right")
    for profile in report.profiles[:_RANKS]:
        table.add_row(
            clean(profile.path.rsplit("/", 1)[-1], 32),
            f"{profile.kernels:,}",
            _share(profile.linked_kernels, profile.kernels),
            _share(profile.attributed_kernels, profile.kernels),
            f"{profile.cross_thread_kernels:,}",
            _share(profile.attributed_gpu_ns, profile.gpu_ns),
            milliseconds(profile.comm_ns),
            milliseconds(profile.copy_ns),
        )
    largest = sorted(report.unattributed_kernels, key=lambda k: (-k.gpu_ns, k.rank, k.name))[:5]
    lines = [
        f"  not explained: {milliseconds(k.gpu_ns)} ms in {k.count:,} x {clean(k.name)} on "
        f"{clean(report.ranks[k.rank].label, 40)}, {clean(k.where, 80)}"
        for k in largest
    ]
    return Group(table, Text("\n".join(lines))) if lines else table


def _limitations(report: Report) -> RenderableType:
    from rich.text import Text

    lines = [
        f"  - {clean(entry.what, 80)}"
        + (f" ({entry.count:,})" if entry.count != 1 else "")
        + f": {clean(entry.because, 400)}"
        for entry in report.limitations[:_LIMITATIONS]
    ]
    if len(report.limitations) > _LIMITATIONS:
        lines.append(f"  - and {len(report.limitations) - _LIMITATIONS} more in --json")
    text = Text("Limitations\n", style="bold")
    text.append("\n".join(lines), style="not bold")
    return text


RENDERER = Renderer(name="text", summary="the table, as plain text", render=render, order=4)
