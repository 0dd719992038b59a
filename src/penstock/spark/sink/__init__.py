"""Writing frames and streams to topics and queues: tasks stage blocks, the driver's commit publishes them."""
