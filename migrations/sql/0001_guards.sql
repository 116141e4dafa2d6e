-- What the recorder cannot do by mistake, and what the database keeps by itself.

CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% of %: supervision events are append-only', lower(TG_OP), TG_TABLE_NAME
        USING ERRCODE = 'restrict_violation';
END $$;

CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON supervision_event
    FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER append_only_truncate BEFORE TRUNCATE ON supervision_event
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

CREATE FUNCTION refuse_backward() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'group % of run %: state % cannot go back to %',
        OLD.group_id, OLD.run_id, OLD.state, NEW.state
        USING ERRCODE = 'restrict_violation';
END $$;

CREATE TRIGGER only_forward AFTER UPDATE ON prompt_group
    FOR EACH ROW WHEN (NEW.state < OLD.state) EXECUTE FUNCTION refuse_backward();

CREATE FUNCTION count_groups() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO group_count AS c
        SELECT run_id, coalesce(purpose, ''), coalesce(domain, ''), state, coalesce(drop_reason, ''), count(*)
        FROM after_rows GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3, 4, 5
        ON CONFLICT (run_id, purpose, domain, state, drop_reason)
            DO UPDATE SET groups = c.groups + EXCLUDED.groups;
    ELSE
        INSERT INTO group_count AS c
        SELECT run_id, purpose, domain, state, drop_reason, sum(delta)
        FROM (
            SELECT run_id, coalesce(purpose, '') AS purpose, coalesce(domain, '') AS domain, state,
                coalesce(drop_reason, '') AS drop_reason, 1 AS delta FROM after_rows
            UNION ALL
            SELECT run_id, coalesce(purpose, ''), coalesce(domain, ''), state,
                coalesce(drop_reason, ''), -1 FROM before_rows
        ) AS deltas
        GROUP BY 1, 2, 3, 4, 5 HAVING sum(delta) <> 0 ORDER BY 1, 2, 3, 4, 5
        ON CONFLICT (run_id, purpose, domain, state, drop_reason)
            DO UPDATE SET groups = c.groups + EXCLUDED.groups;
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER count_new AFTER INSERT ON prompt_group
    REFERENCING NEW TABLE AS after_rows FOR EACH STATEMENT EXECUTE FUNCTION count_groups();
CREATE TRIGGER count_moved AFTER UPDATE ON prompt_group
    REFERENCING OLD TABLE AS before_rows NEW TABLE AS after_rows
    FOR EACH STATEMENT EXECUTE FUNCTION count_groups();

-- A role that may read everything and write nothing, where we have the right to make one.
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'sluice_reader')
        AND (SELECT rolsuper OR rolcreaterole FROM pg_roles WHERE rolname = current_user)
    THEN
        CREATE ROLE sluice_reader NOLOGIN;
    END IF;
EXCEPTION WHEN duplicate_object OR unique_violation THEN
    NULL; -- another database of this server was migrated at the same moment
END $$;
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'sluice_reader') THEN
        EXECUTE format('GRANT USAGE ON SCHEMA %I TO sluice_reader', current_schema());
        EXECUTE format('GRANT SELECT ON ALL TABLES IN SCHEMA %I TO sluice_reader', current_schema());
        EXECUTE format(
            'ALTER DEFAULT PRIVILEGES IN SCHEMA %I GRANT SELECT ON TABLES TO sluice_reader', current_schema()
        );
    END IF;
END $$;
