//! The verdict over a database: what was told to the outside is in it, what was executed fits, the audit is clean.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use piton::sqlx::{self, PgConnection, Row};
use rusqlite::Connection;

use crate::climb::{RANKS, WITH_ROW};
use crate::ledger::Ack;

/// What the verdict was about.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) acks: usize,
    pub(crate) bodies: usize,
    pub(crate) instances: usize,
    pub(crate) live: usize,
    pub(crate) steps: usize,
    pub(crate) rows: usize,
    /// Bodies that a runner executed after it had lost the run.
    pub(crate) stale: usize,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts { acks, bodies, instances, live, steps, rows, stale: _ } = self;
        write!(
            f,
            "{instances} instances ({live} live), {bodies} bodies executed, {steps} completed, {rows} rows of \
             their own, {acks} acknowledgements"
        )
    }
}

/// What the database says, as far as it matters here.
pub(crate) struct State {
    /// Run and status by id.
    instances: BTreeMap<String, (u32, String)>,
    /// The events there are, by instance and idempotency key.
    events: BTreeSet<(String, String)>,
    /// Attempts of the completed bodies, by instance, run and step.
    completed: BTreeMap<(String, u32, String), u32>,
    /// The rows that steps wrote themselves.
    rows: Vec<String>,
}

/// The questions that make a [`State`]; SQLite and PostgreSQL understand them alike.
const INSTANCES: &str = "SELECT instance_id, run_number, status FROM piton_instance";
const EVENTS: &str = "\
    SELECT i.instance_id, e.idempotency_key FROM piton_event e
    JOIN piton_instance i ON i.key = e.instance_key WHERE e.idempotency_key IS NOT NULL";
const COMPLETED: &str = "\
    SELECT i.instance_id, s.run_number, s.name, s.attempts FROM piton_step s
    JOIN piton_instance i ON i.key = s.instance_key WHERE s.type = 'do' AND s.status = 'completed'";
const ROWS: &str = "SELECT step FROM climbed";

impl State {
    pub(crate) fn read(database: &Path) -> Result<Self> {
        let db = Connection::open(database)?;
        let exists: u32 = db.query_row(
            "SELECT count(*) FROM sqlite_schema WHERE name IN ('piton_log', 'climbed')",
            [],
            |row| row.get(0),
        )?;
        if exists < 2 {
            // Cut off before there was anything: then nothing was acknowledged either.
            let (instances, events) = (BTreeMap::new(), BTreeSet::new());
            return Ok(Self { instances, events, completed: BTreeMap::new(), rows: Vec::new() });
        }
        let instances = rows(&db, INSTANCES, |row| Ok((row.get(0)?, (row.get(1)?, row.get(2)?))))?;
        let events = rows(&db, EVENTS, |row| Ok((row.get(0)?, row.get(1)?)))?;
        let completed =
            rows(&db, COMPLETED, |row| Ok(((row.get(0)?, row.get(1)?, row.get(2)?), row.get(3)?)))?;
        let rows = rows(&db, ROWS, |row| row.get(0))?;
        Ok(Self {
            instances: instances.into_iter().collect(),
            events: events.into_iter().collect(),
            completed: completed.into_iter().collect(),
            rows,
        })
    }

    pub(crate) async fn read_postgres(db: &mut PgConnection) -> Result<Self> {
        let mut state = Self {
            instances: BTreeMap::new(),
            events: BTreeSet::new(),
            completed: BTreeMap::new(),
            rows: Vec::new(),
        };
        for row in sqlx::query(INSTANCES).fetch_all(&mut *db).await? {
            let run = u32::try_from(row.get::<i32, _>(1))?;
            state.instances.insert(row.get(0), (run, row.get(2)));
        }
        for row in sqlx::query(EVENTS).fetch_all(&mut *db).await? {
            state.events.insert((row.get(0), row.get(1)));
        }
        for row in sqlx::query(COMPLETED).fetch_all(&mut *db).await? {
            let run = u32::try_from(row.get::<i32, _>(1))?;
            let attempts = u32::try_from(row.get::<i64, _>(3))?;
            state.completed.insert((row.get(0), run, row.get(2)), attempts);
        }
        for row in sqlx::query(ROWS).fetch_all(&mut *db).await? {
            state.rows.push(row.get(0));
        }
        Ok(state)
    }

