"""A journal in this process: the classes a user holds, each assembled from parts of the layers below.

A `JournalCore` (`penstock.journal.core`) owns the store and its writer. `LocalJournal` holds one, the `QueueRegistry`
and the `EntityRegistry` over it; `LocalTopic` holds the `TopicLog` of its name; `Transaction` holds a `HeldWriter` and
the `QueueChanges` made under it. What users see is said in `penstock.surface`, docstrings included; a served journal
(`penstock.remote`) is the other home of the same surface.
"""
