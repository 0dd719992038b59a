"""What a session of tests leaves out: planning again and compiling Java costs more than the few rows of a test."""

TINY_DATA: dict[str, object] = {
    "spark.sql.adaptive.enabled": False,
    "spark.sql.codegen.wholeStage": False,
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
