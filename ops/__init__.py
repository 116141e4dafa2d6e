"""Commands, the one-machine supervisor, and everything needed to deploy."""
