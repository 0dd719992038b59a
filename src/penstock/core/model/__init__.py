"""Values: what is wanted, said once. Handles, the wire, Spark, the command line and the store all say it with these.

push        what a push says of its messages
take        which messages to take, for whom and for how long
failure     a failed attempt in words, and when its message comes again
query       which events are wanted
conditions  the small language of `where=`: `payload.total > 10 and kind in ('paid', 'placed')`
reply       the headers with which a message asks that its outcome is kept
durations   seconds, as fields of values
plan        what a worker over a topic is to do
arguments   the keyword arguments that several calls share

Nothing here does I/O or knows where a journal is.
"""
