//! Runs 100 steps at the same time, collects what succeeded, and goes on with at most 8 at a time.
//!
//! Steps are futures, so the combinators of `futures-util` work on them: `try_join_all` for all or nothing,
//! `join_all` to look at each result, `buffer_unordered` for a bound.

use futures_util::future::{join_all, try_join_all};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use piton::prelude::*;

async fn album(pictures: Event<u64>, step: &Step) -> Result<String> {
    // The name is a step's identity: in a loop it carries the index.
    let sizes =
        (1..=*pictures).map(|n| step.run(format!("measure {n}"), async move { Ok(n * 10) }));
    let sizes: Vec<u64> = try_join_all(sizes).await?;

    let scaled = sizes.iter().enumerate().map(|(n, size)| {
        step.run(format!("scale {n}"), async move {
            if size % 70 == 0 {
                return Err(Error::non_retryable("not a picture"));
            }
            Ok(size / 10)
        })
    });
    let scaled: Vec<u64> = join_all(scaled).await.into_iter().flatten().collect();

    let count = scaled.len();
    let uploads = stream::iter(scaled)
        .map(|size| step.run(format!("upload {size}"), async move { Ok(size) }))
        .buffer_unordered(8);
    let uploaded: Vec<u64> = uploads.try_collect().await?;

    Ok(format!("{} measured, {count} scaled, {} uploaded", sizes.len(), uploaded.len()))
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let engine =
        Engine::builder("sqlite:album.db").register(workflow("album", album)).start().await?;
    let instance = engine.workflow::<u64, String>("album")?.create(100).await?;
    println!("{}", instance.result().await?);
    engine.shutdown("5 seconds").await?;
    Ok(())
}
