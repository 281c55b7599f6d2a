//! Several servers on one PostgreSQL database: three that work and one that only answers.
//!
//! Nothing here waits for a length of time, only for things to happen; where something must *not* be waited for, such as a
//! lease, that is made longer than any test may take.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use piton::sqlx::{self, AssertSqlSafe, Connection, Executor, PgConnection, Row};
use piton_testing::postgres::Scratch;
use piton_testing::proxy::Proxy;
use private_postgres::{Place, Programs, Server, Stop};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{Demo, Launched, pause, sleep};

/// A lease that cannot run out within a test: whatever goes on without waiting for it was handed over.
const ENDLESS: &str = "1 hour";

/// The servers of one system.
struct Site {
    directory: TempDir,
    database: String,
    args: Vec<String>,
    started: u32,
    api: Arc<Demo>,
    workers: Vec<Worker>,
}

/// A server that works, and what its bodies note.
struct Worker {
    server: Demo,
    witness: PathBuf,
}

impl Site {
    /// Three workers and an API process, with these arguments for all of them.
    fn open(database: &str, args: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let witness = directory.path().join("witness-0");
        let mut api_args = vec!["--database", database, "--no-runner"];
        // Without a runner it may still be told to tick.
        api_args.extend(["--witness", witness.to_str().unwrap()]);
        api_args.extend(args.iter().filter(|arg| **arg != "--no-runner"));
        let api = Arc::new(Demo::start(directory.path(), &api_args));
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        let database = database.to_owned();
        let mut site = Self { directory, database, args, started: 0, api, workers: Vec::new() };
        let launched: Vec<_> = (0..3).map(|_| site.launch_worker()).collect();
        let workers = launched.into_iter();
        site.workers = workers
            .map(|(witness, server)| Worker { server: server.listening(), witness })
            .collect();
        site
    }

    fn launch_worker(&mut self) -> (PathBuf, Launched) {
        self.started += 1;
        let witness = self.directory.path().join(format!("witness-{}", self.started));
        let mut args = vec!["--database", &self.database, "--witness", witness.to_str().unwrap()];
        args.extend(self.args.iter().map(String::as_str));
        let launched = Demo::launch(self.directory.path(), &args);
        (witness, launched)
    }

    fn servers(&self) -> impl Iterator<Item = &Demo> {
        self.workers.iter().map(|worker| &worker.server).chain([&*self.api])
    }

    /// How often each body was executed, by `instance run step attempt`, by all servers there ever were.
    fn executed(&self) -> BTreeMap<String, u32> {
        let mut executed = BTreeMap::new();
        for n in 0..=self.started {
            let path = self.directory.path().join(format!("witness-{n}"));
            for line in std::fs::read_to_string(path).unwrap_or_default().lines() {
                *executed.entry(line.to_owned()).or_default() += 1;
            }
        }
        executed
    }

    fn create(&self, id: &str, ops: &Value) {
        let body = json!({"id": id, "params": {"ops": ops}});
        let (status, answer) = self.api.ask("/api/workflows/playground/instances", Some(&body));
        assert_eq!(status, 200, "{answer}");
    }

    fn send_event(&self, id: &str, event: &str) {
        let path = format!("/api/workflows/playground/instances/{id}/events");
        let (status, answer) = self.api.ask(&path, Some(&json!({"type": event})));
        assert_eq!(status, 200, "{answer}");
    }

    /// Waits for the end of an instance: its status and output.
    fn result(&self, id: &str) -> (Value, Value) {
        let path = format!("/api/workflows/playground/instances/{id}/result?wait=10s");
        loop {
            if let Ok((200, mut answer)) = self.api.try_ask(&path, None) {
                let details = &mut answer["details"];
                if ["complete", "errored"].iter().any(|end| details["status"] == *end) {
                    return (details["status"].take(), details["output"].take());
                }
            }
        }
    }
}

/// Waits until it is so.
fn until(mut is_so: impl FnMut() -> bool) {
    while !is_so() {
        pause();
    }
}

/// The URL of a schema.
fn url_of(scratch: &Scratch) -> String {
    let join = if scratch.url().contains('?') { '&' } else { '?' };
    format!("{}{join}schema={}", scratch.url(), scratch.schema())
}

/// One number from the database.
async fn number(conn: &mut PgConnection, sql: &str) -> i64 {
    sqlx::query(AssertSqlSafe(sql)).fetch_one(conn).await.unwrap().get(0)
}

