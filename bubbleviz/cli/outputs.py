"""The outputs of a command: the files it writes and the text it prints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from bubbleviz.cli.private_names import PrivateNames
from bubbleviz.cli.terminal import print_message, write_content
from bubbleviz.render.files import check_outputs, write_outputs
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

        Args:
            result: The result of the command, in which private names have not been replaced.
            content: Function that returns the content of a file, called as
                ``content(result, format, file)``.
            print_result: Function that prints the result. Not called if an output is ``-``, or if
                ``quiet`` is true.
            warnings: Messages to print on standard error, unless ``quiet`` is true.

        Raises:
            OutputError: A file cannot be written.
        """
        with time_step("render"):
            public = self.names.replaced(result)
            contents = {file: content(public, name, file) for file, name in self.formats.items()}
        files = {file: content for file, content in contents.items() if file != "-"}
        with time_step("write"):
            self.check(())
            write_outputs(files, force=self.force)
        for warning in () if self.quiet else warnings:
            print_message(warning, 0, self.names)
        with time_step("print"):
            piped = contents.get("-")
            if piped is not None:
                write_content(piped)
            elif not self.quiet:
                print_result(public)
