"""One file per format. A reader returns `Arrays` (see data/arrays.py); data/catalogue.py says who reads what."""
