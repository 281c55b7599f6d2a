//! The stores a harness can work on: **the one place that lists them**, with how each is opened, opened again after a
//! crash, and given up.

use std::path::PathBuf;
use std::sync::Arc;

use piton::Result;
use piton::runtime::Runtime;
use piton::store::{MemoryStore, SqliteStore, Store};
use tempfile::TempDir;

use crate::VirtualRuntime;

/// Which store a harness works on.
///
/// ```
/// # use piton_testing::StoreKind;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> piton::Result<()> {
/// let harness = piton_testing::Harness::on(StoreKind::Sqlite, []).await?;
/// assert_eq!(harness.store().kind(), "sqlite");
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    /// In memory.
    Memory,
    /// A SQLite file in a temporary directory.
    Sqlite,
    /// A schema on the server named by `PITON_TEST_POSTGRES_URL`.
    #[cfg(feature = "postgres")]
    Postgres,
}

/// Makes a test of each function on each store. The functions take a [`StoreKind`] and return
/// [`piton::Result<()>`](piton::Result); one that is not listed is dead code, and the compiler says so.
///
/// ```
/// use piton::prelude::*;
/// use piton_testing::{Harness, StoreKind, on_every_store};
///
/// # async fn noop(_: Event<()>, _: &Step) -> Result<()> { Ok(()) }
/// on_every_store!(an_instance_ends);
///
/// async fn an_instance_ends(kind: StoreKind) -> Result<()> {
///     let harness = Harness::on(kind, [workflow("noop", noop)]).await?;
///     let instance = harness.create::<_, ()>("noop", ()).await?;
///     harness.run_until_idle().await?;
///     instance.result().await
/// }
/// # fn main() { let _ = an_instance_ends; }
/// ```
#[macro_export]
macro_rules! on_every_store {
    (@on $store:ident $kind:ident: $($(#[$attribute:meta])* $test:ident),*) => {
        mod $store {
            $($(#[$attribute])* #[tokio::test]
            async fn $test() -> piton::Result<()> {
                super::$test($crate::StoreKind::$kind).await
            })*
        }
    };
    ($($(#[$attribute:meta])* $test:ident),* $(,)?) => {
        $crate::on_every_store!(@on memory Memory: $($(#[$attribute])* $test),*);
        $crate::on_every_store!(@on sqlite Sqlite: $($(#[$attribute])* $test),*);
        $crate::on_postgres!($($(#[$attribute])* $test),*);
    };
}

/// The tests of [`on_every_store!`] on PostgreSQL, skipped where there is no server.
#[cfg(feature = "postgres")]
#[doc(hidden)]
#[macro_export]
macro_rules! on_postgres {
    ($($(#[$attribute:meta])* $test:ident),*) => {
        mod postgres {
            $($(#[$attribute])* #[tokio::test]
            async fn $test() -> piton::Result<()> {
                if !$crate::postgres::is_available() {
                    return Ok(());
                }
                super::$test($crate::StoreKind::Postgres).await
            })*
        }
    };
}

/// Without the feature there is no such store.
#[cfg(not(feature = "postgres"))]
#[doc(hidden)]
#[macro_export]
macro_rules! on_postgres {
    ($($tests:tt)*) => {};
}

/// Where the data of one harness is.
pub(crate) enum Home {
    /// Nowhere but in the store itself.
    Memory,
    /// In a directory that goes when the harness does.
    Sqlite(TempDir),
    /// In a schema that goes when the harness does.
    #[cfg(feature = "postgres")]
    Postgres(crate::postgres::Scratch),
}

impl Home {
    /// A new, empty place.
    pub(crate) fn new(kind: StoreKind) -> Result<Self> {
        Ok(match kind {
            StoreKind::Memory => Self::Memory,
            StoreKind::Sqlite => Self::Sqlite(tempfile::tempdir()?),
            #[cfg(feature = "postgres")]
            StoreKind::Postgres => {
                Self::Postgres(crate::postgres::Scratch::new().ok_or_else(|| {
                    piton::Error::new("set PITON_TEST_POSTGRES_URL, or run `cargo xtask test`")
                })?)
            }
        })
    }

    /// Opens a store on the data that is there.
    pub(crate) async fn open(&self, runtime: &Arc<VirtualRuntime>) -> Result<Arc<dyn Store>> {
        let runtime = Arc::clone(runtime) as Arc<dyn Runtime>;
        Ok(match self {
            Self::Memory => MemoryStore::new(runtime),
            Self::Sqlite(directory) => SqliteStore::open(&database(directory), runtime)?,
            #[cfg(feature = "postgres")]
            Self::Postgres(scratch) => scratch.open(runtime).await?,
        })
    }

    /// What the next process finds after the one that used `store` is gone.
    pub(crate) async fn reopen(
        &self,
        store: Arc<dyn Store>,
        runtime: &Arc<VirtualRuntime>,
    ) -> Result<Arc<dyn Store>> {
        match self {
            // Its rows are all there is: it outlives the processes that use it.
            Self::Memory => return Ok(store),
            Self::Sqlite(_) => {}
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => {}
        }
        // Closing waits for the lock on the file to be gone; what was not committed is lost all the same.
        store.close().await.ok();
        drop(store);
        self.open(runtime).await
    }
}

fn database(directory: &TempDir) -> PathBuf {
    directory.path().join("test.db")
}
