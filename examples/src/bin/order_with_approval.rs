//! Charges a card, waits for an approval, then prints a label and sends a mail side by side.
//!
//! README.md shows this file; a test keeps the two the same.

use piton::prelude::*;
use piton_examples::shop::{Approval, Order, Receipt, gateway, label, mail};

async fn checkout(order: Event<Order>, step: &Step) -> Result<Receipt> {
    let payment = step
        .run("charge card", async { Ok(gateway::charge(&order.id, order.cents).await?) })
        .retries(Retries::exponential(5, "10 seconds"))
        .timeout("30 seconds")
        .await?;

    step.sleep("cooling-off period", "1 second").await?; // or "14 days": it costs no more

    let approval: Approval =
        step.wait_for_event("approval", "approved").timeout("24 hours").await?;

    let (label, mail) = try_join!(
        step.run("print label", async { Ok(label::print(&order.id).await?) }),
        step.run("send mail", async { Ok(mail::receipt(&order.id).await?) }),
    )?;

    Ok(Receipt { payment, approved_by: approval.by, label, mail })
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let engine = Engine::builder("sqlite:orders.db")
        .register(workflow("checkout", checkout))
        .start()
        .await?;
    let order = Order { id: "order-123".into(), cents: 4_200 };
    let instance = engine.workflow::<Order, Receipt>("checkout")?.create(order).await?;

    // Usually someone else does this: days later, in answer to a request.
    instance.send_event("approved", &Approval { by: "Ada".into() }).await?;

    println!("{:#?}", instance.result().await?);
    engine.shutdown("5 seconds").await?;
    Ok(())
}
