"""Flow control: how fast, how many at a time and in whose turn a queue hands out, and what a push may replace.

`rate` and `window` are state machines over values, without I/O; `limiter` keeps their state in the store, inside
the commit of a take, so that they hold for every process that has the queue open.
"""
