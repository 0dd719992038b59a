"""The console: pages that the server renders and server-sent events keep fresh. It needs no build step.

parts.py        tables, tiles and numbers as values, templates, the frame of every page
routes.py       what is at which address; login, the API to read, static files
overview.py     the overview, all topics, all queues; beside it a file for each other page
failures.py     messages that were given up, by error and one by one
problem.py      what a person sees in place of a page that cannot be shown
charts.py       the past in numbers
"""
