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


def value_of(name: str) -> str:
    """Return the value of an input, or "" if it is not given."""
    return os.environ.get(f"INPUT_{name.upper().replace('-', '_')}", "").strip()


def words_of(name: str) -> list[str]:
    """Return the values of an input, which are separated and quoted as in a shell.

    Raises:
        SystemExit: A quote is not closed.
    """
    try:
        return shlex.split(value_of(name))
    except ValueError as error:
        text = value_of(name)[:200]
        fail(f"the input {name} is {text!r} ({error}); put names with quotes or blanks in quotes")
        raise SystemExit(2) from None


def bubbleviz(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of bubbleviz; what it prints is printed, and returned."""
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


def tell(variable: str, text: str) -> None:
    """Append to the file that the runner names, where one does."""
    if file := os.environ.get(variable):
        with Path(file).open("a", encoding="utf-8") as opened:
            opened.write(text)


def fail(reason: str) -> None:
    """Put a line where reviewers see it: an annotation of the job."""
    line = reason.strip().replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    print(f"::error title=bubbleviz::{line}", flush=True)


def measured(folder: Path) -> tuple[str, str]:
    """Measure the run, or take its report; return the path of the report and the drawing.

    A run without a pipeline is measured for its idle time, as ``bubbleviz gate`` does.

    Raises:
        BubblevizError: a path leads to nothing to read.
        SystemExit: it cannot be measured.
    """
    runs = words_of("run")
    if not runs:
        fail("the input run is empty; name profiles, a directory of them, or a report")
        raise SystemExit(2)
    if len(runs) == 1 and is_saved_report(runs[0]):
        return runs[0], ""
    report = str(folder / "report.json")
    outputs = ("-o", report, "-o", str(folder / "bubbles.svg"), "--force")
    command = "idle" if choose_command(runs)[0] == "idle" else "analyze"
    done = bubbleviz(command, *outputs, "--", *runs)
    if done.returncode:
        fail(done.stderr)
        raise SystemExit(done.returncode)
    return report, done.stdout


def judged(report: str, summary: Path) -> tuple[int, str]:
    """Check or compare a report, write the summary, and return the exit code and what was said."""
    code, said, texts = 0, "", []
    limits = [(name, word) for name in _LIMITS for word in words_of(name)]
    before = words_of("before")
    if not limits and not before:
        texts.append(f"{_NOTHING_REQUIRED}\n")
        print(f"::notice title=bubbleviz::{_NOTHING_REQUIRED}", flush=True)
    if limits:
        options = [word for name, value in limits for word in (f"--{name}", value)]
        done = bubbleviz("gate", *options, "-o", str(summary), "--force", "--", report)
        code, said = done.returncode, done.stderr or done.stdout
        texts.append(summary.read_text(encoding="utf-8") if summary.is_file() else "")
    if before:
        done = bubbleviz("compare", "-o", str(summary), "--force", "--", *before, report)
        code, said = (code, said) if code else (done.returncode, done.stderr)
        texts.append(summary.read_text(encoding="utf-8") if not done.returncode else "")
    summary.write_text("\n".join(filter(None, texts)), encoding="utf-8")
    return code, said


def main() -> int:
    """Run, and return the exit code.

    Raises:
        BubblevizError: the run, or its report, cannot be read.
        OSError: outputs cannot be written.
    """
    folder = Path(value_of("folder") or "bubbleviz")
    folder.mkdir(parents=True, exist_ok=True)
    summary = folder / "summary.md"
    summary.unlink(missing_ok=True)
    report, drawing = measured(folder)
    ratio = load(report).bubble_ratio
    code, said = judged(report, summary)
    if drawing:
        with summary.open("a", encoding="utf-8") as opened:
            # Longer than any fence in a name.
            fence = "`" * 12
            opened.write(f"\n{fence}text\n{drawing.rstrip()}\n{fence}\n")
    tell("GITHUB_STEP_SUMMARY", summary.read_text(encoding="utf-8"))
    passed = str(code == 0).lower()
    tell(
        "GITHUB_OUTPUT",
        f"ratio={'' if ratio is None else ratio}\npassed={passed}\nfolder={folder}\n",
    )
    # GitLab shows these metrics in a merge request, next to those of the target branch.
    metrics = "" if ratio is None else f"bubble_ratio {ratio}\n"
    (folder / "metrics.txt").write_text(metrics, encoding="utf-8")
    if code:
        fail(said)
    return code


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (BubblevizError, OSError) as error:
        fail(str(error))
        sys.exit(1)
