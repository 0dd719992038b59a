"""The data source `penstock-buffer`: a buffer's batches as a table and a stream, and as a place to write to.

    source    `spark.read` and `spark.readStream`: who may ask for what
    stream    offsets are the manifest's sequences; the query owns the manifest's epoch
    rows      tasks fetch objects and turn them into record batches
    sink      tasks upload objects, the commit appends them to the manifest in one conditional put
    options   what can be asked for, and which of it belongs to the object store

A query reads every entry once and acknowledges it when its checkpoint holds the batch after the one that read it. A
batch that is written carries a mark with the query and the batch, so that its repetition changes nothing.
"""
