"""The ``Report`` class of the Python API, and its HTML for notebooks.

A notebook shows the report as an HTML fragment without scripts. The fragment does not need a
network, styles only its own elements, and inherits its colors from the surrounding page. The
fragment's size is bounded for any number of ranks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from bubbleviz.count.iterations import Iteration
from bubbleviz.count.ratios import list_ratios
from bubbleviz.errors import UsageError
from bubbleviz.explain.what_if import WhatIf
from bubbleviz.model.arguments import explain_keywords
from bubbleviz.model.arrow import Kind, Records
from bubbleviz.model.texts import name_python_arguments
from bubbleviz.render.display import (
    CONVERSIONS,
    Hinting,
    Picture,
    PrintedRecords,
    check_view,
    make_view,
    save_as,
    wrap_fragment,
)
from bubbleviz.render.document import Sentence, make_bullets, make_heading
from bubbleviz.render.formats import get_renderer, list_renderers
from bubbleviz.render.html import render_html
from bubbleviz.render.json_document import make_document
from bubbleviz.render.picture.picture import picture
from bubbleviz.render.rows import choose_row_kind, make_rows
from bubbleviz.render.text.bubble_tables import make_cause_table
from bubbleviz.render.text.ratio_tables import make_ratio_table
from bubbleviz.render.text.report import summarize
from bubbleviz.render.text.savings import list_schedules
from bubbleviz.render.trackers import log
from bubbleviz.report import report as measured
from bubbleviz.report.bubble_parts import BubblePart, compute_bubble_parts
from bubbleviz.report.methods import format_definition
from bubbleviz.report.other_schedules import simulate_other_schedules
from bubbleviz.report.published_paths import list_limitation_lines
from bubbleviz.report.rank_means import summarize_stages
from bubbleviz.report.ratio_means import RATIO_KINDS, RatioMean, list_ratio_means
from bubbleviz.report.sentences import describe_first_steps, write_all_advice
from bubbleviz.report.summary import AdviceEntry
from bubbleviz.report.view import View
from bubbleviz.schedules.choices import Choice

#: Maximum number of rows in a notebook picture.
MAX_ROWS = 64

#: Matches the XML declaration of an SVG document.
_PROLOG = re.compile(r"\A<\?xml[^>]*\?>\s*")

#: Column types of the tables of causes and of schedules.
_CAUSE_KINDS: Mapping[str, Kind] = {
    "name": "string",
    "share": "float64",
    "time_ns": "float64",
    "meaning": "string",
}
_CHOICE_KINDS: Mapping[str, Kind] = {
    "schedule": "string",
    "makespan_ms": "float64",
    "cost_ms": "float64",
    "bubble_ratio": "float64",
    "speedup": "float64",
    "peak_activations": "float64",
    "peak_bytes": "float64",
    "fits": "bool",
    "replicas": "int64",
    "reason": "string",
}

#: Code to use instead of attributes that users of pandas and HTA expect, keyed by attribute name.
_HINTS: Mapping[str, str] = {
    "compare": "bubbleviz.compare",
    "critical_path": "report.plot(critical=True)",
    "describe": "report.ratios",
    "gaps": "report.bubbles",
    "head": "report.to_pandas().head()",
    "kernels": "bubbleviz.idle(path).kernels",
    "mean": "report.bubble_ratio",
    "savefig": 'report.plot().save("x.svg")',
    "show": "report.plot()",
    "slow_ranks": "report.slowdowns",
    "slowest_rank": "report.what_to_do_first",
    "stragglers": "report.slowdowns",
    "timeline": "report.plot()",
    "to_csv": 'report.save("x.csv")',
    "to_df": "report.to_pandas()",
    "to_html": 'report.save("x.html")',
    "to_json": 'report.save("x.json")',
    "to_parquet": 'report.save("x.parquet")',
}

#: Hints for arguments of :func:`bubbleviz.simulate` that are passed to ``what_if``.
_SELECT_SCHEDULE = 'select a row, as in report.what_if()["zb-h1"]'
_SIMULATE = "call bubbleviz.simulate(microbatches=..., report=report)"

#: Attributes listed by ``dir(report)``. Attributes needed only by renderers are left out.
_PUBLIC = (
    "advice",
    "bubble_ratio",
    "bubbles",
    "causes",
    "convention",
    "headline",
    "headline_reason",
    "iteration",
    "iterations",
    "kind",
    "limitations",
    "log",
    "memory",
    "num_iterations",
    "num_microbatches",
    "num_ranks",
    "num_stages",
    "operations",
    "plan",
    "plot",
    "profiles",
    "ranks",
    "ratios",
    "restrictions",
    "save",
    "schedule",
    "slowdowns",
    "stages",
    "summary",
    "to_dict",
    "to_pandas",
    "typical_iteration",
    "version",
    "what_if",
    "what_to_do_first",
    "worst_iteration",
)


@dataclass(frozen=True, repr=False)
class ReportPicture(Picture):
    """A picture of a report. Notebooks display it, and :meth:`save` writes it to a file.

    Attributes:
        report: The report.
        view: The iterations and ranks to draw, and how to draw them.
    """

    report: measured.Report
    view: View

    def save(self, path: str | Path) -> None:
        """Write the picture to a file. The path's suffix determines the format.

        Args:
            path: Path of the file. An existing file is replaced. The suffix is ``.svg``, ``.pdf``,
                ``.png`` or ``.panels.svg``.

        Raises:
            UsageError: No picture format has this suffix.
            OutputError: A package for the format is not installed, or the file cannot be written.
        """
        # Other formats ignore the view and would output the entire report.
        names = [renderer.name for renderer in list_renderers() if renderer.draws]
        save_as(path, names, lambda name: self._render(name, str(path)))

    def _render(self, name: str, path: str) -> str | bytes:
        """Return the picture in a format, or the panels that belong to it."""
        if name == "panels":
            return get_renderer(name).content(self.report, self.view, path)
        return CONVERSIONS[name](self.svg)


class Plotting:
    """Base class of measured and loaded reports, with the method ``plot``."""

    def _get_drawn_report(self) -> measured.Report:
        """Return the report that pictures show. Subclasses implement this method."""
        raise NotImplementedError

    @explain_keywords(iterations="pass the iterations by position, such as plot(1, 2)")
    def plot(
        self,
        *iterations: int | Iteration | None,
        iteration: int | Iteration | None = None,
        ranks: Sequence[int] = (),
        rank: int | None = None,
        rows: str | None = None,
        causes: bool = False,
        critical: bool = False,
        communication: bool = False,
        heat_map: bool = False,
        style: str | None = None,
        width: str | float | None = None,
    ) -> ReportPicture:
        """Return a timeline picture of one or more iterations.

        Args:
            iterations: Iterations in the report, or their indices. If none are given, the typical
                iteration is drawn.
            iteration: A single iteration, or its index.
            ranks: Numbers of the ranks to draw, or empty for all ranks.
            rank: Number of a single rank to draw.
            rows: ``"rank"`` for one row per rank, or ``"stage"`` for one row per stage.
            causes: Whether to color idle time by cause.
            critical: Whether to draw a line along the critical path.
            communication: Whether to draw a thin lane of communication operations under each rank.
            heat_map: Whether to add a heat map of the time of each microbatch on each stage.
            style: ``"screen"`` or ``"paper"``; see :class:`.View`.
            width: Width on paper, such as ``"89mm"`` or ``"3.5in"``, or a number of millimeters.

        Raises:
            UsageError: An iteration or rank does not exist, or a value is invalid or has the wrong
                type.
        """
        report = self._get_drawn_report()
        selected = [i for i in (*iterations, iteration) if i is not None]
        indices = [i.index if isinstance(i, Iteration) else i for i in selected]
        _check_numbers("iteration", indices, [i.index for i in report.iterations])
        _check_sequence("ranks", ranks)
        numbers = tuple(ranks) if rank is None else (*ranks, rank)
        _check_numbers("rank", numbers, [entry.number for entry in report.ranks])
        view = make_view(
            style,
            width,
            iterations=tuple(sorted({*indices})),
            ranks=numbers,
            rows=rows,
            causes=causes,
            critical=critical,
            communication=communication,
            heat_map=heat_map,
        )
        with name_python_arguments():
            return ReportPicture(picture(report, view), report, view)


class Report(measured.Report, Plotting, Hinting):  # noqa: D101 - help() shows the docstring of the base class
    # The subclass adds plotting, saving and a notebook representation to the measured report.

    _hints = _HINTS

    def _get_drawn_report(self) -> Report:
        return self

    def __dir__(self) -> list[str]:
        """Return the names of the public attributes."""
        return [*_PUBLIC]

    @property
    def bubble_ratio(self) -> float | None:
        """Mean of the primary bubble ratio over the averaged iterations, or None if unknown."""
        return self.summary.bubble_ratio[self.headline].mean

    @property
    def ratios(self) -> PrintedRecords[RatioMean]:
        """One record per bubble ratio: mean, spread, clock bounds and window length.

        ``report.ratios["stage"].mean`` is the mean of the ratio ``stage``.
        """
        return print_ratios(self)

    @property
    def causes(self) -> PrintedRecords[BubblePart]:
        """One record per cause of the bubble: its share of the window, time and meaning.

        The largest cause is first. The shares add up to the bubble ratio.
        ``report.causes["drain"].share`` is the share of the cause ``drain``.
        """
        return print_causes(self)

    @property
    def advice(self) -> tuple[AdviceEntry, ...]:
        """Changes that shortened the iterations when the run was replayed, largest savings first.

        Empty if no change made the iterations shorter. ``what_to_do_first`` may still recommend a
        step that a replay cannot test, such as using more microbatches or recording missing
        profiles.
        """
        return write_all_advice(self)

    @property
    def what_to_do_first(self) -> str | None:
        """The recommended first step, in one or more sentences, or None if there is no advice."""
        return describe_first_steps(self)

    @property
    def stages(self) -> Records[Any]:
        """One record per stage: bubble ratio, busy time by phase, and idle time by cause."""
        return summarize_stages(self)

    @property
    def worst_iteration(self) -> Iteration | None:
        """The averaged iteration with the largest primary bubble ratio.

        The first such iteration wins a tie. None if the ratio is unknown in all iterations.
        """
        candidates = [i for i in self.iterations if i.averaged and i.bubble_ratio is not None]
        return max(candidates, key=lambda candidate: candidate.bubble_ratio or 0.0, default=None)

    @explain_keywords(schedule=_SELECT_SCHEDULE, microbatches=_SIMULATE)
    def what_if(self) -> PrintedRecords[Choice]:
        """Return the order that ran and other schedules, simulated with the measured times.

        The order that ran comes first, followed by the other schedules, best first. There are no
        records if schedules cannot be compared; in this case, the printed text gives the reason.
        ``report.what_if()["zb-h1"].makespan_ms`` is the simulated length of an iteration under the
        schedule ``zb-h1``. Without ``analyze(..., what_if=True)``, schedules are simulated on the
        first call, which takes seconds for large runs.
        """
        simulated = self.other_schedules or self.derive(simulate_other_schedules)
        return print_schedules(self, simulated)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document (``bubbleviz.report/2``) as dictionaries, lists and values."""
        return make_document(self)

    def to_pandas(self) -> Any:
        """Return the operations as a pandas DataFrame, one row per operation.

        Raises:
            OutputError: pandas is not installed.
        """
        return self.operations.to_pandas()

    def save(self, path: str | Path, view: View | None = None) -> None:
        """Write the report to a file.

        The path's suffix (``.svg``, ``.json``, ...) determines the format. If writing fails, any
        existing file is left unchanged.

        Args:
            path: Path of the file. An existing file is replaced.
            view: Iterations and ranks to draw if the format is a picture, or None for the typical
                iteration and all ranks.

        Raises:
            UsageError: The suffix does not belong to any format, or an argument has the wrong type.
            OutputError: A package for the format is not installed, or the file cannot be written.
        """
        checked = check_view(view)
        save_as(
            path,
            {renderer.name for renderer in list_renderers()},
            lambda name: get_renderer(name).content(self, checked, str(path)),
        )

    def log(self, run: Any, step: int | None = None) -> None:
        """Log the mean values of the report to Weights & Biases, MLflow or TensorBoard.

        The metric names are the same as in ``bubbleviz watch``, for example
        ``bubbleviz/bubble_ratio/schedule``.

        Args:
            run: The return value of ``wandb.init`` or ``mlflow.start_run``, a ``SummaryWriter``, or
                the path of a directory for TensorBoard event files.
            step: Training step, or None for the tracker's current step.

        Raises:
            UsageError: ``run`` has none of these types.
            OutputError: The directory cannot be written, or TensorBoard is not installed.
        """
        log(self, run, step)

    def _repr_html_(self) -> str:
        """Return the ratios, causes, picture and limitations as an HTML fragment."""
        return render_fragment(self)

    def _repr_svg_(self) -> str:
        """Return the picture of the typical iteration as an SVG document."""
        return draw_bounded_picture(self)[0]


