"""The replicated state machine: a function of the entries alone. No clock, no randomness, no trio, no sockets."""
