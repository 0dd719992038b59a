"""The engine without a disk: a sorted map in this process."""
