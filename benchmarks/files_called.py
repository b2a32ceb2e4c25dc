"""How many files of the package a command runs through: `python benchmarks/files_called.py run --algorithm scaffold`.

Counts and lists the files in which at least one function is called. Imports do not count.
"""

from __future__ import annotations

import sys
from pathlib import Path

import fedkeel

PACKAGE = Path(fedkeel.__file__).parent


def main() -> None:
    called: set[str] = set()

    def note(frame, event, _argument):
        if event == "call" and frame.f_code.co_name != "<module>":
            called.add(frame.f_code.co_filename)

    from fedkeel.cli.app import main as command

    sys.setprofile(note)
    try:
        command(sys.argv[1:])
    except SystemExit:
        pass
    finally:
        sys.setprofile(None)
    ours = sorted(str(Path(name).relative_to(PACKAGE)) for name in called if name.startswith(str(PACKAGE)))
    print("\n".join(ours))
    print(f"{len(ours)} files")


if __name__ == "__main__":
    main()
