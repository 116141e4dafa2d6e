-- For people. Filter them by run_id or sample_key; a filter on sample_key uses the indexes.

CREATE VIEW current_verdict AS
SELECT v.* FROM verdict AS v
WHERE NOT EXISTS (
    SELECT FROM verdict AS later
    WHERE later.run_id = v.run_id AND later.group_id = v.group_id
        AND later.generation_index = v.generation_index AND later.event_id > v.event_id
);

CREATE VIEW supervision_fold AS
SELECT
    run_id,
    sample_key,
    (array_agg(new ORDER BY event_id DESC) FILTER (WHERE field = 'labeled'))[1]::boolean AS labeled,
    (array_agg(new ORDER BY event_id DESC) FILTER (WHERE field = 'target'))[1] AS target,
    (array_agg(new ORDER BY event_id DESC) FILTER (WHERE field = 'target_source'))[1] AS target_source,
    (array_agg(new ORDER BY event_id DESC) FILTER (WHERE field = 'confidence'))[1]::double precision
        AS confidence,
    (array_agg(new ORDER BY event_id DESC) FILTER (WHERE field = 'status'))[1] AS status,
    (array_agg(new ORDER BY event_id DESC) FILTER (WHERE field = 'visits'))[1]::bigint AS visits,
    (array_agg(new ORDER BY event_id DESC) FILTER (WHERE field = 'solve_rate'))[1]::double precision
        AS solve_rate,
    max(event_id) AS last_event_id
FROM supervision_event
GROUP BY run_id, sample_key;

CREATE VIEW sample_history AS
SELECT g.sample_key, g.run_id, g.requested_at AS at, g.group_id, 'requested' AS event, NULL::integer AS step,
    concat(g.purpose, ', ', g.size, ' answers, attempt ', g.attempt, ', from version ', g.requested_version)
        AS detail
FROM prompt_group AS g WHERE g.requested_at IS NOT NULL
UNION ALL
SELECT g.sample_key, g.run_id, a.at, g.group_id, 'generated', NULL,
    concat(a.answers, ' answers, ', a.tokens, ' tokens, versions ', a.oldest, ' to ', a.newest)
FROM prompt_group AS g
CROSS JOIN LATERAL (
    SELECT max(finished_at) AS at, count(*) AS answers, sum(tokens) AS tokens,
        min(version_min) AS oldest, max(version_max) AS newest
    FROM generation AS x WHERE x.run_id = g.run_id AND x.group_id = g.group_id
) AS a
WHERE a.answers > 0
UNION ALL
SELECT g.sample_key, g.run_id, a.at, g.group_id,
    CASE WHEN a.event_id = 0 THEN 'verified' ELSE 'regraded' END, NULL,
    concat(a.verifiers, ': scores ', a.scores)
FROM prompt_group AS g
CROSS JOIN LATERAL (
    SELECT x.event_id, max(verified_at) AS at,
        string_agg(DISTINCT concat(verifier, ' ', verifier_version), ', ') AS verifiers,
        string_agg(coalesce(score::text, status), ' ' ORDER BY generation_index) AS scores
    FROM verdict AS x WHERE x.run_id = g.run_id AND x.group_id = g.group_id GROUP BY x.event_id
) AS a
UNION ALL
SELECT g.sample_key, g.run_id, d.decided_at, g.group_id,
    CASE WHEN d.shadow THEN 'shadow decision' ELSE 'decided' END, d.window_no,
    concat(d.outcome, ' by ', d.policy, ' ', d.policy_version, ': ', d.reason)
FROM prompt_group AS g JOIN group_decision AS d ON d.run_id = g.run_id AND d.group_id = g.group_id
UNION ALL
SELECT g.sample_key, g.run_id, g.terminal_at, g.group_id, g.state::text,
    coalesce(g.trained_step, g.dropped_step), coalesce(g.drop_reason, '')
FROM prompt_group AS g WHERE g.terminal_at IS NOT NULL
UNION ALL
SELECT e.sample_key, e.run_id, e.recorded_at, NULL, 'supervision', e.step,
    concat(e.field, ': ', coalesce(e.old, 'null'), ' -> ', coalesce(e.new, 'null'), ' by ', e.method,
        ' (', e.actor, ', for the ', e.lifetime, ')')
FROM supervision_event AS e;

CREATE VIEW policy_decisions AS
SELECT d.run_id, d.group_id, g.sample_key, g.domain, d.shadow, d.policy, d.policy_version, d.outcome,
    d.reason AS group_reason, d.window_no, d.decided_at, a.generation_index, v.status AS verdict, v.score,
    a.target, a.target_source, a.admitted, a.reward, a.advantage, a.weight, a.reason, a.signals
FROM group_decision AS d
LEFT JOIN prompt_group AS g ON g.run_id = d.run_id AND g.group_id = d.group_id
LEFT JOIN annotation AS a ON a.run_id = d.run_id AND a.group_id = d.group_id
    AND a.shadow = d.shadow AND a.policy = d.policy
LEFT JOIN current_verdict AS v ON v.run_id = a.run_id AND v.group_id = a.group_id
    AND v.generation_index = a.generation_index;

CREATE VIEW mixture_audit AS
SELECT run_id, update_no, step, domain, mixer, target_share,
    requested, requested::double precision / nullif(sum(requested) OVER w, 0) AS requested_share,
    generated, generated::double precision / nullif(sum(generated) OVER w, 0) AS generated_share,
    admitted, admitted::double precision / nullif(sum(admitted) OVER w, 0) AS admitted_share,
    trained, trained::double precision / nullif(sum(trained) OVER w, 0) AS trained_share,
    reward_mean, abs_advantage_mean, slope, reason
FROM mixture
WINDOW w AS (PARTITION BY run_id, update_no);

CREATE VIEW staleness_histogram AS
SELECT m.run_id, m.staleness, count(*) AS groups,
    count(*)::double precision / sum(count(*)) OVER (PARTITION BY m.run_id) AS share
FROM batch_member AS m
JOIN learner_step AS s ON s.run_id = m.run_id AND s.step = m.step AND s.status = 'trained'
GROUP BY m.run_id, m.staleness;

-- Do drops fall on the slow and the hard? Compare each reason with what was trained.
CREATE VIEW drop_bias AS
SELECT g.run_id, g.domain, g.state::text AS state, coalesce(g.drop_reason, '') AS reason, count(*) AS groups,
    avg(s.difficulty) AS difficulty_mean, avg(x.tokens) AS tokens_mean, max(x.longest) AS tokens_max
FROM prompt_group AS g
LEFT JOIN sample AS s ON s.sample_key = g.sample_key
LEFT JOIN LATERAL (
    SELECT avg(tokens) AS tokens, max(tokens) AS longest FROM generation AS x
    WHERE x.run_id = g.run_id AND x.group_id = g.group_id
) AS x ON true
WHERE g.purpose = 'train' AND g.terminal_at IS NOT NULL
GROUP BY 1, 2, 3, 4;

-- Samples that no graded answer of a run has solved.
CREATE VIEW unlearnable AS
SELECT g.run_id, g.sample_key, g.domain, count(DISTINCT g.group_id) AS visits, count(v.score) AS answers,
    avg(v.score) AS solve_rate
FROM prompt_group AS g
JOIN current_verdict AS v ON v.run_id = g.run_id AND v.group_id = g.group_id
WHERE g.purpose IN ('train', 'probe') AND v.score IS NOT NULL
GROUP BY g.run_id, g.sample_key, g.domain
HAVING max(v.score) = 0;
