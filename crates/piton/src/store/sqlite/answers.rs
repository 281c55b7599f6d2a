//! Handing out the answers of a batch.
//!
//! Waking a task from a thread that is none of the runtime's own costs as much as a good part of a step. The answers
//! of a large batch are therefore handed to the runtime in a few parcels, which it opens on its own threads, and the
//! writer goes on with the next batch.

use super::request::Request;
use super::trouble::Failure;
use crate::runtime::Runtime;

/// From this many answers on the writer has help.
const MANY: usize = 32;

/// Answers of one parcel: enough to be worth a task, few enough that more than one thread has something to do.
const PARCEL: usize = 64;

/// Answers on their way. Each is given when this is dropped, whoever drops it: a runtime that shuts down does, too.
struct Parcel(Vec<Request>);

impl Drop for Parcel {
    fn drop(&mut self) {
        for request in self.0.drain(..) {
            request.answer(None);
        }
    }
}

/// Answers each request: its own outcome, or why the whole batch failed.
pub(super) fn hand_out(
    runtime: &dyn Runtime,
    requests: &mut Vec<Request>,
    failure: Option<&Failure>,
) {
    while failure.is_none() && requests.len() >= MANY {
        let parcel = Parcel(requests.drain(..PARCEL.min(requests.len())).collect());
        runtime.drop_inside(Box::new(parcel));
    }
    for request in requests.drain(..) {
        request.answer(failure);
    }
}
