-- A store of any size; see _audit_store.py. Of a run's groups 2 in 100 measure held-out items, 1 in 10 was
-- dropped by the policy, 1 in 10 was too old for its step, the others were trained. 5 in 100 have a shadow
-- decision, 1 in 100 was regraded.

CREATE FUNCTION said(n bigint) RETURNS timestamptz LANGUAGE sql IMMUTABLE
    RETURN to_timestamp(1767225600 + n * float8 '0.05');
CREATE FUNCTION domain_of(item bigint) RETURNS text LANGUAGE sql IMMUTABLE
    RETURN CASE item %% 4 WHEN 0 THEN 'math' WHEN 1 THEN 'code' WHEN 2 THEN 'logic' ELSE 'chat' END;
CREATE FUNCTION group_name(n bigint) RETURNS text LANGUAGE sql IMMUTABLE
    RETURN lpad(n::text, 8, '0') || '-0-0';
CREATE FUNCTION prompt_of(dataset text, item bigint) RETURNS bytea LANGUAGE sql IMMUTABLE
    RETURN sha256(decode(md5(dataset || item), 'hex'));

INSERT INTO sample
SELECT concat(dataset, ':1:', item), dataset, '1', item, domain_of(item), item %% 7,
    concat('What is ', item, '?'), false, prompt_of(dataset, item), concat('It is ', item), true,
    '{"name": "exact"}', '{}', false
FROM (
    SELECT item, domain_of(item) AS dataset FROM generate_series(0, %(samples)s::bigint - 1) AS item
    UNION ALL SELECT item, 'held_out' FROM generate_series(0, %(held_out)s::bigint - 1) AS item
) AS items;
INSERT INTO dataset (dataset, dataset_version, rows) SELECT dataset, '1', count(*) FROM sample GROUP BY 1;
INSERT INTO rendered_prompt SELECT prompt_sha256, prompt, '\x07000000', 1, false FROM sample;

-- each run
INSERT INTO prompt_group (run_id, group_id, sample_key, domain, purpose, role, benchmark, draw, pass_no, attempt,
    size, request_seq, requested_version, prompt_sha256, state, outcome, window_no, window_index, drop_reason,
    dropped_step, dropped_staleness, trained_step, requested_at, terminal_at, verified_ok, requests_seq,
    generated_seq, verified_seq, annotated_seq, ends)
SELECT %(run)s, group_name(n), concat(dataset, ':1:', item), domain_of(item),
    CASE WHEN held THEN 'eval' ELSE 'train' END, 'sampler', CASE WHEN held THEN 'held_out' END, n,
    n / %(samples)s, 0, %(size)s, n, step - 1, prompt_of(dataset, item),
    CASE WHEN held THEN 'measured' WHEN filtered OR stale THEN 'dropped' ELSE 'trained' END::group_state,
    CASE WHEN held THEN NULL WHEN filtered THEN 'dropped' ELSE 'admitted' END,
    CASE WHEN NOT held AND NOT filtered THEN step END,
    CASE WHEN NOT held AND NOT filtered THEN n %% %(step_groups)s END,
    CASE WHEN filtered THEN 'all_equal' WHEN stale THEN 'stale' END,
    CASE WHEN stale THEN step END, CASE WHEN stale THEN 3 END,
    CASE WHEN NOT held AND NOT filtered AND NOT stale THEN step END,
    said(n), said(n + 200), true, n, n, n, n,
    CASE WHEN held THEN 16 WHEN filtered THEN 2 WHEN stale THEN 4 ELSE 1 END
FROM (
    SELECT *, CASE WHEN held THEN 'held_out' ELSE domain_of(item) END AS dataset FROM (
        SELECT n, (n - 1) / %(step_groups)s + 1 AS step, n %% 50 = 0 AS held, n %% 10 = 1 AS filtered,
            n %% 10 = 2 AS stale,
            CASE WHEN n %% 50 = 0 THEN n / 50 %% %(held_out)s ELSE n * 7919 %% %(samples)s END AS item
        FROM generate_series(1, %(groups)s::bigint) AS n
    ) AS numbered
) AS groups;

INSERT INTO generation
SELECT %(run)s, group_name(k / %(size)s + 1), k %% %(size)s, 1, 16, decode(repeat('07000000', 16), 'hex'), 16, 'stop',
    v, v, jsonb_build_array(jsonb_build_array(v, 0, 16)), concat('It is ', k, ', as far as I can see.'),
    decode(repeat('5a', 32), 'hex'), -0.5, '{"temperature": 1.0}', k, 'torch', 'rollout-1',
    said(k / %(size)s), said(k / %(size)s + 100), false
FROM (
    SELECT k, k / (%(size)s * %(step_groups)s) AS v
    FROM generate_series(0, %(groups)s::bigint * %(size)s - 1) AS k
) AS answers;

INSERT INTO verdict
SELECT %(run)s, group_name(n), k %% %(size)s, event_id, 'exact', '1', 'ok', k %% 2, k::text, k::text, k %% 2,
    '{}', '', 0.1, said(n + 120), false
