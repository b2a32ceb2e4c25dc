"""Fixtures that several test files use."""

import pytest

from fedkeel.cli import app as cli


@pytest.fixture
def fedkeel(request, tmp_path, monkeypatch, capsys):
    """Calls the command in an empty directory -> (exit code, stdout, stderr). The screen has `COLUMNS` of the test file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", str(getattr(request.module, "COLUMNS", 80)))

    def call(*words):
        with pytest.raises(SystemExit) as end:
            cli.main(words)
        captured = capsys.readouterr()
        return end.value.code, captured.out, captured.err

    return call
