-- Every row comes from an event. Keys are natural, so that a redelivered event finds its own row.
-- No foreign keys between rows of different logs: logs are read side by side.

-- The order is the rank: states only move forward.
CREATE TYPE group_state AS ENUM (
    'requested', 'generated', 'verified', 'annotated', 'measured', 'failed', 'dropped', 'trained'
);
CREATE TYPE step_status AS ENUM ('planned', 'skipped', 'trained');

CREATE TABLE run (
    run_id text PRIMARY KEY,
    name text,
    config jsonb,
    config_sha256 text,
    seed numeric(20),
    versions jsonb,
    started_at timestamptz,
    ended_at timestamptz,
    status text NOT NULL,
    reason text NOT NULL,
    last_event_id bigint NOT NULL,
    cleaned boolean NOT NULL DEFAULT false,
    CONSTRAINT ck_run_status CHECK (
        status IN ('running', 'draining', 'finished', 'stopped', 'no_progress', 'failed')
    )
);

CREATE TABLE run_end (
    run_id text NOT NULL,
    event_id bigint NOT NULL,
    status text NOT NULL,
    reason text NOT NULL,
    last_sequences jsonb NOT NULL,
    ended_at timestamptz NOT NULL,
    closed boolean NOT NULL,
    cleaned boolean NOT NULL DEFAULT false,
    PRIMARY KEY (run_id, event_id)
);

CREATE TABLE recorder_cursor (
    run_id text NOT NULL,
    log text NOT NULL,
    sequence bigint NOT NULL,
    dead_lettered bigint NOT NULL DEFAULT 0,
    updated_at timestamptz NOT NULL,
    PRIMARY KEY (run_id, log)
);

CREATE TABLE dataset (
    dataset text NOT NULL,
    dataset_version text NOT NULL,
    rows bigint,
    manifest_sha256 text,
    imported_at timestamptz,
    PRIMARY KEY (dataset, dataset_version)
);

CREATE TABLE sample (
    sample_key text PRIMARY KEY,
    dataset text NOT NULL,
    dataset_version text NOT NULL,
    item_index bigint NOT NULL,
    domain text NOT NULL,
    difficulty double precision,
    prompt text NOT NULL,
    prompt_is_chat boolean NOT NULL,
    prompt_sha256 bytea NOT NULL,
    target text,
    labeled boolean NOT NULL,
    verifier jsonb NOT NULL,
    options jsonb NOT NULL,
    cleaned boolean NOT NULL DEFAULT false,
    CONSTRAINT ck_sample_difficulty CHECK (difficulty > '-Infinity' AND difficulty < 'Infinity')
);
CREATE INDEX ix_sample_prompt ON sample (prompt_sha256);
CREATE INDEX ix_sample_dataset ON sample (dataset, dataset_version, item_index);

-- A prompt as rendered, once however often it is asked.
CREATE TABLE rendered_prompt (
    prompt_sha256 bytea PRIMARY KEY,
    text text NOT NULL,
    token_ids bytea NOT NULL,
    tokens integer NOT NULL,
    cleaned boolean NOT NULL DEFAULT false
);

CREATE TABLE prompt_group (
    run_id text NOT NULL,
    group_id text NOT NULL,
    sample_key text,
    domain text,
    purpose text,
    role text,
    bundle text,
    bundle_size integer,
    parent text,
    benchmark text,
    draw bigint,
    pass_no integer,
    attempt integer,
    size integer,
    cohort bigint,
    request_seq bigint,
    requested_version integer,
    prompt_sha256 bytea,
    state group_state NOT NULL,
    outcome text,
    window_no integer,
    window_index integer,
    drop_reason text,
    dropped_step integer,
    dropped_staleness integer,
    trained_step integer,
    requested_at timestamptz,
    terminal_at timestamptz,
    verified_ok boolean,
    requests_seq bigint,
    generated_seq bigint,
    verified_seq bigint,
    annotated_seq bigint,
    ends integer NOT NULL,
    PRIMARY KEY (run_id, group_id),
    CONSTRAINT ck_prompt_group_purpose CHECK (purpose IN ('train', 'eval', 'probe')),
    CONSTRAINT ck_prompt_group_outcome CHECK (outcome IN ('admitted', 'dropped', 'failed')),
    CONSTRAINT ck_prompt_group_size CHECK (size >= 1),
    CONSTRAINT ck_prompt_group_terminal CHECK ((state >= 'measured') = (terminal_at IS NOT NULL)),
    CONSTRAINT ck_prompt_group_trained CHECK ((state = 'trained') = (trained_step IS NOT NULL))
) WITH (fillfactor = 70);
CREATE INDEX ix_prompt_group_sample ON prompt_group (sample_key);
CREATE INDEX ix_prompt_group_open ON prompt_group (run_id) WHERE terminal_at IS NULL;

