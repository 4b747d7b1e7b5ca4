"""Command-line options that several commands share, and the decorator that defines a command."""

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
    "Profiles of one run, or directories that contain them: Nsight Systems exports (.sqlite, "
    "_pqtdir, _arwdir) or reports (.nsys-rep), profiles of AMD's rocprofv3 (.db, .rpd) or Ascend's "
    "profilers (.db), PyTorch traces (.json, .json.gz), XLA profiles (.xplane.pb, .trace.json.gz), "
    "pipeline dumps from Primus (pp_rank_N.json), or tables of operations (.csv, .parquet, "
    ".arrow). To draw a saved report, pass the report (.json).",
)
REPORT_OR_PROFILES = argument(
    "REPORT.json|PROFILES...",
    "A report written by analyze -o report.json, or the profiles of one run (files or a "
    "directory).",
)
FORCE = flag("Replace existing files.", "Outputs", "--force", "-f")
QUIET = flag("Print errors only.", "Outputs", "--quiet", "-q")
SKIP = option("N", "Exclude the first N iterations from averages.", "Selection", default=0, min=0)
UNPROFILED_STEP = option(
    "TIME", "Length of a step without a profiler, e.g. 29.39s, to judge the profile.", "Tables"
)
KEEP_EXPORT = flag("Keep the files exported from .nsys-rep reports.", "Reading", "--keep-export")
JOBS = option(
    "N", "Number of processes or threads [default: all cores]", "Reading", "--jobs", "-j", min=1
)
STAGES = option("P", "Number of stages, one per device.", "Schedule", "--stages", "-p", min=1)
MICROBATCHES = option("M", "Number of microbatches.", "Schedule", "--microbatches", "-m", min=1)
CHUNKS = option("V", "Chunks per stage [default: set by the schedule]", "Schedule", min=1)


def list_schedule_names() -> list[str]:
    """Return the names of all schedules, including those defined only by formulas."""
    from bubbleviz.schedules.ideal import list_names

    return list_names()


def list_convention_names() -> list[str]:
    """Return the names of the built-in conventions, sorted."""
    from bubbleviz.conventions.convention_file import built_in

    return sorted(built_in())


def list_limit_prefixes() -> list[str]:
    """Return ``NAME=`` for each ratio. Shells offer these strings as completions for limits."""
    from bubbleviz.count.ratios import list_ratios

    return [f"{ratio.name}=" for ratio in list_ratios()]


def _make_convention_option(summary: str) -> Any:
    return option("NAME|FILE", summary, "Names", "--convention", complete=list_convention_names)


CONVENTIONS = _make_convention_option("Convention for range names that are not recognized.")
ADDITIONS = _make_convention_option("Convention that lists additional communication kernels.")


#: The option ``--anonymous``. It is defined here only for ``--help``. The application reads the
#: option before it runs a command, so that it applies to all messages.
_ANONYMOUS = flag(
    "Hide the names of hosts, files and functions, PIDs and GPU UUIDs, but not range names.",
    "Names",
    ANONYMOUS,
)
#: Placeholders of options whose values are paths, and of options whose values are hosts.
_PATHS = frozenset(("FILE", "NAME|FILE", "DIR", "REPORT", "MAIN", "BEFORE"))
_HOSTS = frozenset(("A,B", "ADDRESS|FILE", "HOST:PORT"))
#: Names of the parameters whose arguments the decorator provides.
_SUPPLIED = ("outputs", "invocation")

#: Description of each output format in ``--help``, keyed by format name.
JSON = {"json": "Write JSON for programs."}
CSV = {"csv": "Write CSV."}
MARKDOWN = {"markdown": "Write a summary for a pull request."}
LATEX = {"latex": "Write a LaTeX table (booktabs)."}
SVG = {"svg": "Draw a picture as SVG."}
PICTURE_FILES = {**SVG, "pdf": "Draw a picture as PDF.", "png": "Draw a picture as PNG."}
ORDER = {"csv": "Write the order of operations as PyTorch's CSV."}


def resolve_jobs(jobs: int | None) -> int:
    """Return the given number of jobs, or the number of usable cores if None."""
    return jobs or count_cores()


