"""The part of a report that ``--iteration``, ``--ranks``, ``--stages`` and so on select."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bubbleviz.cli.help import flag, option
from bubbleviz.errors import UsageError
from bubbleviz.model.choices import ROWS, STYLES, check_choice, parse_style
from bubbleviz.model.paper_lengths import parse_millimetres
from bubbleviz.model.texts import list_and_count, to_one_line
from bubbleviz.render.formats import list_renderers
from bubbleviz.report.view import View

if TYPE_CHECKING:
    from bubbleviz.align.stages.pipelines import Parallel
    from bubbleviz.report.report import Report

#: More ranks or iterations than any report holds.
_MOST = 1_000_000
#: So many hosts stand in a message.
_NAMED = 8
#: Options that some outputs draw.
_DRAWN = ("causes", "critical-path", "heat-map", "style", "width")
_SIZE = re.compile(r"^\s*(tp|pp|dp)\s*=\s*([1-9][0-9]{0,6})\s*$")
_RANGE = re.compile(r"^\s*([0-9]{1,18})\s*(?:-\s*([0-9]{1,18})\s*)?$")


def numbers(text: str, option: str) -> tuple[int, ...]:
    """Return the numbers of ``0,2,4-7``, in the order written.

    Raises:
        UsageError: it is not of that form.
    """
    listed: list[int] = []
    shown = repr(text if len(text) <= 60 else f"{text[:59]}…")
    for part in text.split(","):
        match = _RANGE.match(part)
        if match is None:
            raise UsageError(f"{option} {shown}: not of the form 3 or 0-3 or 0,2,4-7")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise UsageError(f"{option} {shown}: ends before it begins")
        if last - first + len(listed) > _MOST:
            raise UsageError(f"{option} {shown}: more than {_MOST:,} numbers")
        listed.extend(range(first, last + 1))
    return tuple(listed)


def _listed(numbers: set[int | None]) -> str:
    """Return numbers as ``0-3,6``."""
    from bubbleviz.model.collectives import format_number_ranges

    return (
        format_number_ranges(sorted(number for number in numbers if number is not None)) or "none"
    )


def parallel_of(text: str) -> Parallel:
    """Return the sizes of ``tp=2,pp=4,dp=8``; those that are not given are 1.

    Raises:
        UsageError: it is not of that form.
    """
    sizes: dict[str, int] = {}
    for part in text.split(","):
        match = _SIZE.match(part)
        if match is None or match[1] in sizes:
            wrong = "twice" if match else "not of the form tp=2,pp=4,dp=8"
            raise UsageError(f"--parallel: {part[:60]!r} is {wrong}")
        sizes[match[1]] = int(match[2])
    from bubbleviz.align.stages.pipelines import Parallel

    return Parallel(**sizes)


@dataclass(frozen=True)
class PaperOptions:
    """Options of pictures for a paper: their width and style."""

    width: str | None = option("89mm", "Width on paper, letters of 7 pt.", "Pictures")
    style: str | None = option(
        "screen|paper[,KEY=VALUE...]",
        "Paper: no title, no notes, 183mm wide. Keys: height, row, font, legend, labels.",
        "Pictures",
        complete=STYLES,
    )

    def able(self, name: str) -> list[str]:
        """Return the formats that draw what an option adds."""
        del name
        return ["svg", "pdf", "png"]

    def check(self, outputs: Collection[str]) -> None:
        """Check, before any work, the values of options, and that an output draws what they add.

        Raises:
            UsageError: a value is unknown, or no output, by name, draws it.
        """
        parse_style(self.style)
        if self.width is not None:
            parse_millimetres(self.width, "--width")
        for name in _DRAWN:
            able = self.able(name)
            if getattr(self, name.replace("-", "_"), None) and not {*able} & {*outputs}:
                *first, last = (f"--{each}" for each in able)
                raise UsageError(
                    f"--{name}: needs a picture to draw on; add {', '.join(first)} or {last}"
                )

    def styled(self) -> View:
        """Return a view of everything in this style."""
        return View(
            style=self.style,
            width_mm=None if self.width is None else parse_millimetres(self.width, "--width"),
        )


@dataclass(frozen=True)
class PictureOptions(PaperOptions):
    """Options of pictures: what they show, and of which iterations and ranks."""

    iteration: str | None = option(
        "N|A-B|all", "Iterations to draw; else the median one.", "Selection"
    )
    ranks: str | None = option("0-3,5", "Ranks to draw, by number.", "Selection")
    stages: str | None = option("0-3,5", "Stages to draw.", "Selection")
    pipelines: str | None = option("0-3,5", "Pipelines to draw.", "Selection")
    hosts: str | None = option("A,B", "Hosts to draw, by name.", "Selection")
    rows: str | None = option(
        "rank|stage|spread", "What a row is; stages above 64 ranks.", "Pictures", complete=ROWS
    )
    communication: bool = flag(
        "Draw a lane of communication under each rank.", "Pictures", "--communication"
    )
    causes: bool = flag("Colour idle time by its cause.", "Pictures", "--causes")
    heat_map: bool = flag(
        "Draw which microbatch took long on which stage.", "Pictures", "--heat-map"
    )
    critical_path: bool = flag(
        "Draw what bounds the iteration as a line.", "Pictures", "--critical-path"
    )

    def able(self, name: str) -> list[str]:
        """Return the formats that draw what an option adds."""
        return [renderer.name for renderer in list_renderers() if name in renderer.draws.split()]

    def check(self, outputs: Collection[str]) -> None:
        """Check the values of options, rows among them."""
        check_choice(self.rows, ROWS, "--rows")
        super().check(outputs)

    def view_of(self, report: Report) -> View:
        """Return the view of a report that the options select.

        Raises:
            UsageError: an option selects something that the report does not hold.
        """
        return replace(
            self.styled(),
            iterations=_iterations(report, self.iteration),
            ranks=_ranks(report, self),
            communication=self.communication,
            rows=self.rows,
            causes=self.causes,
            heat_map=self.heat_map,
            critical=self.critical_path,
        )


def _iterations(report: Report, text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    if text == "all":
        return tuple(i.index for i in report.iterations)
    named = {i.name: i.index for i in report.iterations}
    wanted = numbers(text, "--iteration")
    chosen = tuple(sorted({named[str(n)] for n in wanted if str(n) in named}))
    # A range holds those that there are, as --window does.
    alone = {str(int(part)) for part in text.split(",") if "-" not in part}
    if not chosen or not alone <= named.keys():
        names = [i.name for i in report.iterations]
        known = f"{names[0]} to {names[-1]}" if names else "none"
        raise UsageError(f"--iteration {text}: no such iteration; the capture contains {known}")
    return chosen


def _ranks(report: Report, picture: PictureOptions) -> tuple[int, ...]:
    chosen = [rank.index for rank in report.ranks]
    numbered = (
        (picture.ranks, "--ranks", "number"),
        (picture.stages, "--stages", "stage"),
        (picture.pipelines, "--pipelines", "pipeline"),
    )
    for text, name, field in numbered:
        if text is None:
            continue
        wanted = set(numbers(text, name))
        kept = [i for i in chosen if getattr(report.ranks[i], field) in wanted]
        known = {getattr(rank, field) for rank in report.ranks}
        if not wanted <= known or not kept:
            lacking = min(wanted - known, default=None)
            lost = "selects nothing" if lacking is None else f"there is no {lacking}"
            raise UsageError(f"{name} {text}: {lost}; the report holds {_listed(known)}")
        chosen = kept
    if picture.hosts is not None:
        chosen = _of_hosts(report, chosen, picture.hosts)
    given = (picture.ranks, picture.stages, picture.pipelines, picture.hosts)
    if all(text is None for text in given):
        return ()
    return tuple(report.ranks[index].number for index in chosen)


def _of_hosts(report: Report, ranks: list[int], text: str) -> list[int]:
    """Return the ranks that are on one of the hosts."""
    shown = to_one_line(text, 60)
    wanted = {name.strip() for name in text.split(",")}
    known = {rank.host for rank in report.ranks}
    if not wanted <= known:
        lacking = to_one_line(min(wanted - known), 60)
        there = list_and_count([to_one_line(name, 60) for name in sorted(known)], _NAMED)
        raise UsageError(
            f"--hosts {shown}: there is no host {lacking}; the hosts are {there}",
            hosts=sorted(known),
        )
    kept = [rank for rank in ranks if report.ranks[rank].host in wanted]
    if not kept:
        raise UsageError(f"--hosts {shown}: matches nothing that the other options select")
    return kept
