"""The options that several commands share, and what gives a command its groups and outputs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, get_type_hints

import typer
from typer.models import ArgumentInfo

from bubbleviz.cli.help import argument, flag, option
from bubbleviz.cli.outputs import Outputs
from bubbleviz.cli.private_names import ANONYMOUS, Invocation, PrivateNames
from bubbleviz.cli.terminal import progress_bars
from bubbleviz.errors import BubblevizError, OutputError, UsageError
from bubbleviz.model.window import parse_window
from bubbleviz.render.formats import check_suffix, format_of_suffix, list_renderers
from bubbleviz.resources import count_cores

if TYPE_CHECKING:
    from bubbleviz.analyses.idle.report import IdleMeasurement
    from bubbleviz.report.ratio_summary import ReportSummary
    from bubbleviz.report.report import Report

RUN_PROFILES = argument(
    "PROFILES...",
    "Profiles of one run, or directories of them: Nsight Systems exports (.sqlite, _pqtdir, "
    "_arwdir) or reports (.nsys-rep), profiles of AMD's rocprofv3 (.db, .rpd), PyTorch traces "
    "(.json, .json.gz), XLA profiles (.xplane.pb, .trace.json.gz), tables of operations (.csv, "
    ".parquet, .arrow).",
)
REPORT_OR_PROFILES = argument(
    "REPORT.json|PROFILES...",
    "A report written by analyze -o report.json, or the profiles of one run (files or a "
    "directory).",
)
FORCE = flag("Replace existing files.", "Outputs", "--force", "-f")
QUIET = flag("Print errors only.", "Outputs", "--quiet", "-q")
SKIP = option("N", "Leave the first N iterations out of averages.", "Selection", default=0, min=0)
KEEP_EXPORT = flag("Keep exports made of .nsys-rep reports.", "Reading", "--keep-export")
JOBS = option("N", "Processes, or threads of one profile [all]", "Reading", "--jobs", "-j", min=1)
STAGES = option("P", "Number of stages, one per device.", "Schedule", "--stages", "-p", min=1)
MICROBATCHES = option("M", "Number of microbatches.", "Schedule", "--microbatches", "-m", min=1)
CHUNKS = option("V", "Chunks per stage [the schedule's usual]", "Schedule", min=1)


def schedule_names() -> list[str]:
    """Return the names of all schedules, and of formulas."""
    from bubbleviz.schedules.ideal import list_names

    return list_names()


def convention_names() -> list[str]:
    """Return the names of the built-in conventions."""
    from bubbleviz.conventions.convention_file import built_in

    return sorted(built_in())


def limit_beginnings() -> list[str]:
    """Return the beginning of a limit on each ratio."""
    from bubbleviz.count.ratios import list_ratios

    return [f"{ratio.name}=" for ratio in list_ratios()]


def _convention(summary: str) -> Any:
    return option("NAME|FILE", summary, "Names", "--convention", complete=convention_names)


CONVENTIONS = _convention("Convention of range names, if not recognised.")
ADDITIONS = _convention("Names further kernels of communication.")


#: The application looks for it before it runs a command, so that all messages heed it.
_ANONYMOUS = flag(
    "Hide hosts, files, functions, PIDs, GPUs' UUIDs; ranges stay.", "Names", ANONYMOUS
)
#: What help calls the values of options that are paths, or names of hosts.
_PATHS = frozenset(("FILE", "NAME|FILE", "DIR", "REPORT", "MAIN", "BEFORE"))
_HOSTS = frozenset(("A,B", "ADDRESS|FILE", "HOST:PORT"))
#: Parameters of commands that are no groups of options.
_SUPPLIED = ("outputs", "invocation")

#: Files that commands write, each with what it is in ``--help``.
JSON = {"json": "JSON, for programs"}
CSV = {"csv": "CSV"}
MARKDOWN = {"markdown": "summary for a pull request"}
SVG = {"svg": "picture as SVG"}
PICTURE_FILES = {**SVG, "pdf": "picture as PDF, for a paper", "png": "picture as PNG, in pixels"}
ORDER = {"csv": "order of operations as PyTorch's CSV"}


def jobs_or_cores(jobs: int | None) -> int:
    """Return the given number of jobs, or the number of cores."""
    return jobs or count_cores()


@dataclass(frozen=True)
class ReadingOptions:
    """How profiles are read: the part of the run, what stays of exports, and on how many cores."""

    window: str | None = option(
        "PART", "Only iteration:5-8, or time:1.5s-3s of profile 1.", "Selection"
    )
    keep_export: bool = KEEP_EXPORT
    jobs: int | None = JOBS

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

    skip: int = SKIP
    convention: list[str] | None = CONVENTIONS
    jobs: int | None = JOBS

    def is_saved(self, run: Sequence[str], command: str, verb: str) -> bool:
        """Return whether a run is one saved report rather than profiles.

        Raises:
            UsageError: there are several reports, or options of profiles for one.
        """
        from bubbleviz.report.saved import is_saved_report

        if len(run) > 1 and any(map(is_saved_report, run)):
            raise UsageError(
                f"{command} {verb} one report; give a single report, or the profiles of one run"
            )
        saved = is_saved_report(run[0])
        if saved and (self.skip or self.convention or self.jobs):
            raise UsageError(
                "--skip, --convention and --jobs apply to profiles; leave them out for a report"
            )
        return saved

    def read(self, path: str) -> tuple[ReportSummary, Report | None]:
        """Return a saved report, or what :meth:`summarize` returns for the profiles of a path."""
        from bubbleviz.report.saved import is_saved_report, read_saved

        return (read_saved(path), None) if is_saved_report(path) else self.summarize([path])

    def summarize(self, paths: Sequence[str]) -> tuple[ReportSummary, Report | None]:
        """Measure the profiles of one run.

        Args:
            paths: Paths of the profiles.

        Returns:
            summary: The summary, which is on idle time if no range names a forward or backward.
            report: The measured report, or None if the summary is on idle time.

        Raises:
            BubblevizError: See :func:`bubbleviz.analyze`.
        """
        from bubbleviz.report.summarizing import summarize

        if (idle := self.idle(paths)) is not None:
            from bubbleviz.analyses.idle.outputs import summary_of_idle

            return summary_of_idle(idle), None
        report = self.measure(paths)
        return summarize(report, by_rank=False), report

    def idle(self, paths: Sequence[str]) -> IdleMeasurement | None:
        """Return the report on idle time of profiles without named operations; None of others."""
        from bubbleviz.analyses.first_look import choose_command

        if self.convention or choose_command(paths)[0] != "idle":
            return None
        from bubbleviz.analyses.idle import idle

        with progress_bars() as bars:
            return idle(paths, jobs=jobs_or_cores(self.jobs), progress=bars)

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
            return analyze(
                paths,
                skip=self.skip,
                convention=self.convention or (),
                memory=memory,
                jobs=jobs_or_cores(self.jobs),
                progress=bars,
            )


def files_of(runs: Iterable[str]) -> list[str]:
    """Return the files of runs, each a saved report or the path of profiles."""
    from bubbleviz.report.saved import is_saved_report
    from bubbleviz.sources.paths import find_profiles

    return [
        file
        for path in runs
        for file in (
            [path] if is_saved_report(path) else [own.path for own in find_profiles([path])]
        )
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
    known = {renderer.name: renderer for renderer in list_renderers() if renderer.name in files}
    given = [(file, name) for name, file in files.items() if file is not None]
    for file in outputs:
        name = next((n for end, n in endings.items() if file.lower().endswith(end)), None)
        if file == "-":
            options = ", ".join(f"--{format_name} -" for format_name in files)
            raise UsageError(f"-o -: standard output has no suffix; give {options}")
        plots = [end for end in endings if f"{file[:-4].lower()}.svg".endswith(end)]
        if name is None and plots and format_of_suffix(file, known) in {"pdf", "png"}:
            raise UsageError(f"-o {file[:200]}: this plot is an SVG; name it {plots[0]}")
        given.append((file, name or format_of_suffix(file, known, endings)))
    named = dict(given)
    if len(named) < len(given):
        files_given = [file for file, _ in given]
        twice = next(file for file in files_given if files_given.count(file) > 1)
        raise UsageError(f"{twice[:200]}: two outputs name the same file; give each its own")
    for file, name in named.items():
        if name not in known:
            continue
        known[name].check(file)
        check_suffix(file, name, known)
        if known[name].binary and file == "-" and sys.stdout.isatty():
            raise OutputError(
                f"--{name} -: refusing to write binary data to a terminal; name a file or pipe it"
            )
    return named


def command(
    files: Mapping[str, str] | None = None,
    endings: Mapping[str, str] | None = None,
    documented: Collection[str] = (),
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return what makes a function a command, with options that typer reads from its signature.

    A parameter that is a dataclass becomes one option for each of its fields. ``outputs`` (see
    :class:`Outputs`) becomes ``-o``, ``--force`` and ``--quiet``, and one option per format. Help
    lists only the ``documented`` ones, because ``-o`` with a suffix does the same. ``invocation``
    becomes no option: it is what the application hands to the command. Every command has
    ``--anonymous``.

    Args:
        files: the formats that the command writes, with their lines in ``--help``.
        endings: formats of the command alone by the endings of their files.
        documented: Names of the formats whose own option is listed in help.
    """
    formats = {name: name.replace("-", "_") for name in files or ()}

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        described = signature(function, eval_str=True).parameters
        groups: dict[str, Any] = {
            name: parameter.annotation
            for name, parameter in described.items()
            if is_dataclass(parameter.annotation) and name not in _SUPPLIED
        }

        @wraps(function)
        def with_options(**options: Any) -> None:
            options.pop("anonymous")
            invocation: Invocation = options.pop("context").obj or Invocation()
            with _names_noted(invocation.names, signed, options):
                for name, group in groups.items():
                    values = {field.name: options.pop(field.name) for field in fields(group)}
                    options[name] = group(**values)
                if files is not None:
                    output, force, quiet = map(options.pop, ("output", "force", "quiet"))
                    named = {name: options.pop(key) for name, key in formats.items()}
                    written = _formats(named, output or (), endings or {})
                    options["outputs"] = Outputs(written, force, quiet, names=invocation.names)
                if "invocation" in described:
                    options["invocation"] = invocation
                function(**options)

        parameters: list[Parameter] = []
        for name, own in described.items():
            if name in groups:
                parameters += _options_of_group(groups[name])
            elif name == "outputs":
                parameters += _options_of_outputs(files or {}, endings, documented)
            elif name != "invocation":
                parameters.append(own)
        parameters.append(_keyword("anonymous", bool, _ANONYMOUS))
        parameters.append(_keyword("context", typer.Context, Parameter.empty))
        signed: Any = with_options
        signed.__signature__ = signature(function).replace(parameters=parameters)
        signed.__annotations__ = {p.name: p.annotation for p in parameters}
        return with_options

    return decorate


