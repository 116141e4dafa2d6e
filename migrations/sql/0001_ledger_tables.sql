-- Tables of the LEDGER: supervision, steps, mixture, model weights, evaluations, incidents.

CREATE TABLE supervision_event (
    event_id bigint NOT NULL,
    run_id text NOT NULL,
    sample_key text NOT NULL,
    recorded_at timestamptz NOT NULL,
    step integer,
    method text NOT NULL,
    lifetime text NOT NULL,
    field text NOT NULL,
    old text,
    new text,
    evidence jsonb NOT NULL,
    actor text NOT NULL,
    cleaned boolean NOT NULL DEFAULT false,
    PRIMARY KEY (run_id, event_id),
    CONSTRAINT ck_supervision_event_lifetime CHECK (lifetime IN ('step', 'run', 'dataset')),
    CONSTRAINT ck_supervision_event_field CHECK (field IN (
        'labeled', 'target', 'target_source', 'confidence', 'status', 'visits', 'solve_rate'
    ))
);
CREATE INDEX ix_supervision_event_sample ON supervision_event (sample_key, run_id, event_id);

CREATE TABLE supervision_state (
    run_id text NOT NULL,
    sample_key text NOT NULL,
    labeled boolean,
    target text,
    target_source text,
    confidence double precision,
    status text,
    visits bigint,
    solve_rate double precision,
    last_event_id bigint NOT NULL,
    PRIMARY KEY (run_id, sample_key),
    CONSTRAINT ck_supervision_state_confidence CHECK (confidence BETWEEN 0 AND 1),
    CONSTRAINT ck_supervision_state_solve_rate CHECK (solve_rate BETWEEN 0 AND 1),
    CONSTRAINT ck_supervision_state_visits CHECK (visits >= 0)
);
CREATE INDEX ix_supervision_state_sample ON supervision_state (sample_key);

CREATE TABLE learner_step (
    run_id text NOT NULL,
    step integer NOT NULL,
    status step_status NOT NULL,
    reason text,
    start_version integer,
    weights_version integer,
    planned_groups integer,
    dropped_groups integer,
    groups integer,
    generations integer,
    tokens bigint,
    staleness_mean double precision,
    staleness_max integer,
    loss double precision,
    grad_norm double precision,
    entropy double precision,
    kl double precision,
    ratio_mean double precision,
    clip_fraction double precision,
    reward_mean double precision,
    metrics jsonb,
    digest text,
    planned_at timestamptz,
    committed_at timestamptz,
    planned_seq bigint,
    committed_seq bigint,
    cleaned boolean NOT NULL DEFAULT false,
    PRIMARY KEY (run_id, step)
);

CREATE TABLE batch_member (
    run_id text NOT NULL,
    step integer NOT NULL,
    group_id text NOT NULL,
    position integer NOT NULL,
    staleness integer NOT NULL,
    stream_seq bigint NOT NULL,
    PRIMARY KEY (run_id, step, group_id)
);
CREATE INDEX ix_batch_member_group ON batch_member (run_id, group_id);

CREATE TABLE mixture (
    run_id text NOT NULL,
    update_no integer NOT NULL,
    step integer NOT NULL,
    domain text NOT NULL,
    mixer text NOT NULL,
    target_share double precision NOT NULL,
    requested bigint NOT NULL,
    generated bigint NOT NULL,
    admitted bigint NOT NULL,
    trained bigint NOT NULL,
    reward_mean double precision,
    abs_advantage_mean double precision,
    slope double precision,
    reason text NOT NULL,
    request_seq bigint NOT NULL,
    cut bigint NOT NULL,
    window_no integer NOT NULL,
    updated_at timestamptz NOT NULL,
    event_id bigint NOT NULL,
    cleaned boolean NOT NULL DEFAULT false,
    PRIMARY KEY (run_id, update_no, domain),
    CONSTRAINT ck_mixture_target CHECK (target_share BETWEEN 0 AND 1)
);

CREATE TABLE weights (
    run_id text NOT NULL,
    version integer NOT NULL,
    step integer NOT NULL,
    digest text NOT NULL,
    uri text NOT NULL,
    bytes bigint NOT NULL,
    published_at timestamptz NOT NULL,
    event_id bigint NOT NULL,
    PRIMARY KEY (run_id, version)
);

CREATE TABLE checkpoint (
    run_id text NOT NULL,
    step integer NOT NULL,
    version integer NOT NULL,
    digest text NOT NULL,
    uri text NOT NULL,
    cursor_seq bigint NOT NULL,
    written_at timestamptz NOT NULL,
    event_id bigint NOT NULL,
    PRIMARY KEY (run_id, event_id)
);

CREATE TABLE evaluation (
    run_id text NOT NULL,
    version integer NOT NULL,
    benchmark text NOT NULL,
    step integer NOT NULL,
    items integer NOT NULL,
    score double precision,
    missing jsonb NOT NULL,
    finished_at timestamptz NOT NULL,
    event_id bigint NOT NULL,
    cleaned boolean NOT NULL DEFAULT false,
    PRIMARY KEY (run_id, version, benchmark),
    CONSTRAINT ck_evaluation_score CHECK (score BETWEEN 0 AND 1)
);

CREATE TABLE evaluation_item (
    run_id text NOT NULL,
    version integer NOT NULL,
    benchmark text NOT NULL,
    group_id text NOT NULL,
    sample_key text NOT NULL,
    domain text NOT NULL,
    score double precision,
    PRIMARY KEY (run_id, version, benchmark, group_id),
    CONSTRAINT ck_evaluation_item_score CHECK (score BETWEEN 0 AND 1)
);
CREATE INDEX ix_evaluation_item_sample ON evaluation_item (sample_key);

CREATE TABLE incident (
    run_id text NOT NULL,
    event_id bigint NOT NULL,
    kind text NOT NULL,
    role text NOT NULL,
    detail text NOT NULL,
    group_id text,
    occurred_at timestamptz NOT NULL,
    cleaned boolean NOT NULL DEFAULT false,
    PRIMARY KEY (run_id, event_id)
);
