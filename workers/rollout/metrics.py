"""What a rollout process counts. Labels come from fixed lists."""

from prometheus_client import Counter, Gauge, Histogram

ENGINES = ("train", "eval")
"""Which of the process's engines: that of training answers, or that of pinned versions."""

tokens_total = Counter("sluice_rollout_tokens_total", "Tokens sampled.", ["engine"])
rows = Gauge("sluice_rollout_rows", "Answers being decoded.", ["engine"])
weights_version = Gauge(
    "sluice_rollout_weights_version",
    "Version of the weights in force; -1 before the first.",
    ["engine"],
)
groups_total = Counter("sluice_rollout_groups_total", "Groups answered, by result.", ["result"])
duplicates_total = Counter(
    "sluice_rollout_duplicates_total", "Sampled answers equal to an earlier one of their group."
)
swap_seconds = Histogram(
    "sluice_rollout_swap_seconds", "From fetched to in force, decoding meanwhile.",
    buckets=(0.005, 0.02, 0.1, 0.5, 2, 10, 60),
)  # fmt: skip
weights_failures_total = Counter(
    "sluice_rollout_weights_failures_total",
    "Published weights that could not be taken, by attempt.",
)

for _engine in ENGINES:
    tokens_total.labels(_engine)
    rows.labels(_engine)
    weights_version.labels(_engine).set(-1)
for _result in ("ok", "failed"):
    groups_total.labels(_result)
