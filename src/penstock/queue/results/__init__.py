"""Outcomes of messages: what a handler returned, or why a message was given up, for those who pushed with `reply=True`.

A message that wants a reply has a header (`reply-to`) that names the topic `<queue>.results` and a token. The outcome
is an event of that topic, with the token as its key and the message as its cause, in the commit that settles it.

    reply    the header, and the event
    ticket   what the pusher waits with, and one thread that follows the topic for all who wait
"""
