"""The console: rendered here, kept fresh by server-sent events, no build step.

parts.py        tables, tiles and charts as values, templates, the frame of every page
routes.py       what is at which address; login, the API to read, static files
overview.py     the journal, all topics, all queues, search, what is wrong
topic.py        a topic, an event, what caused what
queue.py        a queue
pipelines.py    Spark pipelines, schedules, buffers
charts.py       the past in numbers
"""
