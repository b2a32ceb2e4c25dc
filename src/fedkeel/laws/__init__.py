"""Laws that every method obeys. `fedkeel check` applies them to a method of another package, the tests to all methods."""
