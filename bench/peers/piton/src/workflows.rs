//! The workflows.

use std::time::SystemTime;

use anyhow::Result;
use peer_driver::{resumed, until, waiting};
use piton::prelude::*;

pub(crate) const CHAIN: &str = "chain";
pub(crate) const LISTENER: &str = "listener";
pub(crate) const SLEEPER: &str = "sleeper";

/// What a listener waits for.
pub(crate) const GO: &str = "go";

pub(crate) async fn start(url: String, steps: u64) -> Result<Engine> {
    let engine = Engine::builder(url)
        .register(Chain { steps })
        .register(workflow(LISTENER, listener))
        .register(workflow(SLEEPER, sleeper));
    Ok(engine.start().await?)
}

struct Chain {
    steps: u64,
}

impl Workflow for Chain {
    const NAME: &'static str = CHAIN;
    type Params = u64;
    type Output = u64;

    async fn run(&self, first: Event<u64>, step: &Step) -> piton::Result<u64> {
        let mut sum = *first;
        for i in 0..self.steps {
            sum += step.run(format!("step {i}"), async move { Ok(i) }).await?;
        }
        Ok(sum)
    }
}

async fn listener(number: Event<u64>, step: &Step) -> piton::Result<()> {
    let before = async {
        waiting();
        Ok(())
    };
    step.run("before", before).await?;
    step.wait_for_event::<u64>("go", GO).await?;
    step.run("after", after(*number)).await
}

async fn sleeper(params: Event<(u64, SystemTime)>, step: &Step) -> piton::Result<()> {
    let (number, moment) = *params;
    step.sleep("until the moment", until(moment)).await?;
    step.run("after", after(number)).await
}

/// The body of the step behind a wait.
async fn after(number: u64) -> piton::Result<()> {
    resumed(number);
    Ok(())
}