def print_ratios(report: measured.Report) -> PrintedRecords[RatioMean]:
    """Return one record per bubble ratio, printed as a table."""
    return PrintedRecords(list_ratio_means(report), RATIO_KINDS, [make_ratio_table(report)])


def print_causes(report: measured.Report) -> PrintedRecords[BubblePart]:
    """Return one record per cause of the bubble, printed as a table."""
    return PrintedRecords(compute_bubble_parts(report), _CAUSE_KINDS, [make_cause_table(report)])


def print_schedules(report: measured.Report, simulated: WhatIf) -> PrintedRecords[Choice]:
    """Return one record per simulated schedule, printed as a table.

    Args:
        report: The report of the run.
        simulated: The schedules, simulated with the times of the run.
    """
    blocks = list_schedules(replace(report, other_schedules=simulated))
    return PrintedRecords(simulated.rows, _CHOICE_KINDS, blocks, key="schedule")


def _check_sequence(name: str, value: object) -> None:
    """Check that an argument is a sequence of numbers rather than a single value.

    Raises:
        UsageError: The value is a text or cannot be iterated over.
    """
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise UsageError(f"{name}={value!r}: is not a sequence; pass {name}=({value!r},)")


def _check_numbers(kind: str, numbers: Iterable[object], existing: Sequence[int]) -> None:
    """Check that all requested iterations or ranks exist.

    Args:
        kind: Word to use in the error message: "iteration" or "rank".
        numbers: Requested iteration indices or rank numbers.
        existing: Indices or numbers that exist.

    Raises:
        UsageError: A requested number does not exist.
    """
    for number in numbers:
        if number not in existing:
            raise UsageError(
                f"there is no {kind} {number!r:.60}; the report has only {len(existing)}"
            )


