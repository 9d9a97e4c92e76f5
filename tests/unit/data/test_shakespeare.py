"""Windows of speaking roles, from LEAF's files and from the complete works."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedexp.data.shakespeare import LENGTH, UNKNOWN, VOCABULARY, Shakespeare, tokens
from fedexp.data.shakespeare_text import roles
from fedexp.errors import DataError
from tests.unit.data.test_leaf import write_leaf


def shakespeare(root: Path) -> Shakespeare:
    return Shakespeare(root=str(root), cache=str(root / "cache"))


def text_of(row: torch.Tensor) -> str:
    return "".join((VOCABULARY + "?")[i] for i in row.tolist())


def test_the_vocabulary_is_leafs_eighty_characters_and_one():
    assert len(VOCABULARY) == len(set(VOCABULARY)) == UNKNOWN == 80
    assert tokens("Aa ~\u00e6\u2019\x7f\n").tolist() == [VOCABULARY.index(c) for c in "Aa "] + [80] * 4 + [0]


def test_shakespeare_in_leafs_split(tmp_path):
    data, text = tmp_path / "shakespeare" / "data", "To be, or not to be: that is the question. " * 4
    windows = [text[i : i + LENGTH] for i in range(20)], [text[i + LENGTH] for i in range(20)]
    write_leaf(data / "train" / "all_data_train_8.json", {"HAMLET": windows, "A": windows})
    write_leaf(data / "test" / "all_data_test_8.json", {"HAMLET": (["x" * LENGTH], ["~"])})
    loaded = shakespeare(tmp_path).load()
    assert (loaded.spec.shape, loaded.spec.n_classes, loaded.train.x.dtype) == ((80,), 81, torch.int64)
    assert [text_of(row) for row in loaded.train.x[20:]] == windows[0]
    assert text_of(loaded.train.y[:20]) == "".join(windows[1])
    assert (loaded.owners.tolist(), loaded.test_owners.tolist()) == ([0] * 20 + [1] * 20, [1])
    assert loaded.test.y.tolist() == [UNKNOWN]


def test_a_window_of_another_length_is_refused(tmp_path):
    write_leaf(tmp_path / "shakespeare" / "data" / "all_data" / "all_data.json", {"A": (["short"], ["x"])})
    with pytest.raises(DataError, match="is not one of LEAF's files"):
        shakespeare(tmp_path).load()


OLD = """This is the 100th Etext file presented by Project Gutenberg
The Complete Works of William Shakespeare
THE SONNETS

by William Shakespeare

                     1
  From fairest creatures we desire increase,

1604

THE TRAGEDY OF HAMLET


by William Shakespeare

ACT I. Scene I.
  Ber. Who's there?
  Fran. Nay, answer me. Stand and unfold yourself.
    And once more.
  BER. Long live the King!
                                                          Exit.
    He.
Enter Ghost.

1593

THE COMEDY OF ERRORS

by William Shakespeare

<<THIS ELECTRONIC VERSION>>
ACT I. SCENE 1
AEGEON. Proceed, Solinus, to procure my fall,
And by the doom of death end woes and all.
One more.
DUKE. Merchant of Syracuse, plead no more;
<<THIS ELECTRONIC VERSION>>
not this

1600

AS YOU LIKE IT

by William Shakespeare

  ADAM. One.
    Two.
    Three.
"""
NEW = """\ufeffThe Complete Works of William Shakespeare

by William Shakespeare

                    Contents

    THE SONNETS
    THE TRAGEDY OF HAMLET
    AS YOU LIKE IT

THE SONNETS

From fairest creatures we desire increase,

THE TRAGEDY OF HAMLET

ACT I

SCENE I. Elsinore. A platform before the Castle.

Enter Francisco and Barnardo.

BARNARDO.
Who’s there?

FRANCISCO.
Nay, answer me. Stand and unfold yourself.
And once more.
 [_Exit._]
Here.

BARNARDO.
Long live the King!
He.

AS YOU LIKE IT

BARNARDO.
One.
Two.
Three.
"""


def test_roles_of_the_edition_of_1994(tmp_path):
    path = tmp_path / "works.txt"
    path.write_text(OLD)
    assert roles(path) == {
        "THE TRAGEDY OF HAMLET|BER": "Who's there?\nLong live the King!\nExit.\nHe.",
        "THE COMEDY OF ERRORS|AEGEON": "Proceed, Solinus, to procure my fall,\n"
        "And by the doom of death end woes and all.\nOne more.",
        "AS YOU LIKE IT|ADAM": "One.\nTwo.\nThree.",
    }


def test_roles_of_later_editions(tmp_path):
    path = tmp_path / "works.txt"
    path.write_text(NEW, encoding="utf-8")
    assert roles(path) == {
        "THE TRAGEDY OF HAMLET|BARNARDO": "Who’s there?\nLong live the King!\nHe.",
        "THE TRAGEDY OF HAMLET|FRANCISCO": "Nay, answer me. Stand and unfold yourself.\nAnd once more.\nHere.",
        "AS YOU LIKE IT|BARNARDO": "One.\nTwo.\nThree.",
    }


def test_roles_with_a_colon(tmp_path):
    path = tmp_path / "works.txt"
    path.write_text(
        "First Citizen:\nBefore we proceed any further, hear me speak.\nOne.\nTwo.\n\nAll:\nSpeak, speak.\n"
    )
    assert roles(path) == {"FIRST CITIZEN": "Before we proceed any further, hear me speak.\nOne.\nTwo."}


def test_shakespeare_from_the_complete_works(tmp_path):
    words = " ".join(f"word{i}" for i in range(60))
    path = tmp_path / "shakespeare" / "data" / "raw_data" / "raw_data.txt"
    path.parent.mkdir(parents=True)
    path.write_text(f"Anne:\n{words}\none   two\nthree\n\nBob:\nToo\nshort\nfor this\n\nCid:\n{words[:90]}\na\nb\n")
    loaded = shakespeare(tmp_path).load()
    anne, cid = f"{words} one two three", f"{words[:90]} a b"
    own = [loaded.train.x[loaded.owners == 0], loaded.test.x[loaded.test_owners == 0]]
    every = [text_of(row) for part in own for row in part]
    assert every == [anne[i : i + LENGTH] for i in range(len(anne) - LENGTH)]
    guessed = [loaded.train.y[loaded.owners == 0], loaded.test.y[loaded.test_owners == 0]]
    assert "".join(text_of(part) for part in guessed) == anne[LENGTH:]
    assert len(own[0]) == int(0.8 * len(every))
    assert int((loaded.owners == 1).sum() + (loaded.test_owners == 1).sum()) == len(cid) - LENGTH


def test_a_text_without_roles_is_refused(tmp_path):
    path = tmp_path / "shakespeare" / "data" / "raw_data" / "raw_data.txt"
    path.parent.mkdir(parents=True)
    path.write_text("Call me Ishmael.\n" * 50)
    with pytest.raises(DataError, match=r"raw_data.txt \(850 bytes\) holds no role with more than 80 characters"):
        shakespeare(tmp_path).load()
