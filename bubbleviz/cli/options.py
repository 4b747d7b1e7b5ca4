"""Options that several commands share, and the decorator that defines a command."""

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
from bubbleviz.cli.terminal import show_reading_progress
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
SKIP = option("N", "Exclude the first N iterations from averages.", "Selection", default=0, min=0)
KEEP_EXPORT = flag("Keep the exports of .nsys-rep reports.", "Reading", "--keep-export")
JOBS = option("N", "Number of processes or threads [all cores]", "Reading", "--jobs", "-j", min=1)
STAGES = option("P", "Number of stages, one per device.", "Schedule", "--stages", "-p", min=1)
MICROBATCHES = option("M", "Number of microbatches.", "Schedule", "--microbatches", "-m", min=1)
CHUNKS = option("V", "Chunks per stage [default of the schedule]", "Schedule", min=1)


def list_schedule_names() -> list[str]:
    """Return the names of all schedules, and of formulas."""
    from bubbleviz.schedules.ideal import list_names

    return list_names()


def list_convention_names() -> list[str]:
    """Return the names of the built-in conventions."""
    from bubbleviz.conventions.convention_file import built_in

    return sorted(built_in())


def list_limit_prefixes() -> list[str]:
    """Return ``NAME=`` for each ratio, as completions of limits."""
    from bubbleviz.count.ratios import list_ratios

    return [f"{ratio.name}=" for ratio in list_ratios()]


def _make_convention_option(summary: str) -> Any:
    return option("NAME|FILE", summary, "Names", "--convention", complete=list_convention_names)


CONVENTIONS = _make_convention_option("Convention of range names, if not recognised.")
ADDITIONS = _make_convention_option("Convention that names more communication kernels.")


#: Listed in help only. The application reads it before it runs a command, so that it applies to all
#: messages.
_ANONYMOUS = flag(
    "Hide hosts, files, functions, PIDs and GPU UUIDs, not ranges.", "Names", ANONYMOUS
)
#: Placeholders of options whose values are paths, and whose values are names of hosts.
_PATHS = frozenset(("FILE", "NAME|FILE", "DIR", "REPORT", "MAIN", "BEFORE"))
_HOSTS = frozenset(("A,B", "ADDRESS|FILE", "HOST:PORT"))
#: Parameters of commands that the decorator supplies.
_SUPPLIED = ("outputs", "invocation")

#: Formats that commands write, with their descriptions in ``--help``.
JSON = {"json": "JSON for programs"}
CSV = {"csv": "CSV"}
MARKDOWN = {"markdown": "summary for a pull request"}
SVG = {"svg": "picture as SVG"}
PICTURE_FILES = {**SVG, "pdf": "picture as PDF for a paper", "png": "picture as PNG"}
ORDER = {"csv": "order of operations as PyTorch's CSV"}


def resolve_jobs(jobs: int | None) -> int:
    """Return the given number of jobs, or the number of cores."""
    return jobs or count_cores()


@dataclass(frozen=True)
class ReadingOptions:
    """Options for reading profiles."""

    window: str | None = option(
        "PART", "Measure only this part: iteration:5-8 or time:1.5s-3s.", "Selection"
    )
    keep_export: bool = KEEP_EXPORT
    jobs: int | None = JOBS

    def make_arguments(self) -> dict[str, Any]:
        """Return the keyword arguments of an analysis for these options.

        Raises:
            UsageError: The window has an invalid form.
        """
        return {
            "window": None if self.window is None else parse_window(self.window),
            "keep_export": self.keep_export,
            "jobs": resolve_jobs(self.jobs),
        }


