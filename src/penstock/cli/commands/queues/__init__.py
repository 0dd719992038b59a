"""Commands about queues: their messages, policies and workers."""
