//! stub
/// Stub.
#[derive(Debug)]
pub struct SqliteStore;
impl SqliteStore {
    /// Stub.
    pub fn open(
        _: &std::path::Path,
        _: std::sync::Arc<dyn crate::runtime::Runtime>,
    ) -> crate::Result<std::sync::Arc<dyn crate::store::Store>> {
        Err(crate::Error::store_unusable("stub"))
    }
}
