"""Benchmarks: each file of this folder is one, named like the file, with `measure() -> list[Result]`."""
