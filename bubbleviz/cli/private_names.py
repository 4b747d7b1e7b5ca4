"""Implements ``--anonymous``, which hides host, file, thread, process and GPU names.

The library always works with the real names. In its outputs, the command line replaces private
names with stand-ins such as ``host1``. :meth:`PrivateNames.replaced` replaces the names in a
finished result before it is rendered. :func:`bubbleviz.cli.terminal.print_message` replaces them in
messages with :meth:`PrivateNames.text`. A name gets the same stand-in in all of a command's
outputs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:
    from bubbleviz.cli.stand_ins import StandIns
    from bubbleviz.errors import BubblevizError

#: Name of the option. Every command accepts it.
ANONYMOUS = "--anonymous"

ValueT = TypeVar("ValueT")


@runtime_checkable
class ListsPaths(Protocol):
    """A result that lists the files it was measured from."""

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths of the files that were read."""


@runtime_checkable
class ListsHosts(Protocol):
    """A result that lists the hosts it was measured on."""

    @property
    def hosts(self) -> tuple[str, ...]:
        """Host and clock names. Clocks are usually named after their hosts."""


class PrivateNames:
    """Records private names while the command line runs, and replaces them with stand-ins.

    Args:
        hidden: Whether to replace names. If False, nothing is recorded, and all methods return
            their input unchanged.
    """

    def __init__(self, *, hidden: bool = False) -> None:
        self._stand_ins: StandIns | None = None
        if hidden:
            # Imported only when needed, because the module loads numpy and is rarely used.
            from bubbleviz.cli.stand_ins import StandIns, list_public_words

            self._stand_ins = StandIns(list_public_words())

    def note_paths(self, paths: Iterable[str]) -> None:
        """Record file and directory paths as private names."""
        if self._stand_ins is not None:
            for path in paths:
                self._stand_ins.add_path(path)

    def note_hosts(self, hosts: Iterable[str]) -> None:
        """Record hostnames as private names."""
        if self._stand_ins is not None:
            for host in hosts:
                self._stand_ins.add_host(host)

    def note(self, *results: object) -> None:
        """Record the files and hosts that results list as private names.

        Results that are neither ``ListsPaths`` nor ``ListsHosts`` are ignored.
        """
        for result in results if self._stand_ins is not None else ():
            if isinstance(result, ListsPaths):
                self.note_paths(result.paths)
            if isinstance(result, ListsHosts):
                self.note_hosts(result.hosts)

    def replaced(self, result: ValueT) -> ValueT:
        """Return a copy of a result with private names replaced by stand-ins.

        Args:
            result: A string, a dataclass, a struct, or nested tuples, lists and mappings of them.
                The files and hosts that the result (or an element of a tuple) lists are recorded
                before names are replaced.
        """
        if self._stand_ins is None:
            return result
        self.note(*(result if isinstance(result, tuple) else [result]))
        replaced: ValueT = self._stand_ins.replace_in_value(result)
        return replaced

    def text(self, text: str) -> str:
        """Return the text with private names replaced by stand-ins."""
        return text if self._stand_ins is None else self._stand_ins.replace_in_text(text)

    def note_error(self, error: BubblevizError) -> None:
        """Record the paths and hosts in an error's message."""
        self.note_paths(error.paths)
        self.note_hosts(error.hosts)


@dataclass(frozen=True)
class Invocation:
    """Properties of the current command-line invocation, for use by commands.

    Attributes:
        command_line: The command line, quoted for a shell.
        names: Recorder of private names, which also replaces them in outputs.
    """

    command_line: str = "bubbleviz"
    names: PrivateNames = field(default_factory=PrivateNames)
