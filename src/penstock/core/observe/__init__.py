"""The state of a journal, in values and in the counters of this process; `sampling` examines a whole journal.

sample      values: how topics and queues do
metrics     counters, gauges and histograms of this process
tracing     W3C trace context in event headers, OpenTelemetry spans
pipelines   what running Spark pipelines report of themselves in the journal
workers     workers that gave up, as they report it themselves
failures    messages that were given up, grouped by their errors
logs        loggers that import `logging` when there is something to say
"""
