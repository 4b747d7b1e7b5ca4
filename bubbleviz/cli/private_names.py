"""The option ``--anonymous``, which replaces names of hosts, files, threads, processes and GPUs.

The library works with the real names. The command line replaces them only in its outputs:
:meth:`PrivateNames.replaced` replaces the names in a finished result before it is rendered, and
:func:`bubbleviz.cli.terminal.print_message` passes messages through :meth:`PrivateNames.text`. The
same name has the same stand-in in all outputs of a command.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:
    from bubbleviz.cli.stand_ins import StandIns
    from bubbleviz.errors import BubblevizError

#: The option of every command.
ANONYMOUS = "--anonymous"

ValueT = TypeVar("ValueT")


@runtime_checkable
class ListsPaths(Protocol):
    """A result with the list of files that it was measured from."""

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths of the files that were read."""


@runtime_checkable
class ListsHosts(Protocol):
    """A result with the list of hosts that it was measured from."""

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names of the hosts and of the clocks, which are usually named after hosts."""


class PrivateNames:
    """The private names in one run of the command line, and their stand-ins.

    Args:
        hidden: Whether names are replaced. If False, all methods return their input unchanged.
    """

    def __init__(self, *, hidden: bool = False) -> None:
        self._stand_ins: StandIns | None = None
        if hidden:
            # Imported here because it loads numpy, and few runs need it.
            from bubbleviz.cli.stand_ins import StandIns, list_public_words

            self._stand_ins = StandIns(list_public_words())

    def note_paths(self, paths: Iterable[str]) -> None:
        """Note paths of files and directories."""
        if self._stand_ins is not None:
            for path in paths:
                self._stand_ins.add_path(path)

    def note_hosts(self, hosts: Iterable[str]) -> None:
        """Note names of hosts."""
        if self._stand_ins is not None:
            for host in hosts:
                self._stand_ins.add_host(host)

    def note(self, *results: object) -> None:
        """Note the names of files and hosts in results; see ``ListsPaths`` and ``ListsHosts``."""
        for result in results if self._stand_ins is not None else ():
            if isinstance(result, ListsPaths):
                self.note_paths(result.paths)
            if isinstance(result, ListsHosts):
                self.note_hosts(result.hosts)

    def replaced(self, result: ValueT) -> ValueT:
        """Return a copy of a result with stand-ins for private names.

        Args:
            result: A text, a dataclass, a struct, or tuples, lists and mappings of them. The names
                listed by it, or by the elements of a tuple, are noted first.
        """
        if self._stand_ins is None:
            return result
        self.note(*(result if isinstance(result, tuple) else [result]))
        replaced: ValueT = self._stand_ins.replace_in_value(result)
        return replaced

    def text(self, text: str) -> str:
        """Return a text with stand-ins for private names."""
        return text if self._stand_ins is None else self._stand_ins.replace_in_text(text)

    def note_error(self, error: BubblevizError) -> None:
        """Note the paths and hosts that an error lists because its message contains them."""
        self.note_paths(error.paths)
        self.note_hosts(error.hosts)


@dataclass(frozen=True)
class Invocation:
    """Properties of a run of the command line, for its command.

    Attributes:
        command_line: The command line, quoted for a shell.
        names: The private names of this run.
    """

    command_line: str = "bubbleviz"
    names: PrivateNames = field(default_factory=PrivateNames)
