"""The page of a method: idea, update, records, cost, conditions, evidence and code, from its file and the results."""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
from functools import cache
from pathlib import Path
from typing import Any

from fedkeel.channel.validity import CONDITIONS
from fedkeel.cli.tables import costs
from fedkeel.core.algorithm import PROBLEMS, Algorithm, Plan, algorithms, lookup
from fedkeel.core.hyperparameters import allowed
from formulas import typeset
from records_picture import LAYERS, picture

ROOT = Path(__file__).parents[2]
SECTION = re.compile(r"^### (\S+)\n(.*?)(?=^##|\Z)", re.S | re.M)
SYMBOLS = (
    "Symbols are those of the [specification](../methods.md#notation): x is the global model, w the local model, "
    "g the mini-batch gradient, and Δx is w minus x."
)
PARTS = re.compile(r"^\*\*(Holds|Decisions)\.\*\*(.*?)(?=^\*\*(?:Holds|Decisions|Cost)|\Z)", re.S | re.M)


@cache
def specification() -> dict[str, str]:
    """name -> its section of docs/methods.md."""
    return dict(SECTION.findall((ROOT / "docs/methods.md").read_text()))


@cache
def peers() -> dict[str, list[str]]:
    """name -> the implementations of other people that give the same weights (results/peers.md)."""
    found: dict[str, list[str]] = {}
    for line in (ROOT / "results/peers.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) >= 5 and cells[4] == "same":
            found.setdefault(cells[0], []).append(cells[1])
    return found


@cache
def digits() -> dict[str, tuple[int, int, str]]:
    """name -> (place, number of methods, mean of the last ten rounds) in results/digits-all.md."""
    rows = re.findall(
        r"^\| ([\w-]+)( \*)? \| [^|]+ \| (0\.\d+ ± [\d.]+) \|", (ROOT / "results/digits-all.md").read_text(), re.M
    )
    return {name: (place, len(rows), score) for place, (name, _, score) in enumerate(rows, 1)}


def index() -> str:
    """The list of all methods, by the problem that they solve."""
    lines = [
        "# Methods",
        "",
        f"{len(algorithms())} methods, each in one file. A method stands under the first problem that it solves.",
    ]
    lines += ["[Which method should I use?](../which-method.md) helps you to choose. `fedkeel algorithms` prints this list."]
    for word, meaning in PROBLEMS.items():
        lines += [
            "",
            f"## {word.capitalize()}",
            "",
            f"{meaning[0].upper()}{meaning[1:]}.",
            "",
            "| method | idea | floats up, down, kept |",
            "|---|---|---|",
        ]
        for name in algorithms():
            kind = lookup(name)
            if kind.facts.solves[0] == word:
                cost = costs(kind)
                lines.append(f"| [{name}]({name}.md) | {_sentence(kind)} | {cost['up']}, {cost['down']}, {cost['memory']} |")
    return "\n".join(lines) + "\n"


def page(name: str) -> str:
    kind, text = lookup(name), specification()[name]
    title = re.match(r"\s*\*\*(.+?)\*\*", text)
    about = inspect.cleandoc(kind.__doc__ or "").split("\n\n")
    plain = [part for part in about if not part.startswith(("Differs", "UNCONFIRMED"))]
    differs = [part for part in about if part.startswith(("Differs", "UNCONFIRMED"))]
    parts = [f"# {title.group(1) if title else name}", _badges(name, text), *plain]
    parts += [f"```sh\n{example(kind)}\n```"]
    parts += [
        "## The update",
        SYMBOLS,
    ]
    parts += [typeset(block) for block in re.findall(r"^```\n(.*?)^```", text, re.S | re.M)]
    parts += [
        "## Who keeps what",
        picture(kind),
        _records(kind),
        "## Hyper-parameters",
        _hyperparameters(kind),
        "## Cost",
        _cost(kind),
    ]
    parts += ["## Conditions", _conditions(kind)]
    for heading, body in PARTS.findall(text):
        parts += [
            f"## {'Identities' if heading == 'Holds' else 'Decisions'}",
            _from_here(body.strip()),
        ]
    parts += ["## Differences from the paper", *differs] if differs else []
    parts += [
        "## How it is verified",
        _verified(name, text),
        "## In our results",
        _results(name),
        "## The code",
        _code(kind),
    ]
    return "\n\n".join(parts) + "\n"


def example(kind: type[Algorithm]) -> str:
    """A command that runs the method on digits."""
    try:
        kind().plan(Plan(N=100, S=10, K=10.0, T=20, layers=LAYERS))
        everybody = ""
    except ValueError:  # it needs all clients in every round
        everybody = " --clients 20 --cohort 1.0"
    return f"fedkeel run --algorithm {kind.name} --data digits{everybody} --rounds 20"


def _from_here(text: str) -> str:
    """Links of docs/methods.md as they are from a method's page."""
    return re.sub(r"\]\((?=[\w-]+\.md)", "](../", text.replace("](#", "](../methods.md#")).replace("](../../", "](../")


def _sentence(kind: type[Algorithm]) -> str:
    return inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[0].replace("\n", " ").replace("|", "\\|")


def _status(text: str) -> str:
    found = re.search(r"Status: ([^\n]+)", text)
    return found.group(1).rstrip(".") if found else "confirmed"


def _badges(name: str, text: str) -> str:
    status = _status(text)
    good = "UNCONFIRMED" not in status
    badges = [("ok" if good else "warn", f"formula: {status}")]
    badges.append(("ok", "independent numpy reference"))
    badges += [("ok", f"equals {peer}") for peer in dict.fromkeys(peers().get(name, []))]
    if "UNCONFIRMED" in text and good:
        badges.append(("warn", "details UNCONFIRMED"))
    return " ".join(f'<span class="badge {kind}">{words}</span>' for kind, words in badges)


def _records(kind: type[Algorithm]) -> str:
    """The fields of the records with the comments of the method's file."""
    module = inspect.getmodule(kind)
    lines = ["| record | field | what it is |", "|---|---|---|"]
    for record in ("Server", "Down", "Client", "Up"):
        cls = getattr(module, record, None)
        if cls is None:
            continue
        for field, comment in re.findall(r"^    (\w+): Tensor(?:  # (.*))?$", inspect.getsource(cls), re.M):
            words = comment.replace("|", "\\|")
            lines.append(f"| {record} | `{field}` | {words} |")
    return "\n".join(lines) if len(lines) > 2 else "Its records are those of the method that it builds on."


def _hyperparameters(kind: type[Algorithm]) -> str:
    lines = ["| name | default | allowed | papers' grid | meaning |", "|---|---|---|---|---|"]
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        grid = ", ".join(f"{z:g}" if isinstance(z, float) else str(z) for z in field.metadata.get("grid", ()))
        cells = (f"`{field.name}`", f"{field.default}", allowed(field), grid or "-", field.metadata.get("doc", ""))
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def _cost(kind: type[Algorithm]) -> str:
    cost = costs(kind)
    return (
        f"In units of the model's size: a client sends {cost['up']} and receives {cost['down']} per round, and keeps "
        f"{cost['memory']} between its rounds. Gradients per local step: {kind.facts.gradients:g}."
    )


def _conditions(kind: type[Algorithm]) -> str:
    lines = ["| condition | valid | why not |", "|---|---|---|"]
    for word, why_not in CONDITIONS.items():
        why = why_not(kind())
        lines.append(f"| {word} | {'no' if why else 'yes'} | {why or ''} |")
    return "\n".join(lines) + "\n\n[What these conditions are.](../conditions.md)"


def _verified(name: str, text: str) -> str:
    lines = [f"- Formula: {_status(text)}. Paper: {lookup(name).facts.paper}."]
    lines.append(
        f"- `tests/reference/{name.replace('-', '_')}.py` is an independent numpy transcription. Tests compare six rounds."
    )
    lines += [f"- Same weights as {peer} ([results](../results/peers.md))." for peer in dict.fromkeys(peers().get(name, []))]
    lines.append(
        "- It passes the laws that all methods obey: equal bits from all engines, cost as counted, inputs unchanged."
    )
    return "\n".join(lines)


def _results(name: str) -> str:
    lines = []
    if name in digits():
        place, count, score = digits()[name]
        lines.append(f"- Place {place} of {count} on [digits](../results/digits-all.md): {score} in the last ten rounds.")
    for folder in sorted((ROOT / "results").iterdir()):
        table = folder / "table.csv"
        if table.exists() and (folder / "README.md").exists() and _in_table(name, table):
            title = (folder / "README.md").read_text().partition("\n")[0].lstrip("# ")
            lines.append(f"- [{title}](../results/{folder.name}/README.md)")
    return "\n".join(lines) or "No published result uses it yet."


def _in_table(name: str, table: Path) -> bool:
    import csv

    with table.open(newline="") as file:
        return any(name in (row.get("algorithm"), row.get("method")) for row in csv.DictReader(file))


def _code(kind: type[Algorithm]) -> str:
    """`client` and `server` and the other hooks, as they stand in the file."""
    hooks = [z for z in vars(kind).values() if inspect.isfunction(z) and z.__qualname__.startswith(kind.__name__ + ".")]
    own: list[Any] = [
        z for z in hooks if inspect.getsourcefile(z) == inspect.getsourcefile(kind) and not z.__name__.startswith("__")
    ]
    code = "\n".join(textwrap.dedent(inspect.getsource(z)) for z in own)
    return f"`src/fedkeel/methods/{Path(inspect.getfile(kind)).name}`:\n\n```python\n{code}```"
