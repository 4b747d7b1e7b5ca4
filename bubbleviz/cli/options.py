"""The options that several commands share, and what gives a command its groups and outputs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

from bubbleviz.cli.completion import convention_names
from bubbleviz.cli.help import NAMES, OUTPUTS, READING, SELECTION, argument, option
from bubbleviz.errors import OutputError, UsageError
from bubbleviz.model.private_names import anonymous, hide
from bubbleviz.model.values import frozen
from bubbleviz.render.formats import is_folder, renderers, suffixed

if TYPE_CHECKING:
    from bubbleviz.model.window import Window as RunWindow
    from bubbleviz.render.formats import Parts
    from bubbleviz.report.report import Report


#: The value of every option that names a file.
FILE = "FILE"

RunProfiles = Annotated[
    list[str],
    argument(
        "PROFILES...",
        "Profiles of one run, or directories of them: Nsight Systems exports (.sqlite, "
        "_pqtdir, _arwdir) or reports (.nsys-rep), profiles of AMD's rocprofv3 (.db, .rpd), "
        "PyTorch traces (.json, .json.gz), XLA profiles (.xplane.pb, .trace.json.gz), tables of "
        "operations (.csv, .parquet, .arrow).",
    ),
]
Output = Annotated[
    list[str] | None,
    option(
        "Write as its suffix says; repeat for several.", OUTPUTS, "--output", "-o", metavar=FILE
    ),
]
Force = Annotated[bool, option("Replace existing files.", OUTPUTS, "--force", "-f")]
Skip = Annotated[
    int, option("Leave the first N iterations out of averages.", SELECTION, metavar="N", min=0)
]


def _conventions(summary: str) -> Any:
    return option(summary, NAMES, "--convention", metavar="NAME|FILE", complete=convention_names)


Conventions = Annotated[
    list[str] | None, _conventions("Convention of range names, if not recognised.")
]
Additions = Annotated[list[str] | None, _conventions("Names further kernels of communication.")]
Window = Annotated[
    str | None,
    option("Only iteration:5-8, or time:1.5s-3s of profile 1.", SELECTION, metavar="PART"),
]
KeepExport = Annotated[
    bool, option("Keep exports made of .nsys-rep reports.", READING, "--keep-export")
]
Jobs = Annotated[
    int | None,
    option(
        "Processes, or threads of one profile [all]", READING, "--jobs", "-j", min=1, metavar="N"
    ),
]


def _hide_names(given: bool) -> bool:
    if given:
        hide()
    return given


_Anonymous = Annotated[
    bool,
    option(
        "Hide hosts, files, threads, functions.",
        NAMES,
        "--anonymous",
        callback=_hide_names,
        is_eager=True,
    ),
]

#: Files that commands write, each with what it is in ``--help``.
JSON = {"json": "JSON, for programs"}
CSV = {"csv": "CSV"}
MARKDOWN = {"markdown": "summary for a pull request"}
SVG = {"svg": "picture as SVG"}
PICTURE_FILES = {**SVG, "pdf": "picture as PDF, for a paper", "png": "picture as PNG, in pixels"}
ORDER = {"csv": "order of operations as PyTorch's CSV"}
LOWERED = {"comms": "that with sends and receives (.comms.csv)"}


@frozen
class ReadingOptions:
    """How profiles are read: the part of the run, what stays of exports, and on how many cores."""

    window: Window = None
    keep_export: KeepExport = False
    jobs: Jobs = None

    def run_window(self) -> RunWindow | None:
        """Return the part of the run to analyse; None for all of it.

        Raises:
            UsageError: the option is not of its form.
        """
        from bubbleviz.model.window import parse_window

        return None if self.window is None else parse_window(self.window)

    def job_count(self) -> int:
        """Return the number of jobs: that given, or as many as there are cores."""
        return jobs_or_cores(self.jobs)


@frozen
class MeasurementOptions:
    """How profiles are measured where a command takes them in place of a saved report."""

    skip: Skip = 0
    convention: Conventions = None
    jobs: Jobs = None

    def job_count(self) -> int:
        """Return the number of jobs: that given, or as many as there are cores."""
        return jobs_or_cores(self.jobs)

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

    def measure(self, paths: str | Sequence[str], *, memory: bool = False) -> Report:
        """Return the report on the profiles of one run, with progress on standard error.

        Args:
            paths: of the profiles.
            memory: whether memory events are read, too.

        Raises:
            BubblevizError: see :func:`bubbleviz.analyze`.
        """
        from bubbleviz.api import analyze
        from bubbleviz.cli.terminal import progress_bars

        with progress_bars() as bars:
            report = analyze(
                paths,
                skip=self.skip,
                convention=self.convention or (),
                memory=memory,
                jobs=self.job_count(),
                progress=bars,
            )
        return anonymous(report)


def jobs_or_cores(jobs: int | None) -> int:
    """Return the number of jobs: that given, or as many as there are cores."""
    from bubbleviz.interpret.fleet.run_recordings import cores

    return jobs or cores()


@frozen
class Outputs:
    """The files that a command is to write.

    Attributes:
        formats: the format of each file, by its name.
        force: whether existing files are replaced.
    """

    formats: Mapping[str, str]
    force: bool

    def check(self, inputs: Iterable[str]) -> None:
        """Refuse, before any work, files that cannot be written, or are read.

        Raises:
            UsageError: an output is named twice.
            OutputError: an output exists, is an input, or its directory does not exist.
        """
        from bubbleviz.cli.outputs import check_outputs

        # Formats of one file refuse a slash before.
        folders = [file for file in self.formats if is_folder(file)]
        check_outputs(list(self.formats), list(inputs), force=self.force, folders=folders)

    def deliver(
        self,
        content: Callable[[str], str | bytes | Parts],
        print_result: Callable[[], None],
        *,
        inputs: Sequence[str],
        warnings: Sequence[str] = (),
    ) -> None:
        """Write all files, print warnings, then fill standard output.

        Args:
            content: returns what is written in a format.
            print_result: prints the result where standard output is free.
            inputs: files that no output may replace.
            warnings: lines for standard error.

        Raises:
            OutputError: a file cannot be written.
        """
        from bubbleviz.cli.terminal import deliver

        contents = {file: content(name) for file, name in self.formats.items()}
        deliver(contents, print_result, inputs=inputs, force=self.force, warnings=warnings)


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
        given.append((file, name or suffixed(file, known)))
    named = dict(given)
    if len(named) < len(given):
        raise UsageError("two outputs name the same file; give each its own")
    for file, name in named.items():
        if name not in known:
            continue
        if is_folder(file) and known[name].parts is None:
            raise UsageError(f"{file}: --{name} writes a file; leave the slash out")
        known[name].check()
        if known[name].binary and file == "-" and sys.stdout.isatty():
            raise OutputError(
                f"--{name} -: refusing to write binary data to a terminal; name a file or pipe it"
            )
    return named


def command(
    files: Mapping[str, str] | None = None, endings: Mapping[str, str] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return what makes a function a command, with options that typer reads from its signature.

    A parameter that is a dataclass becomes one option for each of its fields. ``outputs`` (see
    :class:`Outputs`) becomes ``-o``, an option for each format, and ``--force``. Every command has
    ``--anonymous``.

    Args:
        files: the formats that the command writes, with their lines in ``--help``.
        endings: formats of the command alone by the endings of their files.
    """
    formats = {name: name.replace("-", "_") for name in files or ()}

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        declared = signature(function, eval_str=True).parameters.values()
        groups: dict[str, Any] = {
            p.name: p.annotation for p in declared if is_dataclass(p.annotation)
        }
        groups.pop("outputs", None)

        @wraps(function)
        def with_options(**options: Any) -> None:
            options.pop("anonymous")
            for name, group in groups.items():
                values = {field.name: options.pop(field.name) for field in fields(group)}
                options[name] = group(**values)
            if files is not None:
                suffixed_files, force = options.pop("output") or (), options.pop("force")
                named = {name: options.pop(key) for name, key in formats.items()}
                options["outputs"] = Outputs(_formats(named, suffixed_files, endings or {}), force)
            function(**options)

        parameters: list[Parameter] = []
        for parameter in declared:
            if parameter.name in groups:
                parameters += _group_options(groups[parameter.name])
            elif parameter.name == "outputs":
                parameters += _output_options(files or {})
            else:
                parameters.append(parameter)
        parameters.append(_keyword("anonymous", _Anonymous, False))
        signed: Any = with_options
        signed.__signature__ = signature(function).replace(parameters=parameters)
        signed.__annotations__ = {p.name: p.annotation for p in parameters}
        return with_options

    return decorate


def _group_options(group: Any) -> Iterator[Parameter]:
    """Yield a parameter for each field of a dataclass."""
    hints = get_type_hints(group, include_extras=True)
    for field in fields(group):
        default = Parameter.empty if field.default is MISSING else field.default
        yield _keyword(field.name, hints[field.name], default)


def _output_options(files: Mapping[str, str]) -> Iterator[Parameter]:
    """Yield the parameters of the files that a command writes."""
    yield _keyword("output", Output, None)
    for name, summary in files.items():
        file = Annotated[str | None, option(summary, OUTPUTS, f"--{name}", metavar=FILE)]
        yield _keyword(name.replace("-", "_"), file, None)
    yield _keyword("force", Force, False)


def _keyword(name: str, annotation: Any, default: Any) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
