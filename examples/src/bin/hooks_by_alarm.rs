//! Hooks in a host that owns one alarm and sleeps otherwise: a durable object, a systemd timer, a cloud scheduler.
//!
//! Nothing of Piton runs between two alarms. The dispatcher processes what is due when the alarm goes off, and sets it
//! for the next hook.

use std::sync::{Arc, Mutex};

use piton::hooks::{Alarm, AlarmDispatcher, Hooks};
use piton::prelude::*;
use piton::{Span, Timestamp};

/// The host's alarm: here a field, elsewhere a call to the platform.
#[derive(Clone, Default)]
struct HostAlarm(Arc<Mutex<Option<Timestamp>>>);

impl Alarm for HostAlarm {
    async fn get_alarm(&self) -> Result<Option<Timestamp>> {
        Ok(*self.0.lock().expect("nobody panics here"))
    }

    async fn set_alarm(&self, at: Timestamp) -> Result<()> {
        *self.0.lock().expect("nobody panics here") = Some(at);
        Ok(())
    }

    async fn delete_alarm(&self) -> Result<()> {
        *self.0.lock().expect("nobody panics here") = None;
        Ok(())
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let hooks = Hooks::new().on("remind", |what: String, _| async move {
        println!("reminder: {what}");
        Ok(())
    });
    let engine = Engine::builder("memory:").no_runner().hooks(hooks).start().await?;
    let (runtime, client) = (engine.runtime(), engine.hooks());
    let alarm = HostAlarm::default();
    let processors = client.processors().expect("there are handlers");
    let dispatcher = AlarmDispatcher::new(Arc::clone(&runtime), processors, alarm.clone());

    let soon = runtime.now().plus(Span::from_millis(30));
    client.send("remind", "stretch").process_at(soon).await?;
    client.send("remind", "drink").await?;
    dispatcher.arm().await?;
    // The host: sleeps until the alarm goes off.
    let goes_off = || alarm.0.lock().expect("nobody panics here").take();
    while let Some(at) = goes_off() {
        runtime.sleep(at.since(runtime.now()).max(Span::ZERO)).await;
        dispatcher.alarm().await?;
    }
    println!("nothing left to wait for");
    Ok(())
}
