"""How many messages a second an SQL92 filter tests: a table on standard output, by processor time.

    python benchmarks/sql92.py [--messages 1000000] [--runs 5]

The blocks of properties are as a broker stores them, 94 bytes and seven properties each; one message in a hundred is wanted. The
best of the runs is shown, for the machine may be busy with other work.
"""

from __future__ import annotations

import argparse
from time import process_time

from halfmoon import sql92

ROWS = [
    ("the text is rare", "a > 5 AND b = 'x'", True),
    ("the number is rare, the text everywhere", "a > 5 AND b = 'x'", False),
    ("a number alone", "a > 5", False),
    ("a floating-point number alone", "a > 5.0", False),
    ("a list", "region IN ('us', 'jp', 'uk')", False),
    ("three alternatives", "a > 5 OR region = 'us' OR b = 'y'", False),
    ("a missing property", "other = 'x'", False),
]
"""What it shows, the expression, and whether texts or numbers are what is rare."""


def blocks(count: int, *, rare_text: bool) -> list[bytes]:
    """Return properties of which one in a hundred matches the first expression."""
    made = []
    for number in range(count):
        wanted = number % 100 == 0
        a, b = (9, "x" if wanted else "y") if rare_text else (9 if wanted else number % 6, "x")
        made.append(
            f"KEYS\x01order-{number}\x02a\x01{a}\x02UNIQ_KEY\x017F0000010A2C18B4AAC2{number:012X}\x02b\x01{b}\x02"
            f"WAIT\x01true\x02TAGS\x01paid\x02region\x01eu\x02".encode()
        )
    return made


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=5)
    given = parser.parse_args()
    print("| what | expression | match, % | million a second | one by one |\n|---|---|--:|--:|--:|")
    for rare_text in (True, False):
        stored = blocks(given.messages, rare_text=rare_text)
        for what, expression, of_rare_text in ROWS:
            if of_rare_text == rare_text:
                _measure(what, expression, stored, given.runs)


def _measure(what: str, expression: str, stored: list[bytes], runs: int) -> None:
    wanted = sql92.compile(expression)
    together, single, found = [], [], 0
    for _ in range(runs):
        began = process_time()
        found = len(wanted.matching(stored))
        together.append(process_time() - began)
        began = process_time()
        for block in stored:
            wanted.matches(block)
        single.append(process_time() - began)
    rates = [len(stored) / min(taken) / 1e6 for taken in (together, single)]
    print(f"| {what} | `{expression}` | {100 * found / len(stored):.1f} | {rates[0]:.2f} | {rates[1]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
