"""The table of `fedkeel algorithms --conditions`: which condition is valid for which method, found from its code."""

from __future__ import annotations

from fedkeel.channel.validity import CONDITIONS
from fedkeel.cli.listings import print_json
from fedkeel.cli.tables import console, table
from fedkeel.core.algorithm import algorithms, lookup


def condition_table(name: str | None, json: bool) -> None:
    """Prints the table for one method, or for all. Reasons against a condition follow it."""
    names = algorithms() if name is None else [lookup(name).name]
    found = {one: {word: why_not(lookup(one)()) for word, why_not in CONDITIONS.items()} for one in names}
    if json:
        print_json([{"name": one, **reasons} for one, reasons in found.items()])
        return
    screen = console()
    shown = table("name", *CONDITIONS)
    shown.columns[0].no_wrap = True
    for one, reasons in found.items():
        shown.add_row(one, *("no" if why else "yes" for why in reasons.values()))
    screen.print(shown)
    for one, reasons in found.items():
        for why in dict.fromkeys(filter(None, reasons.values())):
            screen.print(f"{one}: {why}.")
