"""The command `fedkeel choose`: which method should you run?"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from fedkeel.cli.options import unknown
from fedkeel.cli.studies import TASK, Fresh
from fedkeel.errors import RoundError

Target = Annotated[
    float | None,
    typer.Option(help="Show what each finalist costs until this accuracy. [dim]E.g. 0.9[/dim]", metavar="NUMBER"),
]
Jobs = Annotated[
    int | None,
    typer.Option(help="Runs at a time, each in a process of one thread (default: one per core).", metavar="NUMBER"),
]
Floats = Annotated[
    float | None,
    typer.Option(help="At most this many floats up and down per round and client. [dim]E.g. 2e6[/dim]", metavar="NUMBER"),
]
Gradients = Annotated[
    float | None, typer.Option(help="At most this many gradients per local step. [dim]E.g. 1[/dim]", metavar="NUMBER")
]
Memory = Annotated[
    float | None,
    typer.Option(help="At most this many floats that a client keeps between rounds. [dim]E.g. 1e6[/dim]", metavar="NUMBER"),
]
Seeds = Annotated[
    int | None,
    typer.Option(help="Runs of each finalist. By default enough for a significant difference.", metavar="NUMBER"),
]


def choose(
    ctx: typer.Context,
    settings: dict[str, Any],
    budget: Annotated[
        str, typer.Option(help="Full runs, or a time. [dim]E.g. --budget 200runs, --budget 60min[/dim]", metavar="BUDGET")
    ] = "100runs",
    algorithms: Annotated[
        str, typer.Option(help="Candidates. By default all methods. [dim]E.g. fedavg,scaffold[/dim]", metavar="NAMES")
    ] = "",
    stateless: Annotated[bool, typer.Option("--stateless", help="Only methods whose clients keep nothing.")] = False,
    secure_sums: Annotated[
        bool, typer.Option("--secure-sums", help="Only methods whose server needs sums of uploads.")
    ] = False,
    floats_per_round: Floats = None,
    gradients_per_step: Gradients = None,
    memory_per_client: Memory = None,
    target: Target = None,
    seeds: Seeds = None,
    jobs: Jobs = None,
    fresh: Fresh = False,
    out: Annotated[Path, typer.Option(help="Directory of all runs. [dim]E.g. --out runs/mine[/dim]")] = Path("runs/choose"),
) -> None:
    """Find out which method to run on your data, and print the command that runs it.

    Every candidate gets the same number of rounds to tune its step size, on validation data. The best ones run with several
    seeds at full length. The answer says which is best, which cannot be told from it, and what each costs.

    The same command again continues where it was stopped, with the same answer.
    """
    from fedkeel.study.choose import VALIDATION, run_choice
    from fedkeel.study.choosing.candidates import Constraints
    from fedkeel.study.compare import check_jobs
    from fedkeel.study.file import choose_methods
    from fedkeel.study.python_objects import NAMES_ONLY

    if ctx.args:
        raise unknown(ctx.args[0].partition("=")[0], (*TASK, "budget", "out"), "hyper-parameters are tuned")
    check_jobs(jobs)
    given = {"stateless": stateless, "secure_sums": secure_sums, "floats_per_round": floats_per_round}
    limits = Constraints.read(given | {"gradients_per_step": gradients_per_step, "memory_per_client": memory_per_client})
    tables = choose_methods({}, algorithms)["methods"] or None
    how: dict[str, Any] = {"target": target, "seeds": seeds, "jobs": jobs, "fresh": fresh, "command": ctx.obj, "kept": True}
    try:
        found = run_choice({"validation": VALIDATION} | settings, NAMES_ONLY, tables, budget, limits, out, **how)
    except (KeyboardInterrupt, RoundError) as error:
        from fedkeel.cli.interrupt import stopped

        again = shlex.join(word for word in shlex.split(ctx.obj) if word != "--fresh")
        raise stopped(error, again, kept=True) from error.__cause__
    typer.echo(found.answer)
    typer.echo(f"files: {out / 'report.html'}, choice.json, table.csv, results.json")
