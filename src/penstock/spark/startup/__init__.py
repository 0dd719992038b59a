"""Starting Spark quietly and fast: Java, the JVM, settings, Python workers, scratch space.

    java         finds the Java that runs Spark
    launch       starts the JVM, directly or by Spark's own scripts
    forking      the process that Python workers are forked from; `stand_in` is the program that Spark runs as Python
    settings     settings and their defaults, the scratch folder
    sessions     `session()`

`python -m benchmarks spark_batches parts` measures what the direct start and the forked workers save until the first
batch. The forked workers save about a third of the CPU time, the direct start three seconds of it on two busy cores.
"""
