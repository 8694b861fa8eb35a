"""Where a run's inputs come from: folders, lists, JSON lines, CSV, Parquet, tar, S3."""
