//! A workflow whose params are a program: every semantic of Piton to be tried with curl.

mod program;

use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt, select_all, try_join_all};
use piton::prelude::*;
use serde_json::{Value, json};

use self::program::{Do, Fail, Level, Op, Program};
use crate::Tools;

/// `playground`: executes the program it is given and returns the results of its ops.
#[derive(Debug)]
pub struct Playground(pub Arc<Tools>);

impl Workflow for Playground {
    const NAME: &'static str = "playground";
    type Params = Program;
    type Output = Vec<Value>;

    async fn run(&self, program: Event<Program>, step: &Step) -> Result<Vec<Value>> {
        self.sequence(&program, &program.ops, step).await
    }
}

impl Playground {
    async fn sequence(
        &self,
        program: &Event<Program>,
        ops: &[Op],
        step: &Step,
    ) -> Result<Vec<Value>> {
        let mut results = Vec::with_capacity(ops.len());
        for op in ops {
            results.push(self.execute(program, op, step).await?);
        }
        Ok(results)
    }

    /// Boxed, because programs nest.
    fn execute<'a>(
        &'a self,
        program: &'a Event<Program>,
        op: &'a Op,
        step: &'a Step,
    ) -> BoxFuture<'a, Result<Value>> {
        let all = move |ops: &'a [Op]| ops.iter().map(move |op| self.execute(program, op, step));
        async move {
            match op {
                Op::Do(op) => self.run_body(op, step).await,
                Op::Sleep { name, duration } => {
                    step.sleep(name, duration.0).await?;
                    Ok(json!("slept"))
                }
                Op::SleepUntil { name, at } => {
                    step.sleep_until(name, at.0).await?;
                    Ok(json!("slept"))
                }
                Op::Wait { name, event_type, timeout } => {
                    let mut wait = step.wait_for_event::<Value>(name, event_type);
                    if let Some(timeout) = timeout {
                        wait = wait.timeout(timeout.0);
                    }
                    let event = wait.received().await?;
                    Ok(json!({"type": event.event_type, "payload": event.payload}))
                }
                Op::Catch { ops } => Ok(match self.sequence(program, ops, step).await {
                    Ok(results) => Value::Array(results),
                    Err(error) => {
                        json!({"caught": {"name": error.name(), "message": error.message()}})
                    }
                }),
                Op::All { ops } => Ok(Value::Array(try_join_all(all(ops)).await?)),
                Op::Race { ops } => select_all(all(ops)).await.0,
                Op::Log { level, message, data, category } => {
                    let message = message.clone();
                    let line = match level {
                        Level::Debug => step.log().debug(message),
                        Level::Info => step.log().info(message),
                        Level::Warn => step.log().warn(message),
                        Level::Error => step.log().error(message),
                    };
                    let line = data.iter().fold(line, |line, data| line.data(data));
                    drop(category.iter().fold(line, |line, category| line.category(category)));
                    Ok(Value::Null)
                }
                Op::Throw { message, name, non_retryable } => {
                    let error = Error::new(message).named(name.as_deref().unwrap_or("Error"));
                    Err(if *non_retryable { error.into_non_retryable() } else { error })
                }
                Op::Panic { message } => panic!("{message}"),
                Op::Event {} => Ok(json!({
                    "instanceId": program.instance_id.as_str(),
                    "timestamp": program.timestamp.to_string(),
                })),
            }
        }
        .boxed()
    }

    async fn run_body(&self, op: &Do, step: &Step) -> Result<Value> {
        let mut run = step.run_with(&op.name, |cx| async move {
            self.0.note(step, &op.name, &cx)?;
            self.0.work_for(op.ms).await;
            if op.fail.fails(cx.attempt()) {
                let message = op.message.as_deref().unwrap_or("failed on purpose");
                let error = Error::new(message);
                return Err(if op.non_retryable { error.into_non_retryable() } else { error });
            }
            Ok(op.value.clone().unwrap_or_else(|| json!(op.name)))
        });
        if let Some(retries) = &op.config.retries {
            run = run.retries(retries.policy());
        }
        if let Some(timeout) = op.config.timeout {
            run = run.timeout(timeout.0);
        }
        run.await
    }
}

impl Fail {
    fn fails(&self, attempt: u32) -> bool {
        match *self {
            Fail::First(attempts) => attempt <= attempts,
            Fail::Always(always) => always,
        }
    }
}
