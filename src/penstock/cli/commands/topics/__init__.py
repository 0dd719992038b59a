"""Commands about topics: their events, consumers and what they keep."""
