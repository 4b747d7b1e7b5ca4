"""Private names: hosts, files, threads, processes and GPUs, and the stand-ins that replace them.

The library works with the real names. With ``--anonymous``, the command line replaces them once,
where a result becomes output: :meth:`PrivateNames.replaced` maps a finished result to the same
result with stand-ins before anything renders it, and messages for standard error pass through
:meth:`PrivateNames.text` in :func:`bubbleviz.cli.terminal.complain`. The same name has the same
stand-in in everything that one command writes.
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
    """A result that lists the files that it comes from."""

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths of the files that were read."""


@runtime_checkable
class ListsHosts(Protocol):
    """A result that lists the hosts that it comes from."""

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names of the hosts, and of clocks, which are mostly named after hosts."""


class PrivateNames:
    """The private names that one call of the command line meets, and their stand-ins.

    Args:
        hidden: Whether names are replaced. If False, nothing is noted or replaced.
    """

    def __init__(self, *, hidden: bool = False) -> None:
        self._stand_ins: StandIns | None = None
        if hidden:
            # Few commands need it, and it loads numpy.
            from bubbleviz.cli.stand_ins import StandIns, public_words

            self._stand_ins = StandIns(public_words())

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
        """Note the names of files and hosts that results list; other objects list none."""
        for result in results if self._stand_ins is not None else ():
            if isinstance(result, ListsPaths):
                self.note_paths(result.paths)
            if isinstance(result, ListsHosts):
                self.note_hosts(result.hosts)

    def replaced(self, result: ValueT) -> ValueT:
        """Return a result with stand-ins for the private names in it, or itself if none are hidden.

        Args:
            result: A text, a dataclass, a struct, or tuples, lists and mappings of them. The names
                that it lists, or that the elements of a tuple list, are noted first.
        """
        if self._stand_ins is None:
            return result
        self.note(*(result if isinstance(result, tuple) else [result]))
        replaced: ValueT = self._stand_ins.value(result)
        return replaced

    def text(self, text: str) -> str:
        """Return a text with stand-ins for the private names in it."""
        return text if self._stand_ins is None else self._stand_ins.text(text)

    def note_error(self, error: BubblevizError) -> None:
        """Note the names that an error says its message contains."""
        self.note_paths(error.paths)
        self.note_hosts(error.hosts)


@dataclass(frozen=True)
class Invocation:
    """What a call of the command line hands to its command.

    Attributes:
        command_line: The words of the call, as a shell reads them.
        names: The private names that it meets.
    """

    command_line: str = "bubbleviz"
    names: PrivateNames = field(default_factory=PrivateNames)