    /// Every acknowledged call has its effect (I8).
    pub(crate) fn check_acks<'a>(&self, acks: impl IntoIterator<Item = &'a Ack>) -> Result<()> {
        for ack in acks {
            ensure!(self.has(ack), "LOST: `{}` was acknowledged and is not there", ack.line());
        }
        Ok(())
    }

    fn has(&self, ack: &Ack) -> bool {
        let found = |id: &String| self.instances.get(id);
        let ended = |id: &String, run: u32, words: &[&str]| {
            found(id).is_some_and(|(now, status)| {
                *now > run || *now == run && words.contains(&status.as_str())
            })
        };
        match ack {
            Ack::Created { id } => found(id).is_some(),
            Ack::Sent { id, key } => self.events.contains(&(id.clone(), key.clone())),
            Ack::Restarted { id, run } => found(id).is_some_and(|(now, _)| now >= run),
            Ack::Terminated { id, run } => ended(id, *run, &["terminated"]),
            Ack::Done { id, run } => ended(id, *run, &["complete"]),
        }
    }

    /// The rows that steps wrote are there exactly if their step is completed, and once (I9).
    pub(crate) fn check_rows(&self) -> Result<()> {
        let with_row = self.completed.keys().filter(|(_, _, step)| WITH_ROW.contains(&&step[..]));
        let mut expected: Vec<String> =
            with_row.map(|(id, run, step)| format!("climb/{id}/{run}/{step}")).collect();
        let mut found = self.rows.clone();
        expected.sort_unstable();
        found.sort_unstable();
        let odd = expected.iter().zip(&found).find(|(expected, found)| expected != found);
        ensure!(
            expected == found,
            "DOUBLED OR LOST: {} rows for {} completed steps; the first that differ: {odd:?}",
            found.len(),
            expected.len()
        );
        Ok(())
    }

    /// What was executed fits what is recorded: every result comes from a body (P3), and no body ran after it was
    /// known to be committed (P2), but for runners that had lost the run and did not know it yet. How many of those
    /// there were.
    fn check_witness(&self, witness: &[Executed], claims: &Claims) -> Result<usize> {
        let mut highest: BTreeMap<(&str, u32), u32> = BTreeMap::new();
        let mut executed = BTreeSet::new();
        let mut stale = 0;
        for body in witness {
            let Executed { id, run, step, attempt, .. } = body;
            let rank = RANKS.iter().find(|(name, _)| name == step).map_or(0, |(_, rank)| *rank);
            let highest = highest.entry((id, *run)).or_default();
            if rank < *highest && claims.had_lost(body) {
                stale += 1;
                continue;
            }
            ensure!(
                rank >= *highest,
                "DOUBLED: {step} of {id} run {run} was executed again after a later step had begun"
            );
            *highest = rank;
            executed.insert((id.clone(), *run, step.clone(), *attempt));
        }
        for ((id, run, step), attempts) in &self.completed {
            let seen = executed.contains(&(id.clone(), *run, step.clone(), *attempts));
            ensure!(seen, "{step} of {id} run {run} is completed and was never executed");
        }
        Ok(stale)
    }

    fn live(&self) -> usize {
        let ended = |status: &str| ["complete", "errored", "terminated"].contains(&status);
        self.instances.values().filter(|(_, status)| !ended(status)).count()
    }
}

