"""``python -m fedexp.runs table`` and ``plot``: files of every format, and what is said of wrong input."""

from __future__ import annotations

import io
import re
import sys
from xml.etree import ElementTree

import pytest
from PIL import Image

from fedexp.report.figures.kinds import KINDS
from fedexp.runs.__main__ import main
from tests.unit.report.made import write_run


def test_a_table_in_every_format(folder, tmp_path, capsys):
    assert main(["table", str(folder), "metric=aggregation.mean", "compare=fedavg"]) == 0
    assert "72.0 ± 2.0" in capsys.readouterr().out
    for suffix, words in ((".md", "| map | **72.0 ± 2.0**"), (".tex", r"\begin{tabular}"), (".csv", "map,aggregation")):
        file = tmp_path / f"table{suffix}"
        assert main(["table", str(folder), "metric=aggregation.mean", f"to={file}"]) == 0
        assert words in file.read_text()
        assert str(file) in capsys.readouterr().out.replace("\n", "")
    main(["table", str(folder), "format=csv", "algo=map,fedavg"])
    assert len(capsys.readouterr().out.splitlines()) == 1 + 2 * 2


def test_a_list_is_one_value(folder, capsys):
    assert main(["table", str(folder), "format=csv", "model.hidden=[8, 8]", "algo=map,fedavg"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + 2 * 2
    assert main(["table", str(folder), "model.hidden=[8, 8],[[1, 2],[3]]"]) == 2
    assert "model.hidden=[[1, 2],[3]]: no run has this value" in capsys.readouterr().err.replace("\n", " ")


def test_figures_are_written_in_every_format(folder, tmp_path, capsys):
    for form in ("svg", "png", "pdf", "html"):
        file = tmp_path / f"figure.{form}"
        assert main(["plot", "curves", str(folder), "algo=map,fedavg", f"to={file}"]) == 0
        content = file.read_bytes()
        if form == "svg":
            assert ElementTree.fromstring(content).tag.endswith("svg")  # noqa: S314 - our own
        elif form == "png":
            assert Image.open(io.BytesIO(content)).width > 3 * 300
        elif form == "pdf":
            assert content.startswith(b"%PDF")
        else:
            _check_page(content.decode())
    assert "seeds 0, 1, 2; 4 rounds" in capsys.readouterr().out.replace("\n", " ")


def _check_page(text: str) -> None:
    """Scripts and data are inside, and the menu has no link to a host."""
    assert "vegaEmbed" in text
    assert not re.search(r"<script[^>]*\bsrc\s*=", text)
    assert not re.search(r"<link\b", text)
    assert not re.search(r"@import|url\(\s*['\"]?http", text)
    assert re.search(r'"editor"\s*:\s*false', text)
    own = text[text.rindex("<script") :]  # after the bundled library
    assert set(re.findall(r"https?://[^\"' ]+", own)) <= set(re.findall(r"https://vega.github.io/schema/[^\"' ]+", own))


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["plot", "curves", "{}", "to=x.gif"], "to=x.gif has to end in .html, .svg, .png or .pdf."),
        (["plot", "curves", "{}", "to=nowhere/x.png"], "there is no directory nowhere"),
        (["plot", "curves", "{}"], "to: name the file to write"),
        (["plot", "curve", "{}", "to=x.png"], "Did you mean 'curves'"),
        (["plot", "curves"], "plot needs a kind of figure and a folder"),
        (["plot", "curves", "{}", "to=x.png", "algos=map"], "Did you mean 'algo'"),
        (["plot", "map/fig99", "{}", "to=x.png"], "there is no such table or figure. Did you mean 'map/fig9'"),
        (["plot", "map/table1", "{}", "to=x.png"], "map/table1 is no figure that is drawn from runs"),
        (["table", "{}", "format=word"], "format=word: there is no such format"),
        (["table", "{}", "to=x.txt"], "has to end in .md, .tex, .csv"),
        (["table", "{}", "metric=a", "metric=b"], "metric is given twice"),
        (["table", "{}", "--fast"], "--fast is not known here"),
        (["table"], "table needs one folder"),
    ],
)
def test_wrong_requests_are_answered_and_leave_nothing(folder, tmp_path, monkeypatch, capsys, argv, words):
    monkeypatch.chdir(tmp_path)
    assert main([part.format(folder) for part in argv]) == 2
    said = capsys.readouterr()
    assert words in said.err
    assert "Traceback" not in said.err
    assert list(tmp_path.iterdir()) == []


def test_no_finished_run_is_said(tmp_path, capsys):
    write_run(tmp_path, "fedavg", 0, done=False)
    assert main(["table", str(tmp_path)]) == 2
    assert "None of these runs is finished." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("missing", "argv"), [("pandas", ["table", "{}"]), ("altair", ["plot", "curves", "{}", "to=x.png"])]
)
def test_a_missing_extra_is_one_sentence_with_the_command(folder, tmp_path, monkeypatch, capsys, missing, argv):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, missing, None)  # import fails
    assert main([part.format(folder) for part in argv]) == 2
    said = capsys.readouterr().err
    assert f'the package {missing}, which is not installed: pip install "fedexp[report]"' in " ".join(said.split())
    assert list(tmp_path.iterdir()) == []


def test_help_names_the_kinds(capsys):
    assert main(["plot", "--help"]) == 0
    said = capsys.readouterr().out
    assert [name for name in KINDS if not re.search(rf"\b{name}\b", said)] == []
