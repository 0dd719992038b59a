"""Commands about whole journals."""
