-- The newest schema of the SQLite store, in one piece. Databases get here by the numbered migrations; a test
-- proves that both ways end in the same database.
--
-- Times are milliseconds since the Unix epoch. Statuses are the words users see. Payloads are JSON text. Columns
-- that may be large come last, so that reading the others never follows an overflow chain.

-- Up to which version the schema was migrated: the newest row counts.
CREATE TABLE piton_schema (version INTEGER PRIMARY KEY) STRICT;

-- One row: random bytes by which a cursor is known to be one that was given out.
CREATE TABLE piton_secret (secret BLOB NOT NULL) STRICT;

-- One execution of a workflow. Changes on status changes only: a step in the middle of a pass leaves it alone.
CREATE TABLE piton_instance (
    -- Grows with creation. No AUTOINCREMENT, which would write another page with every create: the newest instance is
    -- never deleted, so that its key is never given to another one.
    key             INTEGER PRIMARY KEY,
    workflow_name   TEXT    NOT NULL,
    instance_id     TEXT    NOT NULL,
    status          TEXT    NOT NULL,
    run_number      INTEGER NOT NULL,
    created_at      INTEGER NOT NULL,
    updated_at      INTEGER NOT NULL,
    started_at      INTEGER,
    completed_at    INTEGER,
    retention_until INTEGER,
    params          TEXT    NOT NULL,
    output          TEXT,
    error           TEXT
) STRICT;

CREATE UNIQUE INDEX piton_instance_by_id ON piton_instance (workflow_name, instance_id);
-- Lists, newest first; a list of all statuses merges theirs, so that creating an instance writes one index less. Every
-- index ends in the rowid, which is the key: what was created in one millisecond is ordered by it.
CREATE INDEX piton_instance_by_status ON piton_instance (workflow_name, status, created_at);

-- The one task of a live run: timer, retry and queue in one. A run that ended has none.
CREATE TABLE piton_task (
    instance_key            INTEGER PRIMARY KEY,
    workflow_name           TEXT    NOT NULL,
    run_number              INTEGER NOT NULL,
    kind                    TEXT    NOT NULL,
    state                   TEXT    NOT NULL,
    run_at                  INTEGER NOT NULL,
    lease_until             INTEGER,
    lease_owner             TEXT,
    epoch                   INTEGER NOT NULL,
    claims_without_progress INTEGER NOT NULL,
    -- Here and not on the instance, so that the guard of a boundary sees everything with one point read.
    pause_requested         INTEGER NOT NULL,
    -- Work that continues something goes before new runs.
    resuming                INTEGER NOT NULL GENERATED ALWAYS AS (kind <> 'run') VIRTUAL
) STRICT;

-- What claims look at. A held task is in neither index: paused instances cost claims nothing. What a boundary in
-- the middle of a pass writes (claims_without_progress) is in neither, either.
CREATE INDEX piton_task_due ON piton_task (workflow_name, resuming, run_at) WHERE state = 'pending';
CREATE INDEX piton_task_leased ON piton_task (workflow_name, lease_until) WHERE state = 'leased';
CREATE INDEX piton_task_suspect ON piton_task (workflow_name, run_at) WHERE state = 'suspect';

-- One durable step of a run. The key clusters the steps of a run, which is how replay reads them; and as no two
-- rows can have one position, it is a second fence behind the epoch.
CREATE TABLE piton_step (
    instance_key  INTEGER NOT NULL,
    run_number    INTEGER NOT NULL,
    position      INTEGER NOT NULL,
    seq           INTEGER NOT NULL,
    name          TEXT    NOT NULL,
    type          TEXT    NOT NULL,
    status        TEXT    NOT NULL,
    attempts      INTEGER NOT NULL,
    attempts_max  INTEGER,
    timeout_ms    INTEGER,
    next_retry_at INTEGER,
    wake_at       INTEGER,
    event_type    TEXT,
    created_at    INTEGER NOT NULL,
    started_at    INTEGER NOT NULL,
    updated_at    INTEGER NOT NULL,
    result        TEXT,
    error         TEXT,
    PRIMARY KEY (instance_key, run_number, position)
) STRICT, WITHOUT ROWID;

-- What a run waits for. A step that completes at once never enters it.
CREATE INDEX piton_step_waiting ON piton_step (instance_key, run_number) WHERE status = 'waiting';

-- An event sent to an instance, in order of arrival within the run.
CREATE TABLE piton_event (
    instance_key    INTEGER NOT NULL,
    run_number      INTEGER NOT NULL,
    seq             INTEGER NOT NULL,
    id              TEXT    NOT NULL,
    type            TEXT    NOT NULL,
    idempotency_key TEXT,
    created_at      INTEGER NOT NULL,
    delivered_at    INTEGER,
    consumed_by     TEXT,
    payload         TEXT    NOT NULL,
    PRIMARY KEY (instance_key, run_number, seq)
) STRICT, WITHOUT ROWID;

-- The buffer of each type: its first entry is the next event to be taken, however many follow.
CREATE INDEX piton_event_buffer ON piton_event (instance_key, run_number, type, seq)
    WHERE delivered_at IS NULL;
CREATE UNIQUE INDEX piton_event_by_idempotency_key ON piton_event (instance_key, idempotency_key)
    WHERE idempotency_key IS NOT NULL;

-- The log of a run. seq is given at the insert, inside the one writer's transaction: who follows a log by seq
-- never misses a line.
CREATE TABLE piton_log (
    instance_key INTEGER NOT NULL,
    run_number   INTEGER NOT NULL,
    seq          INTEGER NOT NULL,
    id           TEXT    NOT NULL,
    step_name    TEXT,
    attempt      INTEGER,
    level        TEXT    NOT NULL,
    category     TEXT    NOT NULL,
    is_replay    INTEGER NOT NULL,
    created_at   INTEGER NOT NULL,
    message      TEXT    NOT NULL,
    data         TEXT,
    PRIMARY KEY (instance_key, run_number, seq)
) STRICT, WITHOUT ROWID;

-- A durable callback: stored with whatever triggers it, processed at least once after that has committed. The id is a
-- ULID, so that rows are added at the end and lists are in order of creation.
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
    -- When it may be taken next: its start, its retry, or the end of its lease. NULL once it is finished.
    due_at             INTEGER,
    epoch              INTEGER NOT NULL,
    lease_owner        TEXT,
    created_at         INTEGER NOT NULL,
    updated_at         INTEGER NOT NULL,
    last_attempt_at    INTEGER,
    payload            TEXT    NOT NULL,
    error              TEXT,
    -- How many attempts are known to have failed: what the policy counts.
    failures           INTEGER NOT NULL DEFAULT 0,
    -- How often it was taken since something last became of it.
    claims             INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

-- What processors look at, one index per lane: finished hooks, in any number, cost them nothing, and a hook is in one
-- index at a time.
CREATE INDEX piton_hook_due ON piton_hook (namespace, due_at) WHERE status = 'pending';
CREATE INDEX piton_hook_in_hand ON piton_hook (namespace, due_at) WHERE status = 'processing' AND claims < 3;
CREATE INDEX piton_hook_suspect ON piton_hook (namespace, due_at) WHERE status = 'processing' AND claims >= 3;
-- What is removed after a while.
CREATE INDEX piton_hook_completed ON piton_hook (namespace, updated_at) WHERE status = 'completed';
-- What operators look for.
CREATE INDEX piton_hook_failed ON piton_hook (id) WHERE status = 'failed';
