"""Option groups: a command takes a dataclass, and each of its fields is an option.

Typer reads options from a command's signature, so groups are expanded there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from inspect import Parameter, signature
from typing import Annotated, Any, get_type_hints

from bubbleviz.cli.options import Anonymous, Output, formats_by_file, output
from bubbleviz.render.formats import renderers


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
