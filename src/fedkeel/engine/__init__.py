"""Runs algorithms: the round loop, who runs the clients of a round, client memory, checkpoints and seeds."""
