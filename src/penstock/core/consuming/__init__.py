"""Consumers: a delivery, a subscription, a worker. A program gets them from the journal and the queue.

delivery        one message in one consumer's hand, until it is settled or its lease ends
subscription    the history of topics, then what comes
worker          something that runs a handler again and again until it is told to stop
processes       workers in several processes of one program
stopping        signals that end a program, and its workers
handover        what a thread does for a caller in an event loop that may be cancelled meanwhile
"""
