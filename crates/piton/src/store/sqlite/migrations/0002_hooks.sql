CREATE TABLE piton_hook (
    id                 TEXT    NOT NULL PRIMARY KEY,
    namespace          TEXT    NOT NULL,
    name               TEXT    NOT NULL,
    status             TEXT    NOT NULL,
    attempts           INTEGER NOT NULL,
    attempts_max       INTEGER,
    retry_delay_ms     INTEGER NOT NULL,
    retry_delay_max_ms INTEGER,
    retry_backoff      TEXT    NOT NULL,
    due_at             INTEGER,
    epoch              INTEGER NOT NULL,
    lease_owner        TEXT,
    created_at         INTEGER NOT NULL,
    updated_at         INTEGER NOT NULL,
    last_attempt_at    INTEGER,
    payload            TEXT    NOT NULL,
    error              TEXT
) STRICT, WITHOUT ROWID;

CREATE INDEX piton_hook_due ON piton_hook (namespace, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX piton_hook_completed ON piton_hook (namespace, updated_at) WHERE status = 'completed';
CREATE INDEX piton_hook_failed ON piton_hook (id) WHERE status = 'failed';