@dataclass(frozen=True)
class ReadingOptions:
    """Command-line options for reading profiles."""

    window: str | None = option(
        "PART", "Measure only this part, e.g. iteration:5-8 or time:1.5s-3s.", "Selection"
    )
    keep_export: bool = KEEP_EXPORT
    jobs: int | None = JOBS

    def make_arguments(self) -> dict[str, Any]:
        """Return the values of the options as keyword arguments for an analysis function.

        Raises:
            UsageError: The value of ``--window`` is invalid.
        """
        return {
            "window": None if self.window is None else parse_window(self.window),
            "keep_export": self.keep_export,
            "jobs": resolve_jobs(self.jobs),
        }


@dataclass(frozen=True)
class RunInput:
    """A run that was named on the command line.

    Attributes:
        paths: Path of a saved report, or paths of the profiles of one run.
        is_saved: Whether the run is a saved report.
    """

    paths: tuple[str, ...]
    is_saved: bool

    def find_files(self) -> list[str]:
        """Return the path of the report, or the files that contain the profiles.

        Raises:
            InputError: A path does not exist, cannot be read, or does not lead to any profile.
        """
        from bubbleviz.sources.paths import find_profiles

        if self.is_saved:
            return [*self.paths]
        return [profile.path for path in self.paths for profile in find_profiles([path])]


def recognize_run(path: str) -> RunInput:
    """Return the run at a path, which is a saved report or contains profiles."""
    from bubbleviz.report.saved import is_saved_report

    return RunInput((path,), is_saved_report(path))


@dataclass(frozen=True)
class MeasurementOptions:
    """Command-line options for measuring profiles, for commands that also accept a report."""

    skip: int = SKIP
    convention: list[str] | None = CONVENTIONS
    jobs: int | None = JOBS

    def recognize_run(self, paths: Sequence[str], command: str, verb: str) -> RunInput:
        """Return the run at the given paths, which is a saved report or consists of profiles.

        Args:
            paths: The path of a report, or the paths of a run's profiles.
            command: Name of the command, for error messages.
            verb: Verb for error messages that describes what the command does with a report, for
                example "checks".

        Raises:
            UsageError: Several paths are given and one of them is a report, or options that apply
                only to profiles are given for a report.
        """
        runs = [recognize_run(path) for path in paths]
        is_saved = any(run.is_saved for run in runs)
        if is_saved and len(runs) > 1:
            raise UsageError(
                f"{command} {verb} a single report; pass one report, or the profiles of one run"
            )
        if is_saved and (self.skip or self.convention or self.jobs):
            raise UsageError(
                "--skip, --convention and --jobs apply only to profiles; remove them for a report"
            )
        return RunInput(tuple(paths), is_saved)

    def read(self, run: RunInput) -> tuple[ReportSummary, Report | None]:
        """Read a saved report, or measure profiles.

        Args:
            run: The report or the profiles.

        Returns:
            The summary, and the measured report. The measured report is None if the run is a saved
            report, or if the summary is about idle time.
        """
        from bubbleviz.report.saved import read_saved

        return (read_saved(run.paths[0]), None) if run.is_saved else self.summarize(run.paths)

    def summarize(self, paths: Sequence[str]) -> tuple[ReportSummary, Report | None]:
        """Measure and summarize the profiles of one run.

        Args:
            paths: Paths of the profiles.

        Returns:
            summary: The summary of the run, or of its idle time if the profiles do not contain
                ranges of forward or backward passes.
            report: The measured report, or None if the summary is about idle time.

        Raises:
            BubblevizError: See :func:`bubbleviz.analyze`.
        """
        from bubbleviz.report.summarizing import summarize

        if (idle := self.idle(paths)) is not None:
            from bubbleviz.analyses.idle.outputs import summarize_idle

            return summarize_idle(idle), None
        report = self.measure(paths)
        return summarize(report, by_rank=False), report

    def idle(self, paths: Sequence[str]) -> IdleMeasurement | None:
        """Measure the idle time in profiles that do not contain forward or backward ranges.

        If the profiles contain such ranges, or if a convention is given, the result is None.
        """
        from bubbleviz.analyses.first_look import choose_command

        if self.convention or choose_command(paths)[0] != "idle":
            return None
        from bubbleviz.analyses.idle import idle

        with show_reading_progress() as bars:
            return idle(paths, jobs=resolve_jobs(self.jobs), progress=bars)

    def measure(self, paths: str | Sequence[str], *, memory: bool = False) -> Report:
        """Measure the profiles of one run, showing progress on standard error.

        Args:
            paths: Paths of the profiles.
            memory: Whether to read memory allocations.

        Raises:
            BubblevizError: See :func:`bubbleviz.analyze`.
        """
        from bubbleviz.api.analysis import analyze

        with show_reading_progress() as bars:
            return analyze(
                paths,
                skip=self.skip,
                convention=self.convention or (),
                memory=memory,
                jobs=resolve_jobs(self.jobs),
                progress=bars,
            )


