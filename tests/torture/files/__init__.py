"""Power cuts of what penstock writes beside a store: the file buffer, exports, sealed history.

`workload` uses them under the recorder, `check` says what is wrong with what a power cut left.
"""
