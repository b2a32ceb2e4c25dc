"""A matplotlib figure that a notebook shows without `import matplotlib.pyplot`."""

from __future__ import annotations

import io

from matplotlib.figure import Figure


class NotebookFigure(Figure):
    """pyplot would keep every figure in memory and show it twice, so figures are made without it."""

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png")
        return file.getvalue()
