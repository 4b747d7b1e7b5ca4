"""The report in Python: what is asked of it most, and what notebooks show.

A notebook shows a fragment of HTML, which has no script, needs no network, styles its own elements
alone, and takes its colours from the page around it. Its size is bounded, whatever the number of
ranks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from hashlib import sha256
from pathlib import Path
from types import NoneType
from typing import Any

from bubbleviz.count.iterations import Iteration
from bubbleviz.count.ratios import list_ratios
from bubbleviz.errors import UsageError
from bubbleviz.model.arguments import refuse_wrong_types
from bubbleviz.model.arrow import Records
from bubbleviz.model.texts import name_python_arguments
from bubbleviz.render.document import Sentence, bullets, heading
from bubbleviz.render.files import write_outputs
from bubbleviz.render.formats import renderer_named, renderers, suffixed
from bubbleviz.render.html import html
from bubbleviz.render.picture.picture import picture
from bubbleviz.render.rows import row_kind, rows_of
from bubbleviz.render.text.report import summary
from bubbleviz.render.trackers import log
from bubbleviz.report import report as measured
from bubbleviz.report.methods import with_source
from bubbleviz.report.published_paths import limitation_lines
from bubbleviz.report.rank_means import stages_of
from bubbleviz.report.sentences import describe_first_steps, write_all_advice
from bubbleviz.report.summary import AdviceEntry
from bubbleviz.report.view import View

#: A picture in a notebook has at most so many rows.
MOST_ROWS = 64

#: Grey lines and the colours around are read on light and on dark.
_STYLE = """
.bubbleviz-report{color:inherit;font-size:13px;line-height:1.45;max-width:1200px}
.bubbleviz-report div{overflow-x:auto}
.bubbleviz-report p{margin:.3em 0}
.bubbleviz-report table{border-collapse:collapse;color:inherit;margin:.7em 0}
.bubbleviz-report caption{caption-side:top;color:inherit;font-weight:bold;text-align:left}
.bubbleviz-report th,.bubbleviz-report td{background:none;border:0;color:inherit;
 border-bottom:1px solid rgba(128,128,128,.4);font-variant-numeric:tabular-nums;
 padding:.15em .7em .15em 0;text-align:right;white-space:nowrap}
.bubbleviz-report .bubbleviz-words{max-width:min(34em,40vw);overflow:hidden;text-align:left;
 text-overflow:ellipsis}