/// A body that would take an hour, and the event that ends the run sooner: it is running until the test has seen enough.
fn long_body() -> Value {
    json!([{"op": "race", "ops": [
        {"op": "do", "name": "long", "ms": 3_600_000, "config": {"timeout": "2 hours"}},
        {"op": "wait", "name": "enough", "type": "enough"},
    ]}])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_longer_than_the_lease_keeps_its_lease() {
    let Some(scratch) = Scratch::new() else { return };
    let mut conn = scratch.connect().await.unwrap();
    // Renewed every two seconds: a machine may stall for four before the lease is rightly lost.
    let site = Site::open(&url_of(&scratch), &["--lease", "6 seconds"]);
    site.create("held", &long_body());
    until(|| site.executed().contains_key("held 0 long 1"));

    let epoch = "SELECT epoch FROM piton_task";
    let (claimed, first) = (
        number(&mut conn, epoch).await,
        number(&mut conn, "SELECT lease_until FROM piton_task").await,
    );
    let now = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint";
    // The others look every second: they had a lease's length of time to take what nobody renews.
    while number(&mut conn, now).await < first + 6_000 {
        pause();
    }
    assert_eq!(site.executed(), BTreeMap::from([("held 0 long 1".to_owned(), 1)]));
    assert_eq!(number(&mut conn, epoch).await, claimed, "nobody else has claimed it");
    site.send_event("held", "enough");
    assert_eq!(site.result("held").0, json!("complete"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_ticks_at_once_advance_everything_once() {
    const INSTANCES: u32 = 60;
    let Some(scratch) = Scratch::new() else { return };
    let mut conn = scratch.connect().await.unwrap();
    let args = ["--no-runner", "--enable-tick", "--lease", ENDLESS];
    // Nobody works unless told to.
    let site = Site::open(&url_of(&scratch), &args);
    let ops = json!([{"op": "do", "name": "a", "ms": 5}, {"op": "do", "name": "b"}]);
    for n in 0..INSTANCES {
        site.create(&format!("i-{n}"), &ops);
    }
    assert!(site.executed().is_empty());

    let processed = AtomicU32::new(0);
    let tick_until_nothing_is_due = |server: &Demo| {
        let order = json!({"maxInstances": 2});
        loop {
            match server.ask("/api/workflows/_runner/tick", Some(&order)) {
                (200, answer) if answer["processed"] == json!(0) => return,
                (200, answer) => {
                    let count = answer["processed"].as_u64().unwrap();
                    processed.fetch_add(count.try_into().unwrap(), Ordering::SeqCst);
                }
                // Another one is at work in that server.
                (503, _) => pause(),
                (status, answer) => panic!("{status} {answer}"),
            }
        }
    };
    std::thread::scope(|scope| {
        for server in site.servers() {
            for _ in 0..5 {
                scope.spawn(|| tick_until_nothing_is_due(server));
            }
        }
    });
    assert_eq!(processed.into_inner(), INSTANCES, "each run was advanced by one tick");
    let executed = site.executed();
    assert_eq!(executed.len(), 2 * INSTANCES as usize);
    assert!(executed.values().all(|times| *times == 1), "{executed:?}");
    let complete = "SELECT count(*) FROM piton_instance WHERE status = 'complete'";
    assert_eq!(number(&mut conn, complete).await, i64::from(INSTANCES));
    assert_eq!(number(&mut conn, "SELECT count(*) FROM piton_task").await, 0);
}

/// Clients that go on creating instances, whatever happens to the database.
struct Clients {
    stop: AtomicBool,
    next: AtomicU32,
    /// Instances whose creation was answered.
    accepted: Mutex<Vec<String>>,
    /// Those of them that were seen to end as they should.
    done: Mutex<BTreeSet<String>>,
}

impl Clients {
    fn new() -> Self {
        Self {
            stop: AtomicBool::new(false),
            next: AtomicU32::new(0),
            accepted: Mutex::default(),
            done: Mutex::default(),
        }
    }

    fn create_for_ever(&self, api: &Demo) {
        let ops = json!([
            {"op": "do", "name": "a", "ms": 5},
            {"op": "sleep", "name": "nap", "duration": 20},
            {"op": "all", "ops": [{"op": "do", "name": "b"}, {"op": "do", "name": "c", "ms": 5}]},
        ]);
        while !self.stop.load(Ordering::SeqCst) {
            let id = format!("i-{}", self.next.fetch_add(1, Ordering::SeqCst));
            let body = json!({"id": id, "params": {"ops": ops}});
            // A create that was not answered as it should took place or not: the next one tells.
            while !matches!(
                api.try_ask("/api/workflows/playground/instances", Some(&body)),
                Ok((200 | 409, _))
            ) {
                pause();
            }
            self.accepted.lock().unwrap().push(id);
            // There is enough to see in one at a time.
            sleep(Duration::from_millis(100));
        }
    }

    /// Waits for the end of everything that was accepted by now.
    fn see_all_end(&self, site: &Site) {
        let accepted = std::mem::take(&mut *self.accepted.lock().unwrap());
        for id in accepted {
            let expected = (json!("complete"), json!(["a", "slept", ["b", "c"]]));
            assert_eq!(site.result(&id), expected, "{id}");
            self.done.lock().unwrap().insert(id);
        }
    }

    /// Waits until some that are created from now on are done: the servers have caught up, and all of them live.
    fn see_new_ones_end(&self, site: &Site) {
        let from = self.next.load(Ordering::SeqCst);
        until(|| self.next.load(Ordering::SeqCst) > from + 10);
        self.see_all_end(site);
        assert!(site.servers().all(|server| server.ask("/healthz", None).0 == 200));
    }

    /// How often each body of those that have ended was executed: that is final.
    fn final_executions(&self, site: &Site) -> BTreeMap<String, u32> {
        let done = self.done.lock().unwrap();
        let ended = |line: &str| line.split(' ').next().is_some_and(|id| done.contains(id));
        site.executed().into_iter().filter(|(line, _)| ended(line)).collect()
    }

    /// No more; how often each body was executed in the end.
    fn end(&self, site: &Site) -> BTreeMap<String, u32> {
        self.see_all_end(site);
        let executed = self.final_executions(site);
        assert_eq!(executed.len(), 3 * self.done.lock().unwrap().len());
        executed
    }
}

/// Tells threads to stop, also when the test has failed: it would wait for them for ever.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Asks each server for so much that all its connections wait, until it is told to stop.
fn exhaust_pools(site: &Site, stop: &AtomicBool) {
    std::thread::scope(|scope| {
        for server in site.servers() {
            for _ in 0..8 {
                scope.spawn(|| {
                    while !stop.load(Ordering::SeqCst) {
                        let history = "/api/workflows/playground/instances/i-0/history";
                        let (status, _) = server.ask(history, None);
                        assert!([200, 503].contains(&status), "{status}");
                    }
                });
            }
        }
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_is_gone_cut_off_or_exhausted_loses_and_doubles_nothing() {
    if !piton_testing::postgres::is_available() || Programs::find().is_none() {
        return;
    }
    // One of its own: other tests would not like it to be gone.
    let mut server = Server::start(Place::Memory).unwrap();
    let url = server.url();
    let proxy = Proxy::before(&url).await.unwrap();
    let site = Site::open(proxy.url(), &["--lease", "2 seconds"]);
    let clients = Clients::new();
    std::thread::scope(|scope| {
        let stop = StopAtEnd(&clients.stop);
        let creating = scope.spawn(|| clients.create_for_ever(&site.api));
        clients.see_new_ones_end(&site);
        let before = clients.final_executions(&site);

        // Gone for ten seconds.
        server.stop(Stop::Fast).unwrap();
        sleep(Duration::from_secs(10));
        server.launch().unwrap();
        clients.see_new_ones_end(&site);

        // Cut off, with the answer under way: that of a commit more often than not.
        for _ in 0..20 {
            let swallowed = proxy.swallowed();
            proxy.swallow_answers(1);
            until(|| proxy.swallowed() > swallowed);
        }
        clients.see_new_ones_end(&site);

        // All connections of all pools wait for the lock of somebody who takes their time.
        let (enough, handle) = (AtomicBool::new(false), tokio::runtime::Handle::current());
        std::thread::scope(|scope| {
            let reading = StopAtEnd(&enough);
            scope.spawn(|| exhaust_pools(&site, &enough));
            scope.spawn(|| handle.block_on(block_readers(&url))).join().unwrap();
            drop(reading);
        });
        clients.see_new_ones_end(&site);

        drop(stop);
        creating.join().unwrap();
        let after = clients.end(&site);
        for (line, times) in &before {
            assert_eq!(after.get(line), Some(times), "{line} was recorded before");
        }
    });
    drop(site);
    let report = piton_audit::audit(&url).unwrap();
    assert!(report.is_clean(), "{report}");
}

/// Holds a lock that readers of histories want until all connections of four pools wait for it.
async fn block_readers(url: &str) {
    let connect = || async { PgConnection::connect(url).await.unwrap() };
    let (mut locker, mut looker) = (connect().await, connect().await);
    locker.execute("BEGIN; LOCK TABLE piton_event").await.unwrap();
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    while number(&mut looker, waiting).await < 20 {
        pause();
    }
    locker.execute("ROLLBACK").await.unwrap();
}

/// Every worker is replaced, one after the other, while there is work.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_deploy_hands_its_runs_over_and_waits_for_no_lease() {
    let Some(scratch) = Scratch::new() else { return };
    let mut site = Site::open(&url_of(&scratch), &["--lease", ENDLESS]);
    let api = Arc::clone(&site.api);
    let clients = Clients::new();
    site.create("held", &long_body());
    std::thread::scope(|scope| {
        let stop = StopAtEnd(&clients.stop);
        let creating = scope.spawn(|| clients.create_for_ever(&api));
        let executed = |worker: &Worker| {
            let noted = std::fs::read_to_string(&worker.witness).unwrap_or_default();
            noted.lines().any(|line| line == "held 0 long 1")
        };
        until(|| site.workers.iter().any(executed));
        site.workers.sort_by_key(|worker| !executed(worker));
        for _ in 0..3 {
            let (witness, launched) = site.launch_worker();
            site.workers.push(Worker { server: launched.listening(), witness });
            let old = site.workers.remove(0);
            old.server.signal("-TERM");
            old.server.wait();
            clients.see_new_ones_end(&site);
        }
        // The first one had it and let go of it after its deadline.
        until(|| site.executed()["held 0 long 1"] > 1);
        site.send_event("held", "enough");
        assert_eq!(site.result("held").0, json!("complete"));
        drop(stop);
        creating.join().unwrap();
        let executed = clients.end(&site);
        assert!(
            executed.values().all(|times| *times == 1),
            "what was running was recorded: {executed:?}"
        );
    });
}

/// The one that migrates is frozen half-way, for as long as it takes the others to start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_servers_start_at_once_though_the_one_that_migrates_is_frozen() {
    let Some(scratch) = Scratch::new() else { return };
    let (schema, directory) = (scratch.schema(), tempfile::tempdir().unwrap());
    let (mut conn, mut in_the_way) =
        (scratch.connect().await.unwrap(), scratch.connect().await.unwrap());
    // Whoever migrates waits for this transaction when it comes to the table that is being made here.
    in_the_way.execute(AssertSqlSafe(format!("CREATE SCHEMA {schema}"))).await.unwrap();
    in_the_way.execute("BEGIN; CREATE TABLE piton_hook (nothing INTEGER)").await.unwrap();
    let launch = |n| {
        let database = format!("{}&application_name={schema}_{n}", url_of(&scratch));
        Demo::launch(directory.path(), &["--database", &database, "--no-runner"])
    };
    let mut servers: Vec<Launched> = (0..10).map(launch).collect();
    let waiting = "SELECT application_name FROM pg_stat_activity
        WHERE starts_with(application_name, current_schema()) AND wait_event = 'transactionid'";
    let frozen = loop {
        let Some(row) = sqlx::query(waiting).fetch_optional(&mut conn).await.unwrap() else {
            pause();
            continue;
        };
        let name: String = row.get(0);
        let n: usize = name.rsplit('_').next().unwrap().parse().unwrap();
        servers[n].signal("-STOP");
        // It may have given way to another one before it was stopped.
        let still = sqlx::query(waiting).fetch_optional(&mut conn).await.unwrap();
        if still.is_some_and(|row| row.get::<String, _>(0) == name) {
            break servers.remove(n);
        }
        servers[n].signal("-CONT");
    };
    in_the_way.execute("ROLLBACK").await.unwrap();
    let mut started: Vec<Demo> = servers.into_iter().map(Launched::listening).collect();
    frozen.signal("-CONT");
    started.push(frozen.listening());
    assert!(started.iter().all(|server| server.ask("/healthz", None).0 == 200));
    assert_eq!(number(&mut conn, "SELECT count(*) FROM piton_schema").await, 1);
}
