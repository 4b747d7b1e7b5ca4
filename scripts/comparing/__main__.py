"""Compare what two versions of bubbleviz print and write: ``scripts/compare_outputs OLD NEW``.

Every command runs on the fixtures, on about 100 synthetic runs in all formats, and on the real
files in BUBBLEVIZ_DATA. Outputs are normalized, and differences are written as unified diffs. The
exit code is 0 if there are no differences other than those that scripts/comparing/allowed.toml
allows. It is 1 if there are other differences, and 2 if the comparison cannot be made.

A tree's results are kept until its package changes, so a second comparison only runs NEW. A full
run of one tree takes some minutes of CPU time. --only selects cases.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from scripts.comparing.cases import list_cases
from scripts.comparing.differing import (
    Difference,
    Rule,
    differences_of,
    read_rules,
    unexplained_lines,
)
from scripts.comparing.running import (
    ComparisonError,
    Store,
    Tree,
    digest,
    key_of_tree,
    open_tree,
    run_cases,
)

_HERE = Path(__file__).parent
_ALLOWED = _HERE / "allowed.toml"
#: Suffix of the second tree's key if both trees are the same version.
_AGAIN = "-again"
#: Number of differences that the summary lists.
_MAX_LISTED = 60


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare two trees, and return the exit code."""
    options = _build_parser().parse_args(arguments)
    try:
        return _compare(options)
    except ComparisonError as error:
        print(f"compare_outputs: {error}", file=sys.stderr)
        return 2


def _build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="scripts/compare_outputs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("old", type=Path, help="clone or worktree of the old version")
    parser.add_argument("new", type=Path, help="clone or worktree of the new version")
    default = Path("build/compared")
    parser.add_argument("--work", type=Path, default=default, help=f"kept files [{default}]")
    parser.add_argument("--only", metavar="GLOB", default="*", help="cases to compare, by name")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N")
    parser.add_argument("--list", action="store_true", help="list the selected cases only")
    parser.add_argument(
        "--allowed", type=Path, default=_ALLOWED, help="file of allowed differences"
    )
    return parser


def _compare(options: argparse.Namespace) -> int:
    """Run the selected cases with both versions and report the differences.

    Returns:
        1 if there is a difference that no rule allows, otherwise 0.
    """
    real = Path(os.environ["BUBBLEVIZ_DATA"]).resolve() if "BUBBLEVIZ_DATA" in os.environ else None
    if real is None:
        print("BUBBLEVIZ_DATA is not set: cases with real files are left out")
    work = options.work.resolve()
    store = Store(work, _ensure_inputs(work, real))
    all_cases = list_cases(store.inputs / "in", real)
    cases = [case for case in all_cases if fnmatchcase(case.name, options.only)]
    if options.list:
        print(*(case.name for case in cases), sep="\n")
        return 0
    old, new = open_tree(options.old), open_tree(options.new)
    if old.key == new.key:
        # A comparison of a version with itself shows which outputs are not reproducible.
        new = replace(new, key=new.key + _AGAIN)
    rules = read_rules(options.allowed)
    run_cases((old, new), cases, store, real=real, jobs=options.jobs, show_progress=_show_progress)
    _refuse_changed_trees((old, new), store)
    differences: list[Difference] = []
    for case in cases:
        results = [store.read_result(tree.key, case) for tree in (old, new)]
        assert results[0] is not None
        assert results[1] is not None
        differences += differences_of(case.name, results[0], results[1], store)
    folder = work / "differences" / f"{old.key}-{new.key}"
    unexplained = _write_differences(differences, rules, folder)
    _show_summary(len(cases), differences, unexplained, folder)
    if len(cases) == len(all_cases):
        _show_unused(rules)
    return int(bool(unexplained))


def _refuse_changed_trees(trees: Sequence[Tree], store: Store) -> None:
    """Discard the results of trees that were edited while their commands were running.

    Raises:
        ComparisonError: A tree was edited.
    """
    for tree in trees:
        if key_of_tree(tree.folder) != tree.key.removesuffix(_AGAIN):
            store.forget(tree.key)
            raise ComparisonError(f"{tree.folder}: changed while its commands ran; start again")


def _ensure_inputs(work: Path, real: Path | None) -> Path:
    """Return the folder that contains the inputs, after creating any missing inputs."""
    source = (_HERE / "inputs.py").read_bytes()
    folder = work / f"inputs-{digest(source, str(real).encode())}"
    if not folder.exists():
        # If an earlier comparison has created the inputs, the planters are not needed.
        from scripts.comparing.inputs import write_inputs

        print("planting the inputs", flush=True)
        work.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=work) as name:
            unfinished = Path(name) / "inputs"
            write_inputs(unfinished / "in", real)
            if not folder.exists():
                unfinished.rename(folder)
    return folder


def _show_progress(n_done: int, total: int) -> None:
    if n_done == total or n_done % 50 == 0:
        print(f"{n_done} of {total} cases ran", flush=True)


def _write_differences(
    differences: Sequence[Difference], rules: Sequence[Rule], folder: Path
) -> list[tuple[Difference, list[str]]]:
    """Write a diff for each difference.

    Return the differences that no rule explains, with their lines.
    """
    shutil.rmtree(folder, ignore_errors=True)
    unexplained = []
    for difference in differences:
        left = unexplained_lines(difference, rules)
        kind = "unexplained" if left else "explained"
        path = folder / kind / difference.case / f"{difference.file}.diff"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join([*difference.diff, ""]), encoding="utf-8")
        if left:
            unexplained.append((difference, left))
    return unexplained


def _show_summary(
    cases: int,
    differences: Sequence[Difference],
    unexplained: Sequence[tuple[Difference, list[str]]],
    folder: Path,
) -> None:
    """Print the unexplained differences and the number of differing cases.

    Args:
        cases: Number of cases that were run.
        differences: All differences.
        unexplained: (difference, lines that no rule allows) pairs.
        folder: Folder that contains the diffs.
    """
    for difference, lines in unexplained[:_MAX_LISTED]:
        print(f"{difference.case} {difference.file}: {len(lines)} lines, as {lines[0][:100]}")
    if len(unexplained) > _MAX_LISTED:
        print(f"... and {len(unexplained) - _MAX_LISTED} more")
    differing = len({difference.case for difference in differences})
    explained = len(differences) - len(unexplained)
    print(
        f"{cases} cases, {cases - differing} of them without a difference; "
        f"{explained} outputs differ as allowed, {len(unexplained)} without a reason"
    )
    if differences:
        print(f"diffs: {folder}")


def _show_unused(rules: Sequence[Rule]) -> None:
    for rule in rules:
        if not rule.uses:
            print(f"allowed, but does not occur any more: {rule.cases} {rule.files}: {rule.reason}")


if __name__ == "__main__":
    sys.exit(main())
