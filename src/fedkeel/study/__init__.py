"""Studies: many runs on common ground, one table and one page.

A study file (`file`, changed by the options of the command line in `changes`) names a task, methods, cases and axes.
`Study.read` checks it and expands it to branches: a method in a case at one value of every axis (`study`).
`running` turns every branch into runs, one per seed and before them the trials of a search, and trains those that are not
complete yet.
`results` reads the directories of the runs and sums them up: means and deviations over seeds, costs to a target.
`report` shows the results as a page, figures and tables; `compare.run_study` does all of this in order.
"""
