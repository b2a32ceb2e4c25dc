"""The algorithm interface and the pieces that methods are written with. Knows nothing of engines, data or studies."""
