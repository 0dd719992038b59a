"""Pipelines: Python files whose functions are streams between topics, queues and buffers."""
