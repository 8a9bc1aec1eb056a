"""A group as the actors beside it see it: they read what it holds, and put into its inbox what it is to do."""

from __future__ import annotations

from typing import Protocol

from queen_node.events import Event
from queen_node.group import Group
from queen_node.inbox import Inbox


class GroupOnNode(Protocol):
    """A group of this node and its actor's inbox; `group_actor.GroupActor`."""

    @property
    def group(self) -> Group: ...

    @property
    def inbox(self) -> Inbox[Event]: ...
