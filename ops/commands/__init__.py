"""The commands, a file per group: arguments here, the work elsewhere."""
