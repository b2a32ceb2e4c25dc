"""The answer of `choose`: which method, which others cannot be told from it, what each costs, and the commands to run it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedkeel.runs.config import PYTHON, SETTINGS, RunConfig, default_of
from fedkeel.study.choosing.budget import Budget
from fedkeel.study.choosing.candidates import Cost
from fedkeel.study.results.numbers import Row, better_is_less, robust_width
from fedkeel.study.results.significance import distinct, indistinguishable
from fedkeel.study.running.plan import BranchResult
from fedkeel.study.running.space import Space
from fedkeel.wording import amount, value_text

HOW = ("data_dir", "engine", "device", "devices", "workers", "timeout", "ray_address", "min_clients")


def candidate_row(found: BranchResult, space: Space, cost: Cost, budget: Budget) -> Row:
    """What the tuning of a candidate came to."""
    chosen = next((trial for trial in found.trials if trial["chosen"]), None)
    points = _step_sizes(found, space, budget)
    scored = [(value, score) for value, score in points if score is not None]
    width = None
    if len(scored) > 2 and min(score for _, score in scored) >= 0:  # A share of the best needs accuracies.
        width = robust_width(scored)
    return {
        "method": found.branch.method,
        "values": found.chosen,
        "score": None if chosen is None else chosen["score"],
        "trials": len(found.trials),
        "rounds": sum(trial["trial"]["rounds"] for trial in found.trials),
        "edges": [] if chosen is None else chosen["edges"],
        "steps": points,
        "width": None if width is None else {"decades": width[0], "open": width[1]},
        "floats_per_round": cost.floats,
        "memory": cost.memory,
        "gradients": cost.gradients,
    }


def _step_sizes(found: BranchResult, space: Space, budget: Budget) -> list[tuple[float, float | None]]:
    """(step size, score after a short trial) of the trials in which only the step size differs from the defaults."""
    if "lr" not in space.ladders:
        return []
    points = []
    for trial in found.trials:
        about, alone = trial["trial"], space.start | {"lr": trial["trial"]["point"]["lr"]}
        if about["seed"] == found.branch.seeds[0] and about["point"] == alone:
            points.append((trial["lr"], about["scores"].get(str(budget.tuning.unit))))
    return sorted(points)


def settings_text(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value_text(z, key)}" for key, z in values.items())


def sentences(results: Mapping[str, Any], best: str, candidates: Sequence[Row], budget: Budget) -> list[str]:
    """The answer, for somebody who has never heard of these methods."""
    rows = {row["name"]: row for row in results["rows"]}
    score = results["compared_by"]
    less, points = better_is_less(score), score.endswith("accuracy")
    values = {one["method"]: one["values"] for one in candidates}
    tested = "final_accuracy" if rows[best].get("final_accuracy") is not None else "final_test_loss"
    shown = tested if rows[best].get(tested) is not None else score
    said = settings_text(values[best])
    found = [f"Run {best}{f' ({said})' if said else ''}: {_number(rows[best], shown)} {_words(shown)}."]
    alike = [name for name in indistinguishable(best, results["differences"]) if name in rows]
    if alike:
        found.append(f"Not distinguishable from it: {', '.join(alike)}.")
    for row in results["differences"]:
        if best in (row["method"], row["other"]) and distinct(row):
            other = row["other"] if row["method"] == best else row["method"]
            sign = (1 if row["method"] == best else -1) * (-1 if less else 1)
            low, high = sorted((sign * row["low"], sign * row["high"]))
            scale, unit, form = (100, " points", ".1f") if points else (1, "", ".3g")
            size = f"{abs(row['difference']) * scale:{form}}{unit} ({low * scale:{form}} to {high * scale:{form}})"
            side = "Worse" if sign * row["difference"] > 0 else "Better on average"
            found.append(f"{side}: {other} by {size}, p = {row['p']:.2g}.")
    found.append(
        f"The choice was made on validation data ({_words(score)}, {budget.seeds} seeds). The test data were used for the "
        "table alone."
    )
    if results["significance"]:
        found.append(results["significance"])
    found.append(tuning_sentence(candidates))
    found += [f"{one['method']}: {edge}." for one in candidates if one["method"] in rows for edge in one["edges"]]
    steps = results["task"].get("local_steps")
    found += [_cost(rows[one["method"]], one, steps) for one in candidates if one["method"] in rows]
    return found


def tuning_sentence(candidates: Sequence[Row]) -> str:
    spent = sorted({one["rounds"] for one in candidates})
    same = f"{spent[-1]} rounds" if len(spent) == 1 else f"up to {spent[-1]} rounds (a trial that fails ends early)"
    return f"Each of the {len(candidates)} candidates was tuned with {same}."


def _words(score: str) -> str:
    return score.removeprefix("final_").replace("val_", "validation ").replace("_", " ")


def _number(row: Row, score: str) -> str:
    mean, deviation = row[score], row.get(f"{score}_std")
    return f"{mean:.3f}" if deviation is None else f"{mean:.3f} ± {deviation:.3f}"


def _gradients(count: int) -> str:
    return f"{count} gradient{'s' * (count != 1)} a step"


def _cost(row: Row, candidate: Row, steps: int | None) -> str:
    """What a finalist costs one client. steps: its local steps in a round, if all clients have the same number."""
    memory = f"{amount(4 * candidate['memory'])}B of memory" if candidate["memory"] else "no memory"
    parts = [f"{amount(4 * candidate['floats_per_round'])}B a round", _gradients(candidate["gradients"]), memory]
    parts += [] if row.get("seconds") is None else [f"{row['seconds']:.1f} s a run"]
    if row.get("floats_to_target") is not None:
        rounds, share = row["rounds_to_target"], row["rounds_to_target"] / row["rounds"]
        to = [f"{rounds:.1f} rounds", f"{amount(4 * row['floats_to_target'])}B"]
        to += [f"{amount(rounds * steps * candidate['gradients'])} gradients"] if steps else []
        to += [] if row.get("seconds") is None else [f"{share * row['seconds']:.1f} s"]
        parts.append(f"to the target {' and '.join([', '.join(to[:-1]), to[-1]])}")
    width = candidate["width"]
    if width is not None:
        least = "at least " * width["open"]
        decades = f"{least}{width['decades']:.2g} decades of its step size" if width["decades"] else "one step size only"
        parts.append(f"within 5 % of its best over {decades}")
    return f"{row['name']} costs a client {', '.join(parts)}."


def commands(config: RunConfig, method: str, out: Path | None) -> list[str]:
    """The commands that train and deploy the choice."""
    if config.data.startswith(PYTHON) or config.model.startswith(PYTHON):
        words = "".join(f", {key}={z!r}" for key, z in config.hyperparameters.items())
        settings = {key: z for key, z in _changed(config).items() if key in config.keywords()}
        rest = "".join(f", {key}={z!r}" for key, z in settings.items())
        return [f"fk.train(model, fed, fk.algorithm({config.algorithm!r}{words}){rest})"]
    line = ["fedkeel", "run"]
    for key, value in (_changed(config) | config.hyperparameters).items():
        line += [f"--{key.replace('_', '-')}", ",".join(value) if isinstance(value, list) else str(value)]
    deploy = ["fedkeel", "deploy", "init", "app", "--from", str(out), "--method", method]
    return [shlex.join(line), *([] if out is None else [shlex.join(deploy)])]


def _changed(config: RunConfig) -> dict[str, Any]:
    """The settings of a run that differ from the defaults, and always its method and data."""
    given = {key: z for key, z in config.given.items() if key not in (*HOW, "hyperparameters", "evaluate_every")}
    named = ("algorithm", "data")
    return {key: z for key, z in given.items() if z is not None and (key in named or z != default_of(SETTINGS[key]))}
