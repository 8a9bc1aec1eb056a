"""The file of QUEEN_TEST_NET_FILE: what it says is lost, each way for itself, and changes while it is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from raft.peer_cuts import PeerCuts


def test_words_cut_one_way_each_and_only_the_node_they_name(tmp_path: Path) -> None:
    path = tmp_path / "net"
    cuts = PeerCuts(path)
    assert cuts.hears(2) and cuts.reaches(2), "no file cuts nothing"
    path.write_text("from:2\nto:3 to:12")
    assert (cuts.hears(2), cuts.reaches(2)) == (False, True)
    assert (cuts.hears(3), cuts.reaches(3)) == (True, False)
    assert cuts.hears(1) and cuts.reaches(1)
    path.write_text("")
    assert cuts.hears(2) and cuts.reaches(3)


@pytest.mark.parametrize("text", ["2", "from:", "from:x", "in:2", "to:-2"])
def test_a_word_that_cuts_nothing_is_a_mistake_of_the_test(tmp_path: Path, text: str) -> None:
    path = tmp_path / "net"
    path.write_text(text)
    with pytest.raises(ValueError, match="neither from:<node> nor to:<node>"):
        PeerCuts(path).hears(2)
