"""What a node knows of the groups that sleep on it: whose process they sleep under, and when they must wake (M-30 to
M-32)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from queen_node.events import AskAlso, Wake
from queen_node.peer_calls import NotQuiet, QuietCall, QuietHeld
from queen_node.sleepers import (
    ASKS_AFTER_TICKS,
    COMPARED_EVERY_FRAMES,
    COMPARED_FROM_TICKS,
    MISMATCHES_MAX,
    OTHERS_AFTER_TICKS,
    OTHERS_WHEN_DUE_AFTER_TICKS,
    PAIRS_A_WORD,
    STARTS_AFTER_TICKS,
    STIRRED_MAX,
    STIRRED_TICKS_MAX,
    WAKES_PER_S,
    Pairs,
    Sleepers,
    pair_hash,
)
from raft.messages import NUMBER_MAX

ELECTION_TICKS = 10
NOTHING = (0, 0)
STAND = Wake(stands=True)


class Node:
    """Node 1 of three, its time and the frames of the others in the test's hand. Implements `Lives`."""

    def __init__(self, settled: bool = True) -> None:
        self.told: list[tuple[int, QuietCall]] = []
        self.events: list[tuple[int, Wake | AskAlso]] = []
        self.deadlines: dict[int, int] = {}
        self.now_us = 0
        self.numbers = {2: 20, 3: 30}
        self.are_open = True
        self.sleepers = Sleepers(
            1, self, election_ticks=ELECTION_TICKS, tick_s=0.1, boottime_us=lambda: self.now_us,
            tell=lambda node, call: self.told.append((node, call)), put=lambda life, event: self._put(life, event))
        if settled:
            self.pass_ticks(4 * ELECTION_TICKS)

    def _put(self, life: int, event: Wake | AskAlso) -> None:
        self.events.append((life, event))
        if isinstance(event, Wake):
            self.sleepers.wake(life)

    def deadline_us(self, life: int) -> int | None:
        return self.deadlines.get(life)

    def voters(self, life: int) -> tuple[int, ...]:
        return (1, 2, 3)

    def frame(self, node: int, summary: tuple[int, int] | None = None) -> None:
        """summary: as this node would have it unless told otherwise."""
        agreed = self.sleepers._process(node).under.summary
        self.sleepers.hear_frame(node, self.numbers[node], self.now_us, agreed if summary is None else summary)

    def pass_ticks(self, ticks: int, *, silent: tuple[int, ...] = ()) -> None:
        for _ in range(ticks):
            self.now_us += 100_000
            for node in (2, 3):
                if node not in silent:
                    self.frame(node)
            self.sleepers.tick()

    def under(self, node: int, *lives: int, term: int = 5) -> None:
        for life in lives:
            self.sleepers.fell_asleep(life, term, node, frozenset())

    def led(self, *lives: int, agreed: frozenset[int] = frozenset((2, 3)), term: int = 5) -> None:
        for life in lives:
            self.sleepers.fell_asleep(life, term, 1, agreed)

    def woken(self) -> list[int]:
        lives = [life for life, event in self.events if event == STAND]
        self.events.clear()
        return lives


def test_a_silent_process_leaves_its_groups_without_a_leader() -> None:
    """M-31: after an election timeout; the chosen candidates of a trio's two survivors stand, in turn."""
    node = Node()
    node.under(2, 6, 7, 8, 9)
    node.under(3, 10)
    node.pass_ticks(ELECTION_TICKS - 2, silent=(2,))
    assert node.woken() == [] and node.sleepers.live == {1, 2, 3}
    node.pass_ticks(1 + STARTS_AFTER_TICKS, silent=(2,))
    assert node.sleepers.live == {1, 3}
    assert node.woken() == [6, 8]  # the even ones are this node's, the odd ones node 3's
    node.pass_ticks(OTHERS_AFTER_TICKS, silent=(2,))
    assert node.woken() == [7, 9]  # node 3 did not stand
    node.pass_ticks(100, silent=(2,))
    assert node.woken() == [] and len(node.sleepers) == 1


def test_who_was_woken_by_the_chosen_candidate_does_not_stand_too() -> None:
    node = Node()
    node.under(2, 7)
    node.pass_ticks(ELECTION_TICKS + STARTS_AFTER_TICKS, silent=(2,))
    node.sleepers.wake(7)  # node 3's pre-vote came
    node.pass_ticks(100, silent=(2,))
    assert node.woken() == []


def test_another_process_in_its_place_is_an_end_too() -> None:
    """M-31: it was restarted so fast that nobody missed it."""
    node = Node()
    node.under(2, 6)
    node.led(4)
    node.numbers[2] = 21
    node.pass_ticks(1)
    assert node.sleepers.summary_for(2) == NOTHING and node.sleepers.summary_for(3)[0] == 1
    node.pass_ticks(max(STARTS_AFTER_TICKS, ASKS_AFTER_TICKS))
    # Of three live nodes it is this one's to lead; the new process is asked about what sleeps without it.
    assert sorted(node.events) == [(4, AskAlso(2)), (6, STAND)]
    node.led(4)
    node.pass_ticks(100)
    assert len(node.events) == 2


