"""Consensus for many groups on one node. Knows nothing of queues, tenants or HTTP."""
