"""`fedkeel export`: the model of a run, for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def export(
    directory: Annotated[Path, typer.Argument(metavar="DIRECTORY", help="Directory of a run. [dim]E.g. runs/x[/dim]")],
    path: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="Ends in .safetensors or .onnx, or is a folder for Hugging Face. [dim]E.g. model.onnx[/dim]"
        ),
    ],
    best: Annotated[bool, typer.Option("--best", help="The best round on the validation data, not the last one.")] = False,
) -> None:
    """Write the model of a run for other programs. Adapters (LoRA) become a folder that peft loads."""
    from fedkeel.engine.run_files import open_run
    from fedkeel.runs.from_config import task
    from fedkeel.runs.saved_config import saved_config

    make_model, fed = task(saved_config(directory))
    example = fed.take_rows(fed.rows(0, fed.sizes[:1] * 0))[0]
    prepared = example if fed.prepare is None else fed.prepare(example)
    # Two samples: torch would take a batch of one as a fixed size.
    run = open_run(directory, make_model)
    written = run.export(path, "best" if best else "final", prepared.repeat(2, *[1] * (prepared.dim() - 1)))
    typer.echo(f"wrote {written}")
