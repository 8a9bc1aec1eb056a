"""Pushes against a slow, obvious twin: a list of messages for each partition."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from queen_node.state.push import COLUMNS_MIN
from tests.support.inward import SECOND, Inward

QUEUES = ("orders", "bills")
PARTITIONS = ("Default", "p")
WINDOWS_S = (0, 1, 5, 60)

places = st.tuples(st.sampled_from(QUEUES), st.sampled_from(PARTITIONS), st.sampled_from("abc"))


class Model:
    """Every message ever, and the windows as they stand. No id is ever forgotten here."""

    def __init__(self) -> None:
        self.messages: dict[tuple[str, str], list[tuple[str, int]]] = {}  # place -> (transaction id, created at)
        self.window_s = dict.fromkeys(QUEUES, 3600)

    def push(self, call: list[tuple[str, str, str]], now_us: int) -> list[tuple[str, int]]:
        """(status, offset) of each item: PU-51 to PU-55, word for word."""
        answers = []
        first_of_call: dict[tuple[str, str, str], int] = {}
        for queue, partition, transaction_id in call:
            log = self.messages.setdefault((queue, partition), [])
            window_s = self.window_s[queue]
            inside = [
                offset for offset, (known, created_at_us) in enumerate(log)
                if window_s and known == transaction_id and now_us - created_at_us <= window_s * SECOND
            ]
            first = first_of_call.get((queue, partition, transaction_id))
            if first is not None:
                answers.append(("duplicate", first))
            elif inside:
                answers.append(("duplicate", inside[0]))
                first_of_call[queue, partition, transaction_id] = inside[0]
            else:
                answers.append(("queued", len(log)))
                first_of_call[queue, partition, transaction_id] = len(log)
                log.append((transaction_id, now_us))
        return answers


class PushesAgreeWithTheModel(RuleBasedStateMachine):
    """PU-40, PU-50 to PU-55: random calls, waits, changes of the window, and forgetting in between."""

    def __init__(self) -> None:
        super().__init__()
        self.node, self.model = Inward(), Model()

    @rule(call=st.lists(places, max_size=6))
    def push(self, call: list[tuple[str, str, str]]) -> None:
        items = [
            self.node.item(transaction_id, queue=queue, partition=partition)
            for queue, partition, transaction_id in call
        ]
        assert self.node.push(*items) == self.model.push(call, self.node.now_us)

    @rule(to=st.tuples(st.sampled_from(QUEUES), st.sampled_from(PARTITIONS)), ids=st.lists(
        st.sampled_from("abcdefghijkl"), min_size=COLUMNS_MIN, max_size=8))
    def push_to_one_partition(self, to: tuple[str, str], ids: list[str]) -> None:
        self.push([(*to, transaction_id) for transaction_id in ids])

    @rule(micros=st.one_of(
        st.integers(0, 3), st.sampled_from([window * SECOND for window in WINDOWS_S]), st.integers(0, 100 * SECOND)))
    def wait(self, micros: int) -> None:
        self.node.now_us += micros

    @rule(queue=st.sampled_from(QUEUES), window_s=st.sampled_from(WINDOWS_S))
    def change_window(self, queue: str, window_s: int) -> None:
        self.node.configure(queue, dedup_window_seconds=window_s)
        self.model.window_s[queue] = window_s

    @rule(at_most=st.integers(1, 5))
    def forget(self, at_most: int) -> None:
        # The longest window of this test: what it lets go no later change of a window can ask for.
        self.node.forget(at_most=at_most, keep_at_least_s=max(WINDOWS_S[-1], 3600))

    @invariant()
    def messages_agree(self) -> None:
        for (queue, partition), log in self.model.messages.items():
            stored = [(message.transaction_id.decode(), message.created_at_us)
                      for message in self.node.messages(queue, partition)]
            assert stored == log


TestPushesAgreeWithTheModel = PushesAgreeWithTheModel.TestCase
TestPushesAgreeWithTheModel.settings = settings(max_examples=60, stateful_step_count=30)
