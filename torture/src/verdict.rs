//! The verdict over a database: what was told to the outside is in it, what was executed fits, the audit is clean.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, ensure};
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
        let instances =
            rows(&db, "SELECT instance_id, run_number, status FROM piton_instance", |row| {
                Ok((row.get(0)?, (row.get(1)?, row.get(2)?)))
            })?;
        let events = rows(
            &db,
            "SELECT i.instance_id, e.idempotency_key FROM piton_event e
             JOIN piton_instance i ON i.key = e.instance_key WHERE e.idempotency_key IS NOT NULL",
            |row| Ok((row.get(0)?, row.get(1)?)),
        )?;
        let completed = rows(
            &db,
            "SELECT i.instance_id, s.run_number, s.name, s.attempts FROM piton_step s
             JOIN piton_instance i ON i.key = s.instance_key
             WHERE s.type = 'do' AND s.status = 'completed'",
            |row| Ok(((row.get(0)?, row.get(1)?, row.get(2)?), row.get(3)?)),
        )?;
        let rows = rows(&db, "SELECT step FROM climbed", |row| row.get(0))?;
        Ok(Self {
            instances: instances.into_iter().collect(),
            events: events.into_iter().collect(),
            completed: completed.into_iter().collect(),
            rows,
        })
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
    /// known to be committed (P2).
    fn check_witness(&self, witness: &[Executed]) -> Result<()> {
        let mut highest: BTreeMap<(&str, u32), u32> = BTreeMap::new();
        let mut executed = BTreeSet::new();
        for Executed { id, run, step, attempt } in witness {
            let rank = RANKS.iter().find(|(name, _)| name == step).map_or(0, |(_, rank)| *rank);
            let highest = highest.entry((id, *run)).or_default();
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
        Ok(())
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
}

impl Executed {
    /// Reads `climb instance run step attempt`; the last line of a killed process may be cut short.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ').skip(1);
        let (id, run) = (words.next()?.to_owned(), words.next()?.parse().ok()?);
        let (step, attempt) = (words.next()?.to_owned(), words.next()?.parse().ok()?);
        Some(Self { id, run, step, attempt })
    }
}

/// Judges a database that nobody uses by what was told and what was done.
pub(crate) fn judge(database: &Path, acks: &str, witness: &str) -> Result<Counts> {
    let acks: Vec<Ack> = acks.lines().filter_map(Ack::parse).collect();
    let witness: Vec<Executed> = witness.lines().filter_map(Executed::parse).collect();
    let state = State::read(database)?;
    state.check_acks(&acks)?;
    state.check_rows()?;
    state.check_witness(&witness)?;
    check_audit(database)?;
    Ok(Counts {
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

    #[test]
    fn a_body_that_ran_after_its_commit_is_seen() {
        let witness = |lines: &[&str]| -> Vec<Executed> {
            lines.iter().filter_map(|line| Executed::parse(line)).collect()
        };
        let fine = witness(&["climb a 0 pack 1", "climb a 0 pack 1", "climb a 0 climb 1"]);
        state().check_witness(&fine).expect("a repeat before the next step begins");
        let again = witness(&["climb a 0 pack 1", "climb a 0 climb 1", "climb a 0 pack 1"]);
        state().check_witness(&again).expect_err("again after the next step began");
        state().check_witness(&[]).expect_err("completed and never executed");
    }
}
