//! A run may move between threads at every await, so its future must be `Send`.

use std::rc::Rc;

use piton::prelude::*;

async fn local(_: Event<()>, step: &Step) -> Result<u32> {
    let count = Rc::new(1);
    step.sleep("nap", "1 hour").await?;
    Ok(*count)
}

fn main() {
    let _ = workflow("local", local);
}
