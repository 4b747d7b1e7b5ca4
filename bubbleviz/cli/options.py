"""The options that several commands share, alone and in groups."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from bubbleviz.cli.completion import beginning, convention_names
from bubbleviz.cli.help import NAMES, OUTPUTS, READING, SELECTION
from bubbleviz.errors import OutputError, UsageError
from bubbleviz.model.private_names import anonymous, hide
from bubbleviz.model.values import frozen
from bubbleviz.render.formats import is_folder, renderers, suffixed

if TYPE_CHECKING:
    from bubbleviz.model.window import Window as RunWindow
    from bubbleviz.report.report import Report


#: The value of every option that names a file.
FILE = "FILE"


def output(name: str, summary: str) -> Any:
    """Return the option that names a file, or ``-``, to write in one format."""
    return typer.Option(f"--{name}", metavar=FILE, help=summary, rich_help_panel=OUTPUTS)


RunProfiles = Annotated[
    list[str],
    typer.Argument(
        metavar="PROFILES...",
        help="Profiles of one run, or directories of them: Nsight Systems exports (.sqlite, "
        "_pqtdir, _arwdir) or reports (.nsys-rep), profiles of AMD's rocprofv3 (.db, .rpd), "
        "PyTorch traces (.json, .json.gz), XLA profiles (.xplane.pb, .trace.json.gz), tables of "
        "operations (.csv, .parquet, .arrow).",
    ),
]
Output = Annotated[
    list[str] | None,
    typer.Option(
        "--output",
        "-o",
        metavar=FILE,
        help="Write as its suffix says; repeat for several.",
        rich_help_panel=OUTPUTS,
    ),
]
Force = Annotated[
    bool,
    typer.Option("--force", "-f", help="Replace existing files.", rich_help_panel=OUTPUTS),
]
Skip = Annotated[
    int,
    typer.Option(
        min=0,
        metavar="N",
        help="Leave the first N iterations out of averages.",
        rich_help_panel=SELECTION,
    ),
]
Conventions = Annotated[
    list[str] | None,
    typer.Option(
        "--convention",
        metavar="NAME|FILE",
        help="Convention of range names, if not recognised.",
        rich_help_panel=NAMES,
        autocompletion=beginning(convention_names),
    ),
]
Additions = Annotated[
    list[str] | None,
    typer.Option(
        "--convention",
        metavar="NAME|FILE",
        help="Names further kernels of communication.",
        rich_help_panel=NAMES,
        autocompletion=beginning(convention_names),
    ),
]
Window = Annotated[
    str | None,
    typer.Option(
        metavar="PART",
        help="Only iteration:5-8, or time:1.5s-3s of profile 1.",
        rich_help_panel=SELECTION,
    ),
]
KeepExport = Annotated[
    bool,
    typer.Option(
        "--keep-export",
        help="Keep exports made of .nsys-rep reports.",
        rich_help_panel=READING,
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        "--jobs",
        "-j",
        min=1,
        metavar="N",
        help="Processes, or threads of one profile [all]",
        rich_help_panel=READING,
    ),
]


def _hide_names(given: bool) -> bool:
    if given:
        hide()
    return given


Anonymous = Annotated[
    bool,
    typer.Option(
        "--anonymous",
        callback=_hide_names,
        is_eager=True,
        help="Hide hosts, files, threads, functions.",
        rich_help_panel=NAMES,
    ),
]
JsonFile = Annotated[str | None, output("json", "JSON, for programs")]
CsvFile = Annotated[str | None, output("csv", "CSV")]
OrderFile = Annotated[str | None, output("csv", "order of operations as PyTorch's CSV")]
LoweredFile = Annotated[str | None, output("comms", "that with sends and receives (.comms.csv)")]
SvgFile = Annotated[str | None, output("svg", "picture as SVG")]
PdfFile = Annotated[str | None, output("pdf", "picture as PDF, for a paper")]
PngFile = Annotated[str | None, output("png", "picture as PNG, in pixels")]
MarkdownFile = Annotated[str | None, output("markdown", "summary for a pull request")]


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

    def given(self) -> bool:
        """Return whether any of them was given."""
        return bool(self.skip or self.convention or self.jobs)

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
                jobs=jobs_or_cores(self.jobs),
                progress=bars,
            )
        return anonymous(report)


def jobs_or_cores(jobs: int | None) -> int:
    """Return the number of jobs: that given, or as many as there are cores."""
    from bubbleviz.interpret.fleet.run_recordings import cores

    return jobs or cores()


def formats_by_file(
    files: Mapping[str, str | None], outputs: Sequence[str] | None = None
) -> dict[str, str]:
    """Return the output format of each file that an option names.

    Args:
        files: file by format; None where the option was not given.
        outputs: further files, of these formats by their suffixes.

    Raises:
        UsageError: two formats have the same file, or a suffix is of none of them.
        OutputError: a format needs a package that is not installed, or is binary and standard
            output is a terminal.
    """
    given = [(file, name) for name, file in files.items() if file is not None]
    given += [(file, suffixed(file, files)) for file in outputs or ()]
    named = dict(given)
    if len(named) < len(given):
        raise _same_file()
    known = {renderer.name: renderer for renderer in renderers()}
    for file, name in named.items():
        if is_folder(file) and known[name].parts is None:
            raise UsageError(f"{file}: --{name} writes a file; leave the slash out")
        known[name].check()
        if known[name].binary and file == "-" and sys.stdout.isatty():
            raise OutputError(
                f"--{name} -: refusing to write binary data to a terminal; name a file or pipe it"
            )
    return named


def formats_by_ending(
    files: Mapping[str, str | None],
    own: Mapping[str, str | None],
    endings: Mapping[str, str],
    outputs: Sequence[str],
) -> dict[str, str]:
    """Return the output format of each file, where some are of one command alone.

    Args:
        files: as :func:`formats_by_file` takes them.
        own: likewise, of formats that the command alone has.
        endings: these formats by the endings of their files.
        outputs: further files, of any of these formats.

    Raises:
        UsageError: two formats have the same file, or a suffix is of none of them.
        OutputError: see :func:`formats_by_file`.
    """
    rest, named = [], [(file, name) for name, file in own.items() if file is not None]
    for file in outputs:
        name = next((n for end, n in endings.items() if file.lower().endswith(end)), None)
        if name is None:
            rest.append(file)
        else:
            named.append((file, name))
    known = formats_by_file(files, rest)
    if len({*known, *(file for file, _ in named)}) < len(known) + len(named):
        raise _same_file()
    return {**known, **dict(named)}


def _same_file() -> UsageError:
    return UsageError("two outputs name the same file; give each its own")


# Option groups: a command takes a dataclass, and each of its fields is an option.
#
# Typer reads options from a command's signature, so groups are expanded there.


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command one option for each field of the dataclasses that it takes."""
    declared = signature(command, eval_str=True).parameters.values()
    groups: dict[str, type[Any]] = {
        p.name: p.annotation for p in declared if _is_group(p.annotation)
    }

    @wraps(command)
    def with_grouped(**options: Any) -> None:
        for name, group in groups.items():
            values = {field.name: options.pop(field.name) for field in fields(group)}
            options[name] = group(**values)
        command(**options)

    parameters: list[Parameter] = []
    for parameter in declared:
        group = groups.get(parameter.name)
        parameters += [parameter] if group is None else _parameters(group)
    return _signed(with_grouped, parameters)


