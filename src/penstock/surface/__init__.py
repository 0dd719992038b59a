"""What a program may hold, wherever the journal is: one surface over two homes, this process and a server.

    queue, delivery, receiving, worker      written once, over a `backend`: here or at a server
    journal, topic, subscription, outbox    one abstract class each
    failure                                 a failed attempt in words

The classes of a journal in this process (`LocalJournal`, `LocalTopic`, …) and those of a served one (`RemoteJournal`,
`RemoteTopic`, …) derive from these, and `penstock.Journal`, `penstock.Topic`, … are these: annotate with them, and ask
`isinstance` about them. What only a journal in this process can do raises ConfigError on a served one.
"""
