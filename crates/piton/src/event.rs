//! What a workflow is given: its params with where and when it was created, and the events it receives.

use std::ops::Deref;

use piton_core::{InstanceId, Timestamp};
use serde::Deserialize;

/// The params of an instance, together with its id and the time it was created.
///
/// Derefs to the params. Everything in it is the same on every pass.
///
/// ```
/// # use piton::prelude::*;
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct Order { cents: u64 }
/// async fn checkout(order: Event<Order>, step: &Step) -> Result<String> {
///     step.log().info(format!("{} cents, ordered at {}", order.cents, order.timestamp));
///     Ok(order.instance_id.to_string())
/// }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Event<P> {
    /// What the instance was created with.
    pub payload: P,
    /// When the instance was created.
    pub timestamp: Timestamp,
    /// The id of the instance.
    pub instance_id: InstanceId,
}

impl<P> Event<P> {
    pub(crate) fn new(payload: P, timestamp: Timestamp, instance_id: InstanceId) -> Self {
        Self { payload, timestamp, instance_id }
    }
}

impl<P> Deref for Event<P> {
    type Target = P;

    fn deref(&self) -> &P {
        &self.payload
    }
}

/// An event that a wait received.
///
/// ```
/// # use piton::prelude::*;
/// # use piton::Received;
/// async fn pay(_: Event<()>, step: &Step) -> Result<u64> {
///     let paid: Received<u64> = step.wait_for_event("payment", "paid").received().await?;
///     step.log().info(format!("{} at {}", paid.event_type, paid.timestamp));
///     Ok(paid.payload)
/// }
/// # let _ = workflow("pay", pay);
/// ```
#[derive(Clone, Debug, Deserialize)]
#[non_exhaustive]
pub struct Received<T> {
    /// Its type.
    #[serde(rename = "type")]
    pub event_type: String,
    /// What it carried.
    pub payload: T,
    /// When it arrived.
    pub timestamp: Timestamp,
}