def with_outputs(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command ``-o`` and an option for each renderer, as ``outputs`` (renderer by file)."""
    by_name = {renderer.name: renderer for renderer in renderers()}
    arguments = {name: name.replace("-", "_") for name in by_name}

    @wraps(command)
    def with_collected(**options: Any) -> None:
        suffixed = options.pop("output")
        files = {name: options.pop(argument) for name, argument in arguments.items()}
        formats = formats_by_file(files, suffixed)
        command(**options, outputs={file: by_name[name] for file, name in formats.items()})

    added = [_parameter("output", Output, None)]
    for name, renderer in by_name.items():
        annotation = Annotated[str | None, output(name, renderer.summary)]
        added.append(_parameter(arguments[name], annotation, None))
    parameters: list[Parameter] = []
    for parameter in signature(command, eval_str=True).parameters.values():
        parameters += added if parameter.name == "outputs" else [parameter]
    return _signed(with_collected, parameters)


def with_anonymity(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the option that hides names of hosts, files, threads and functions."""

    @wraps(command)
    def with_hidden_names(**options: Any) -> None:
        options.pop("anonymous")
        command(**options)

    parameters = list(signature(command, eval_str=True).parameters.values())
    added = _parameter("anonymous", Anonymous, False)
    return _signed(with_hidden_names, [*parameters, added])


def _is_group(annotation: Any) -> bool:
    return isinstance(annotation, type) and is_dataclass(annotation)


def _parameters(group: type[Any]) -> Iterator[Parameter]:
    """Yield a parameter for each field of a dataclass."""
    hints = get_type_hints(group, include_extras=True)
    for field in fields(group):
        default = Parameter.empty if field.default is MISSING else field.default
        yield _parameter(field.name, hints[field.name], default)


def _parameter(name: str, annotation: Any, default: Any) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _signed(command: Callable[..., None], parameters: Sequence[Parameter]) -> Callable[..., None]:
    """Return a command with another signature."""
    signed = signature(command).replace(parameters=parameters)
    command.__signature__ = signed  # type: ignore[attr-defined]  # PEP 362
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command
