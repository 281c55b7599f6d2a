//! What a step returns is recorded, so it must be serializable.

use piton::prelude::*;

struct Connection;

async fn connect(_: Event<()>, step: &Step) -> Result<()> {
    let _connection = step.run("connect", async { Ok(Connection) }).await?;
    Ok(())
}

fn main() {
    let _ = workflow("connect", connect);
}
