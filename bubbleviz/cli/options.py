"""The options of commands: what typer makes of the signature of each, by a table.

A row of ``options.csv`` says of a parameter how it is written, what its value is called, its panel
in ``--help`` and its line there, the least number, and the words that shells offer: as they are, by
a name of :mod:`bubbleviz.model.choices`, or by what is looked for when a shell asks. A row without
a command is that of all commands which have none of their own. Defaults stand in signatures.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from csv import reader
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

import typer

from bubbleviz.cli.details import ALL, OF_ANALYZE
from bubbleviz.cli.outputs import Outputs
from bubbleviz.cli.terminal import progress_bars
from bubbleviz.errors import OutputError, UsageError
from bubbleviz.model import choices
from bubbleviz.model.private_names import anonymous, hide
from bubbleviz.model.window import parse_window
from bubbleviz.render.formats import is_folder, renderers, suffixed

if TYPE_CHECKING:
    from bubbleviz.analyses.idle.report import IdleReport
    from bubbleviz.report.report import Report
    from bubbleviz.report.saved import SavedReport


with Path(__file__).with_name("commands.csv").open(encoding="utf-8", newline="") as _table:
    #: The commands, in the order of ``--help``: of each its panel there, the words of an example,
    #: and the guide that tells of it if that has another name. Its function is in the module of
    #: ``bubbleviz.cli.commands`` that has its name.
    COMMANDS = {name: (panel, words, own) for name, panel, words, own in reader(_table)}


@cache
def _rows(command: str) -> Mapping[str, Sequence[str]]:
    """Return names, value, panel, summary, least and words by the parameters of a command."""
    with Path(__file__).with_name("options.csv").open(encoding="utf-8", newline="") as table:
        # Those of all commands come first.
        rows = {row[1]: row[2:] for row in reader(table) if row[0] in {"", command}}
    if command == "analyze":
        # The formats of a report have a table of their own.
        for renderer in renderers():
            own = [f"--{renderer.name}", "FILE", "Outputs", renderer.summary, "", ""]
            rows[renderer.name.replace("-", "_")] = own
    return rows


def _words(name: str) -> Sequence[str]:
    """Return the words that a row of the table names."""
    if name == "schedules":
        from bubbleviz.schedules.ideal import theory_names

        return theory_names()
    if name == "conventions":
        from bubbleviz.conventions.convention_file import built_in

        return sorted(built_in())
    if name == "limits":
        from bubbleviz.count.ratios import ratio_definitions

        return [f"{ratio.name}=" for ratio in ratio_definitions()]
    if name == "tables":
        return (*OF_ANALYZE, ALL)
    return getattr(choices, name, None) or name.split()


def beginning(words: Callable[[], Sequence[str]]) -> Callable[[str], list[str]]:
    """Return the completion of a value by what finds its words when a shell asks."""
    return lambda incomplete: [word for word in words() if word.startswith(incomplete)]


def _hide_names(given: bool) -> bool:
    if given:
        hide()
    return given


def _declared(command: str, name: str, default: Any, *, argument: bool = False) -> Any:
    """Return a parameter of a command as typer takes it, by its row of the table."""
    names, value, panel, summary, least, words = _rows(command)[name]
    settings: dict[str, Any] = {"metavar": value or None, "help": summary}
    if words:
        settings["autocompletion"] = beginning(lambda: _words(words))
    if argument:
        return typer.Argument(default, **settings)
    settings |= {"rich_help_panel": panel, "show_default": bool(default) and default is not True}
    if least:
        settings["min"] = int(least)
    if name == "anonymous":
        settings |= {"callback": _hide_names, "is_eager": True}
    return typer.Option(default, *filter(None, names.split(",")), **settings)


def jobs_or_cores(jobs: int | None) -> int:
    """Return the number of jobs: that given, or as many as there are cores."""
    from bubbleviz.interpret.fleet.run_recordings import cores

    return jobs or cores()


@dataclass(frozen=True)
class ReadingOptions:
    """How profiles are read: the part of the run, what stays of exports, and on how many cores."""

    window: str | None = None
    keep_export: bool = False
    jobs: int | None = None

    def settings(self) -> dict[str, Any]:
        """Return these options as an analysis takes them.

        Raises:
            UsageError: the part of the run is not of its form.
        """
        return {
            "window": None if self.window is None else parse_window(self.window),
            "keep_export": self.keep_export,
            "jobs": jobs_or_cores(self.jobs),
        }


@dataclass(frozen=True)
class MeasurementOptions:
    """How profiles are measured where a command takes them in place of a saved report."""

    skip: int = 0
    convention: list[str] | None = None
    jobs: int | None = None

    def is_saved(self, run: Sequence[str], command: str, verb: str) -> bool:
        """Return whether a run is one saved report rather than profiles.

        Raises:
            UsageError: there are several reports, or options of profiles for one.
        """
        from bubbleviz.report.saved import looks_saved

        if len(run) > 1 and any(map(looks_saved, run)):
            raise UsageError(
                f"{command} {verb} one report; give a single report, or the profiles of one run"
            )
        saved = looks_saved(run[0])
        if saved and (self.skip or self.convention or self.jobs):
            raise UsageError(
                "--skip, --convention and --jobs apply to profiles; leave them out for a report"
            )
        return saved

    def read(self, path: str) -> tuple[SavedReport, Report | None]:
        """Return a saved report, or as :meth:`saved` what one on the profiles there would tell."""
        from bubbleviz.report.saved import looks_saved, read_saved

        return (read_saved(path), None) if looks_saved(path) else self.saved([path])

    def saved(self, paths: Sequence[str]) -> tuple[SavedReport, Report | None]:
        """Return what a saved report on the profiles of one run would tell, and the report.

        Profiles that name no forward and backward have a report on idle time, and no other.

        Raises:
            BubblevizError: see :func:`bubbleviz.analyze`.
        """
        from bubbleviz.render.json_document import saved_of

        if (idle := self.idle(paths)) is not None:
            from bubbleviz.analyses.idle.outputs import as_json
            from bubbleviz.report.saved import saved_report

            return saved_report(paths[0], as_json(idle, 0).encode()), None
        report = self.measure(paths)
        return saved_of(report), report

    def idle(self, paths: Sequence[str]) -> IdleReport | None:
        """Return the report on idle time of profiles without named operations; None of others."""
        from bubbleviz.analyses.inspection import first_look

        if self.convention or first_look(paths)[0] != "idle":
            return None
        from bubbleviz.analyses.idle import idle

        with progress_bars() as bars:
            return anonymous(idle(paths, jobs=jobs_or_cores(self.jobs), progress=bars))

    def measure(self, paths: str | Sequence[str], *, memory: bool = False) -> Report:
        """Return the report on the profiles of one run, with progress on standard error.

        Args:
            paths: of the profiles.
            memory: whether memory events are read, too.

        Raises:
            BubblevizError: see :func:`bubbleviz.analyze`.
        """
        from bubbleviz.api import analyze

        with progress_bars() as bars:
            report = analyze(
                paths,
                skip=self.skip,
                convention=self.convention or (),
                memory=memory,
                jobs=jobs_or_cores(self.jobs),
                progress=bars,
            )
        return anonymous(report)


def files_of(runs: Iterable[str]) -> list[str]:
    """Return the files of runs, each a saved report or the path of profiles."""
    from bubbleviz.report.saved import looks_saved
    from bubbleviz.sources.paths import find_profiles

    return [
        file
        for path in runs
        for file in ([path] if looks_saved(path) else [own.path for own in find_profiles([path])])
    ]


def _formats(
    files: Mapping[str, str | None], outputs: Iterable[str], endings: Mapping[str, str]
) -> dict[str, str]:
    """Return the output format of each file.

    Args:
        files: file by format; None where the option was not given.
        outputs: further files, of these formats by their suffixes.
        endings: formats of the command alone by the endings of their files.

    Raises:
        UsageError: two formats have the same file, or a suffix is of none of them.
        OutputError: a format needs a package that is not installed, or is binary and standard
            output is a terminal.
    """
    known = {renderer.name: renderer for renderer in renderers() if renderer.name in files}
    given = [(file, name) for name, file in files.items() if file is not None]
    for file in outputs:
        name = next((n for end, n in endings.items() if file.lower().endswith(end)), None)
        plots = [end for end in endings if f"{file[:-4].lower()}.svg".endswith(end)]
        if name is None and plots and suffixed(file, known) in {"pdf", "png"}:
            raise UsageError(f"-o {file[:200]}: this plot is an SVG; name it {plots[0]}")
        given.append((file, name or suffixed(file, known, endings)))
    named = dict(given)
    if len(named) < len(given):
        raise UsageError("two outputs name the same file; give each its own")
    for file, name in named.items():
        if name not in known:
            continue
        if is_folder(file) and not known[name].parts:
            raise UsageError(f"{file}: --{name} writes a file; leave the slash out")
        known[name].check(file)
        if known[name].binary and file == "-" and sys.stdout.isatty():
            raise OutputError(
                f"--{name} -: refusing to write binary data to a terminal; name a file or pipe it"
            )
    return named


def command(
    files: Iterable[str] = (), endings: Mapping[str, str] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return what makes a function a command, with options that typer reads from its signature.

    A parameter that is a dataclass becomes one option for each of its fields. ``outputs`` (see
    :class:`Outputs`) becomes ``-o``, ``--force`` and ``--quiet``, and an option for each format,
    which help leaves out: the suffix of a file says the same. Every command has ``--anonymous``.

    Args:
        files: the formats that the command writes.
        endings: formats of the command alone by the endings of their files.
    """
    formats = {name: name.replace("-", "_") for name in files}

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        declared = signature(function, eval_str=True)
        groups: dict[str, Any] = {
            n: p.annotation for n, p in declared.parameters.items() if is_dataclass(p.annotation)
        }
        groups.pop("outputs", None)

        @wraps(function)
        def with_options(**options: Any) -> None:
            options.pop("anonymous")
            for name, group in groups.items():
                values = {field.name: options.pop(field.name) for field in fields(group)}
                options[name] = group(**values)
            if formats:
                output, force, quiet = map(options.pop, ("output", "force", "quiet"))
                named = {name: options.pop(key) for name, key in formats.items()}
                written = _formats(named, output or (), endings or {})
                options["outputs"] = Outputs(written, force, quiet)
            function(**options)

        own = declared.parameters.values()
        parameters = [*_parameters(function.__name__, own, groups, formats, endings or {})]
        signed: Any = with_options
        signed.__signature__ = declared.replace(parameters=parameters)
        signed.__annotations__ = {p.name: p.annotation for p in parameters}
        return with_options

    return decorate


