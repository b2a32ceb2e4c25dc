"""The command line."""

from typing import TYPE_CHECKING, Any

if not TYPE_CHECKING:  # names of version 0.1.0; a type checker sees only the modules of this folder

    def __getattr__(name: str) -> Any:
        from fedkeel.old_paths import moved

        return moved(__name__, name)
