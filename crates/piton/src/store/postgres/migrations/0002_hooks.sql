CREATE TABLE piton_hook (
    id                 TEXT COLLATE "C" PRIMARY KEY,
    namespace          TEXT COLLATE "C" NOT NULL,
    name               TEXT COLLATE "C" NOT NULL,
    status             TEXT COLLATE "C" NOT NULL,
    attempts           BIGINT NOT NULL,
    attempts_max       BIGINT,
    retry_delay_ms     BIGINT NOT NULL,
    retry_delay_max_ms BIGINT,
    retry_backoff      TEXT COLLATE "C" NOT NULL,
    due_at             BIGINT,
    epoch              BIGINT NOT NULL,
    lease_owner        TEXT,
    created_at         BIGINT NOT NULL,
    updated_at         BIGINT NOT NULL,
    last_attempt_at    BIGINT,
    payload            TEXT NOT NULL,
    error              TEXT
) WITH (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0
);

CREATE INDEX piton_hook_due ON piton_hook (namespace, due_at, id) WHERE due_at IS NOT NULL;
CREATE INDEX piton_hook_completed ON piton_hook (namespace, updated_at) WHERE status = 'completed';
CREATE INDEX piton_hook_failed ON piton_hook (id) WHERE status = 'failed';
