"""What a method is written against: its interface, records, rounds, local steps and flat models.

Nothing here knows engines, data or studies.
"""