def _choose_formats(
    files: Mapping[str, str | None], outputs: Iterable[str], endings: Mapping[str, str]
) -> dict[str, str]:
    """Return the format of each output file, keyed by the path of the file.

    Args:
        files: Path passed with each format's own option, such as ``--svg``, or None if the option
            was not passed. Keyed by format.
        outputs: Paths passed with ``-o``. Their suffixes determine the formats.
        endings: Formats that only this command can write, keyed by file name suffix.

    Raises:
        UsageError: Two outputs are the same file, or a suffix belongs to none of the command's
            formats.
        OutputError: A format needs a package that is not installed, or is binary and would be
            printed on a terminal.
    """
    renderers = {renderer.name: renderer for renderer in list_renderers() if renderer.name in files}
    file_formats = [(file, name) for name, file in files.items() if file is not None]
    for file in outputs:
        name = next((n for end, n in endings.items() if file.lower().endswith(end)), None)
        if file == "-":
            options = ", ".join(f"--{format_name} -" for format_name in files)
            raise UsageError(f"-o -: standard output has no suffix; choose a format with {options}")
        plots = [end for end in endings if f"{file[:-4].lower()}.svg".endswith(end)]
        if name is None and plots and format_of_suffix(file, renderers) in {"pdf", "png"}:
            raise UsageError(
                f"-o {file[:200]}: this plot can only be an SVG; use the suffix {plots[0]}"
            )
        file_formats.append((file, name or format_of_suffix(file, renderers, endings)))
    format_of_file = dict(file_formats)
    if len(format_of_file) < len(file_formats):
        all_files = [file for file, _ in file_formats]
        duplicate = next(file for file in all_files if all_files.count(file) > 1)
        raise UsageError(
            f"{duplicate[:200]}: two outputs have this path; choose a different path for each"
        )
    for file, name in format_of_file.items():
        if name not in renderers:
            continue
        renderers[name].check(file)
        check_suffix(file, name, renderers)
        if renderers[name].binary and file == "-" and sys.stdout.isatty():
            raise OutputError(
                f"--{name} -: refusing to write binary data to a terminal; use a file or a pipe"
            )
    return format_of_file


