"""Starting Spark quietly and fast: Java, the JVM, settings, Python workers, scratch space."""
