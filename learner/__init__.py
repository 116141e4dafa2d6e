"""Trains windows as steps: sweep, write ahead, train, commit, publish, checkpoint."""