-- How many groups are where: kept by trigger, so that nobody has to count millions.
CREATE TABLE group_count (
    run_id text NOT NULL,
    purpose text NOT NULL,
    domain text NOT NULL,
    state group_state NOT NULL,
    drop_reason text NOT NULL,
    groups bigint NOT NULL,
    PRIMARY KEY (run_id, purpose, domain, state, drop_reason)
);

CREATE TABLE generation (
    run_id text NOT NULL,
    group_id text NOT NULL,
    generation_index integer NOT NULL,
    prompt_tokens integer,
    tokens integer NOT NULL,
    token_ids bytea NOT NULL,
    logprob_count integer NOT NULL,
    finish_reason text NOT NULL,
    version_min integer NOT NULL,
    version_max integer NOT NULL,
    version_spans jsonb NOT NULL,
    text text NOT NULL,
    text_sha256 bytea NOT NULL,
    logprob_mean double precision,
    sampling jsonb,
    seed bigint NOT NULL,
    engine text NOT NULL,
    worker text NOT NULL,
    started_at timestamptz NOT NULL,
    finished_at timestamptz NOT NULL,
    cleaned boolean NOT NULL DEFAULT false,
    PRIMARY KEY (run_id, group_id, generation_index),
    CONSTRAINT ck_generation_finish CHECK (finish_reason IN ('stop', 'length')),
    CONSTRAINT ck_generation_counts CHECK (tokens >= 0 AND logprob_count BETWEEN 0 AND tokens),
    CONSTRAINT ck_generation_versions CHECK (0 <= version_min AND version_min <= version_max),
    CONSTRAINT ck_generation_logprob CHECK (logprob_mean > '-Infinity' AND logprob_mean < 'Infinity')
);

-- event_id 0: the run's own verdict; otherwise the LEDGER sequence of its revision. The highest counts.
CREATE TABLE verdict (
    run_id text NOT NULL,
    group_id text NOT NULL,
    generation_index integer NOT NULL,
    event_id bigint NOT NULL,
    verifier text NOT NULL,
    verifier_version text NOT NULL,
    status text NOT NULL,
    score double precision,
    extracted text,
    answer_key text,
    answer_class integer,
    components jsonb NOT NULL,
    detail text NOT NULL,
    latency_ms double precision,
    verified_at timestamptz NOT NULL,
    cleaned boolean NOT NULL DEFAULT false,
    PRIMARY KEY (run_id, group_id, generation_index, event_id),
    CONSTRAINT ck_verdict_status CHECK (
        status IN ('ok', 'no_answer', 'timeout', 'verifier_error', 'ungradable')
    ),
    CONSTRAINT ck_verdict_score CHECK (
        score BETWEEN 0 AND 1 AND (status IN ('ok', 'no_answer')) OR score IS NULL
    )
);
CREATE INDEX ix_verdict_revised ON verdict (run_id, event_id) WHERE event_id > 0;

-- What a policy decided about a group as a whole; about each answer: annotation.
CREATE TABLE group_decision (
    run_id text NOT NULL,
    group_id text NOT NULL,
    shadow boolean NOT NULL,
    policy text NOT NULL,
    policy_version text NOT NULL,
    outcome text NOT NULL,
    reason text NOT NULL,
    window_no integer,
    verified_seq bigint NOT NULL,
    cut bigint,
    event_id bigint NOT NULL,
    decided_at timestamptz NOT NULL,
    cleaned boolean NOT NULL DEFAULT false,
    PRIMARY KEY (run_id, group_id, shadow, policy),
    CONSTRAINT ck_group_decision_outcome CHECK (outcome IN ('admitted', 'dropped', 'failed'))
);
CREATE INDEX ix_group_decision_shadow ON group_decision (run_id, event_id) WHERE event_id > 0;

CREATE TABLE annotation (
    run_id text NOT NULL,
    group_id text NOT NULL,
    generation_index integer NOT NULL,
    policy text NOT NULL,
    policy_version text NOT NULL,
    shadow boolean NOT NULL,
    window_no integer,
    target text,
    target_source text NOT NULL,
    admitted boolean NOT NULL,
    reward double precision,
    advantage double precision NOT NULL,
    weight double precision,
    token_weights bytea,
    reason text NOT NULL,
    signals jsonb NOT NULL,
    cleaned boolean NOT NULL DEFAULT false,
    PRIMARY KEY (run_id, group_id, generation_index, shadow, policy),
    CONSTRAINT ck_annotation_finite CHECK (
        (reward IS NULL OR (reward > '-Infinity' AND reward < 'Infinity'))
        AND advantage > '-Infinity' AND advantage < 'Infinity'
        AND (weight IS NULL OR (weight >= 0 AND weight < 'Infinity'))
    )
);