fn rows<T>(
    db: &Connection,
    sql: &str,
    read: impl FnMut(&rusqlite::Row<'_>) -> rusqlite::Result<T>,
) -> Result<Vec<T>> {
    let mut statement = db.prepare(sql)?;
    let rows = statement.query_map([], read)?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

/// One execution of a body.
pub(crate) struct Executed {
    id: String,
    run: u32,
    step: String,
    attempt: u32,
    process: u32,
    at_ms: i64,
}

impl Executed {
    /// Reads a line of the witness; the last line of a killed process may be cut short.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ').skip(1);
        let (id, run) = (words.next()?.to_owned(), words.next()?.parse().ok()?);
        let (step, attempt) = (words.next()?.to_owned(), words.next()?.parse().ok()?);
        let (process, at_ms) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        Some(Self { id, run, step, attempt, process, at_ms })
    }
}

/// Who held which run when: only a runner that had been replaced may still execute what others have recorded.
#[derive(Default)]
pub(crate) struct Claims(BTreeMap<(String, u32), Vec<Claim>>);

/// One claim of a run.
struct Claim {
    process: u32,
    epoch: u64,
    at_ms: i64,
}

/// Every claim tells of itself in the log.
const CLAIMS: &str = "\
    SELECT i.instance_id, l.run_number, l.message, l.created_at FROM piton_log l
    JOIN piton_instance i ON i.key = l.instance_key
    WHERE l.category = 'system' AND l.message LIKE '%claimed by %'";

impl Claims {
    /// `runners` says which process is which runner.
    pub(crate) async fn read_postgres(db: &mut PgConnection, runners: &str) -> Result<Self> {
        let processes: BTreeMap<&str, u32> = runners
            .lines()
            .filter_map(|line| line.split_once(' '))
            .filter_map(|(process, runner)| Some((runner, process.parse().ok()?)))
            .collect();
        let mut claims = Self::default();
        for row in sqlx::query(CLAIMS).fetch_all(db).await? {
            let message: &str = row.get(2);
            let (_, told) = message.split_once("claimed by ").context("it says by whom")?;
            let (runner, epoch) = told.split_once(" (epoch ").context("it says which epoch")?;
            // One that was killed between its first claim and its first word to us executed nothing either.
            let Some(process) = processes.get(runner) else { continue };
            let claim = Claim {
                process: *process,
                epoch: epoch.trim_end_matches(')').parse()?,
                at_ms: row.get(3),
            };
            let run = u32::try_from(row.get::<i32, _>(1))?;
            claims.0.entry((row.get(0), run)).or_default().push(claim);
        }
        Ok(claims)
    }

    /// Whether somebody else had claimed the run after the process that executed this.
    fn had_lost(&self, body: &Executed) -> bool {
        let known = self.0.get(&(body.id.clone(), body.run));
        let before = || known.into_iter().flatten().filter(|claim| claim.at_ms <= body.at_ms);
        let own = before().filter(|claim| claim.process == body.process).map(|claim| claim.epoch);
        // A process that is not known to have claimed the run is excused from nothing.
        let own = own.max();
        own.is_some() && before().map(|claim| claim.epoch).max() > own
    }
}

/// Judges a database that nobody uses by what was told and what was done.
pub(crate) fn judge(database: &Path, acks: &str, witness: &str) -> Result<Counts> {
    let counts = judge_state(&State::read(database)?, &Claims::default(), acks, witness)?;
    check_audit(database)?;
    Ok(counts)
}

/// Judges what a database says by what was told and what was done.
pub(crate) fn judge_state(
    state: &State,
    claims: &Claims,
    acks: &str,
    witness: &str,
) -> Result<Counts> {
    let acks: Vec<Ack> = acks.lines().filter_map(Ack::parse).collect();
    let witness: Vec<Executed> = witness.lines().filter_map(Executed::parse).collect();
    state.check_acks(&acks)?;
    state.check_rows()?;
    Ok(Counts {
        stale: state.check_witness(&witness, claims)?,
        acks: acks.len(),
        bodies: witness.len(),
        instances: state.instances.len(),
        live: state.live(),
        steps: state.completed.len(),
        rows: state.rows.len(),
    })
}

pub(crate) fn check_audit(database: &Path) -> Result<()> {
    let report = piton_audit::audit_file(database).context("the audit failed")?;
    ensure!(report.is_clean(), "the audit found something:\n{report}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> State {
        let completed = [(("a".to_owned(), 0, "pack".to_owned()), 1)];
        State {
            instances: [("a".to_owned(), (1, "complete".to_owned()))].into(),
            events: [("a".to_owned(), "k".to_owned())].into(),
            completed: completed.into(),
            rows: vec!["climb/a/0/pack".to_owned()],
        }
    }

    #[test]
    fn what_was_acknowledged_and_is_not_there_is_lost() {
        let held = ["created a", "sent a k", "restarted a 1", "done a 0", "done a 1"];
        for line in held {
            state().check_acks(&Ack::parse(line)).expect(line);
        }
        for line in ["created b", "sent a l", "restarted a 2", "done a 2", "terminated a 1"] {
            state().check_acks(&Ack::parse(line)).expect_err(line);
        }
    }

    #[test]
    fn rows_without_a_step_and_steps_without_a_row_are_seen() {
        state().check_rows().expect("one of each");
        let doubled = vec!["climb/a/0/pack".to_owned(); 2];
        State { rows: doubled, ..state() }.check_rows().expect_err("twice");
        State { rows: Vec::new(), ..state() }.check_rows().expect_err("lost");
    }

    fn witness(lines: &[&str]) -> Vec<Executed> {
        lines.iter().filter_map(|line| Executed::parse(line)).collect()
    }

    #[test]
    fn a_body_that_ran_after_its_commit_is_seen() {
        let check = |lines: &[&str]| state().check_witness(&witness(lines), &Claims::default());
        check(&["climb a 0 pack 1 7 10", "climb a 0 pack 1 7 11", "climb a 0 climb 1 7 12"])
            .expect("a repeat before the next step begins");
        check(&["climb a 0 pack 1 7 10", "climb a 0 climb 1 7 11", "climb a 0 pack 1 7 12"])
            .expect_err("again after the next step began");
        check(&[]).expect_err("completed and never executed");
    }

    #[test]
    fn only_a_runner_that_had_lost_the_run_may_lag_behind() {
        let claim = |process, epoch, at_ms| Claim { process, epoch, at_ms };
        let held = vec![claim(7, 1, 9), claim(8, 2, 12), claim(7, 3, 20)];
        let claims = Claims([(("a".to_owned(), 0), held)].into());
        let check = |last| {
            let lines = ["climb a 0 pack 1 7 10", "climb a 0 climb 1 8 13", last];
            state().check_witness(&witness(&lines), &claims)
        };
        assert_eq!(check("climb a 0 pack 1 7 14").expect("it had lost the run"), 1);
        check("climb a 0 pack 1 8 14").expect_err("the holder");
        check("climb a 0 pack 1 7 21").expect_err("the holder again");
    }
}
