"""How many files of the package a command runs through: `python benchmarks/files_called.py run --algorithm scaffold`.

Counts and lists the files in which at least one function is called. What an import runs does not count: neither the module
itself, nor its class bodies, nor the functions that they call. So it makes no difference whether a module is imported at
the start or only when it is needed. With --functions first, it lists the functions, too.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fedkeel

PACKAGE = Path(fedkeel.__file__).parent


def files_called(words: Sequence[str]) -> dict[str, list[str]]:
    """The files of the package that a command calls -> the functions that it calls there."""
    from fedkeel.cli.app import main as command

    called: dict[str, set[str]] = defaultdict(set)
    importing = 0  # modules that are being run at this moment, one inside the other

    def note(frame: Any, event: str, _argument: object) -> None:
        nonlocal importing
        code = frame.f_code
        if code.co_name == "<module>":
            importing += {"call": 1, "return": -1}.get(event, 0)
        elif event == "call" and not importing:
            called[code.co_filename].add(code.co_qualname)

    sys.setprofile(note)
    try:
        command(words)
    except SystemExit as end:
        if end.code:
            raise
    finally:
        sys.setprofile(None)
    ours = sorted(name for name in called if name.startswith(str(PACKAGE)))
    return {str(Path(name).relative_to(PACKAGE)): sorted(called[name]) for name in ours}


def main() -> None:
    words = sys.argv[1:]
    functions = words[:1] == ["--functions"]
    called = files_called(words[functions:])
    for name, inside in called.items():
        print(f"{name}: {', '.join(inside)}" if functions else name)
    print(f"{len(called)} files")


if __name__ == "__main__":
    main()
