"""The proofs as SQL: each query returns what speaks against its claim, so an empty answer proves it.

Parameters of all: %(run)s, %(live)s (the run goes on: groups in flight are fine, and one log may be
recorded further than another), %(limit)s (eta; NULL when the configuration does not say).
"""

STALENESS = """
    SELECT m.step, m.group_id, s.start_version, x.oldest AS oldest_token_version, m.staleness AS claimed,
        CASE
            WHEN %(limit)s::integer IS NULL THEN 'the configuration has no run.max_staleness'
            WHEN s.start_version IS NULL THEN 'the step has no plan'
            WHEN x.answers = 0 THEN 'no answers recorded'
            WHEN s.start_version - x.oldest > %(limit)s::integer THEN 'too old'
            ELSE 'not as old as the learner said'
        END AS problem
    FROM batch_member AS m
    JOIN learner_step AS s ON s.run_id = m.run_id AND s.step = m.step AND s.status = 'trained'
    CROSS JOIN LATERAL (
        SELECT count(*) AS answers, min(version_min) AS oldest FROM generation AS x
        WHERE x.run_id = m.run_id AND x.group_id = m.group_id
    ) AS x
    WHERE m.run_id = %(run)s AND (
        %(limit)s::integer IS NULL OR s.start_version IS NULL
        OR (x.answers = 0 AND NOT %(live)s)
        OR s.start_version - x.oldest > %(limit)s::integer
        OR s.start_version - x.oldest <> m.staleness
    )
"""

TRAINED_ONCE = """
    SELECT group_id, array_agg(step ORDER BY step) AS steps, 'in several steps' AS problem
    FROM batch_member WHERE run_id = %(run)s GROUP BY group_id HAVING count(*) > 1
    UNION ALL
    SELECT string_agg(group_id, ' '), array_agg(step ORDER BY step), 'one message, several members'
    FROM batch_member WHERE run_id = %(run)s GROUP BY stream_seq HAVING count(*) > 1
"""

ONE_END = """
    SELECT group_id, state, drop_reason, ends, problem FROM (
        SELECT g.group_id, g.state::text, g.drop_reason, g.ends, CASE
            WHEN g.terminal_at IS NULL AND NOT %(live)s THEN 'has not ended'
            WHEN g.terminal_at IS NULL AND g.ends <> 0 THEN 'ended and goes on'
            WHEN g.terminal_at IS NOT NULL AND (g.ends = 0 OR g.ends & (g.ends - 1) <> 0)
                THEN 'ended in several ways'
            WHEN g.requests_seq IS NULL AND NOT %(live)s THEN 'was never requested'
            WHEN g.purpose = 'train' AND g.state = 'measured'
                OR g.purpose <> 'train' AND g.state = 'trained' THEN 'ended as another purpose does'
            WHEN g.state = 'trained' AND NOT EXISTS (
                SELECT FROM batch_member AS m JOIN learner_step AS s
                    ON s.run_id = m.run_id AND s.step = m.step AND s.status = 'trained'
                WHERE m.run_id = g.run_id AND m.group_id = g.group_id AND m.step = g.trained_step
            ) THEN 'trained by no step'
        END AS problem
        FROM prompt_group AS g WHERE g.run_id = %(run)s
    ) AS found
    WHERE problem IS NOT NULL
    UNION ALL
    SELECT m.group_id, g.state::text, g.drop_reason, g.ends, 'in a trained step, but not trained'
    FROM batch_member AS m
    JOIN learner_step AS s ON s.run_id = m.run_id AND s.step = m.step AND s.status = 'trained'
    LEFT JOIN prompt_group AS g ON g.run_id = m.run_id AND g.group_id = m.group_id
    WHERE m.run_id = %(run)s AND g.trained_step IS DISTINCT FROM m.step
    UNION ALL
    SELECT NULL, NULL, NULL, NULL, concat('requests recorded: ', count(*), ' of ', max(request_seq))
    FROM prompt_group WHERE run_id = %(run)s HAVING count(*) <> max(request_seq) AND NOT %(live)s
"""

STEPS = """
    SELECT step, status, start_version, weights_version, digest, problem FROM (
        SELECT s.step, s.status::text, s.start_version, s.weights_version, s.digest, CASE
            WHEN s.step <> s.place THEN 'steps are missing before it'
            WHEN s.status = 'planned' AND s.place < s.steps THEN 'was never committed'
            WHEN s.start_version IS NULL THEN 'was never planned'
            WHEN s.status = 'trained' AND s.weights_version <> s.start_version + 1
                THEN 'trained, and the version did not grow by one'
            WHEN s.status = 'skipped' AND s.weights_version <> s.start_version
                THEN 'skipped, and the version changed'
            WHEN s.start_version <> coalesce(s.before, 0) AND NOT EXISTS (
                -- Weights that were redone elsewhere and published again are a version of their own.
                SELECT FROM weights AS w WHERE w.run_id = %(run)s AND w.version = s.start_version
                    AND w.step = s.step - 1 AND s.start_version > s.before
            ) THEN 'does not start from the version before it'
            WHEN EXISTS (
                SELECT FROM weights AS w WHERE w.run_id = %(run)s AND w.step = s.step
                    AND w.version = s.weights_version AND w.digest <> s.digest
            ) THEN 'other weights were published than committed'
            WHEN s.status = 'trained' AND NOT %(live)s AND NOT EXISTS (
                SELECT FROM weights AS w WHERE w.run_id = %(run)s AND w.version = s.weights_version
            ) THEN 'its weights were never published'
        END AS problem
        FROM (
            SELECT *, row_number() OVER o AS place, count(*) OVER () AS steps,
                lag(weights_version) OVER o AS before
            FROM learner_step WHERE run_id = %(run)s WINDOW o AS (ORDER BY step)
        ) AS s
    ) AS found
    WHERE problem IS NOT NULL
"""

