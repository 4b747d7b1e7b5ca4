"""Command-line options that select part of a report, and picture options."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bubbleviz.cli.help import flag, option
from bubbleviz.errors import UsageError
from bubbleviz.model.choices import ROWS, STYLES, check_choice, parse_style
from bubbleviz.model.paper_lengths import parse_millimeters
from bubbleviz.model.texts import list_and_count, to_one_line
from bubbleviz.render.formats import list_renderers
from bubbleviz.report.view import View

if TYPE_CHECKING:
    from bubbleviz.align.stages.pipelines import Parallel
    from bubbleviz.report.report import Report

#: Maximum length of a number list in an option. No report has more ranks or iterations.
_MAX_NUMBERS = 1_000_000
#: Maximum number of hosts that an error message lists.
_MAX_HOSTS = 8
#: Names of the options that affect only pictures.
_PICTURE_OPTIONS = ("causes", "critical-path", "heat-map", "style", "width")
_SIZE = re.compile(r"^\s*(tp|pp|dp)\s*=\s*([1-9][0-9]{0,6})\s*$")
_RANGE = re.compile(r"^\s*([0-9]{1,18})\s*(?:-\s*([0-9]{1,18})\s*)?$")


def parse_numbers(text: str, option: str) -> tuple[int, ...]:
    """Parse a list of numbers and ranges, such as ``0,2,4-7``. The order of the list is preserved.

    Ranges include both ends.

    Args:
        text: Value of the option.
        option: Name of the option, for error messages.

    Raises:
        UsageError: The value is not a list of numbers and ranges, a range ends before it starts, or
            there are too many numbers.
    """
    parsed: list[int] = []
    quoted = repr(text if len(text) <= 60 else f"{text[:59]}…")
    for part in text.split(","):
        match = _RANGE.match(part)
        if match is None:
            raise UsageError(
                f"{option} {quoted}: must be numbers or ranges, such as 3, 0-3 or 0,2,4-7"
            )
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise UsageError(f"{option} {quoted}: range {first}-{last} ends before it starts")
        if last - first + len(parsed) > _MAX_NUMBERS:
            raise UsageError(f"{option} {quoted}: more than {_MAX_NUMBERS:,} numbers")
        parsed.extend(range(first, last + 1))
    return tuple(parsed)


def _format_numbers(numbers: set[int | None]) -> str:
    """Format numbers as ranges, such as "0-3,6", or as "none" if there are no numbers.

    None is ignored.
    """
    from bubbleviz.model.collectives import format_number_ranges

    return (
        format_number_ranges(sorted(number for number in numbers if number is not None)) or "none"
    )


def parse_parallel(text: str) -> Parallel:
    """Parse parallelism sizes, such as ``tp=2,pp=4,dp=8``. Sizes that are not given default to 1.

    Raises:
        UsageError: The text does not have this form, or a size is given twice.
    """
    sizes: dict[str, int] = {}
    for part in text.split(","):
        match = _SIZE.match(part)
        if match is None or match[1] in sizes:
            problem = "given twice" if match else "not of the form tp=2,pp=4,dp=8"
            raise UsageError(f"--parallel: {part[:60]!r} is {problem}")
        sizes[match[1]] = int(match[2])
    from bubbleviz.align.stages.pipelines import Parallel

    return Parallel(**sizes)


@dataclass(frozen=True)
class PaperOptions:
    """Options for pictures in papers: width and style."""

    width: str | None = option("89mm", "Figure width on paper; text is 7 pt.", "Pictures")
    style: str | None = option(
        "screen|paper[,KEY=VALUE...]",
        "paper: 183mm wide, without title and notes. Keys: height, row, font, legend, labels.",
        "Pictures",
        complete=STYLES,
    )

    def list_formats(self, name: str) -> list[str]:
        """Return the formats affected by a picture option."""
        del name
        return ["svg", "pdf", "png"]

    def check(self, outputs: Collection[str]) -> None:
        """Check the values of the options, and that each given option affects an output.

        Args:
            outputs: Names of the formats that the command writes.

        Raises:
            UsageError: A value is invalid, or an option affects none of the outputs.
        """
        parse_style(self.style)
        if self.width is not None:
            parse_millimeters(self.width, "--width")
        for name in _PICTURE_OPTIONS:
            formats = self.list_formats(name)
            is_given = bool(getattr(self, name.replace("-", "_"), None))
            if is_given and not {*formats} & {*outputs}:
                *first, last = (f"--{format_name}" for format_name in formats)
                raise UsageError(
                    f"--{name}: only affects pictures; add {', '.join(first)} or {last}"
                )

    def make_view(self, outputs: Mapping[str, str] | None = None) -> View:
        """Return a view of the entire report, with the width and style from the options.

        Args:
            outputs: Format of each output file, keyed by path, or None if there are no files.
        """
        return View(
            style=self.style,
            width_mm=None if self.width is None else parse_millimeters(self.width, "--width"),
            picture_file=_find_picture_file(outputs or {}),
        )


def _find_picture_file(outputs: Mapping[str, str]) -> str:
    """Return the path of the picture that suits a paper best: a PDF, else a PNG, else an SVG.

    The result is "" if none of the outputs is a picture of the report.

    Args:
        outputs: Format of each output file, keyed by path.
    """
    file_of_format = {name: file for file, name in outputs.items() if file != "-"}
    files = (file_of_format.get(name, "") for name in ("pdf", "png", "svg"))
    return next(filter(None, files), "")


@dataclass(frozen=True)
class PictureOptions(PaperOptions):
    """Options for pictures: iterations and ranks to draw, and optional parts of the picture."""

    iteration: str | None = option(
        "N|A-B|all",
        "Iterations to draw [default: the median, or a slow one that the advice names]",
        "Selection",
    )
    ranks: str | None = option("0-3,5", "Numbers of the ranks to draw.", "Selection")
    stages: str | None = option("0-3,5", "Numbers of the stages to draw.", "Selection")
    pipelines: str | None = option("0-3,5", "Numbers of the pipelines to draw.", "Selection")
    hosts: str | None = option("A,B", "Names of the hosts to draw.", "Selection")
    rows: str | None = option(
        "rank|stage|spread",
        "One row per rank or per stage; spread: one per stage, with the spread of its replicas "
        "[default above 64 ranks: stage]",
        "Pictures",
        complete=ROWS,
    )
    communication: bool = flag(
        "Draw communication in a lane below each rank.", "Pictures", "--communication"
    )
    causes: bool = flag("Color idle time by its cause.", "Pictures", "--causes")
    heat_map: bool = flag(
        "Add a heat map of times by stage and microbatch.", "Pictures", "--heat-map"
    )
    critical_path: bool = flag(
        "Draw the critical path of the iteration.", "Pictures", "--critical-path"
    )

    def list_formats(self, name: str) -> list[str]:
        """Return the formats affected by a picture option."""
        return [renderer.name for renderer in list_renderers() if name in renderer.draws.split()]

    def check(self, outputs: Collection[str]) -> None:
        """Check the values of the options; see :meth:`PaperOptions.check`."""
        check_choice(self.rows, ROWS, "--rows")
        super().check(outputs)

    def view_of(self, report: Report, outputs: Mapping[str, str]) -> View:
        """Return the view of a report selected by the options.

        Args:
            report: The report.
            outputs: Format of each output file, keyed by path.

        Raises:
            UsageError: An option selects an iteration, rank, stage, pipeline or host that is not in
                the report.
        """
        return replace(
            self.make_view(outputs),
            iterations=_select_iterations(report, self.iteration),
            ranks=_select_ranks(report, self),
            communication=self.communication,
            rows=self.rows,
            causes=self.causes,
            heat_map=self.heat_map,
            critical=self.critical_path,
        )


def _select_iterations(report: Report, text: str | None) -> tuple[int, ...]:
    """Return the indices of the iterations that ``--iteration`` selects, ascending.

    A range selects all existing iterations in the range. An iteration given as a single number must
    exist. The value ``all`` selects all iterations. If the option is not given, the result is ().

    Args:
        report: The report.
        text: Value of the option, or None.

    Raises:
        UsageError: An iteration given as a single number does not exist, or no iteration is
            selected.
    """
    if text is None:
        return ()
    if text == "all":
        return tuple(i.index for i in report.iterations)
    index_of_name = {i.name: i.index for i in report.iterations}
    names = map(str, parse_numbers(text, "--iteration"))
    selected = tuple(sorted({index_of_name[name] for name in names if name in index_of_name}))
    single_numbers = {str(int(part)) for part in text.split(",") if "-" not in part}
    if not selected or not single_numbers <= index_of_name.keys():
        existing = [i.name for i in report.iterations]
        extent = f"iterations {existing[0]} to {existing[-1]}" if existing else "no iterations"
        raise UsageError(f"--iteration {text}: no such iteration; the capture contains {extent}")
    return selected


def _select_ranks(report: Report, picture: PictureOptions) -> tuple[int, ...]:
    """Return the numbers of the ranks that satisfy all options that select ranks.

    If no such option is given, the result is ().

    Raises:
        UsageError: A rank, stage, pipeline or host does not exist, or no rank satisfies all
            options.
    """
    selected = [rank.index for rank in report.ranks]
    numeric_options = (
        (picture.ranks, "--ranks", "number"),
        (picture.stages, "--stages", "stage"),
        (picture.pipelines, "--pipelines", "pipeline"),
    )
    for text, name, field in numeric_options:
        if text is None:
            continue
        requested = set(parse_numbers(text, name))
        matching = [i for i in selected if getattr(report.ranks[i], field) in requested]
        existing = {getattr(rank, field) for rank in report.ranks}
        if not requested <= existing or not matching:
            missing = min(requested - existing, default=None)
            kind = name.removeprefix("--").removesuffix("s")
            problem = (
                "excluded by the other options"
                if missing is None
                else f"there is no {kind} {missing}"
            )
            contents = f"{kind}s {_format_numbers(existing)}"
            raise UsageError(f"{name} {text}: {problem}; the report contains {contents}")
        selected = matching
    if picture.hosts is not None:
        selected = _select_ranks_of_hosts(report, selected, picture.hosts)
    options = (picture.ranks, picture.stages, picture.pipelines, picture.hosts)
    if all(text is None for text in options):
        return ()
    return tuple(report.ranks[index].number for index in selected)


def _select_ranks_of_hosts(report: Report, ranks: list[int], text: str) -> list[int]:
    """Return the indices of the ranks that run on any of the given hosts.

    Args:
        report: The report.
        ranks: Indices of the candidate ranks.
        text: Hostnames, separated by commas.

    Raises:
        UsageError: A host does not exist, or none of the ranks runs on the given hosts.
    """
    quoted = to_one_line(text, 60)
    requested = {name.strip() for name in text.split(",")}
    hosts = {rank.host for rank in report.ranks}
    if not requested <= hosts:
        missing = to_one_line(min(requested - hosts), 60)
        existing = list_and_count([to_one_line(name, 60) for name in sorted(hosts)], _MAX_HOSTS)
        raise UsageError(
            f"--hosts {quoted}: there is no host {missing}; the hosts are {existing}",
            hosts=sorted(hosts),
        )
    matching = [rank for rank in ranks if report.ranks[rank].host in requested]
    if not matching:
        raise UsageError(
            f"--hosts {quoted}: none of the ranks selected by other options runs on these hosts"
        )
    return matching