def _parameters(
    command: str,
    declared: Iterable[Parameter],
    groups: Mapping[str, Any],
    formats: Mapping[str, str],
    endings: Mapping[str, str],
) -> Iterator[Parameter]:
    """Yield the parameters of a command, as typer takes them; see :func:`command`."""

    def parameter(name: str, kind: Any, default: Any, *, argument: bool = False) -> Parameter:
        info = _declared(command, name, default, argument=argument)
        return Parameter(name, Parameter.KEYWORD_ONLY, default=info, annotation=kind)

    for own in declared:
        if own.name in groups:
            hints = get_type_hints(own.annotation)
            for field in fields(own.annotation):
                yield parameter(field.name, hints[field.name], field.default)
        elif own.name == "outputs":
            output = parameter("output", list[str] | None, None)
            known = {renderer.name: renderer.suffixes[0] for renderer in renderers()}
            suffixes = [*(known[name] for name in formats if name in known), *endings]
            output.default.help = output.default.help.format(", ".join(suffixes))
            yield output
            for key in formats.values():
                file = parameter(key, str | None, None)
                file.default.hidden = True
                yield file
            yield parameter("force", bool, False)
            yield parameter("quiet", bool, False)
        elif own.name == "context":
            yield own
        else:
            default = ... if own.default is own.empty else own.default
            by_place = own.kind is Parameter.POSITIONAL_OR_KEYWORD
            yield parameter(own.name, own.annotation, default, argument=by_place)
    yield parameter("anonymous", bool, False)
