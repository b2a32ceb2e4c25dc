"""One file per method. The registry, the tests, the docs and the command line find a new file by themselves."""
