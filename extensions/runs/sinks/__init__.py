"""Where a run's rows go: JSON lines, Parquet, S3."""
