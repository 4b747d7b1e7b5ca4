"""Every way in which bubbleviz refuses, as one tree.

    BubblevizError                  exit 1
    ├── InputError                  a path that leads to no profile
    ├── ProfileError                the file is no profile that can be read
    │   ├── SchemaError             it is one, but lacks a table or column that is needed
    │   └── NothingToAnalyseError   it is one, but recorded nothing that can be analysed
    ├── MismatchError               the profiles do not belong together
    ├── OutputError                 an output exists already, or cannot be written
    ├── AnnotationError             a framework whose ranges cannot be added in a training script
    └── UsageError                  exit 2: a name or option value that does not exist

A message is one sentence: what, where, what to do next. ``str(error)`` is that sentence.
"""

from __future__ import annotations

#: What to do with a file that cannot be read.
EXPORT_AGAIN = "export it again with: nsys export --type sqlite REPORT.nsys-rep"


class BubblevizError(Exception):
    """Anything that bubbleviz refuses; its text is fit to be shown to a user.

    Args:
        message: The sentence.
        paths: Paths in the message that the user did not give.
        hosts: Names of hosts in the message.
    """

    exit_code = 1

    def __init__(
        self,
        message: str = "",
        *,
        paths: list[str] | tuple[str, ...] = (),
        hosts: list[str] | tuple[str, ...] = (),
    ):
        super().__init__(message)
        self.paths = tuple(paths)
        self.hosts = tuple(hosts)


class InputError(BubblevizError):
    """A path that does not exist, or that leads to no profile."""


class ProfileError(BubblevizError):
    """The file cannot be read as a profile."""


class SchemaError(ProfileError):
    """The profile lacks a table or a column that the analysis needs."""


class NothingToAnalyseError(ProfileError):
    """The profile was read, and holds nothing that can be analysed."""


class MismatchError(BubblevizError):
    """Profiles that cannot be analysed together."""


class OutputError(BubblevizError):
    """An output that exists already or cannot be written."""


class AnnotationError(BubblevizError, RuntimeError):
    """A framework that is not what its annotations expect; nothing of it was changed."""


class UsageError(BubblevizError):
    """An option whose value names nothing, or that contradicts another."""

    exit_code = 2
