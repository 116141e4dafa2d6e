"""Decides which sample is asked for next and when; evaluates, ends the run, keeps the logs small."""
