"""Values for requests, each declared once. Handles, the wire, Spark, the command line and the store use these types.

push        what a push says of its messages
take        which messages to take, for whom and for how long
failure     a failed attempt in words, and when its message comes again
query       which events are wanted
conditions  the small language of `where=`: `payload.total > 10 and kind in ('paid', 'placed')`
reply       the headers with which a message asks that its outcome is kept
durations   seconds, as fields of values
plan        what a worker over a topic is to do
arguments   the keyword arguments that several calls share

This package does no I/O and does not know where a journal is.
"""
