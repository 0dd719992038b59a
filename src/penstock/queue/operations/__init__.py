"""What can be done to a queue, each inside one commit.

push        the event and, for messages that ask for it, when and how to deliver it
take        the short way for a plain queue; choice: the long way for everything else
settle      the end of a delivery; dead: dead letters
groups      adding groups, changing the mode
repair      claim, discard, purge, drop; moving: redrive and move
"""
