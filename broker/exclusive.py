"""What only one thread of a process may do at a time, whichever of its roles asks for it."""

import threading

MODEL_LOADING = threading.Lock()
"""transformers changes classes of its own while it builds a model, so that a second thread's gets no
tied or no real weights: a learner and a rollout worker in one process must take turns."""
