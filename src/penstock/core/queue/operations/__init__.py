"""The operations on a queue, each inside one commit.

push        the event and, for messages that ask for it, when and how to deliver it; throttles and debounces
take        the short way for a plain queue, and the long way for everything else
settle      the end of a delivery; dead letters, and what their headers say
groups      policy, pauses, groups
follow      what follows a call that has returned: its outcome, the next call, a join
notes       results of steps, and progress
erase       messages that are blanked
repair      claim, discard, run now, purge, drop, redrive, move, replace
"""