FROM (
    SELECT k, k / %(size)s + 1 AS n FROM generate_series(0, %(groups)s::bigint * %(size)s - 1) AS k
) AS answers
CROSS JOIN LATERAL (SELECT 0 AS event_id UNION ALL SELECT 3 * n WHERE n %% 100 = 7) AS events;

INSERT INTO group_decision
SELECT run_id, group_id, shadow, CASE WHEN shadow THEN 'other' ELSE 'grpo' END, '1', outcome,
    coalesce(drop_reason, 'admitted'), window_no, verified_seq, annotated_seq,
    CASE WHEN shadow THEN request_seq ELSE 0 END, said(request_seq + 150), false
FROM prompt_group CROSS JOIN (VALUES (false), (true)) AS kinds (shadow)
WHERE run_id = %(run)s AND purpose = 'train' AND (NOT shadow OR request_seq %% 20 = 7)
ORDER BY group_id, shadow;

INSERT INTO annotation
SELECT run_id, group_id, k, policy, '1', shadow, window_no, 'It is', 'dataset', outcome = 'admitted', k %% 2,
    k %% 2 - 0.5, 1.0, NULL, 'advantage', '{"entropy": 0.5}', false
FROM (SELECT * FROM group_decision WHERE run_id = %(run)s ORDER BY group_id) AS decided
CROSS JOIN LATERAL (SELECT k FROM generate_series(0, %(size)s - 1) AS k OFFSET 0) AS answers;

INSERT INTO learner_step (run_id, step, status, start_version, weights_version, planned_groups, dropped_groups,
    groups, generations, tokens, staleness_mean, staleness_max, loss, grad_norm, reward_mean, metrics, digest,
    planned_at, committed_at, planned_seq, committed_seq)
SELECT %(run)s, s, 'trained', s - 1, s, %(step_groups)s, 2, %(step_groups)s, 128, 2048, 1, 2, 0.1, 1, 0.5,
    '{"loss": 0.1, "reward/math": 0.5}', md5(s::text), said(s * 20), said(s * 20 + 20), 10 * s, 10 * s + 1
FROM generate_series(1, %(groups)s / %(step_groups)s) AS s;
INSERT INTO batch_member
SELECT run_id, trained_step, group_id, window_index, 1, annotated_seq FROM prompt_group
WHERE run_id = %(run)s AND state = 'trained' ORDER BY trained_step, group_id;
INSERT INTO weights
SELECT run_id, weights_version, step, digest, 'object:w', 1000, committed_at, 10 * step + 2
FROM learner_step WHERE run_id = %(run)s;
INSERT INTO checkpoint
SELECT run_id, step, weights_version, digest, 'file:c', 10 * step, committed_at, 10 * step + 3
FROM learner_step WHERE run_id = %(run)s AND step %% 50 = 0;
INSERT INTO mixture
SELECT run_id, step, step, domain_of(d), 'static', 0.25, 5 * step, 5 * step, 4 * step, 4 * step, 0.5, 0.4, 0,
    'static', 20 * step, 20 * step, step, committed_at, 10 * step + 4, false
FROM learner_step CROSS JOIN generate_series(0, 3) AS d
WHERE run_id = %(run)s ORDER BY step, domain_of(d);

INSERT INTO run (run_id, name, config, seed, versions, started_at, ended_at, status, reason, last_event_id)
VALUES (%(run)s, %(run)s, '{"run": {"max_staleness": 2, "steps": 1}}', 7, '{}', said(0), said(%(groups)s),
    'finished', '', 1);
INSERT INTO run_end VALUES (%(run)s, 10 * %(groups)s, 'finished', '', '{}', said(%(groups)s), true, false);
INSERT INTO recorder_cursor
SELECT %(run)s, log, %(groups)s, 0, said(0)
FROM unnest(ARRAY['REQUESTS', 'GENERATED', 'VERIFIED', 'ANNOTATED', 'LEDGER']) AS log;
INSERT INTO evaluation_item
SELECT run_id, request_seq / (50 * %(held_out)s), 'held_out', group_id, sample_key, domain, 0.5
FROM prompt_group WHERE run_id = %(run)s AND purpose = 'eval' ORDER BY request_seq;
INSERT INTO evaluation
SELECT run_id, version, benchmark, version, count(*), 0.5, '[]', said(0), 10 * version + 5
FROM evaluation_item WHERE run_id = %(run)s GROUP BY run_id, version, benchmark;
INSERT INTO incident
SELECT %(run)s, 10 * n + 6, 'engine', 'rollout', 'said no', NULL, said(n) FROM generate_series(1, 200) AS n;
INSERT INTO supervision_event
SELECT 10 * request_seq + 7, run_id, sample_key, said(request_seq), trained_step, 'counts', 'run',
    CASE request_seq %% 2 WHEN 0 THEN 'visits' ELSE 'solve_rate' END, NULL,
    CASE request_seq %% 2 WHEN 0 THEN pass_no::text ELSE '0.5' END, '{"scores": [1, 0]}', 'policy'
FROM prompt_group WHERE run_id = %(run)s AND state = 'trained' ORDER BY request_seq;
INSERT INTO supervision_state SELECT * FROM supervision_fold WHERE run_id = %(run)s;