def command(
    files: Mapping[str, str] | None = None,
    endings: Mapping[str, str] | None = None,
    documented: Collection[str] = (),
    switches: Collection[str] = (),
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that turns a function into a command for typer.

    The decorator replaces some parameters of the function with command-line options:

    - A parameter whose type is a dataclass is replaced with one option per field.
    - The parameter ``outputs`` (see :class:`Outputs`) is replaced with ``-o``, ``--force``,
      ``--quiet`` and one option per format.
    - The parameter ``invocation`` is provided by the application and has no option.

    The option ``--anonymous`` is added to every command.

    Args:
        files: Description of each format that the command can write, keyed by format name.
        endings: Formats that only this command can write, keyed by file name suffix.
        documented: Formats whose options are listed in ``--help``. The options of other formats are
            hidden, because ``-o`` with a suffix does the same.
        switches: Formats whose options take no file. These options print the format on standard
            output, and are listed in ``--help``.
    """
    formats = {name: name.replace("-", "_") for name in files or ()}

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        """Return a function with one parameter per option, from which typer makes a command."""
        described = signature(function, eval_str=True).parameters
        groups: dict[str, Any] = {
            name: parameter.annotation
            for name, parameter in described.items()
            if is_dataclass(parameter.annotation) and name not in _SUPPLIED
        }

        @wraps(function)
        def with_options(**options: Any) -> None:
            """Call the decorated function with arguments that are built from the options.

            Options that are fields of a dataclass are combined into an instance of this dataclass.
            Options for output files are combined into an instance of :class:`Outputs`.

            Args:
                options: Values of all options and arguments, and typer's ``context``.
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
                    files_of_formats = {
                        name: _get_output_file(options.pop(key)) for name, key in formats.items()
                    }
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
                parameters += _list_output_options(files or {}, endings, documented, switches)
            elif name != "invocation":
                parameters.append(parameter)
        parameters.append(_make_keyword("anonymous", bool, _ANONYMOUS))
        parameters.append(_make_keyword("context", typer.Context, Parameter.empty))
        signed: Any = with_options
        signed.__signature__ = signature(function).replace(parameters=parameters)
        signed.__annotations__ = {p.name: p.annotation for p in parameters}
        return with_options

    return decorate


def _get_output_file(value: str | bool | None) -> str | None:
    """Return the path given for a format, ``-`` for a switch that is on, or None if not given."""
    if isinstance(value, bool):
        return "-" if value else None
    return value


def _check_quiet(*, quiet: bool, details: object) -> None:
    """Check that ``--quiet`` is not combined with ``--details``, which prints tables.

    Raises:
        UsageError: Both options are given.
    """
    if quiet and details:
        raise UsageError("--quiet prints no tables; remove --quiet or --details")


def _list_group_options(group: Any) -> list[Parameter]:
    """Return one keyword-only parameter for each field of an options dataclass."""
    hints = get_type_hints(group)
    return [_make_keyword(field.name, hints[field.name], field.default) for field in fields(group)]


def _list_output_options(
    files: Mapping[str, str],
    endings: Mapping[str, str] | None,
    documented: Collection[str],
    switches: Collection[str],
) -> list[Parameter]:
    """Return the parameters that replace the parameter ``outputs`` of a command.

    The parameters are ``-o``, one option per format, ``--force`` and ``--quiet``.

    Args:
        files: Description of each format that the command can write, keyed by format name.
        endings: Formats that only this command can write, keyed by file name suffix.
        documented: Formats whose options are listed in ``--help``.
        switches: Formats whose options take no file.
    """
    parameters = [_make_keyword("output", list[str] | None, _make_output_option(files, endings))]
    for name, summary in files.items():
        key = name.replace("-", "_")
        if name in switches:
            parameters.append(_make_keyword(key, bool, flag(summary, "Outputs", f"--{name}")))
            continue
        file = option("FILE", summary, "Outputs", f"--{name}", hidden=name not in documented)
        parameters.append(_make_keyword(key, str | None, file))
    parameters.append(_make_keyword("force", bool, FORCE))
    parameters.append(_make_keyword("quiet", bool, QUIET))
    return parameters


@contextmanager
def _note_names(
    names: PrivateNames, command: Callable[..., None], values: Mapping[str, Any]
) -> Iterator[None]:
    """Record the private names in the arguments of the command that runs inside this context.

    Positional arguments are recorded immediately. If the command raises an error, the names in the
    error and the paths and hosts in options are also recorded, because the error message may
    contain them.

    Args:
        names: Recorder of private names.
        command: The command function, with one parameter per option.
        values: Values of the command's parameters, keyed by parameter name.
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
    """Find the paths and hosts in the values of a command's parameters.

    Args:
        command: The command. The placeholder of an option shows whether its value is a path or a
            host.
        values: Values of the parameters, keyed by parameter name.

    Returns:
        arguments: Values of positional arguments, all of which are paths.
        paths: Paths in the values of options.
        hosts: Hostnames in the values of options.
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
    """Define the option ``-o``, whose help text lists the suffixes of a command's formats."""
    suffix_of_format = {renderer.name: renderer.suffixes[0] for renderer in list_renderers()}
    suffixes = [suffix_of_format[name] for name in files if name in suffix_of_format]
    suffixes += endings or {}
    summary = f"Output file. Its suffix sets the format ({', '.join(suffixes)}). Can be repeated."
    return option("FILE", summary, "Outputs", "--output", "-o")


def _make_keyword(name: str, annotation: Any, default: Any) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