@dataclass(frozen=True)
class MeasurementOptions:
    """Options for measuring profiles in commands that also accept a saved report."""

    skip: int = SKIP
    convention: list[str] | None = CONVENTIONS
    jobs: int | None = JOBS

    def is_saved(self, run: Sequence[str], command: str, verb: str) -> bool:
        """Return whether a run is a saved report rather than profiles.

        Args:
            run: Paths of the run.
            command: Name of the command, for the message.
            verb: What the command does with a report, for the message.

        Raises:
            UsageError: There are several reports, or options for profiles with a report.
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
        """Read a saved report, or measure the profiles of a path with :meth:`summarize`."""
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
        """Measure the idle time of profiles without forward and backward ranges.

        Returns None if there are such ranges, or a convention is given.
        """
        from bubbleviz.analyses.first_look import choose_command

        if self.convention or choose_command(paths)[0] != "idle":
            return None
        from bubbleviz.analyses.idle import idle

        with show_reading_progress() as bars:
            return idle(paths, jobs=resolve_jobs(self.jobs), progress=bars)

    def measure(self, paths: str | Sequence[str], *, memory: bool = False) -> Report:
        """Measure the profiles of one run, and show the progress on standard error.

        Args:
            paths: Paths of the profiles.
            memory: Whether to read memory events.

        Raises:
            BubblevizError: See :func:`bubbleviz.analyze`.
        """
        from bubbleviz.api import analyze

        with show_reading_progress() as bars:
            return analyze(
                paths,
                skip=self.skip,
                convention=self.convention or (),
                memory=memory,
                jobs=resolve_jobs(self.jobs),
                progress=bars,
            )


def find_files(runs: Iterable[str]) -> list[str]:
    """Return all files of runs, each given as a saved report or as a path with profiles."""
    from bubbleviz.report.saved import is_saved_report
    from bubbleviz.sources.paths import find_profiles

    return [
        file
        for path in runs
        for file in (
            [path] if is_saved_report(path) else [own.path for own in find_profiles([path])]
        )
    ]


def _choose_formats(
    files: Mapping[str, str | None], outputs: Iterable[str], endings: Mapping[str, str]
) -> dict[str, str]:
    """Return the format of each output file, keyed by file.

    Args:
        files: File of each format option, keyed by format, or None if the option is not given.
        outputs: Files of ``-o``, whose suffixes determine the format.
        endings: Formats that only this command has, keyed by file ending.

    Raises:
        UsageError: Two outputs are the same file, or a suffix belongs to no format.
        OutputError: A format needs a package that is not installed, or is binary and goes to a
            terminal.
    """
    renderers = {renderer.name: renderer for renderer in list_renderers() if renderer.name in files}
    file_formats = [(file, name) for name, file in files.items() if file is not None]
    for file in outputs:
        name = next((n for end, n in endings.items() if file.lower().endswith(end)), None)
        if file == "-":
            options = ", ".join(f"--{format_name} -" for format_name in files)
            raise UsageError(f"-o -: standard output has no suffix; give {options}")
        plots = [end for end in endings if f"{file[:-4].lower()}.svg".endswith(end)]
        if name is None and plots and format_of_suffix(file, renderers) in {"pdf", "png"}:
            raise UsageError(f"-o {file[:200]}: this plot is an SVG; name it {plots[0]}")
        file_formats.append((file, name or format_of_suffix(file, renderers, endings)))
    format_of_file = dict(file_formats)
    if len(format_of_file) < len(file_formats):
        all_files = [file for file, _ in file_formats]
        duplicate = next(file for file in all_files if all_files.count(file) > 1)
        raise UsageError(f"{duplicate[:200]}: named by two outputs; give each its own file")
    for file, name in format_of_file.items():
        if name not in renderers:
            continue
        renderers[name].check(file)
        check_suffix(file, name, renderers)
        if renderers[name].binary and file == "-" and sys.stdout.isatty():
            raise OutputError(
                f"--{name} -: refusing to write binary data to a terminal; name a file or pipe it"
            )
    return format_of_file


def command(
    files: Mapping[str, str] | None = None,
    endings: Mapping[str, str] | None = None,
    documented: Collection[str] = (),
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that turns a function into a command for typer.

    The decorated function has one parameter per option: the fields of parameters that are
    dataclasses; ``-o``, ``--force``, ``--quiet`` and one option per format for ``outputs`` (see
    :class:`Outputs`); and ``--anonymous``. ``invocation`` is supplied by the application and is not
    an option.

    Args:
        files: Formats that the command writes, with their descriptions in ``--help``.
        endings: Formats that only this command has, keyed by file ending.
        documented: Formats whose options are listed in help. The others are hidden, because ``-o``
            with a suffix does the same.
    """
    formats = {name: name.replace("-", "_") for name in files or ()}

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        """Return a function with one parameter per option, from which typer builds the command."""
        described = signature(function, eval_str=True).parameters
        groups: dict[str, Any] = {
            name: parameter.annotation
            for name, parameter in described.items()
            if is_dataclass(parameter.annotation) and name not in _SUPPLIED
        }

        @wraps(function)
        def with_options(**options: Any) -> None:
            """Build the arguments of the function from the options, and call it.

            The fields of each dataclass are collected in an instance of it, and the options of
            output files in :class:`Outputs`.

            Args:
                options: Value of each option, and typer's ``context``.
            """
            options.pop("anonymous")
            invocation: Invocation = options.pop("context").obj or Invocation()
            with _note_names(invocation.names, signed, options):
                for name, group in groups.items():
                    values = {field.name: options.pop(field.name) for field in fields(group)}
                    options[name] = group(**values)
                if files is not None:
                    output, force, quiet = map(options.pop, ("output", "force", "quiet"))
                    _check_quiet(quiet=quiet, details=options.get("details"))
                    files_of_formats = {name: options.pop(key) for name, key in formats.items()}
                    output_formats = _choose_formats(files_of_formats, output or (), endings or {})
                    options["outputs"] = Outputs(
                        output_formats, force, quiet, names=invocation.names
                    )
                if "invocation" in described:
                    options["invocation"] = invocation
                function(**options)

        parameters: list[Parameter] = []
        for name, parameter in described.items():
            if name in groups:
                parameters += _list_group_options(groups[name])
            elif name == "outputs":
                parameters += _list_output_options(files or {}, endings, documented)
            elif name != "invocation":
                parameters.append(parameter)
        parameters.append(_make_keyword("anonymous", bool, _ANONYMOUS))
        parameters.append(_make_keyword("context", typer.Context, Parameter.empty))
        signed: Any = with_options
        signed.__signature__ = signature(function).replace(parameters=parameters)
        signed.__annotations__ = {p.name: p.annotation for p in parameters}
        return with_options

    return decorate