def _options_of_group(group: Any) -> list[Parameter]:
    """Return a parameter for each field of a dataclass of options."""
    hints = get_type_hints(group)
    return [_keyword(field.name, hints[field.name], field.default) for field in fields(group)]


def _options_of_outputs(
    files: Mapping[str, str], endings: Mapping[str, str] | None, documented: Collection[str]
) -> list[Parameter]:
    """Return the parameters that stand for ``outputs``; see :func:`command`."""
    parameters = [_keyword("output", list[str] | None, _output(files, endings))]
    for name, summary in files.items():
        file = option("FILE", summary, "Outputs", f"--{name}", hidden=name not in documented)
        parameters.append(_keyword(name.replace("-", "_"), str | None, file))
    parameters.append(_keyword("force", bool, FORCE))
    parameters.append(_keyword("quiet", bool, QUIET))
    return parameters


@contextmanager
def _names_noted(
    names: PrivateNames, command: Callable[..., None], values: Mapping[str, Any]
) -> Iterator[None]:
    """Note the arguments of a command, and if it fails the names in its options.

    The message of an error may contain any of them.
    """
    arguments, paths, hosts = _given_names(command, values)
    names.note_paths(arguments)
    try:
        yield
    except BubblevizError as error:
        names.note_error(error)
        names.note_paths(paths)
        names.note_hosts(hosts)
        raise


