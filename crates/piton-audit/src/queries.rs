//! The questions. Each is plain SQL that returns one text per violation; all but a few are the same for SQLite and
//! PostgreSQL.
//!
//! No question reads a clock. Where "in the future" matters it means later than every time in the database,
//! which errs on the side of silence.

use crate::Finding;

/// One question.
pub(crate) struct Query {
    pub(crate) invariant: &'static str,
    /// What must hold.
    pub(crate) rule: &'static str,
    pub(crate) sql: &'static str,
}

impl Query {
    /// What its answer means.
    pub(crate) fn finding(&self, violations: u64, examples: Vec<String>) -> Option<Finding> {
        let (invariant, rule) = (self.invariant, self.rule);
        (violations > 0).then_some(Finding { invariant, rule, violations, examples })
    }
}

/// What a SQLite file is asked.
pub(crate) const SQLITE: [&[Query]; 2] = [QUERIES, SQLITE_ONLY];

/// What a PostgreSQL database is asked.
pub(crate) const POSTGRES: [&[Query]; 2] = [QUERIES, POSTGRES_ONLY];

/// How many rows there are.
pub(crate) const COUNTS: &[(&str, &str)] = &[
    ("instances", "SELECT count(*) FROM piton_instance"),
    ("tasks", "SELECT count(*) FROM piton_task"),
    ("steps", "SELECT count(*) FROM piton_step"),
    ("events", "SELECT count(*) FROM piton_event"),
    ("log lines", "SELECT count(*) FROM piton_log"),
    ("hooks", "SELECT count(*) FROM piton_hook"),
];

