"""`python -m fedkeel`: the same as the command `fedkeel`."""

from fedkeel.cli.app import main

main()
