"""Generated tasks with checkable answers, one file each; all problems of a task are distinct."""
