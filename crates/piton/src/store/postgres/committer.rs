//! The one task that writes for all runs of this process.
//!
//! ```text
//!  requests ──> queue ──> inbox ──> a batch for each lane that is free ──> lane.rs: write, tell, answer
//! ```
//!
//! It waits for the first request, takes everything that is queued behind it and gives it to a lane, which has a connection
//! of its own and answers when all of it is committed (rule R1).
//!
//! **Few large batches beat many small ones**, because the server syncs its log once per batch. But with a single lane the
//! server waits while the runs compute their next steps, and the runs wait while it works. So under load there are two: the
//! runs come in two halves, one of which computes while the other is written. The second lane is used only where it pays
//! ([`OVERLAP_US`]), and it never holds requests while it has no connection.
//!
//! Two lanes are to each other like two processes: batches are independent, because whoever asks about a run waits for the
//! answer before he asks again, and what is not (two events for one instance, two ids alike) is put in order by the rows'
//! locks, which all take in ascending order.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::stream::{FuturesUnordered, StreamExt};
use sqlx::PgConnection;
use tokio::sync::{mpsc, oneshot};

use super::lane::Lane;
use super::request::Request;
use super::shared::Shared;

/// Requests that may wait for the committer; whoever comes next waits to get in.
pub(super) const QUEUE_MAX: usize = 4096;

/// Requests of one batch, and those that wait in the inbox for the next.
const BATCH_MAX: usize = 1024;

/// Payload of one batch: past it, what is queued waits for the next.
const BATCH_BYTES_MAX: usize = 8 * 1024 * 1024;

/// How often others are let run before a batch is sent, as long as that brings more requests: runs that were just
/// answered come back with their next step, and one sync pays for all of them.
const LETS_MAX: usize = 16;

/// A second batch is sent while one is under way if the last one took less than this for each request there is. A request
/// costs server and process together about 30 µs of work, which two lanes do side by side; what a batch takes beyond that
/// is the sync of the log and the way to the server and back, which it pays once however large it is.
const OVERLAP_US: u64 = 40;

/// Fewer requests than this, waiting and under way, are written together: preparing two statements takes longer.
const OVERLAP_MIN: usize = 24;

/// What the committer is sent.
pub(super) enum Message {
    Ask(Box<Request>),
    /// Serve what was asked before, then end.
    Close(oneshot::Sender<()>),
}

/// Requests that came in and are in no batch yet. Under load the kinds are written apart: a statement for steps alone
/// costs the server much less.
#[derive(Default)]
struct Inbox {
    /// Boundaries that bring a step and nothing else.
    steps: VecDeque<Waiting>,
    others: VecDeque<Waiting>,
    came: u64,
}

/// A request, and how many came before it.
struct Waiting(u64, Request);

impl Inbox {
    fn len(&self) -> usize {
        self.steps.len() + self.others.len()
    }

    fn is_empty(&self) -> bool {
        self.steps.is_empty() && self.others.is_empty()
    }

    fn put(&mut self, request: Request) {
        let kind = if request.is_lone_step() { &mut self.steps } else { &mut self.others };
        kind.push_back(Waiting(self.came, request));
        self.came += 1;
    }

    /// Everything, in the order in which it came: large requests of one kind must not keep the other kind waiting.
    fn all(&mut self) -> Batch {
        let mut batch = Batch::default();
        let came = |kind: &VecDeque<Waiting>| kind.front().map_or(u64::MAX, |first| first.0);
        while !self.is_empty() && batch.has_room(BATCH_MAX) {
            let step = came(&self.steps) < came(&self.others);
            batch.take(if step { &mut self.steps } else { &mut self.others });
            batch.steps += usize::from(step);
        }
        batch
    }

    /// So many of the kind that the other lane is not writing, if there is any of it.
    fn share(&mut self, requests_max: usize, steps_elsewhere: bool) -> Batch {
        let mut batch = Batch::default();
        let others = self.steps.is_empty() || steps_elsewhere && !self.others.is_empty();
        let kind = if others { &mut self.others } else { &mut self.steps };
        while !kind.is_empty() && batch.has_room(requests_max) {
            batch.take(kind);
        }
        batch.steps = if others { 0 } else { batch.requests.len() };
        batch
    }
}

/// A batch in the making.
#[derive(Default)]
struct Batch {
    requests: Vec<Request>,
    bytes: usize,
    /// How many of them are steps and nothing else.
    steps: usize,
}

impl Batch {
    /// Whether there are fewer and smaller requests than one batch may have.
    fn has_room(&self, requests_max: usize) -> bool {
        self.requests.len() < requests_max.min(BATCH_MAX) && self.bytes < BATCH_BYTES_MAX
    }

