//! What a driver has to say about its engine.

use std::time::SystemTime;

use anyhow::Result;

/// A running engine. Numbers of workflows are never used twice.
pub trait Engine: Clone + Send + Sync + 'static {
    /// Runs a workflow of [`Options::steps`](crate::Options::steps) steps and returns its result: `first` and the numbers of
    /// all steps, added up.
    fn chain(&self, first: u64) -> impl Future<Output = Result<u64>> + Send;

    /// Starts a workflow whose first step calls [`waiting`](crate::waiting), which then waits for an event, and whose last
    /// step calls [`resumed`](crate::resumed).
    fn start_listener(&self, number: u64) -> impl Future<Output = Result<()>> + Send;

    /// Sends the event.
    fn send_event(&self, number: u64) -> impl Future<Output = Result<()>> + Send;

    /// Starts a workflow that sleeps until the moment and whose one step then calls [`resumed`](crate::resumed).
    fn start_sleeper(
        &self,
        number: u64,
        moment: SystemTime,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Removes what would stay in a server.
    fn remove(self) -> impl Future<Output = Result<()>> + Send {
        async { Ok(()) }
    }
}
