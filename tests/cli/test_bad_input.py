"""Bad input ends with exit code 2 and one line on the screen, whatever it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedkeel.cli import app as cli

LONG = "x" * 5000
RUN = ["run", "--data", "digits", "--rounds", "1", "--fresh"]


def exit_and_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[Any, str]:
    with pytest.raises(SystemExit) as end:
        cli.main(words)
    return end.value.code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([*RUN, "--model", "none"], "must be a name"),
        ([*RUN, "--model", "sys:exit"], "sys:exit failed: SystemExit"),
        ([*RUN, "--device", "meta"], "device = 'meta' cannot be used here"),
        ([*RUN, "--device", "hpu"], "device = 'hpu' cannot be used here"),
        (["run", "--data", LONG], "File name too long"),
        (["run", "--data", f"{LONG}.csv"], "File name too long"),
        (["run", "--algorithm", LONG], "unknown"),
        ([*RUN, "--model", LONG], "unknown name"),
        (["resume", LONG], "long"),
        (["report", LONG], "long"),
        (["compare", LONG], "long"),
        (["compare", f"{LONG}.toml"], "long"),
        (["datasets", "show", LONG], "File name too long"),
        (["deploy", "init", "app", "--from", LONG], "File name too long"),
    ],
    ids=lambda z: " ".join(z)[:40] if isinstance(z, list) else None,
)
def test_bad_input(
    words: list[str], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, text = exit_and_line(words, capsys)
    assert code == 2, text[-300:]
    assert why in text
    assert "Traceback" not in text
    assert len(text) < 6000


def test_a_directory_with_a_name_that_is_too_long(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = exit_and_line([*RUN, "--out", str(tmp_path / LONG)], capsys)
    assert code == 2
    assert "File name too long" in text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a = " + "[" * 2000 + "]" * 2000, "is not a TOML file"),
        ('data = "digits"\ndevice = "meta"\n[methods.fedavg]\n', "device = 'meta' cannot be used here"),
        ('data = "digits"\ndevice = "cuda:77"\n[methods.fedavg]\n', "device = 'cuda:77' cannot be used here"),
        ('data = "digits"\ntimeout = -3\n[methods.fedavg]\n', "timeout = -3 is not allowed"),
        ('data = "digits"\ntimeout = "soon"\n[methods.fedavg]\n', "timeout = 'soon' is not allowed"),
    ],
    ids=["brackets", "device", "no such device", "timeout", "timeout in words"],
)
@pytest.mark.parametrize("command", ["run", "compare"])
def test_a_bad_study_file(text: str, why: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "study.toml"
    path.write_text(text)
    if command == "run" and "methods" in text:
        path.write_text(text.replace("[methods.fedavg]\n", ""))
    code, said = exit_and_line([command, str(path), "--out", str(tmp_path / "out")], capsys)
    assert code == 2, said
    assert why in said
