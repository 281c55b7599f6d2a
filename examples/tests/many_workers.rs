//! Real processes on PostgreSQL: three workers and one that only creates, all started at once on a new database. Workers are
//! killed, stopped beyond their lease and told to shut down while they are at it; every order is packed, and every item of
//! it once.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use piton::sqlx::{ConnectOptions, Row, postgres::PgConnectOptions};
use piton_testing::postgres::ScratchDatabase;

/// Orders of one test; each takes five steps and five sleeps.
const ORDERS: u32 = 150;

/// A process that ends with this.
struct Process(Child);

impl Process {
    fn start(url: &str, args: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_many_workers"));
        command.arg(url).args(args).stdin(Stdio::piped()).stdout(Stdio::piped());
        Self(command.spawn().expect("started"))
    }

    /// Waits until it has printed this line.
    fn expect(&mut self, line: &str) {
        let printed = BufReader::new(self.0.stdout.as_mut().expect("piped")).lines();
        let mut printed = printed.map(|line| line.expect("text"));
        assert!(printed.any(|printed| printed == line), "never printed {line:?}");
    }

    fn signal(&self, signal: &str) {
        let told = Command::new("kill").args([signal, &self.0.id().to_string()]).status();
        assert!(told.expect("kill runs").success());
    }

    fn shut_down(&mut self) {
        self.0.stdin.take().expect("piped").write_all(b"\n").expect("told");
        assert!(self.0.wait().expect("ended").success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// How many rows a query counts.
async fn count(database: &PgConnectOptions, sql: &'static str) -> i64 {
    let mut conn = database.connect().await.expect("connected");
    let row = piton::sqlx::query(sql).fetch_one(&mut conn).await.expect("counted");
    row.get(0)
}

async fn wait_for(database: &PgConnectOptions, sql: &'static str, least: i64) {
    while count(database, sql).await < least {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn orders_survive_workers_that_are_killed_stopped_and_deployed() {
    let Some(scratch) = ScratchDatabase::new() else { return };
    let (database, url) = (scratch.options(), scratch.url());

    let orders = ORDERS.to_string();
    let mut api = Process::start(&url, &["api", &orders]);
    let mut workers: Vec<Process> = (0..3).map(|_| Process::start(&url, &["worker"])).collect();
    for worker in &mut workers {
        worker.expect("working");
    }
    api.expect("created");
    let packed = "SELECT count(*) FROM packed";
    wait_for(&database, packed, 50).await;
    workers[0].signal("-KILL");
    workers[1].signal("-STOP");
    wait_for(&database, packed, 150).await;
    // Long enough for others to have taken over what the stopped one holds; then it finds itself fenced.
    wait_for(&database, "SELECT count(*) FROM piton_log WHERE message LIKE 'lease ran out%'", 1)
        .await;
    workers[1].signal("-CONT");
    workers.push(Process::start(&url, &["worker"]));
    workers[2].shut_down();
    api.expect(&format!("{ORDERS} orders packed"));

    let each = i64::from(ORDERS);
    assert_eq!(count(&database, packed).await, each * 5);
    assert_eq!(
        count(&database, "SELECT count(*) FROM piton_instance WHERE status = 'complete'").await,
        each
    );
    assert_eq!(count(&database, "SELECT count(*) FROM piton_task").await, 0);
    let steps = "SELECT count(*) FROM piton_step WHERE type = 'do' AND status = 'completed'";
    assert_eq!(count(&database, steps).await, each * 5);
    drop((api, workers));
    let report = piton_audit::audit(&url).expect("audited");
    assert!(report.is_clean(), "{report}");
}
