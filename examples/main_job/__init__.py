"""The main job: a shop's day, start to end, with a kill in the middle and a proof at the end.

pipeline.py   what Spark does: windowed revenue, a state for every customer, alerts   (`penstock run`)
producers.py  who writes the orders: three processes to the journal, one through the buffer
desk.py       who handles the alerts: workers that fail, retry, give up, and get a second chance
proof.py      everything once more from the raw input, and compared
chart.py      the picture
__main__.py   the story that ties them together: `make run`, or `python -m examples.main_job`
"""
