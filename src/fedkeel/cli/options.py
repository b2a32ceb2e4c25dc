"""The options of the command line that follow from declarations: one for every setting and every hyper-parameter."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from fedkeel.runs.config import SETTINGS, RunConfig, combined, hyperparameters_from
from fedkeel.wording import literal

NAMES = [name for name in SETTINGS if name != "hyperparameters"]


def flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def task_options(names: Iterable[str] = NAMES) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds an option for each of these settings to a command. The command gets the given ones as the dictionary `settings`.

    RunConfig checks the values, so that a wrong value gives the same error in a file and on the command line.
    """
    names = list(names)

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        own = inspect.signature(command, eval_str=True)
        kept = [p.replace(kind=p.KEYWORD_ONLY) for p in own.parameters.values() if p.name != "settings"]

        @functools.wraps(command)
        def call(**given: Any) -> Any:
            texts = {name: given.pop(name) for name in names}
            settings = {name: _setting(name, text) for name, text in texts.items() if text is not None}
            return command(settings=settings, **given)

        call.__signature__ = own.replace(parameters=kept + [_option(name) for name in names])  # type: ignore[attr-defined]
        return call

    return decorate


def _option(name: str) -> inspect.Parameter:
    field = SETTINGS[name]
    about, shown = field.metadata, field.default if field.default not in (None, ()) else field.metadata["filled"]
    default = "" if shown is None else f" Default {shown}."
    if _is_switch(name):
        help = f"{about['doc']}{default} [dim]E.g. {flag(name)}[/dim]"
        spellings = f"{flag(name)}/--no-{flag(name)[2:]}"
        option = typer.Option(spellings, help=help, show_default=False, rich_help_panel=about["group"])
        return inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[bool | None, option]
        )
    example = ",".join(about["example"]) if _is_list(name) else about["example"]
    help = f"{about['doc']}{default} [dim]E.g. {flag(name)} {example}[/dim]"
    metavar = "NAMES" if _is_list(name) else "NAME" if _is_text(name) else "NUMBER"
    option = typer.Option(flag(name), help=help, metavar=metavar, show_default=False, rich_help_panel=about["group"])
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[str | None, option])


def _setting(name: str, text: Any) -> Any:
    if _is_switch(name):
        return text
    if _is_list(name):
        return [part.strip() for part in text.split(",") if part.strip() not in ("", "none")]
    return text if _is_text(name) and text.lower() != "none" else literal(text)


def _is_list(name: str) -> bool:
    return isinstance(SETTINGS[name].default, tuple)


def _is_switch(name: str) -> bool:
    return isinstance(SETTINGS[name].metadata["example"], bool)


def _is_text(name: str) -> bool:
    field = SETTINGS[name]
    return isinstance(field.metadata["example"] if field.default is None else field.default, str)


class TaskCommand(TyperCommand):
    """A command for which unknown options are hyper-parameters. They are in ctx.args, as `name=value` or `name`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        options = [param for param in self.get_params(ctx) if param.param_type_name == "option"]
        known = {spelling: option for option in options for spelling in (*option.opts, *option.secondary_opts)}
        ours, others, words = [], [], list(args)
        while words:
            word = words.pop(0)
            name, equals, value = word.partition("=")
            if word.startswith("--") and len(name) > 2 and name not in known:
                if not equals and words and not words[0].startswith("--"):  # "-1" is a value, "--other" is none
                    equals, value = "=", words.pop(0)
                others.append(f"{name.removeprefix('--')}{equals}{value}")
            else:
                ours.append(word)
                if word in known and not getattr(known[word], "is_flag", False) and words:
                    ours.append(words.pop(0))
        rest = super().parse_args(ctx, ours)
        ctx.args = others
        return rest


def unknown(name: str, known: Iterable[str], otherwise: str) -> ValueError:
    """The error for an unknown option. It lists similar options. otherwise: the hint if there are none."""
    import difflib

    close = difflib.get_close_matches(name.replace("_", "-"), [z.replace("_", "-") for z in known], cutoff=0.6)
    hint = f"did you mean {', '.join(map(flag, close))}?" if close else otherwise
    return ValueError(f"unknown option {flag(name)}; {hint}")


# What other libraries call a setting -> the option here.
ELSEWHERE = {
    "epochs": "--local-epochs",
    "num_rounds": "--rounds",
    "num_clients": "--clients",
    "batch": "--batch-size",
    "method": "--algorithm",
    "dataset": "--data",
    "learning_rate": "--lr",
    "partition": "--split",
    "output": "--out",
}


def _no_hyperparameter(name: str, value: Any, config: RunConfig, fields: list[str]) -> ValueError:
    """The error for an option that is neither a setting nor a hyper-parameter of the method."""
    import dataclasses

    from fedkeel.core.algorithm import algorithms, lookup

    has = f"{config.algorithm} has {', '.join(map(flag, fields))}"
    if name in ELSEWHERE:
        return ValueError(f"unknown option {flag(name)}; did you mean {ELSEWHERE[name]}?")
    if name == "alpha" and "dirichlet" in config.split:
        return ValueError(
            f"unknown option --alpha: {config.algorithm} has no alpha; for the Dirichlet split write --concentration {value}"
        )
    others = [one for one in algorithms() if name in {field.name for field in dataclasses.fields(lookup(one))}]  # type: ignore[arg-type]
    if others:
        some = ", ".join(others[:6]) + (", ..." if len(others) > 6 else "")
        return ValueError(f"unknown option {flag(name)}: {config.algorithm} has no {name} ({has}); methods with it: {some}")
    return unknown(name, (*fields, *NAMES, "out", "fresh"), has)


def merged(study: Mapping[str, Any], settings: Mapping[str, Any], extra: Iterable[str] = ()) -> RunConfig:
    """The settings of a study file, overridden by those of the command line. extra: hyper-parameters of the command line."""
    import dataclasses

    from fedkeel.core.algorithm import lookup

    values = combined(study, settings)
    if not extra:
        return RunConfig(**values)
    algorithm = values.get("algorithm", SETTINGS["algorithm"].default)
    fields = [field.name for field in dataclasses.fields(lookup(algorithm))]  # type: ignore[arg-type]
    given = hyperparameters_from(algorithm, extra)
    for name in given:
        if name not in fields:
            raise _no_hyperparameter(name, given[name], RunConfig(**values), fields)
    before = values.get("hyperparameters", {})
    return RunConfig(**values | {"hyperparameters": before | given if isinstance(before, dict) else before})
