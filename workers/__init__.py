"""The roles that run beside the learner: dispatcher, rollout, verifiers, policies."""
