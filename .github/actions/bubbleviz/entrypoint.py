"""Entry point of the action: it runs bubbleviz and writes the summary and outputs of the job.

Inputs are environment variables (``INPUT_RUN`` and so on, see action.yml), and so are the paths of
the summary and output files. The exit codes are the same as for ``bubbleviz gate``.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

from bubbleviz import BubblevizError, load
from bubbleviz.analyses.first_look import choose_command
from bubbleviz.report.saved import is_saved_report

#: Inputs that are options of ``bubbleviz gate``, with one or more values.
_LIMITS = ("max-bubble", "max-time", "baseline", "max-increase", "promised-by")
#: Note in the summary if there are no limits, so that the job cannot fail.
_NOTHING_REQUIRED = "No limit was given, so nothing was required of this run; see max-bubble."
#: Width of the drawing in columns, which fits the page of a job.
_WIDTH = "110"


def get_input(name: str) -> str:
    """Return the value of an input, or "" if it is not given."""
    return os.environ.get(f"INPUT_{name.upper().replace('-', '_')}", "").strip()


def split_input(name: str) -> list[str]:
    """Return the values of an input, which are separated and quoted as in a shell.

    Raises:
        SystemExit: A quote is not closed.
    """
    try:
        return shlex.split(get_input(name))
    except ValueError as error:
        text = get_input(name)[:200]
        print_error(
            f"the input {name} is {text!r} ({error}); put names with quotes or blanks in quotes"
        )
        raise SystemExit(2) from None


def run_bubbleviz(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of bubbleviz, print its output, and return it."""
    print(f"$ bubbleviz {shlex.join(words)}", flush=True)
    done = subprocess.run(
        [sys.executable, "-m", "bubbleviz", *words],
        env={**os.environ, "COLUMNS": _WIDTH, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout, end="", flush=True)
    print(done.stderr, end="", file=sys.stderr, flush=True)
    return done


def append_to_runner_file(variable: str, text: str) -> None:
    """Append to a file of the runner, whose path is in an environment variable, if it is set."""
    if file := os.environ.get(variable):
        with Path(file).open("a", encoding="utf-8") as opened:
            opened.write(text)


def print_error(reason: str) -> None:
    """Print an error as an annotation of the job, which reviewers see."""
    line = reason.strip().replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    print(f"::error title=bubbleviz::{line}", flush=True)


def measure_run(folder: Path) -> tuple[str, str]:
    """Measure the run, or use its report. Return the path of the report, and the drawing or "".

    A run without a pipeline is measured for its idle time, as ``bubbleviz gate`` does.

    Raises:
        BubblevizError: A path contains nothing to read.
        SystemExit: The run cannot be measured.
    """
    runs = split_input("run")
    if not runs:
        print_error("the input run is empty; give profiles, a directory of profiles, or a report")
        raise SystemExit(2)
    if len(runs) == 1 and is_saved_report(runs[0]):
        return runs[0], ""
    report = str(folder / "report.json")
    outputs = ("-o", report, "-o", str(folder / "bubbles.svg"), "--force")
    command = "idle" if choose_command(runs)[0] == "idle" else "analyze"
    done = run_bubbleviz(command, *outputs, "--", *runs)
    if done.returncode:
        print_error(done.stderr)
        raise SystemExit(done.returncode)
    return report, done.stdout


def check_report(report: str, summary: Path) -> tuple[int, str]:
    """Check or compare a report, and write the summary. Return the exit code and the message."""
    code, message, texts = 0, "", []
    limits = [(name, word) for name in _LIMITS for word in split_input(name)]
    before_paths = split_input("before")
    if not limits and not before_paths:
        texts.append(f"{_NOTHING_REQUIRED}\n")
        print(f"::notice title=bubbleviz::{_NOTHING_REQUIRED}", flush=True)
    if limits:
        options = [word for name, value in limits for word in (f"--{name}", value)]
        done = run_bubbleviz("gate", *options, "-o", str(summary), "--force", "--", report)
        code, message = done.returncode, done.stderr or done.stdout
        texts.append(summary.read_text(encoding="utf-8") if summary.is_file() else "")
    if before_paths:
        done = run_bubbleviz("compare", "-o", str(summary), "--force", "--", *before_paths, report)
        code, message = (code, message) if code else (done.returncode, done.stderr)
        texts.append(summary.read_text(encoding="utf-8") if not done.returncode else "")
    summary.write_text("\n".join(filter(None, texts)), encoding="utf-8")
    return code, message


def main() -> int:
    """Run the action, and return its exit code.

    Raises:
        BubblevizError: The run or its report cannot be read.
        OSError: An output cannot be written.
    """
    folder = Path(get_input("folder") or "bubbleviz")
    folder.mkdir(parents=True, exist_ok=True)
    summary = folder / "summary.md"
    summary.unlink(missing_ok=True)
    report, drawing = measure_run(folder)
    ratio = load(report).bubble_ratio
    code, message = check_report(report, summary)
    if drawing:
        with summary.open("a", encoding="utf-8") as opened:
            # Longer than any fence inside a name.
            fence = "`" * 12
            opened.write(f"\n{fence}text\n{drawing.rstrip()}\n{fence}\n")
    append_to_runner_file("GITHUB_STEP_SUMMARY", summary.read_text(encoding="utf-8"))
    passed_text = str(code == 0).lower()
    append_to_runner_file(
        "GITHUB_OUTPUT",
        f"ratio={'' if ratio is None else ratio}\npassed={passed_text}\nfolder={folder}\n",
    )
    # GitLab shows these metrics in a merge request, next to those of the target branch.
    metrics = "" if ratio is None else f"bubble_ratio {ratio}\n"
    (folder / "metrics.txt").write_text(metrics, encoding="utf-8")
    if code:
        print_error(message)
    return code


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (BubblevizError, OSError) as error:
        print_error(str(error))
        sys.exit(1)
