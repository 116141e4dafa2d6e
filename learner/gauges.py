"""What Prometheus can ask of the learner."""

from prometheus_client import Counter, Gauge, Histogram

learner_step = Gauge("sluice_learner_step", "Last committed step.")
learner_version = Gauge("sluice_learner_version", "Model version in force.")
learner_steps_total = Counter(
    "sluice_learner_steps_total", "Steps committed, by status.", ["status"]
)
learner_dropped_total = Counter(
    "sluice_learner_dropped_groups_total", "Groups dropped by the learner, by reason.", ["reason"]
)
learner_tokens_total = Counter("sluice_learner_tokens_total", "Answer tokens in trained steps.")
step_seconds = Histogram(
    "sluice_learner_step_seconds", "Time to compute a step.",
    buckets=(0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 180, 600, 1800),
)  # fmt: skip
wait_seconds = Histogram(
    "sluice_learner_wait_seconds", "Time from one step to a complete window for the next.",
    buckets=(0.01, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 180, 600, 1800),
)  # fmt: skip
