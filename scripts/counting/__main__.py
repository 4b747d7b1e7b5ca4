"""Count the instructions of each stage of an analysis, and compare them with the budget."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from scripts.counting.budget import FILE, Budget, format_failure, read_budget
from scripts.counting.counts import CountingError, count, environment, obstacle


def main(arguments: Sequence[str] | None = None) -> int:
    """Count and print instructions, compare them or renew the budget, and return the exit code."""
    parser = argparse.ArgumentParser(prog="scripts/instructions", description=__doc__)
    parser.add_argument("--renew", action="store_true", help="make the counts the budget")
    renew = parser.parse_args(arguments).renew
    try:
        if reason := obstacle():
            raise CountingError(reason)
        counts = count()
    except CountingError as error:
        print(f"instructions: {error}", file=sys.stderr)
        return 1
    this_environment = environment()
    budget = read_budget() if FILE.exists() else Budget(this_environment, {})
    print(budget.table(counts))
    if renew:
        FILE.write_text(Budget(this_environment, counts).toml(), encoding="utf-8")
        return 0
    if this_environment != budget.environment:
        print("The budget is for another Python, machine or packages, so no stage can fail")
    regressions = budget.regressions(counts, this_environment)
    if regressions:
        print(format_failure(regressions), file=sys.stderr)
    return 1 if regressions else 0


if __name__ == "__main__":
    sys.exit(main())
