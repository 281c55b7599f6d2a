//! An order that someone has to approve: steps, a wait for a person, two steps side by side.

use std::sync::Arc;

use piton::prelude::*;
use serde::{Deserialize, Serialize};

use crate::Tools;

/// `order`: reserves, waits for the event `approved`, charges and ships. Cancels itself after a day without approval.
#[derive(Debug)]
pub struct Order(pub Arc<Tools>);

/// What is ordered.
#[derive(Debug, Serialize, Deserialize)]
pub struct OrderParams {
    item: String,
    cents: u64,
}

/// The event `approved`.
#[derive(Debug, Serialize, Deserialize)]
struct Approval {
    by: String,
}

/// What became of an order.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum OrderOutcome {
    /// It is on its way.
    Shipped {
        /// Who approved it.
        approved_by: String,
        /// The payment.
        payment: String,
        /// The parcel.
        label: String,
    },
    /// Nobody approved it in time.
    Cancelled,
}

impl Workflow for Order {
    const NAME: &'static str = "order";
    type Params = OrderParams;
    type Output = OrderOutcome;

    async fn run(&self, order: Event<OrderParams>, step: &Step) -> Result<OrderOutcome> {
        let tools = &*self.0;
        let id = &order.instance_id;
        tools.call(step, "reserve stock", || format!("reserved {} for {id}", order.item)).await?;

        let approval = step.wait_for_event::<Approval>("approval", "approved").timeout("24 hours");
        let Some(approval) = approval.outcome().await? else {
            tools.call(step, "release stock", || ()).await?;
            return Ok(OrderOutcome::Cancelled);
        };
        step.log().info(format!("approved by {}", approval.by)).category("orders");

        let payment = tools
            .call(step, "charge card", || format!("payment of {} cents for {id}", order.cents))
            .await?;
        let (label, ()) = try_join!(
            tools.call(step, "print label", || format!("label of {id}")),
            tools.call(step, "send receipt", || ()),
        )?;
        Ok(OrderOutcome::Shipped { approved_by: approval.by, payment, label })
    }
}
