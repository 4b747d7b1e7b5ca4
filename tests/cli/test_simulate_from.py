"""``simulate --from`` reads options that are not given from a report.

Error messages ask only for options that the report cannot supply.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.command_line import CommandLine


def test_a_report_alone_gives_schedule_sizes_and_times(cli: CommandLine, saved: Path) -> None:
    words = ("simulate", "--from", str(saved), "--json", "-")

    assert cli.json(*words) == cli.json(*words, "--schedule", "1f1b")


def test_schedules_named_one_by_one_are_all_compared(cli: CommandLine, saved: Path) -> None:
    words = ("simulate", "--from", str(saved), "--json", "-")
    repeated_option = cli.json(*words, "--schedule", "1f1b", "--schedule", "zb-h1")

    assert repeated_option == cli.json(*words, "--schedule", "1f1b,zb-h1")


def test_a_report_with_an_unknown_schedule_lacks_only_its_name(
    saved: Path, tmp_path: Path, cli: CommandLine
) -> None:
    document = json.loads(saved.read_text())
    document["schedule"]["name"] = None
    unknown = tmp_path / "unknown.json"
    unknown.write_text(json.dumps(document))

    message = cli.refused("simulate", "--from", str(unknown), code=2)

    assert "pass --schedule NAME, or --plan FILE; the report does not name a schedule" in message
    assert cli.printed("simulate", "--from", str(unknown), "--schedule", "gpipe")


def test_only_missing_options_are_asked_for(cli: CommandLine) -> None:
    assert "pass --tb and --tw, or a report" in cli.refused("simulate", "--tf", "1", code=2)
    assert "pass --tw, or a report" in cli.refused("simulate", "--tf", "1", "--tb", "1", code=2)
    times = ("--tf", "1", "--tb", "1", "--tw", "1")
    assert "pass --schedule NAME, -p P and -m M, or --plan FILE" in cli.refused(
        "simulate", *times, code=2
    )
    assert "pass -m M, or" in cli.refused(
        "simulate", *times, "--schedule", "1f1b", "-p", "2", code=2
    )


def test_operations_take_a_millisecond_by_default(cli: CommandLine) -> None:
    sizes = ("simulate", "--schedule", "gpipe,zb-h1", "-p", "4", "-m", "8")
    times = ("--tf", "1", "--tb", "1", "--tw", "1")
    note = "F, B and W take 1 ms each"

    assert cli.json(*sizes, "--json", "-") == cli.json(*sizes, *times, "--json", "-")
    assert note in cli.printed(*sizes)
    assert note in cli.printed("simulate", "--schedule", "zb-h1", "-p", "4", "-m", "8")
    assert note not in cli.printed(*sizes, *times)