def _check_quiet(*, quiet: bool, details: object) -> None:
    """Check that ``--details``, which asks for tables, is not combined with ``--quiet``.

    Raises:
        UsageError: Both options are given.
    """
    if quiet and details:
        raise UsageError("--quiet prints no tables; leave out --quiet or --details")


def _list_group_options(group: Any) -> list[Parameter]:
    """Return a parameter for each field of a dataclass of options."""
    hints = get_type_hints(group)
    return [_make_keyword(field.name, hints[field.name], field.default) for field in fields(group)]


def _list_output_options(
    files: Mapping[str, str], endings: Mapping[str, str] | None, documented: Collection[str]
) -> list[Parameter]:
    """Return the parameters that replace ``outputs``; see :func:`command`."""
    parameters = [_make_keyword("output", list[str] | None, _make_output_option(files, endings))]
    for name, summary in files.items():
        file = option("FILE", summary, "Outputs", f"--{name}", hidden=name not in documented)
        parameters.append(_make_keyword(name.replace("-", "_"), str | None, file))
    parameters.append(_make_keyword("force", bool, FORCE))
    parameters.append(_make_keyword("quiet", bool, QUIET))
    return parameters


@contextmanager
def _note_names(
    names: PrivateNames, command: Callable[..., None], values: Mapping[str, Any]
) -> Iterator[None]:
    """Note the private names in the arguments of a command that runs inside the context.

    Paths in arguments are noted at once. If the command raises an error, the names in the error and
    the paths and hosts in options are noted as well, because the message may contain any of them.

    Args:
        names: Receives the private names.
        command: The command.
        values: Values of the command's parameters, keyed by parameter.
    """
    arguments, paths, hosts = _find_names(command, values)
    names.note_paths(arguments)
    try:
        yield
    except BubblevizError as error:
        names.note_error(error)
        names.note_paths(paths)
        names.note_hosts(hosts)
        raise


def _find_names(
    command: Callable[..., None], values: Mapping[str, Any]
) -> tuple[list[str], list[str], list[str]]:
    """Return the paths and hosts in the values of a command's parameters.

    Args:
        command: The command. The placeholders of its options show which values are paths or hosts.
        values: Values, keyed by parameter.

    Returns:
        arguments: Values of the arguments, which are all paths.
        paths: Paths in the options.
        hosts: Names of hosts in the options.
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


def _make_output_option(files: Mapping[str, str], endings: Mapping[str, str] | None) -> Any:
    """Return the option ``-o``, whose file suffix determines the format."""
    suffix_of_format = {renderer.name: renderer.suffixes[0] for renderer in list_renderers()}
    suffixes = [suffix_of_format[name] for name in files if name in suffix_of_format]
    suffixes += endings or {}
    summary = f"Output file; its suffix sets the format ({', '.join(suffixes)}). Repeatable."
    return option("FILE", summary, "Outputs", "--output", "-o")


def _make_keyword(name: str, annotation: Any, default: Any) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