def _given_names(
    command: Callable[..., None], values: Mapping[str, Any]
) -> tuple[list[str], list[str], list[str]]:
    """Return the arguments of a command, which are paths, and the paths and hosts in its options.

    Args:
        command: The command, whose parameters say what their values are.
        values: The values by parameter.
    """
    arguments: list[str] = []
    paths: list[str] = []
    hosts: list[str] = []
    for parameter in signature(command).parameters.values():
        value, described = values.get(parameter.name), parameter.default
        texts = [value] if isinstance(value, str) else value if isinstance(value, list) else []
        metavar = getattr(described, "metavar", None)
        if isinstance(described, ArgumentInfo):
            arguments += texts
        elif metavar in _PATHS:
            paths += texts
        elif metavar in _HOSTS:
            hosts += [
                name for text in texts for name in (*text.split(","), text.rpartition(":")[0])
            ]
    return arguments, paths, hosts


def _output(files: Mapping[str, str], endings: Mapping[str, str] | None) -> Any:
    """Return the option that writes files as their suffixes say."""
    known = {renderer.name: renderer.suffixes[0] for renderer in list_renderers()}
    suffixes = [known[name] for name in files if name in known] + [*(endings or {})]
    summary = f"Write as the suffix says ({', '.join(suffixes)}); repeat for several."
    return option("FILE", summary, "Outputs", "--output", "-o")


def _keyword(name: str, annotation: Any, default: Any) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
