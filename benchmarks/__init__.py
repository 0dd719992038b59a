"""penstock beside its peers, on the same work, in one run. `python -m benchmarks journal`, or `make bench BENCH=journal`."""