def draw_bounded_picture(report: measured.Report, ids: str = "bv-") -> tuple[str, int, int]:
    """Draw one iteration with at most ``MAX_ROWS`` rows.

    The iteration is chosen by :func:`.choose_shown_iteration`. There is one row per rank, or one
    row per stage if there are too many ranks.

    Args:
        report: The report.
        ids: Prefix for SVG element ids.

    Returns:
        svg: The picture as an SVG document.
        n_drawn: Number of rows that are drawn.
        n_rows: Number of rows that the picture would have without the limit.
    """
    view = View(rows="rank" if choose_row_kind(report, View()) == "rank" else "stage")
    rows = make_rows(report, view)
    ranks = tuple(report.ranks[rank].number for row in rows[:MAX_ROWS] for rank in row.replicas)
    svg = picture(report, replace(view, ranks=ranks), ids)
    return svg, min(len(rows), MAX_ROWS), len(rows)


def render_fragment(report: measured.Report) -> str:
    """Render a report as an HTML fragment that is also well-formed XML.

    The fragment contains the summary, the definition of the primary ratio, the picture of one
    iteration and the limitations. If the picture does not show all rows, a note says so.
    """
    ratio = next(ratio for ratio in list_ratios() if ratio.name == report.headline)
    definition = Sentence(f"{report.headline} = {format_definition(ratio.definition)}")
    above = render_html([*summarize(report), definition])
    lines = list_limitation_lines(report)
    below = render_html([make_heading("Limitations"), make_bullets(lines)] if lines else [])
    # A notebook can contain several reports, so the element ids of their pictures must differ. The
    # id prefix is a hash, so that running a notebook cell again gives the same ids.
    ids = f"bv-{sha256((above + below).encode()).hexdigest()[:12]}-"
    svg, n_drawn, n_rows = draw_bounded_picture(report, ids)
    if n_drawn < n_rows:
        note = (
            f"Only the first {n_drawn:,} of {n_rows:,} rows are shown. save('bubbles.svg') draws "
            "all rows."
        )
        below = render_html([Sentence(note)]) + below
    return wrap_picture(above, svg, below)


def wrap_picture(above: str, svg: str, below: str) -> str:
    """Return the HTML fragment for a notebook: style sheet, text, picture and more text.

    Args:
        above: HTML to show above the picture.
        svg: The picture as an SVG document, whose XML declaration is removed.
        below: HTML to show below the picture.
    """
    picture = f"<div>{_PROLOG.sub('', svg)}</div>"
    return wrap_fragment(f"{above}{picture}{below}")
