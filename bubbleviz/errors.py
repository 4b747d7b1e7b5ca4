"""The exceptions that bubbleviz raises.

    BubblevizError                  exit code 1
    ├── InputError                  a path does not exist or contains no profile
    ├── ProfileError                a file cannot be read as a profile
    │   ├── SchemaError             a profile lacks a required table or column
    │   └── NothingToAnalyzeError   a profile contains nothing to analyze
    ├── MismatchError               profiles do not belong to the same run
    ├── OutputError                 an output file exists already or cannot be written
    ├── AnnotationError             ranges cannot be added to the training framework
    └── UsageError                  exit code 2: a name or an option value is invalid

A message is one sentence that says what is wrong, where, and what to do next.
"""

from __future__ import annotations

#: Advice for a file that cannot be read.
EXPORT_AGAIN = "export it again with: nsys export --type sqlite REPORT.nsys-rep"
#: Advice for files of a profiler whose other output can be read.
RECORD_WITH_NSYS = "profile again with: nsys profile -t cuda,nvtx"
RECORD_WITH_ROCPROF = (
    "profile again with: rocprofv3 --hip-trace --kernel-trace --memory-copy-trace --marker-trace "
    "--output-format rocpd"
)


def describe_installation(extra: str) -> str:
    """Describe how to install an optional extra, as a clause that starts with "install".

    The command installs from a clone of the repository, because no package index has bubbleviz.

    Args:
        extra: Name of the extra, as in ``pyproject.toml``.
    """
    return f"install it in your clone of bubbleviz with: pip install '.[{extra}]'"


class BubblevizError(Exception):
    """Base class of all bubbleviz exceptions. The message can be shown to users.

    Args:
        message: The message.
        paths: Paths in the message that the user did not specify.
        hosts: Host names in the message.
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
    """A path does not exist, or does not contain a profile."""


class ProfileError(BubblevizError):
    """A file cannot be read as a profile."""


class SchemaError(ProfileError):
    """A profile lacks a table or column that the analysis needs."""


class NothingToAnalyzeError(ProfileError):
    """A profile can be read, but contains nothing to analyze."""


class MismatchError(BubblevizError):
    """The profiles do not belong to the same run, so they cannot be analyzed together."""


class OutputError(BubblevizError):
    """An output file already exists or cannot be written."""


class AnnotationError(BubblevizError, RuntimeError):
    """A training framework differs from the version that its annotations expect.

    The framework is left unchanged.
    """


class UsageError(BubblevizError):
    """The value of an option is invalid, or contradicts another option."""

    exit_code = 2
