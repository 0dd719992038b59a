"""What a program may hold, wherever the journal is: one surface over two homes, this process and a server.

    journal, topic, queue, delivery, subscription, outbox      one abstract class each
    receiving  one message after the other; worker     what every worker is; failure     a failed attempt in words

The classes of a journal in this process (`LocalJournal`, `LocalTopic`, …) and those of a served one (`RemoteJournal`,
`RemoteTopic`, …) derive from these, and `penstock.Journal`, `penstock.Topic`, … are these: annotate with them, and ask
`isinstance` about them. What only a journal in this process can do raises ConfigError on a served one.
"""