const QUERIES: &[Query] = &[
    Query {
        invariant: "I1",
        rule: "a run has one row per step name",
        sql: "SELECT 'instance ' || instance_key || ' run ' || run_number || ': ' || count(*) || ' rows of ' || name
              FROM piton_step GROUP BY instance_key, run_number, name HAVING count(*) > 1",
    },
    Query {
        invariant: "I1",
        rule: "a completed body has a result, a failed step has an error",
        sql: "SELECT 'instance ' || instance_key || ' run ' || run_number || ': ' || name || ' is ' || status
              FROM piton_step
              WHERE (status = 'completed' AND type <> 'sleep' AND result IS NULL)
                 OR (status = 'completed' AND error IS NOT NULL)
                 OR (status = 'errored' AND (error IS NULL OR result IS NOT NULL))",
    },
    Query {
        invariant: "I2",
        rule: "a leased task has an epoch and an end, others have no lease",
        sql: "SELECT 'instance ' || instance_key || ': ' || state || ', epoch ' || epoch
              FROM piton_task
              WHERE (state = 'leased' AND (epoch < 1 OR lease_until IS NULL))
                 OR (state <> 'leased' AND lease_until IS NOT NULL)",
    },
    Query {
        invariant: "I3",
        rule: "an event is taken wholly or not at all",
        sql: "SELECT 'event ' || id FROM piton_event
              WHERE (delivered_at IS NULL) <> (consumed_by IS NULL)",
    },
    Query {
        invariant: "I3",
        rule: "a completed wait took exactly one event",
        sql: "SELECT 'instance ' || s.instance_key || ' run ' || s.run_number || ': ' || s.name || ' took ' || count(e.seq)
              FROM piton_step s
              LEFT JOIN piton_event e ON e.instance_key = s.instance_key AND e.run_number = s.run_number
                    AND e.consumed_by = s.name
              WHERE s.type = 'waitForEvent' AND s.status = 'completed'
              GROUP BY s.instance_key, s.run_number, s.name HAVING count(e.seq) <> 1",
    },
    Query {
        invariant: "I3",
        rule: "an event was taken by a completed wait of its type",
        sql: "SELECT 'event ' || e.id || ' was taken by ' || e.consumed_by
              FROM piton_event e
              WHERE e.consumed_by IS NOT NULL AND NOT EXISTS (
                  SELECT 1 FROM piton_step s
                  WHERE s.instance_key = e.instance_key AND s.run_number = e.run_number AND s.name = e.consumed_by
                    AND s.type = 'waitForEvent' AND s.status = 'completed' AND s.event_type = e.type)",
    },
    Query {
        invariant: "I3",
        rule: "the events taken are the oldest of their type",
        sql: "SELECT 'event ' || MIN(old.id) || ' was overtaken'
              FROM piton_event old
              JOIN (SELECT instance_key, run_number, type, MAX(seq) AS seq FROM piton_event
                    WHERE consumed_by IS NOT NULL GROUP BY instance_key, run_number, type) young
                ON young.instance_key = old.instance_key AND young.run_number = old.run_number
               AND young.type = old.type AND young.seq > old.seq
              WHERE old.consumed_by IS NULL
              GROUP BY old.instance_key, old.run_number, old.type",
    },
    Query {
        invariant: "I4",
        rule: "a live run has a task, and one that ended has none",
        sql: "SELECT i.workflow_name || '/' || i.instance_id || ' is ' || i.status
              FROM piton_instance i LEFT JOIN piton_task t ON t.instance_key = i.key
              WHERE (t.instance_key IS NULL) <> (i.status IN ('complete', 'errored', 'terminated'))",
    },
    Query {
        invariant: "I4",
        rule: "a task belongs to the current run of its instance",
        sql: "SELECT 'the task of instance ' || t.instance_key || ' is of run ' || t.run_number
              FROM piton_task t LEFT JOIN piton_instance i ON i.key = t.instance_key
              WHERE i.key IS NULL OR i.run_number <> t.run_number OR i.workflow_name <> t.workflow_name",
    },
    Query {
        invariant: "I4",
        rule: "a task is due when the first thing its run waits for is",
        sql: "SELECT 'instance ' || t.instance_key || ': ' || MIN(s.name) || ' falls due before its task'
              FROM piton_task t
              JOIN piton_step s ON s.instance_key = t.instance_key AND s.run_number = t.run_number
                   AND s.status = 'waiting'
              WHERE t.state = 'pending' AND t.run_at > COALESCE(s.next_retry_at, s.wake_at)
                AND t.run_at > (SELECT MAX(updated_at) FROM piton_instance)
                AND t.run_at > (SELECT COALESCE(MAX(created_at), 0) FROM piton_log)
                AND t.run_at > (SELECT COALESCE(MAX(created_at), 0) FROM piton_event)
              GROUP BY t.instance_key",
    },
    Query {
        invariant: "I4",
        rule: "a run that waits for an event that is there is due",
        sql: "SELECT 'instance ' || t.instance_key || ': event ' || MIN(e.id) || ' has come, the task is due later'
              FROM piton_task t
              JOIN piton_step s ON s.instance_key = t.instance_key AND s.run_number = t.run_number
                   AND s.status = 'waiting' AND s.type = 'waitForEvent'
              JOIN piton_event e ON e.instance_key = s.instance_key AND e.run_number = s.run_number
                   AND e.type = s.event_type AND e.consumed_by IS NULL AND e.created_at <= s.wake_at
              WHERE t.state = 'pending'
                AND t.run_at > (SELECT MAX(updated_at) FROM piton_instance)
                AND t.run_at > (SELECT COALESCE(MAX(created_at), 0) FROM piton_log)
                AND t.run_at > (SELECT COALESCE(MAX(created_at), 0) FROM piton_event)
              GROUP BY t.instance_key",
    },
    Query {
        invariant: "I6",
        rule: "a run that ended says when and with what, a live one neither",
        sql: "SELECT workflow_name || '/' || instance_id || ' is ' || status
              FROM piton_instance
              WHERE (completed_at IS NOT NULL) <> (status IN ('complete', 'errored', 'terminated'))
                 OR (output IS NOT NULL) <> (status = 'complete')
                 OR (error IS NOT NULL) <> (status = 'errored')",
    },
    Query {
        invariant: "I7",
        rule: "the task of a paused instance is held, and no other is",
        sql: "SELECT i.workflow_name || '/' || i.instance_id || ' is ' || i.status || ', its task is ' || t.state
              FROM piton_instance i JOIN piton_task t ON t.instance_key = i.key
              WHERE (i.status = 'paused') <> (t.state = 'held')",
    },
    Query {
        invariant: "I10",
        rule: "no sleep ended and no wait timed out before its time",
        sql: "SELECT 'instance ' || instance_key || ' run ' || run_number || ': ' || name
              FROM piton_step
              WHERE updated_at < wake_at
                AND ((type = 'sleep' AND status = 'completed') OR (type = 'waitForEvent' AND status = 'errored'))",
    },
    Query {
        invariant: "I10",
        rule: "a sleep or wait knows when it ends, and a wait for what",
        sql: "SELECT 'instance ' || instance_key || ' run ' || run_number || ': ' || name
              FROM piton_step
              WHERE type <> 'do' AND (wake_at IS NULL OR (type = 'waitForEvent') <> (event_type IS NOT NULL))",
    },
    Query {
        invariant: "I11",
        rule: "no step has more attempts than its limit, and no outcome without one",
        sql: "SELECT 'instance ' || instance_key || ' run ' || run_number || ': ' || name || ' has ' || attempts
              FROM piton_step
              WHERE type = 'do'
                AND (attempts > attempts_max OR (attempts < 1 AND status IN ('completed', 'errored')))",
    },
    Query {
        invariant: "I11",
        rule: "a failed attempt that waits has a retry left, and a moment for it",
        sql: "SELECT 'instance ' || instance_key || ' run ' || run_number || ': ' || name
              FROM piton_step
              WHERE type = 'do' AND ((status = 'waiting' AND (next_retry_at IS NULL OR attempts >= attempts_max))
                 OR (status IN ('completed', 'errored') AND next_retry_at IS NOT NULL))",
    },
    Query {
        invariant: "I12",
        rule: "no row belongs to a run that was never started, or to no instance",
        sql: "SELECT 'instance ' || r.instance_key || ': a ' || r.kind || ' of run ' || r.run_number
              FROM (SELECT DISTINCT instance_key, run_number, 'step' AS kind FROM piton_step
                    UNION ALL SELECT DISTINCT instance_key, run_number, 'event' FROM piton_event
                    UNION ALL SELECT DISTINCT instance_key, run_number, 'log line' FROM piton_log) r
              LEFT JOIN piton_instance i ON i.key = r.instance_key
              WHERE i.key IS NULL OR r.run_number > i.run_number OR r.run_number < 0",
    },
    Query {
        invariant: "I13",
        rule: "one instance per workflow and id",
        sql: "SELECT workflow_name || '/' || instance_id || ' exists ' || count(*) || ' times'
              FROM piton_instance GROUP BY workflow_name, instance_id HAVING count(*) > 1",
    },
    Query {
        invariant: "I15",
        rule: "no two outcomes of a run were recorded at one place",
        sql: "SELECT 'instance ' || instance_key || ' run ' || run_number || ': seq ' || seq || ' twice'
              FROM piton_step WHERE status IN ('completed', 'errored')
              GROUP BY instance_key, run_number, seq HAVING count(*) > 1",
    },
    Query {
        invariant: "I16",
        rule: "a hook that is not finished has a moment at which it can be taken, and a finished one has none",
        sql: "SELECT id || ' is ' || status FROM piton_hook
              WHERE (status IN ('pending', 'processing')) <> (due_at IS NOT NULL)",
    },
    Query {
        invariant: "I16",
        rule: "a hook in hand was taken under an epoch by somebody, unless it was handed back, and nobody holds another",
        sql: "SELECT id || ' is ' || status || ', epoch ' || epoch FROM piton_hook
              WHERE (status = 'processing' AND (epoch < 1 OR attempts < 1 OR (lease_owner IS NULL AND due_at > updated_at)))
                 OR (status <> 'processing' AND lease_owner IS NOT NULL)",
    },
    Query {
        invariant: "I16",
        rule: "a completed hook was tried and has no error, and a failed one says why",
        sql: "SELECT id || ' is ' || status FROM piton_hook
              WHERE (status = 'completed' AND (attempts < 1 OR error IS NOT NULL))
                 OR (status = 'failed' AND error IS NULL)",
    },
    Query {
        invariant: "I16",
        rule: "a hook that waits has an attempt left",
        sql: "SELECT id || ' has failed ' || failures || ' times of ' || attempts_max FROM piton_hook
              WHERE status = 'pending' AND attempts_max IS NOT NULL AND failures >= attempts_max",
    },
    Query {
        invariant: "I16",
        rule: "every failure of a hook was an attempt, and only one that is in hand, or was handed back, was taken without an outcome",
        sql: "SELECT id || ' has ' || failures || ' failures and ' || claims || ' claims in ' || attempts || ' attempts'
              FROM piton_hook
              WHERE failures > attempts OR (status = 'processing' AND (claims < 1 OR claims > attempts))
                 OR (status IN ('pending', 'completed') AND claims <> 0)",
    },
    Query {
        invariant: "I18",
        rule: "statuses, types and states are words that exist",
        sql: "SELECT 'instance ' || key || ' is ' || status FROM piton_instance
              WHERE status NOT IN ('active', 'waiting', 'paused', 'complete', 'errored', 'terminated')
              UNION ALL SELECT 'the task of instance ' || instance_key || ' is ' || state || ' ' || kind FROM piton_task
              WHERE state NOT IN ('pending', 'leased', 'held', 'suspect') OR kind NOT IN ('run', 'resume', 'retry', 'wake')
              UNION ALL SELECT 'instance ' || instance_key || ': ' || name || ' is ' || status || ' ' || type FROM piton_step
              WHERE status NOT IN ('pending', 'waiting', 'completed', 'errored')
                 OR type NOT IN ('do', 'sleep', 'waitForEvent')
              UNION ALL SELECT id || ' is ' || status FROM piton_hook
              WHERE status NOT IN ('pending', 'processing', 'completed', 'failed')",
    },
];

