"""What the command lines print is what was given to them, in any environment."""

from __future__ import annotations

import sys

import pytest

from fedexp import cli
from fedexp.data.__main__ import main as data
from fedexp.display.prefixed import prefixed
from fedexp.runs.__main__ import main as runs
from fedexp.terminal.console import open_console


def fedexp(arguments: list[str]) -> None:
    sys.argv[1:] = arguments
    cli.main()


@pytest.mark.parametrize("columns", [None, "0", "00", "40"])
@pytest.mark.parametrize(
    ("main", "arguments", "said"),
    [
        (fedexp, ["optim.lr=:smile:"], "not ':smile:'"),
        (runs, ["status", "a:x:b"], "a:x:b is not a folder"),
        (data, ["fetch", ":x:"], "the data set is ':x:'"),
        (data, ["list", ":x:=1"], ":x: is not known here"),
        (data, ["show", "optim.lr=:smile:"], "not ':smile:'"),
    ],
)
def test_a_complaint_is_printed_as_it_is(main, arguments, said, columns, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["fedexp"])
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    try:
        code = main(arguments)
    except SystemExit as end:
        code = end.code
    assert code == 2
    assert said in capsys.readouterr().err


def test_a_width_of_none_is_not_taken_for_a_width(monkeypatch):
    monkeypatch.setenv("COLUMNS", "0")
    assert open_console().width >= 20
    assert prefixed("job 1 │ ").width >= 20
    monkeypatch.setenv("COLUMNS", "33")
    assert open_console().width == 33
    assert open_console(width_without_terminal=160).width == 33


def test_a_pipe_has_the_width_that_a_command_gives_it(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert open_console(width_without_terminal=160).width == 160
    monkeypatch.setenv("COLUMNS", "0")
    assert open_console(width_without_terminal=160).width == 160
    assert open_console(width_without_terminal=160, force_terminal=True, width=70).width == 70


def test_lines_of_a_job_are_printed_as_they_are(capsys):
    prefixed("job 1 │ ").print("a:x:b")
    assert capsys.readouterr().out == "job 1 │ a:x:b\n"
