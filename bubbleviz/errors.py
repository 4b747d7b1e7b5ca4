"""Exceptions of bubbleviz.

    BubblevizError                  exit code 1
    ├── InputError                  a path without a profile
    ├── ProfileError                a file that cannot be read as a profile
    │   ├── SchemaError             a profile without a required table or column
    │   └── NothingToAnalyseError   a profile without anything to analyse
    ├── MismatchError               profiles that do not belong together
    ├── OutputError                 an output that exists already, or cannot be written
    ├── AnnotationError             a framework to which ranges cannot be added in a training script
    └── UsageError                  exit code 2: a name or option value that does not exist

A message is one sentence that says what is wrong, where, and what to do next.
"""

from __future__ import annotations

#: Advice for a file that cannot be read.
EXPORT_AGAIN = "export it again with: nsys export --type sqlite REPORT.nsys-rep"


class BubblevizError(Exception):
    """Base class of all errors of bubbleviz. Its text can be shown to users.

    Args:
        message: The message.
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
    """A path does not exist, or contains no profile."""


class ProfileError(BubblevizError):
    """A file cannot be read as a profile."""


class SchemaError(ProfileError):
    """A profile has no table or column that the analysis needs."""


class NothingToAnalyseError(ProfileError):
    """A profile was read, but contains nothing to analyse."""


class MismatchError(BubblevizError):
    """Profiles cannot be analysed together."""


class OutputError(BubblevizError):
    """An output exists already or cannot be written."""


class AnnotationError(BubblevizError, RuntimeError):
    """A framework differs from what its annotations expect. It was not changed."""


class UsageError(BubblevizError):
    """The value of an option does not exist, or contradicts another option."""

    exit_code = 2
