"""Doors as processes of their own: HTTP and handlers on one core, the group on another.

`children` starts and ends them, `link` is the node's side of the channel to one, `remote_broker` and `process` are the
door; between them `channel` moves what `frames` spells. Not here: what a door says to a client (`queen_node.http`).
"""
