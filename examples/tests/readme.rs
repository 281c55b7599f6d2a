//! What the README shows is built, and its program is run.

use std::path::Path;

use piton::prelude::*;
use piton::{InstanceHandle, InstanceStatus};
use piton_examples::shop::{Approval, Order, Receipt};
use piton_testing::Harness;
use tracing_subscriber::prelude::*;

const README: &str = include_str!("../../README.md");
const PROGRAM: &str = include_str!("../src/bin/order_with_approval.rs");
const SNIPPETS: &str = include_str!("readme.rs");

#[test]
fn the_program_in_the_readme_is_the_example() {
    let code = PROGRAM.split_once("\n\n").expect("a head comment, then the code").1;
    let shown = format!("```rust\n{code}```\n");
    assert!(
        README.contains(&shown),
        "README.md must show examples/src/bin/order_with_approval.rs as it is:\n{shown}"
    );
}

/// The code below is a test because it compiles.
#[test]
fn every_other_line_of_code_in_the_readme_is_compiled_here() {
    let compiled: Vec<_> = SNIPPETS.lines().map(str::trim).collect();
    let blocks: Vec<_> = README.split("```rust,ignore\n").skip(1).collect();
    assert_eq!(blocks.len(), 4);
    for block in blocks {
        let code = block.split("```").next().expect("the block");
        for line in code.lines().map(without_comment).filter(|line| !line.is_empty()) {
            assert!(compiled.contains(&line), "not in examples/tests/readme.rs: {line}");
        }
    }
}

fn without_comment(line: &str) -> &str {
    line.split(" // ").next().unwrap_or_default().trim()
}

#[rustfmt::skip]
async fn step_transactions(_: Event<()>, step: &Step) -> Result<()> {
step.run_with("move money", |cx| async move {
    let tx = cx.transaction();
    tx.execute("UPDATE account SET cents = cents - ?1 WHERE owner = 'ada'", [70]);
    tx.sqlite(|tx| { tx.execute("INSERT INTO transfer DEFAULT VALUES", [])?; Ok(()) });
    tx.create("shipment", "order-123", &"express")?;
    tx.send_event("stock", "main", "sold", &1)?;
    Ok(())
})
.await
}

fn logging(step: &Step, order: &Order) {
    step.log().info("charging").data(order).category("payments");
    tracing_subscriber::registry().with(piton::durable_log_layer()).init();
}

async fn testing(order: Order) -> Result<Receipt> {
    let harness = Harness::memory([workflow("checkout", checkout)]).await?;
    harness.mock("charge card").attempt(1).fails(Error::new("the gateway is busy"));
    harness.mock_wait("approval").receives(&Approval { by: "Ada".into() });
    let instance = harness.create::<_, Receipt>("checkout", order).await?;
    harness.run_to_end().await?;
    let receipt = harness.result(&instance).await?;
    Ok(receipt)
}

#[tokio::test]
async fn the_test_in_the_readme_passes() -> Result<()> {
    let order = Order { id: "order-123".into(), cents: 4_200 };
    assert_eq!(testing(order).await?.approved_by, "Ada");
    Ok(())
}

/// The workflow of the README, as far as its test is concerned.
async fn checkout(order: Event<Order>, step: &Step) -> Result<Receipt> {
    let payment = step.run("charge card", async { Ok(order.id.clone()) }).await?;
    step.sleep("cooling-off period", "14 days").await?;
    let approval: Approval = step.wait_for_event("approval", "approved").await?;
    let (label, mail) = ("label".to_owned(), "mail".to_owned());
    Ok(Receipt { payment, approved_by: approval.by, label, mail })
}

#[rustfmt::skip]
async fn looking(engine: &Engine, order: Order) -> Result<InstanceHandle<Receipt>> {
    let orders = engine.workflow::<Order, Receipt>("checkout")?;
    let instance = orders.create(order).id("order-123").await?;
    drop(instance);
    let instance = orders.get("order-123").await?;
    instance.status().await?;
    instance.describe().await?;
    instance.history().await?;
    instance.export().await?;
    orders.list().status(InstanceStatus::Errored).await?;
    Ok(instance)
}

#[test]
fn the_snippets_are_used() {
    let _ = (workflow("money", step_transactions), logging, looking);
    let shop = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/shop.rs");
    assert!(shop.exists(), "the README says so");
}
