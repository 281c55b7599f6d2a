//! What a step may do inside its own boundary's transaction.

use std::fmt;

use piton_core::WorkflowName;
use piton_core::hook::NewHook;

use super::{NewEvent, NewInstance};

/// One piece of work inside a boundary's transaction. They run in the order they were asked for.
pub enum Mutation {
    /// A statement of the user's on the same database.
    Execute {
        /// The statement, with `?1`, `?2`, … (`$1`, … on PostgreSQL) for the parameters.
        sql: String,
        /// The parameters.
        params: Vec<SqlValue>,
    },
    /// Another instance comes into being exactly if the step completes.
    Create {
        /// Its workflow.
        workflow: WorkflowName,
        /// Its id and params.
        instance: NewInstance,
    },
    /// An event is sent exactly if the step completes.
    SendEvent(NewEvent),
    /// A hook is stored exactly if the step completes.
    TriggerHook(NewHook),
    /// Anything the user can do with a `rusqlite` transaction.
    #[cfg(feature = "sqlite")]
    Sqlite(SqliteWork),
    /// Anything the user can do with a `sqlx` connection to PostgreSQL.
    #[cfg(feature = "postgres")]
    Postgres(PostgresWork),
}

/// User code that runs inside the SQLite transaction of a boundary.
#[cfg(feature = "sqlite")]
pub type SqliteWork = Box<dyn FnOnce(&rusqlite::Transaction<'_>) -> crate::Result<()> + Send>;

/// User code that runs inside the PostgreSQL transaction of a boundary.
#[cfg(feature = "postgres")]
pub type PostgresWork = Box<
    dyn for<'c> FnOnce(
            &'c mut sqlx::PgConnection,
        )
            -> std::pin::Pin<Box<dyn Future<Output = crate::Result<()>> + Send + 'c>>
        + Send,
>;

impl fmt::Debug for Mutation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mutation::Execute { sql, .. } => write!(f, "Execute({sql})"),
            Mutation::Create { workflow, instance } => {
                write!(f, "Create({workflow}/{})", instance.id)
            }
            Mutation::SendEvent(event) => write!(f, "SendEvent({})", event.event_type),
            Mutation::TriggerHook(hook) => write!(f, "TriggerHook({})", hook.name),
            #[cfg(feature = "sqlite")]
            Mutation::Sqlite(_) => f.write_str("Sqlite(..)"),
            #[cfg(feature = "postgres")]
            Mutation::Postgres(_) => f.write_str("Postgres(..)"),
        }
    }
}

/// A parameter of a statement.
///
/// ```
/// use piton::store::SqlValue;
/// assert_eq!(SqlValue::from("x"), SqlValue::Text("x".into()));
/// assert_eq!(SqlValue::from(None::<i64>), SqlValue::Null);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub enum SqlValue {
    /// NULL.
    Null,
    /// A boolean; SQLite stores it as 0 or 1.
    Bool(bool),
    /// An integer.
    Integer(i64),
    /// A floating-point number.
    Real(f64),
    /// Text.
    Text(String),
    /// Bytes.
    Blob(Vec<u8>),
}

macro_rules! sql_value {
    ($($type:ty => |$value:ident| $make:expr),* $(,)?) => {$(
        impl From<$type> for SqlValue {
            fn from($value: $type) -> Self {
                $make
            }
        }
    )*};
}
sql_value! {
    bool => |value| Self::Bool(value),
    i32 => |value| Self::Integer(value.into()),
    u32 => |value| Self::Integer(value.into()),
    i64 => |value| Self::Integer(value),
    f64 => |value| Self::Real(value),
    &str => |value| Self::Text(value.to_owned()),
    String => |value| Self::Text(value),
    &String => |value| Self::Text(value.clone()),
    Vec<u8> => |value| Self::Blob(value),
}

impl<T: Into<SqlValue>> From<Option<T>> for SqlValue {
    fn from(value: Option<T>) -> Self {
        value.map_or(SqlValue::Null, Into::into)
    }
}

/// The parameters of a statement: a tuple, an array, a `Vec`, or `()`.
///
/// ```
/// use piton::store::{SqlParams, SqlValue};
/// assert_eq!((1, "x").into_values(), [SqlValue::Integer(1), SqlValue::Text("x".into())]);
/// ```
pub trait SqlParams {
    /// The values, in order.
    fn into_values(self) -> Vec<SqlValue>;
}

impl SqlParams for () {
    fn into_values(self) -> Vec<SqlValue> {
        Vec::new()
    }
}

impl<V: Into<SqlValue>, const N: usize> SqlParams for [V; N] {
    fn into_values(self) -> Vec<SqlValue> {
        self.into_iter().map(Into::into).collect()
    }
}

impl<V: Into<SqlValue>> SqlParams for Vec<V> {
    fn into_values(self) -> Vec<SqlValue> {
        self.into_iter().map(Into::into).collect()
    }
}

macro_rules! sql_params {
    ($($name:ident)*) => {
        impl<$($name: Into<SqlValue>),*> SqlParams for ($($name,)*) {
            #[allow(non_snake_case, reason = "a type and its value share a letter")]
            fn into_values(self) -> Vec<SqlValue> {
                let ($($name,)*) = self;
                vec![$($name.into()),*]
            }
        }
    };
}
sql_params!(A);
sql_params!(A B);
sql_params!(A B C);
sql_params!(A B C D);
sql_params!(A B C D E);
sql_params!(A B C D E F);
sql_params!(A B C D E F G);
sql_params!(A B C D E F G H);
