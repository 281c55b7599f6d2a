//! stub
/// Stub.
#[derive(Debug)]
pub struct SqliteStore;