def test_this_nodes_own_pause_is_nobodys_silence() -> None:
    """It counts its ticks, not the time."""
    node = Node()
    node.under(2, 6)
    node.now_us += 60_000_000
    node.sleepers.tick()
    node.pass_ticks(30)
    assert node.woken() == [] and node.sleepers.live == {1, 2, 3}


def test_the_most_urgent_wake_first_and_the_others_at_a_pace() -> None:
    """M-32."""
    node = Node()
    lives = list(range(2, 4002, 2))
    node.under(2, *lives)
    node.deadlines = {3000: 7_000_000, 500: 9_000_000, 1000: 8_000_000}
    node.pass_ticks(ELECTION_TICKS + STARTS_AFTER_TICKS - 1, silent=(2,))
    woken = list[int]()
    for ticks in (1, 10, 40):
        before = len(woken)
        for _ in range(ticks):
            node.pass_ticks(1, silent=(2,))
            each = node.woken()
            node.led(*each)  # they elect this node and sleep again
            woken += each
        if ticks == 10:
            assert WAKES_PER_S * 0.9 <= len(woken) - before <= WAKES_PER_S * 1.1
    assert woken[:4] == [3000, 1000, 500, 2] and sorted(woken) == lives


def test_no_more_are_woken_while_as_many_do_not_sleep_again() -> None:
    """3,000 awake at once were more than two cores can tick. One that stays awake, as it is used, makes room in
    time."""
    node = Node()
    node.under(2, *range(2, 4002, 2))
    node.pass_ticks(ELECTION_TICKS + STARTS_AFTER_TICKS + STIRRED_TICKS_MAX // 2, silent=(2,))
    woken = node.woken()
    assert len(woken) == STIRRED_MAX
    node.led(*woken[:10])
    node.pass_ticks(1, silent=(2,))
    assert len(node.woken()) == 10
    node.pass_ticks(STIRRED_TICKS_MAX, silent=(2,))
    assert len(node.woken()) == STIRRED_MAX


def test_a_node_that_is_back_is_asked_about_so_many_at_a_time() -> None:
    node = Node()
    lives = range(4, 4 + 3 * STIRRED_MAX)
    node.led(*lives, agreed=frozenset((2,)))
    node.pass_ticks(ELECTION_TICKS, silent=(3,))
    asked = list[int]()
    for _ in range(ASKS_AFTER_TICKS + 3):
        node.pass_ticks(1)
        each = [life for life, event in node.events if event == AskAlso(3)]
        assert len(each) <= STIRRED_MAX
        node.events.clear()
        node.led(*each)
        asked += each
    assert asked == list(lives)


def test_a_deadline_is_its_leaders_while_that_lives_and_wakes_a_group_that_has_none() -> None:
    """M-32: a timer due in an hour, in a group whose leader's node died."""
    node = Node()
    node.under(2, 6, 7)
    node.led(4)
    assert node.sleepers.takes_due(4)
    assert node.sleepers.takes_due(5)  # awake
    assert not node.sleepers.takes_due(6)
    for life in range(100, 2100, 2):
        node.under(2, life)
        node.deadlines[life] = 1
    node.pass_ticks(ELECTION_TICKS + STARTS_AFTER_TICKS, silent=(2,))
    node.led(*node.woken())
    assert not node.sleepers.takes_due(6) and not node.sleepers.takes_due(7)
    assert node.woken() == [6]  # before the hundreds in front of it
    node.pass_ticks(OTHERS_WHEN_DUE_AFTER_TICKS, silent=(2,))
    assert 7 in node.woken()


def test_without_a_majority_nobody_is_woken() -> None:
    """Thousands that cannot elect would only make noise; they are when enough of them are back."""
    node = Node()
    node.under(2, 6, 7)
    node.pass_ticks(100, silent=(2, 3))
    assert node.woken() == [] and not node.sleepers.takes_due(6) and node.woken() == []
    node.pass_ticks(3 + OTHERS_AFTER_TICKS, silent=(2,))
    assert node.woken() == [6, 7]


def test_a_start_waits_until_leaders_have_asked() -> None:
    """A node that comes back must not disturb thousands of groups that sleep well."""
    node = Node(settled=False)
    for life in (6, 7):
        node.sleepers.fell_asleep(life, 5, 0, frozenset())
    node.pass_ticks(2 * ELECTION_TICKS)
    assert not node.sleepers.takes_due(6)
    assert node.woken() == []
    node.under(2, 6)
    node.pass_ticks(2 * ELECTION_TICKS + OTHERS_AFTER_TICKS)
    assert node.woken() == [7] and len(node.sleepers) == 1


def test_nobody_is_woken_by_turn_before_all_groups_are_open() -> None:
    """A start of all nodes would have to open and to elect thousands at once. What is due does not wait for that."""
    node = Node(settled=False)
    node.are_open = False
    for life in (6, 7, 9):
        node.sleepers.fell_asleep(life, 0, 0, frozenset())
    node.pass_ticks(4 * ELECTION_TICKS)
    assert not node.sleepers.takes_due(7)  # node 3's, which does not stand
    node.pass_ticks(OTHERS_WHEN_DUE_AFTER_TICKS + 1)
    assert node.woken() == [7]
    node.pass_ticks(100)
    assert node.woken() == []
    node.are_open = True
    node.pass_ticks(1)
    assert node.woken() == [6, 9]


def test_who_wakes_hears_its_leaders_clock_as_it_is_now() -> None:
    """M-21: the last sample and the own time since, never ahead; also of a process that is gone."""
    node = Node()
    node.under(2, 6, 8)
    node.now_us += 50_000
    woken = node.sleepers.wake(6)
    assert woken.silent_ticks == 1
    assert woken.clock == (2, node.now_us - 50_000 + 50_000 * 9995 // 10_000)
    heard_at_us = node.now_us - 50_000
    node.pass_ticks(ELECTION_TICKS, silent=(2,))
    node.numbers[2] = 21
    node.pass_ticks(1)
    woken = node.sleepers.wake(8)
    assert woken.silent_ticks >= ELECTION_TICKS
    assert woken.clock == (2, heard_at_us + (node.now_us - heard_at_us) * 9995 // 10_000)


def test_a_lost_word_shows_within_300_ms_and_both_sides_make_it_good() -> None:
    """M-30: node 2 believes that 6 sleeps under node 1, who has woken; and about 8 it must be asked again."""
    one, two = Node(), Node()
    two.under(3, 99)
    one.led(4, 8)
    for life in (4, 6):
        two.sleepers.fell_asleep(life, 5, 3, frozenset())  # it calls node 1 its node 3
    two.sleepers.wake(99)
    one.pass_ticks(COMPARED_FROM_TICKS)
    two.pass_ticks(COMPARED_FROM_TICKS)
    for _ in range(MISMATCHES_MAX):
        assert two.told == []
        two.frame(3, one.sleepers.summary_for(2))
    ((_, held),) = two.told
    assert held == QuietHeld(0, NUMBER_MAX, ((4, 5), (6, 5)))
    one.sleepers.hear(2, held)
    one.pass_ticks(1)
    assert one.events == [(8, AskAlso(2))]
    ((_, answer),) = one.told
    assert answer == NotQuiet((6,))
    two.sleepers.hear(3, answer)
    assert two.events == [(6, Wake())]
    assert one.sleepers.summary_for(2) == two.sleepers._process(3).under.summary == (1, pair_hash(4, 5))


def test_what_has_just_come_to_sleep_is_not_compared_yet() -> None:
    """A member sleeps when it agrees, its leader once all have: on busy nodes a second lies between."""
    one, two = Node(), Node()
    two.under(3, 4, 6)
    one.led(8)
    for _ in range(COMPARED_EVERY_FRAMES - 1):
        two.frame(3, one.sleepers.summary_for(2))
    ((_, held),) = two.told
    assert held == QuietHeld(0, NUMBER_MAX, ())
    one.sleepers.hear(2, held)
    two.sleepers.hear(3, NotQuiet((6,)))
    one.pass_ticks(1)
    assert one.events == [] and two.events == []
    assert one.sleepers.summary_for(2)[0] == 1


def test_long_lists_cover_every_life_once() -> None:
    node = Node()
    lives = range(10, 10 + PAIRS_A_WORD + 5)
    node.under(2, *lives)
    node.pass_ticks(COMPARED_FROM_TICKS)
    for _ in range(MISMATCHES_MAX):
        node.frame(2, NOTHING)
    words = [call for _, call in node.told if isinstance(call, QuietHeld)]
    assert [len(word.pairs) for word in words] == [PAIRS_A_WORD, 5]
    assert (words[0].first, words[1].last) == (0, NUMBER_MAX) and words[0].last + 1 == words[1].first


def test_a_node_whose_work_has_ended_leads_nothing_asleep() -> None:
    """CL-126: its process stays, and its frames go on."""
    node = Node()
    node.led(4)
    node.sleepers.stop()
    assert node.sleepers.summary_for(2) == NOTHING
    node.sleepers.hear(2, QuietHeld(0, NUMBER_MAX, ((4, 5),)))
    assert node.told == [(2, NotQuiet((4,)))]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20), st.integers(0, 9)), max_size=60))
def test_a_sum_is_that_of_its_pairs_however_they_came(steps: list[tuple[bool, int, int]]) -> None:
    pairs, model = Pairs(), dict[int, int]()
    for adds, life, term in steps:
        if adds:
            pairs.add(life, term)
            model[life] = term
        else:
            pairs.drop(life)
            model.pop(life, None)
    anew = Pairs()
    for life, term in sorted(model.items()):
        anew.add(life, term)
    assert pairs.terms == model and pairs.summary == anew.summary
    assert 0 <= pairs.hash <= NUMBER_MAX
