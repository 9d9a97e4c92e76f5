"""``python -m fedexp.data show``: what is printed, drawn and saved, and what is said of a wrong request."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from PIL import Image

from fedexp.data.show import main
from fedexp.partition.base import ClientSplit
from fedexp.partition.summary import summarise
from tests.unit.partition.test_partition import balanced


@pytest.fixture
def shown(capsys):
    """Runs the command; returns its exit code, output and complaint."""

    def show(*argv):
        code = main(argv)
        said = capsys.readouterr()
        return code, said.out, said.err

    return show


def digest_in(text):
    return re.search(r"digest +(\w{64})", text)[1]


def test_coverage_sizes_overlap_and_groups_are_printed(shown):
    code, out, _ = shown("partition=classes", "partition.dialect=pfllib", "partition.test=none")
    assert code == 0
    assert out.startswith("digits · classes (classes=2, dialect=pfllib, test=none) · 20 clients · seed 0")
    assert "1,438 of 1,438 samples (100.0%) and 10 of 10 classes have an owner" in out
    assert re.search(r"sizes +\d+ to \d+ \(mean 71\.9\) training samples per client; 0 own test samples", out)
    assert "2 per client; 4 owners per class" in out
    assert "no sample with several owners" in out
    assert "5 different class sets among 20 clients" in out
    assert "4 clients with classes 2, 3: 4, 5, 6, 7" in out


def test_copies_and_classes_without_an_owner_are_told(shown):
    out = shown("partition=classes", "partition.dialect=fedmr")[1]
    assert re.search(r"overlap +[\d,]+ samples with several owners, clients hold [\d,]+ second copies", out)
    assert "note: " in out
    out = shown("partition=classes", "partition.dialect=flower", "cohort.clients=4")[1]
    assert re.search(r"\([\d.]+%\) and [5-8] of 10 classes have an owner", out)
    assert re.search(r"note: \d of 10 classes have no owner", out)


def test_the_algorithm_and_the_network_do_not_matter(shown):
    plain = shown("partition=dirichlet")[1]
    for other in ("algo=scaffold", "model.hidden=[8,8]"):
        assert digest_in(shown("partition=dirichlet", other)[1]) == digest_in(plain)
    assert digest_in(shown("partition=dirichlet", "seed=1")[1]) != digest_in(plain)


@pytest.mark.parametrize(("partition", "suffix"), [("incomplete", "json"), ("classes", "npz")])
def test_a_saved_partition_is_used_again_by_the_printed_words(shown, tmp_path, suffix, partition):
    file = tmp_path / f"saved.{suffix}"
    code, out, _ = shown(f"partition={partition}", "cohort.clients=7", f"save={file}", "seed=3")
    assert code == 0
    words = re.search(r"(partition=file .*)", out)[1].split()
    again = shown(*words)
    assert again[0] == 0
    assert digest_in(again[1]) == digest_in(out)


def test_a_saved_partition_says_where_it_is_from_and_the_picture_is_a_png(shown, tmp_path):
    out = shown("partition=iid", f"save={tmp_path / 'saved.json'}", f"png={tmp_path / 'map.png'}")[1]
    assert str(tmp_path / "map.png") in out
    assert Image.open(tmp_path / "map.png").format == "PNG"
    origin = json.loads((tmp_path / "saved.json").read_text())["origin"]
    assert (origin["data"], origin["pool"], origin["clients"], origin["seed"]) == ("digits", "train", 20, 0)
    assert origin["partition"]["name"] == "iid"
    assert str(tmp_path) not in json.dumps(origin)


def test_a_long_setting_does_not_fill_the_title(shown):
    classes = json.dumps([[i % 10, (i + 1) % 10] for i in range(30)]).replace(" ", "")
    title = shown("partition=explicit", "cohort.clients=30", f"partition.classes={classes}")[1].splitlines()[0]
    assert len(title) < 120


# ---------------------------------------------------------------- refusals
@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["partition=class"], 2, "partition=class: there is no such choice. Did you mean 'classes'"),
        (["partition=classes", "partition.dialect=fedrep"], 2, "partition.dialect must be one of fedgela, fedmr"),
        (["partition=classes", "partition.classes=11"], 2, "has to lie between 1 and 10"),
        (["partition=natural"], 2, "who made each training sample, which this data set does not say"),
        (["png=map.jpg"], 2, "png=map.jpg has to end in .png."),
        (["save=saved.txt"], 2, "save=saved.txt has to end in .json or .npz."),
        (["save=nowhere/saved.json"], 2, "there is no directory nowhere"),
    ],
)
def test_a_wrong_request_is_answered_with_what_to_do(shown, tmp_path, monkeypatch, argv, code, message):
    monkeypatch.chdir(tmp_path)
    got, out, err = shown(*argv)
    assert (got, out) == (code, "")
    assert message in err
    assert list(tmp_path.iterdir()) == []


def test_a_picture_without_the_extra_is_refused_before_the_work(shown, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "altair", None)  # import fails
    code, out, err = shown("partition=iid", f"png={tmp_path / 'map.png'}")
    assert (code, out) == (2, "")
    assert 'the package altair, which is not installed: pip install "fedexp[report]"' in err
    assert list(tmp_path.iterdir()) == []


def test_help_tells_the_arguments(shown):
    code, out, _ = shown("--help")
    assert code == 0
    assert "png=FILE" in out
    assert "save=FILE" in out


def test_a_misspelt_setting_is_answered_without_torch():
    code = "import sys; from fedexp.data.show import main; main(['partition=no']); assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


def test_one_client_and_many_groups_are_summed_up():
    from fedexp.data.show import _facts

    one = [ClientSplit(balanced(1)[:5], balanced(0), "train")]
    assert any("one client" in fact for _, fact in _facts(summarise(one, balanced(1), 10), one))
    pairs = [ClientSplit(balanced(1)[i // 2 : i // 2 + 1], balanced(0), "train") for i in range(20)]
    facts = [fact for _, fact in _facts(summarise(pairs, balanced(1), 10), pairs)]
    assert any("and 2 more groups of two clients or more" in fact for fact in facts)
