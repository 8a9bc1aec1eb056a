"""What the node can do, measured: one file a subject, run by `./scripts/bench`.

Nothing here is part of the product. The node is a process of its own and so is the load; this package starts both, on a
scratch folder and a free port, and ends what it started.
"""
