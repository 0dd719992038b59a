"""What a journal does beside its writes: merging small blocks, retention, compaction."""
