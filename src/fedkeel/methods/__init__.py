"""One file per method. They are found by import: a new file here is in the registry, the tests, the docs and the CLI."""
