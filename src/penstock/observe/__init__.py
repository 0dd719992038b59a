"""How a journal does, seen from outside: samples, metrics, trace context, logs.

sample      values: how topics and queues do
history     the last week in numbers, kept in the journal
collect     taking a sample of a whole journal, and what is wrong with it, in words
gauges      a sample as gauges
metrics     counters, gauges and histograms of this process
spans       OpenTelemetry spans of sends, takes and handlers
tracing     W3C trace context in event headers
pipelines   what running Spark pipelines report of themselves in the journal
workers     workers that gave up, as they report it themselves
logs        loggers that import `logging` when there is something to say
"""
