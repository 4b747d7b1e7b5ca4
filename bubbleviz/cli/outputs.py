"""The outputs of a command: the files it writes and the text it prints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TypeVar

from bubbleviz.cli.private_names import PrivateNames
from bubbleviz.cli.terminal import print_message, report_error, show_activity, write_content
from bubbleviz.errors import BubblevizError, OutputError
from bubbleviz.render.files import check_outputs, write_possible_outputs
from bubbleviz.timing import time_step

ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class Outputs:
    """The files that a command writes, and how the command prints its result.

    Attributes:
        formats: Format of each output file, keyed by the path of the file.
        force: Whether existing files may be replaced.
        quiet: Whether to suppress warnings and results.
        inputs: Paths of the input files, which must not be overwritten. :meth:`check` adds paths.
        names: Recorder of private names, which also replaces them in all outputs.
    """

    formats: Mapping[str, str]
    force: bool
    quiet: bool = False
    inputs: list[str] = field(default_factory=list)
    names: PrivateNames = field(default_factory=PrivateNames)

    @property
    def public_formats(self) -> dict[str, str]:
        """Format of each output file, keyed by its path without private names."""
        return {self.names.text(file): name for file, name in self.formats.items()}

    def check(self, inputs: Iterable[str | None]) -> None:
        """Check, before the analysis starts, that all outputs can be written.

        Args:
            inputs: Paths of files that the command reads. None entries are ignored.

        Raises:
            UsageError: Two outputs are the same file.
            OutputError: An output exists and must not be replaced, is an input, or is in a
                directory that does not exist.
        """
        self.inputs.extend(path for path in inputs if path is not None)
        self.names.note_paths([*self.inputs, *self.formats])
        check_outputs(list(self.formats), self.inputs, force=self.force)

    def deliver(
        self,
        result: ResultT,
        content: Callable[[ResultT, str, str], str | bytes],
        print_result: Callable[[ResultT], None],
        *,
        warnings: Sequence[str] = (),
    ) -> None:
        """Write all output files, print warnings, and print the result.

        If an output is ``-``, its content is printed instead of the result. With ``--anonymous``,
        private names in the result are replaced before it is rendered.

        If some outputs cannot be made, the others are written, the result is printed, and each
        output that was not written is reported. If no output can be made, nothing is printed.

        Args:
            result: The result of the command, in which private names have not been replaced.
            content: Function that returns the content of a file, called as
                ``content(result, format, file)``.
            print_result: Function that prints the result. Not called if an output is ``-``, or if
                ``quiet`` is true.
            warnings: Messages to print on standard error, unless ``quiet`` is true.

        Raises:
            BubblevizError: No output can be made.
            OutputError: Some of the outputs cannot be made.
        """
        contents: dict[str, str | bytes] = {}
        failures: dict[str, BubblevizError] = {}
        activity = show_activity("writing files") if self.formats else nullcontext()
        with time_step("render"), activity:
            public = self.names.replaced(result)
            for file, name in self.formats.items():
                try:
                    contents[file] = content(public, name, file)
                except BubblevizError as error:
                    failures[file] = error
        with time_step("write"):
            failures |= self._write_files(contents)
        if failures and len(failures) == len(self.formats):
            raise next(iter(failures.values()))
        for warning in () if self.quiet else warnings:
            print_message(warning, 0, self.names)
        with time_step("print"):
            if "-" in contents:
                write_content(contents["-"])
            elif "-" not in self.formats and not self.quiet:
                print_result(public)
        if failures:
            raise self._report_failures(failures)

    def _write_files(self, contents: Mapping[str, str | bytes]) -> dict[str, OutputError]:
        """Write the files that can be written, and return the errors of the others by path.

        The paths are checked again, because some inputs are known only after they have been read.

        Args:
            contents: Content of each output. Standard output (``-``) is ignored.
        """
        errors: dict[str, OutputError] = {}
        accepted: dict[str, str | bytes] = {}
        self.names.note_paths(self.inputs)
        for file, content in contents.items():
            if file == "-":
                continue
            try:
                check_outputs([file], self.inputs, force=self.force)
            except OutputError as error:
                errors[file] = error
            else:
                accepted[file] = content
        return errors | write_possible_outputs(accepted, force=self.force)

    def _report_failures(self, failures: Mapping[str, BubblevizError]) -> OutputError:
        """Print a message for each output that was not written, except for the last output.

        Args:
            failures: Errors, keyed by the path of the output. Must not be empty.

        Returns:
            The error for the last output. Its exit code is 1, whatever the reason was.
        """
        errors = []
        for file, failure in failures.items():
            names_file = str(failure).startswith(f"{file}: ")
            message = str(failure) if names_file else f"{file} was not written: {failure}"
            errors.append(OutputError(message, paths=failure.paths, hosts=failure.hosts))
        for error in errors[:-1]:
            report_error(error, self.names)
        return errors[-1]
