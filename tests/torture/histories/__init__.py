"""Histories: what several processes did at once to one journal, recorded with times, and checked afterwards.

`worker` is one process and writes its part of the history, `order` and `check` say what in a history cannot have been,
`__main__` makes histories with new seeds until the time is up. `search` is a second checker with another method: it has
a model of what is used, and searches for an order.

What the first checker can say. Every operation of these histories names the version it wrote or saw (a position), so
the only order that could explain them is known, and a history is linearizable exactly when no operation ended before
one that comes earlier in that order had begun. Nothing is searched; histories may be of any length. What it cannot say:
whether operations whose answer names no version (counts, sizes, cursors, marks) were in order; whether a read of one
topic and one of another fit together; leases are judged by the machine's wall clock, to two milliseconds. An operation
whose process was killed counts as done when the journal has its event in the end, and as never begun otherwise. To the
search, such an operation may come at any time, or never.
"""
