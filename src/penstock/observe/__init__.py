"""How a journal does, seen from outside: samples, metrics, trace context, logs.

sample      values: how topics and queues do
history     the last week in numbers, kept in the journal
collect     samples of a whole journal, what is wrong with it in words, and the same as gauges
metrics     counters, gauges and histograms of this process
tracing     W3C trace context in event headers, OpenTelemetry spans
pipelines   what running Spark pipelines report of themselves in the journal
workers     workers that gave up, as they report it themselves
logs        loggers that import `logging` when there is something to say
"""