.bubbleviz-report svg{height:auto;max-width:100%}
"""
_PROLOG = re.compile(r"\A<\?xml[^>]*\?>\s*")


#: What people ask of a report; outputs ask for more.
_PUBLIC = (
    *("advice", "bubble_ratio", "bubbles", "convention", "headline"),
    *("headline_reason", "iteration", "iterations", "kind", "limitations", "log", "memory"),
    *("operations", "plan", "plot", "profiles", "ranks", "restrictions", "save", "schedule"),
    *("slowdowns", "stages", "summary", "typical_iteration", "version", "what_if"),
    *("what_to_do_first", "worst_iteration"),
)


@dataclass(frozen=True)
class Picture:
    """A picture that a notebook shows, and that is saved; ``Report.save`` writes what is none.

    Attributes:
        report: any report.
        view: the part of it that is drawn.
    """

    report: Report
    view: View

    def save(self, path: str | Path) -> None:
        """Write it as the suffix of a file says (``.svg``, ``.pdf``, ``.png``, ``.panels.svg``).

        Raises:
            UsageError: no picture has that suffix.
            OutputError: what the format needs is not installed, or the file cannot be written.
        """
        # What else is written of a report holds all of it, whatever the view.
        with name_python_arguments():
            suffixed(str(path), [renderer.name for renderer in renderers() if renderer.draws])
        self.report.save(path, self.view)

    def _repr_svg_(self) -> str:
        """Return it as an SVG document."""
        with name_python_arguments():
            return picture(self.report, self.view)


class Report(measured.Report):  # noqa: D101 - help() shows that of its base, which lists all
    # What notebooks show, and what is asked most; drawing code is loaded when it is called.

    def __dir__(self) -> list[str]:
        """Return what people ask for."""
        return [*_PUBLIC]

    @property
    def bubble_ratio(self) -> float | None:
        """Mean of the primary ratio over the averaged iterations; None where it is unknown."""
        return self.summary.bubble_ratio[self.headline].mean

    @property
    def advice(self) -> tuple[AdviceEntry, ...]:
        """What a replay proves to shorten iterations, the largest saving first.

        Empty where nothing does; ``what_to_do_first`` may then name what is no change to the run's
        operations, such as more microbatches, or profiles that are missing.
        """
        return write_all_advice(self)

    @property
    def what_to_do_first(self) -> str | None:
        """What to do first, in sentences; None where nothing is advised."""
        return describe_first_steps(self)

    @property
    def stages(self) -> Records[Any]:
        """A row a stage: its ratio, work by phase and idle time by cause; see ``stages_of``."""
        return stages_of(self)

    @property
    def worst_iteration(self) -> Iteration | None:
        """The averaged iteration with the largest primary ratio; None where none has one."""
        known = [i for i in self.iterations if i.averaged and i.bubble_ratio is not None]
        return max(known, key=lambda own: own.bubble_ratio or 0.0, default=None)

    def plot(self, *iterations: int | Iteration | None, **view: Any) -> Picture:
        """Return the picture of iterations.

        Args:
            iterations: indices, or iterations of the report; without any the typical one.
            view: attributes of :class:`.View`, as ``ranks=(0, 3)`` and ``causes=True``.

        Raises:
            UsageError: there is no such iteration, rank or attribute.
        """
        given = [i.index if isinstance(i, Iteration) else i for i in iterations if i is not None]
        _check_numbers("iteration", given, [iteration.index for iteration in self.iterations])
        ranks = view.get("ranks", ())
        if isinstance(ranks, str) or not isinstance(ranks, Iterable):
            raise UsageError(f"ranks={ranks!r}: is no sequence; give ranks=({ranks!r},)")
        _check_numbers("rank", ranks, [rank.number for rank in self.ranks])
        if unknown := view.keys() - {field.name for field in fields(View)}:
            raise UsageError(f"{min(unknown)}: a view has none; see help(bubbleviz.View)")
        drawn = View(iterations=tuple(sorted({*given})), **view)
        refuse_wrong_types(View, vars(drawn))
        return Picture(self, drawn)

    def save(self, path: str | Path, view: View | None = None) -> None:
        """Write the report as the suffix of a file says (``.svg``, ``.json``, ``.html``, ...).

        The file is written whole or not at all.

        Args:
            path: of the file, which is replaced.
            view: the iteration and the ranks that pictures show; None for the typical one.

        Raises:
            UsageError: no format has that suffix, or an argument is of another type.
            OutputError: what the format needs is not installed, or the file cannot be written.
        """
        if not isinstance(view, (View, NoneType)):
            raise UsageError(f"{view!r:.60}: is no bubbleviz.View; save takes one file and a view")
        refuse_wrong_types(View, vars(view or View()))
        known = {renderer.name for renderer in renderers()}
        with name_python_arguments():
            renderer = renderer_named(suffixed(str(path), known))
            content = renderer.content(self, View() if view is None else view, str(path))
        write_outputs({str(path): content}, force=True)

    def log(self, run: Any, step: int | None = None) -> None:
        """Give the means to a run of W&B or MLflow, a SummaryWriter, or a TensorBoard folder.

        Names are those of ``bubbleviz watch``: ``bubbleviz/bubble_ratio/schedule`` and so on.

        Args:
            run: what ``wandb.init`` or ``mlflow.start_run`` returns, or the like; or a path.
            step: of the training; None for the tracker's own.

        Raises:
            UsageError: it is none of these.
            OutputError: the folder cannot be written, or TensorBoard is not installed.
        """
        log(self, run, step)

    def _repr_html_(self) -> str:
        """Return ratios, causes, picture and limitations as a fragment of HTML."""
        return fragment(self)

    def _repr_svg_(self) -> str:
        """Return the picture of the typical iteration as an SVG document."""
        return bounded_picture(self)[0]


def _check_numbers(kind: str, numbers: Iterable[object], existing: Sequence[int]) -> None:
    """Check that iterations or ranks exist.

    Raises:
        UsageError: A number does not exist.
    """
    for number in numbers:
        if number not in existing:
            raise UsageError(f"no {kind} {number!r:.60}; there are {len(existing)}")


def bounded_picture(report: measured.Report, ids: str = "bv-") -> tuple[str, int, int]:
    """Return the picture of the typical iteration, of the first rows where there are very many.

    Behind the document: how many rows are drawn, and how many the report has.

    Args:
        report: any report.
        ids: the beginning of the ids in it.
    """
    view = View(rows="rank" if row_kind(report, View()) == "rank" else "stage")
    rows = rows_of(report, view)
    ranks = tuple(report.ranks[rank].number for row in rows[:MOST_ROWS] for rank in row.replicas)
    svg = picture(report, replace(view, ranks=ranks), ids)
    return svg, min(len(rows), MOST_ROWS), len(rows)


def fragment(report: measured.Report) -> str:
    """Return a report as a fragment of HTML that is well-formed XML, too."""
    ratio = next(ratio for ratio in list_ratios() if ratio.name == report.headline)
    defined = Sentence(f"{report.headline} = {with_source(ratio.definition)}")
    above = html([*summary(report), defined])
    lines = limitation_lines(report)
    below = html([heading("Limitations"), bullets(lines)] if lines else [])
    # Pictures of one document share its ids; equal pictures may have equal ones.
    ids = f"bv-{sha256((above + below).encode()).hexdigest()[:12]}-"
    svg, drawn, rows = bounded_picture(report, ids)
    if drawn < rows:
        some = f"The first {drawn:,} of {rows:,} rows; -o bubbles.svg draws all of them."
        below = html([Sentence(some)]) + below
    return framed(above, svg, below)


def framed(above: str, svg: str, below: str) -> str:
    """Return a fragment of elements around a picture, which is a document of SVG."""
    picture = f"<div>{_PROLOG.sub('', svg)}</div>"
    return f'<div class="bubbleviz-report"><style>{_STYLE}</style>{above}{picture}{below}</div>'
