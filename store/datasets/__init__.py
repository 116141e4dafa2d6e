"""Datasets: JSONL or Parquet in, one versioned Parquet with a manifest out. Needs no database."""