    /// Takes the oldest of these requests.
    fn take(&mut self, from: &mut VecDeque<Waiting>) {
        if let Some(Waiting(_, request)) = from.pop_front() {
            self.bytes += request.payload_bytes();
            self.requests.push(request);
        }
    }
}

/// What a lane is doing.
type Work = Pin<Box<dyn Future<Output = Worked> + Send>>;

/// A lane that is free again.
struct Worked {
    lane: Lane,
    /// How many requests it has answered, and how many of them were steps and nothing else.
    requests: usize,
    steps: usize,
    took_us: u64,
}

/// What the committer owns.
pub(super) struct Committer {
    shared: Arc<Shared>,
    queue: mpsc::Receiver<Message>,
    /// Nobody gets into the queue any more, and it is empty.
    drained: bool,
    closing: Vec<oneshot::Sender<()>>,
    inbox: Inbox,
    /// Lanes that can take a batch; there is always one here or at work.
    free: Vec<Lane>,
    /// The second lane while it has no connection.
    spare: Option<Lane>,
    /// It is being made ready.
    connecting: bool,
    working: FuturesUnordered<Work>,
    /// Requests in batches that are under way.
    under_way: usize,
    steps_under_way: usize,
    /// How long the last batch took.
    took_us: u64,
}

impl Committer {
    pub(super) fn new(
        shared: Arc<Shared>,
        queue: mpsc::Receiver<Message>,
        conn: PgConnection,
    ) -> Self {
        Self {
            queue,
            drained: false,
            closing: Vec::new(),
            inbox: Inbox::default(),
            free: vec![Lane::new(Arc::clone(&shared), Some(conn))],
            spare: Some(Lane::new(Arc::clone(&shared), None)),
            connecting: false,
            working: FuturesUnordered::new(),
            under_way: 0,
            steps_under_way: 0,
            took_us: 0,
            shared,
        }
    }

    /// Serves requests until the store is closed or dropped.
    pub(super) async fn run(mut self) {
        while !self.is_done() {
            self.wait().await;
            while self.may_send() {
                self.let_come().await;
                self.send();
            }
        }
        for lane in self.free.drain(..) {
            lane.close().await;
        }
        for closed in self.closing {
            let _ = closed.send(());
        }
    }

    fn is_done(&self) -> bool {
        self.drained && self.inbox.is_empty() && self.under_way == 0
    }

    /// Waits until a lane is free or a request comes.
    async fn wait(&mut self) {
        let room = BATCH_MAX.saturating_sub(self.inbox.len());
        let mut news = Vec::new();
        tokio::select! {
            biased;
            Some(worked) = self.working.next() => self.rest(worked),
            taken = self.queue.recv_many(&mut news, room), if !self.drained && room > 0 => {
                self.drained = taken == 0;
                news.into_iter().for_each(|message| self.take_in(message));
            }
            // A lane is free or at work, and the queue is open or drained: there is something to wait for.
            else => {}
        }
    }

    fn take_in(&mut self, message: Message) {
        match message {
            Message::Ask(request) => self.inbox.put(*request),
            Message::Close(closed) => {
                // Whoever got in is served; nobody else gets in.
                self.queue.close();
                self.closing.push(closed);
            }
        }
    }

    /// A lane has done its work. One that lost its connection gets another before it is given anything, unless it is
    /// the only one.
    fn rest(&mut self, worked: Worked) {
        let Worked { lane, requests, steps, took_us } = worked;
        self.under_way -= requests;
        self.steps_under_way -= steps;
        if requests > 0 {
            self.took_us = took_us;
        } else {
            self.connecting = false;
        }
        if lane.is_connected() || self.spare.is_some() {
            self.free.push(lane);
        } else {
            self.spare = Some(lane);
        }
    }

    /// Whether a batch can be sent now.
    fn may_send(&self) -> bool {
        // A handful beside a large batch is not worth a sync of its own: more come with the answers to that batch.
        let enough = self.inbox.len() * 4 >= self.under_way;
        let pays = self.under_way == 0 || enough && self.overlap_pays();
        pays && !self.inbox.is_empty() && !self.free.is_empty()
    }

    /// Whether work is what a batch costs, rather than the sync it is followed by.
    fn overlap_pays(&self) -> bool {
        let requests = self.inbox.len() + self.under_way;
        requests >= OVERLAP_MIN && self.took_us < requests as u64 * OVERLAP_US
    }