BATCH_COUNTS = """
    SELECT s.step, s.planned_groups, s.groups, m.groups AS members, s.generations,
        m.generations AS member_answers, s.tokens, m.tokens AS member_tokens
    FROM learner_step AS s
    CROSS JOIN LATERAL (
        SELECT count(*) AS groups, coalesce(sum(x.answers), 0) AS generations,
            coalesce(sum(x.tokens), 0) AS tokens, bool_and(x.answers > 0) AS known
        FROM batch_member AS m
        CROSS JOIN LATERAL (
            SELECT count(*) AS answers, sum(tokens) AS tokens FROM generation AS x
            WHERE x.run_id = m.run_id AND x.group_id = m.group_id
        ) AS x
        WHERE m.run_id = s.run_id AND m.step = s.step
    ) AS m
    WHERE s.run_id = %(run)s AND (
        s.planned_groups IS DISTINCT FROM m.groups
        OR (s.status = 'trained' AND (
            s.groups IS DISTINCT FROM m.groups
            OR ((m.known OR NOT %(live)s)
                AND (s.generations <> m.generations OR s.tokens <> m.tokens))
        ))
    )
"""

FOLD = """
    SELECT 'supervision_state' AS only_in, a.* FROM (
        SELECT {columns} FROM supervision_state WHERE run_id = %(run)s
        EXCEPT SELECT {columns} FROM supervision_fold WHERE run_id = %(run)s
    ) AS a
    UNION ALL
    SELECT 'the fold of its events', b.* FROM (
        SELECT {columns} FROM supervision_fold WHERE run_id = %(run)s
        EXCEPT SELECT {columns} FROM supervision_state WHERE run_id = %(run)s
    ) AS b
"""

MIXTURE = """
    WITH train AS (
        SELECT group_id, domain, request_seq, verified_seq, window_no,
            -- A copy behind one that could not be read, on which the policy had decided, counts as none.
            verified_ok AND NOT EXISTS (
                SELECT FROM group_decision AS d WHERE d.run_id = %(run)s AND d.group_id = g.group_id
                    AND NOT d.shadow AND d.verified_seq < g.verified_seq
            ) AS verified_ok
        FROM prompt_group AS g WHERE run_id = %(run)s AND purpose = 'train'
    ), read AS (
        SELECT coalesce(max(sequence) FILTER (WHERE log = 'REQUESTS'), 0) AS requests,
            coalesce(max(sequence) FILTER (WHERE log = 'VERIFIED'), 0) AS verified,
            (SELECT coalesce(max(window_no), 0) FROM train) AS windows
        FROM recorder_cursor WHERE run_id = %(run)s
    ), updates AS (
        -- Of a live run, those whose groups have all been recorded.
        SELECT m.* FROM mixture AS m, read AS r WHERE m.run_id = %(run)s AND (
            NOT %(live)s
            OR (m.request_seq <= r.requests AND m.cut <= r.verified AND m.window_no < r.windows)
        )
    ), counted AS (
        SELECT 'requested' AS what, domain, request_seq AS at, 1 AS n, NULL::integer AS update_no,
            NULL::bigint AS claimed FROM train
        UNION ALL SELECT 'generated', domain, verified_seq, 1, NULL, NULL FROM train WHERE verified_ok
        UNION ALL SELECT 'admitted', domain, window_no, 1, NULL, NULL FROM train
            WHERE window_no IS NOT NULL
        UNION ALL SELECT 'trained', g.domain, m.step, 1, NULL, NULL
            FROM batch_member AS m JOIN train AS g ON g.group_id = m.group_id WHERE m.run_id = %(run)s
        UNION ALL SELECT 'requested', domain, request_seq, 0, update_no, requested FROM updates
        UNION ALL SELECT 'generated', domain, cut, 0, update_no, generated FROM updates
        UNION ALL SELECT 'admitted', domain, window_no, 0, update_no, admitted FROM updates
        UNION ALL SELECT 'trained', domain, step, 0, update_no, trained FROM updates
    ), running AS (
        SELECT *, sum(n) OVER (PARTITION BY what, domain ORDER BY at) AS found FROM counted
    )
    SELECT update_no, domain, what, claimed, found FROM running
    WHERE update_no IS NOT NULL AND claimed <> found
"""

LOGPROBS = """
    SELECT m.step, m.group_id, x.generation_index, x.tokens, x.logprob_count,
        octet_length(x.token_ids) / 4 AS stored_tokens, 'not a log-probability a token' AS problem
    FROM batch_member AS m
    JOIN learner_step AS s ON s.run_id = m.run_id AND s.step = m.step AND s.status = 'trained'
    JOIN generation AS x ON x.run_id = m.run_id AND x.group_id = m.group_id
    WHERE m.run_id = %(run)s
        AND (x.tokens <> x.logprob_count OR octet_length(x.token_ids) <> 4 * x.tokens)
    UNION ALL
    SELECT m.step, m.group_id, NULL, NULL, NULL, x.answers,
        concat(x.answers, ' answers recorded of ', g.size)
    FROM batch_member AS m
    JOIN learner_step AS s ON s.run_id = m.run_id AND s.step = m.step AND s.status = 'trained'
    LEFT JOIN prompt_group AS g ON g.run_id = m.run_id AND g.group_id = m.group_id
    CROSS JOIN LATERAL (
        SELECT count(*) AS answers FROM generation AS x
        WHERE x.run_id = m.run_id AND x.group_id = m.group_id
    ) AS x
    WHERE m.run_id = %(run)s AND x.answers IS DISTINCT FROM g.size
        AND (NOT %(live)s OR (x.answers > 0 AND g.size IS NOT NULL))
"""
