"""Outputs of a command: the files that it is to write, and what it prints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from bubbleviz.cli.private_names import PrivateNames
from bubbleviz.cli.terminal import complain, pass_on
from bubbleviz.render.files import check_outputs, write_outputs
from bubbleviz.timing import step

ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class Outputs:
    """The files that a command is to write.

    Attributes:
        formats: the format of each file, by its name.
        force: whether existing files are replaced.
        quiet: whether neither warnings nor results are printed.
        inputs: files that are read, once :meth:`check` has them; no output may replace one.
        names: The private names that outputs replace.
    """

    formats: Mapping[str, str]
    force: bool
    quiet: bool = False
    inputs: list[str] = field(default_factory=list)
    names: PrivateNames = field(default_factory=PrivateNames)

    def check(self, inputs: Iterable[str | None]) -> None:
        """Refuse, before any work, files that cannot be written, or are read; None is no file.

        Raises:
            UsageError: an output is named twice.
            OutputError: an output exists, is an input, or its directory does not exist.
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
        """Write all files, print warnings, then fill standard output.

        With ``--anonymous``, private names in the result are replaced here, before it is rendered.

        Args:
            result: The result of the command, with real names.
            content: Returns the content of a file from the result, a format and the file's name.
            print_result: Prints the result, if no file is written to standard output.
            warnings: Lines for standard error.

        Raises:
            OutputError: a file cannot be written.
        """
        with step("render"):
            shown = self.names.replaced(result)
            contents = {file: content(shown, name, file) for file, name in self.formats.items()}
        files = {file: content for file, content in contents.items() if file != "-"}
        with step("write"):
            self.check(())
            write_outputs(files, force=self.force)
        for warning in () if self.quiet else warnings:
            complain(warning, 0, self.names)
        with step("print"):
            piped = contents.get("-")
            if piped is not None:
                pass_on(piped)
            elif not self.quiet:
                print_result(shown)
