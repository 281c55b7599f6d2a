//! stub
/// Stub.
#[derive(Debug)]
pub struct MemoryStore;