    /// Lets others run for as long as that brings more requests.
    async fn let_come(&mut self) {
        for _ in 0..LETS_MAX {
            tokio::task::yield_now().await;
            let before = self.inbox.len();
            while self.inbox.len() < BATCH_MAX
                && let Ok(message) = self.queue.try_recv()
            {
                self.take_in(message);
            }
            if self.inbox.len() == before {
                break;
            }
        }
    }

    /// Gives a batch to a lane: everything, or one kind and not more than is left for the other lane.
    fn send(&mut self) {
        let Some(mut lane) = self.free.pop() else { return };
        let overlap = self.overlap_pays();
        let apart = overlap && self.spare.is_none() && !self.connecting;
        if overlap {
            self.connect_spare();
        }
        let half = (self.inbox.len() + self.under_way).div_ceil(2);
        let steps_elsewhere = self.steps_under_way > 0 || self.under_way == 0;
        let Batch { requests: batch, steps, .. } =
            if apart { self.inbox.share(half, steps_elsewhere) } else { self.inbox.all() };
        let (requests, runtime) = (batch.len(), Arc::clone(&self.shared.runtime));
        self.under_way += requests;
        self.steps_under_way += steps;
        self.working.push(Box::pin(async move {
            let began_us = runtime.monotonic_us();
            lane.serve(batch).await;
            let took_us = runtime.monotonic_us().saturating_sub(began_us);
            Worked { lane, requests, steps, took_us }
        }));
    }

    /// Makes the second lane ready, which takes no requests until then.
    fn connect_spare(&mut self) {
        let Some(mut lane) = self.spare.take() else { return };
        self.connecting = true;
        self.working.push(Box::pin(async move {
            lane.connect().await;
            Worked { lane, requests: 0, steps: 0, took_us: 0 }
        }));
    }
}

#[cfg(test)]
mod tests {
    use piton_core::boundary::Next;
    use piton_core::record::{InstanceKey, RunKey, StepRecord};
    use piton_core::{InstanceId, Json, StepName, StepStatus, StepType, Timestamp, WorkflowName};

    use super::super::request::{Ask, PlainBoundary};
    use super::*;
    use crate::store::{CreateRequest, Existing, NewInstance, RowState, StepWrite};

    fn step(instance: i64) -> Request {
        let now = Timestamp::from_millis(0);
        let name = StepName::from_stored("step");
        let record = StepRecord {
            status: StepStatus::Completed,
            attempts: 1,
            ..StepRecord::new(name, StepType::Do, 0, now)
        };
        let boundary = PlainBoundary {
            key: RunKey { instance: InstanceKey(instance), run: 0, epoch: 1 },
            steps: vec![StepWrite { record: Arc::new(record), row: RowState::New }],
            waits: Vec::new(),
            logs: Vec::new(),
            next: Next::Continue { bodies_running: false },
        };
        Request::new(Ask::Commit(boundary)).0
    }

    fn create(params_bytes: usize) -> Request {
        let params = Json::from_valid_text(format!("\"{}\"", "x".repeat(params_bytes)));
        let create = CreateRequest {
            workflow: WorkflowName::from_stored("large"),
            instances: vec![NewInstance { id: InstanceId::from_stored("id"), params }],
            existing: Existing::Skip,
            lease: None,
            hooks: Vec::new(),
        };
        Request::new(Ask::Create(create)).0
    }

    #[test]
    fn a_step_does_not_wait_behind_large_requests_that_come_later() {
        let mut inbox = Inbox::default();
        inbox.put(create(BATCH_BYTES_MAX));
        inbox.put(step(1));
        inbox.put(create(BATCH_BYTES_MAX));
        let sizes = [(); 2].map(|()| {
            let batch = inbox.all();
            // However many of them come.
            inbox.put(create(BATCH_BYTES_MAX));
            (batch.requests.len(), batch.steps)
        });
        assert_eq!(sizes, [(1, 0), (2, 1)]);
    }

    #[test]
    fn the_lanes_share_the_kinds() {
        let mut inbox = Inbox::default();
        (0..6).for_each(|n| inbox.put(if n % 2 == 0 { step(n) } else { create(1) }));
        let sizes = |batch: Batch| (batch.requests.len(), batch.steps);
        assert_eq!(sizes(inbox.share(2, false)), (2, 2));
        assert_eq!(sizes(inbox.share(2, true)), (2, 0));
        assert_eq!(sizes(inbox.share(9, false)), (1, 1));
        assert_eq!(sizes(inbox.share(9, false)), (1, 0), "what there is");
        assert!(inbox.is_empty());
    }
}
