//! Answers in the form in which two stores must agree.
//!
//! Left out: row keys and generated ids; `seq` of events and log lines, which only has to grow (that it does is
//! checked here); `updated_at` of instances, because stores may differ in which writes touch the row without
//! changing it (what is promised has its own cases); and how long ago work that can be claimed now fell due.

use std::fmt::Debug;

use piton::store::{
    ClaimAnswer, ClaimedRun, Committed, Created, InstanceView, Renewed, Sent, StoreError,
};
use piton_core::record::{
    EventRecord, InstanceKey, InstanceRecord, LogLine, LogRecord, RunKey, StepRecord,
};
use piton_core::{Timestamp, WorkflowName};

const NO_KEY: InstanceKey = InstanceKey(0);

/// Something two stores must agree on.
pub(super) trait Normal {
    fn normal(&self) -> String;
}

impl<T: Normal> Normal for Result<T, StoreError> {
    fn normal(&self) -> String {
        match self {
            Ok(answer) => answer.normal(),
            Err(StoreError::Refused(refusal)) => format!("refused: {}", refusal.code),
            Err(StoreError::Fenced) => "fenced".to_owned(),
            Err(StoreError::Mutation(error)) => format!("mutation: {}", error.code),
            Err(
                error @ (StoreError::Unavailable(_) | StoreError::Closed | StoreError::Failed(_)),
            ) => {
                panic!("a healthy store answers: {error}")
            }
        }
    }
}

fn lines<T: Normal>(rows: &[T]) -> String {
    let rows: Vec<String> = rows.iter().map(Normal::normal).collect();
    format!("[{}]", rows.join(", "))
}

macro_rules! normal_as_it_is {
    ($($type:ty),*) => {$(
        impl Normal for $type {
            fn normal(&self) -> String {
                debug(self)
            }
        }
    )*};
}
normal_as_it_is!((), StepRecord, (WorkflowName, u64));

fn debug(value: &impl Debug) -> String {
    format!("{value:?}")
}

impl<T: Normal> Normal for Option<T> {
    fn normal(&self) -> String {
        self.as_ref().map_or("none".to_owned(), Normal::normal)
    }
}

impl Normal for Vec<Created> {
    fn normal(&self) -> String {
        let created = self.iter();
        let created = created.map(|c| format!("{} epoch {}", c.instance.normal(), c.epoch));
        created.collect::<Vec<_>>().join(", ")
    }
}

impl Normal for InstanceRecord {
    fn normal(&self) -> String {
        debug(&InstanceRecord {
            key: NO_KEY,
            updated_at: Timestamp::from_millis(0),
            ..self.clone()
        })
    }
}

impl Normal for InstanceView {
    fn normal(&self) -> String {
        let waiting_for = self.waiting_for.as_ref().map(|step| step.name.as_str());
        format!("{} waiting for {waiting_for:?}", self.record.normal())
    }
}

impl Normal for EventRecord {
    fn normal(&self) -> String {
        debug(&EventRecord { id: "".into(), seq: 0, ..self.clone() })
    }
}

impl Normal for LogRecord {
    fn normal(&self) -> String {
        let line = LogLine { id: "".into(), ..self.line.clone() };
        format!("run {}: {line:?}", self.run)
    }
}

impl Normal for Vec<InstanceRecord> {
    fn normal(&self) -> String {
        lines(self)
    }
}

impl Normal for Vec<StepRecord> {
    fn normal(&self) -> String {
        lines(self)
    }
}

impl Normal for Vec<EventRecord> {
    fn normal(&self) -> String {
        assert!(self.is_sorted_by(|one, next| one.seq < next.seq));
        lines(self)
    }
}

impl Normal for Vec<LogRecord> {
    fn normal(&self) -> String {
        assert!(self.is_sorted_by(|one, next| one.seq < next.seq));
        lines(self)
    }
}

impl Normal for Vec<(WorkflowName, u64)> {
    fn normal(&self) -> String {
        let mut backlog = self.clone();
        backlog.sort();
        lines(&backlog)
    }
}

impl Normal for Vec<InstanceKey> {
    fn normal(&self) -> String {
        format!("{} of them", self.len())
    }
}

impl Normal for Vec<Renewed> {
    fn normal(&self) -> String {
        let renewed = self
            .iter()
            .map(|renewed| Renewed { key: RunKey { instance: NO_KEY, ..renewed.key }, ..*renewed });
        debug(&renewed.collect::<Vec<_>>())
    }
}

impl Normal for Committed {
    fn normal(&self) -> String {
        debug(self)
    }
}

impl Normal for ClaimedRun {
    fn normal(&self) -> String {
        debug(&ClaimedRun { key: NO_KEY, ..self.clone() })
    }
}

impl Normal for Sent {
    fn normal(&self) -> String {
        let claimed = self.claimed.as_ref().map(Normal::normal);
        format!("{}, claimed {claimed:?}", self.event.normal())
    }
}

impl Normal for ClaimAnswer {
    fn normal(&self) -> String {
        let next = NextDue { at: self.next_due_at, now: self.now };
        format!("at {}: {}, {}", self.now, lines(&self.claimed), next.normal())
    }
}

/// When there is work: all that is due already is equal.
pub(super) struct NextDue {
    pub(super) at: Option<Timestamp>,
    pub(super) now: Timestamp,
}

impl Normal for NextDue {
    fn normal(&self) -> String {
        match self.at {
            Some(at) if at <= self.now => "more is due".to_owned(),
            Some(at) => format!("next at {at}"),
            None => "no more".to_owned(),
        }
    }
}
