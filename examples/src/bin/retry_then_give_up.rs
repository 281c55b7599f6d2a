//! Retries a flaky gateway, stops at once when a retry cannot help, and cleans up after giving up.
//!
//! Three cards: one works at the third attempt, one is declined, and the bank of one never answers. A step that
//! failed for good returns its error like any function, so the code decides what happens next.

use piton::prelude::*;

/// What the gateway answers to the given attempt. A real one is asked over the network, and is given the key
/// so that it charges once however often it is asked.
async fn charge(card: &str, attempt: u32, _idempotency_key: &str) -> Result<String> {
    println!("{card}: attempt {attempt}");
    match card {
        "declined" => Err(Error::non_retryable("card declined").named("CardDeclined")),
        "flaky" if attempt >= 3 => Ok(format!("paid at attempt {attempt}")),
        _ => Err(Error::new("the gateway is busy")),
    }
}

async fn shelf(card: &str, what: &str) -> Result<()> {
    println!("{card}: goods {what}");
    Ok(())
}

async fn pay(card: Event<String>, step: &Step) -> Result<String> {
    let card = card.as_str();
    step.run("reserve goods", shelf(card, "reserved")).await?;

    let charged =
        step.run_with("charge", |cx| async move {
            charge(card, cx.attempt(), &cx.idempotency_key()).await
        })
        .retries(Retries::exponential(3, "20 ms"))
        .await;

    match charged {
        Ok(payment) => Ok(payment),
        Err(error) => {
            // On a replay the same error is here again, and this step is not executed twice either.
            step.run("release goods", shelf(card, "released")).await?;
            if error.name() == "CardDeclined" {
                return Ok("asked for another card".to_owned());
            }
            Err(error)
        }
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let engine =
        Engine::builder("sqlite:payments.db").register(workflow("pay", pay)).start().await?;
    let pay = engine.workflow::<String, String>("pay")?;
    for card in ["flaky", "declined", "dead"] {
        let instance = pay.create(card.to_owned()).await?;
        match instance.result().await {
            Ok(result) => println!("{card}: {result}"),
            Err(error) => println!("{card}: gave up: {error}"),
        }
    }
    engine.shutdown("5 seconds").await?;
    Ok(())
}
