"""One file per method. They are found by import: a new file here is in the registry, the tests, the docs and the CLI."""

import sys
from types import ModuleType


class _Package(ModuleType):
    """Importing this package makes it the attribute `fedkeel.algorithms`, where the public function of that name is: so it
    can be called, too."""

    def __call__(self) -> list[str]:
        from fedkeel.core.algorithm import algorithms

        return algorithms()


sys.modules[__name__].__class__ = _Package
