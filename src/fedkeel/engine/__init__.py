"""One run: the loop over its rounds, the runners that run the clients, client memory, checkpoints and seeds."""