/// Numbers are given by the one writer, without a gap.
const SQLITE_ONLY: &[Query] = &[
    Query {
        invariant: "I3",
        rule: "the events of a run are numbered without a gap",
        sql: "SELECT 'instance ' || instance_key || ' run ' || run_number || ': ' || count(*) || ' events up to ' || MAX(seq)
              FROM piton_event GROUP BY instance_key, run_number HAVING count(*) <> MAX(seq) OR MIN(seq) <> 1",
    },
    Query {
        invariant: "I18",
        rule: "the log of a run is numbered without a gap",
        sql: "SELECT 'instance ' || instance_key || ' run ' || run_number || ': ' || count(*) || ' lines up to ' || MAX(seq)
              FROM piton_log GROUP BY instance_key, run_number HAVING count(*) <> MAX(seq) OR MIN(seq) <> 1",
    },
];

/// Numbers come from sequences, which have gaps where a transaction was rolled back. One that is behind its table, as
/// after a restore that left it out, gives numbers that come before older ones, or are taken.
const POSTGRES_ONLY: &[Query] = &[
    Query {
        invariant: "I3",
        rule: "the next event gets a number behind all others",
        sql: "SELECT 'event ' || e.id || ' has number ' || e.seq FROM piton_event e, piton_event_seq_seq s
              WHERE e.seq > s.last_value",
    },
    Query {
        invariant: "I18",
        rule: "the next log line gets a number behind all others",
        sql: "SELECT 'log line ' || l.id || ' has number ' || l.seq FROM piton_log l, piton_log_seq_seq s
              WHERE l.seq > s.last_value",
    },
    Query {
        invariant: "file",
        rule: "every index is whole",
        sql: "SELECT 'index ' || indexrelid::regclass || ' is not valid' FROM pg_index
              WHERE NOT indisvalid AND indrelid IN (SELECT oid FROM pg_class
                  WHERE relnamespace = current_schema()::regnamespace AND relname LIKE 'piton%')",
    },
];
