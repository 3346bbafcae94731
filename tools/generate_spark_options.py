"""Generator of the tables of options in docs/spark.md from the options of source and sink."""

from __future__ import annotations

import sys
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

from halfmoon.spark.option_parsing import Measure
from halfmoon.spark.sink.options import SinkOptions
from halfmoon.spark.source.options import SourceOptions, names_of
from tools.generated import write_or_check

PAGE = Path(__file__).resolve().parent.parent / "docs" / "spark.md"
TABLES: dict[str, type[Any]] = {"source": SourceOptions, "sink": SinkOptions}

_MS = {"d": 86_400_000, "h": 3_600_000, "min": 60_000, "s": 1_000, "ms": 1}
_BYTES = {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10, "bytes": 1}


def page(text: str) -> str:
    """Return the page with its tables written anew."""
    for name, options in TABLES.items():
        before, mark, after = text.partition(f"<!-- options of the {name}: written by tools/generate_spark_options.py -->\n")
        if not mark:
            raise ValueError(f"{PAGE.name} has no place for the options of the {name}")
        _, blank_line, rest = after.partition("\n\n")
        text = f"{before}{mark}{table(options)}{blank_line}{rest}"
    return text


def table(options: type[Any]) -> str:
    """Return the options of a class as a Markdown table."""
    rows = ["| option | default | meaning |", "|---|---|---|"]
    for option in fields(options):
        only = f" ({option.metadata['only']} only)" if option.metadata["only"] else ""
        names = " or ".join(f"`{name}`" for name in names_of(option))
        why = option.metadata["why"].replace("|", "\\|")
        rows.append(f"| {names}{only} | {_default(option)} | {why} |")
    return "\n".join(rows)


def _default(option: Field[Any]) -> str:
    if option.default is MISSING:
        return "required"
    if option.default in (None, "", (), 0) and not isinstance(option.default, bool):
        return ""
    if isinstance(option.metadata["parse"], Measure):
        return _with_unit(option.default, _MS if option.metadata["parse"].unit == "ms" else _BYTES)
    if isinstance(option.default, bool):
        return f"`{str(option.default).lower()}`"
    return f"{option.default:,}" if isinstance(option.default, int) else f"`{option.default}`"


def _with_unit(value: int, units: dict[str, int]) -> str:
    """Return a size or a duration in the largest unit of which it is a whole number."""
    unit, factor = next((unit, factor) for unit, factor in units.items() if value % factor == 0)
    return f"{value // factor:,} {unit}"


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, page(PAGE.read_text()), sys.argv[1:]))
