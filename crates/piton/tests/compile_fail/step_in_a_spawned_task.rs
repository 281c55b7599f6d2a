//! A step borrows its `Step`, so that it cannot escape into a task that outlives the run.

use piton::prelude::*;

async fn escape(_: Event<()>, step: &Step) -> Result<()> {
    tokio::spawn(step.run("elsewhere", async { Ok(()) }));
    Ok(())
}

fn main() {
    let _ = workflow("escape", escape);
}
