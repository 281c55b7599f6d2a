//! A customer who is reminded until they are done, or until we give up.

use std::sync::Arc;

use piton::prelude::*;
use serde::{Deserialize, Serialize};

use crate::Tools;

/// How many reminders are sent before we give up.
const REMINDERS_MAX: u32 = 3;

/// `onboarding`: welcomes, then reminds until the event `profile-completed` arrives.
#[derive(Debug)]
pub struct Onboarding(pub Arc<Tools>);

/// Who is welcomed.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OnboardingParams {
    email: String,
    /// How long to wait between two reminders.
    #[serde(default = "three_days")]
    remind_every: String,
}

fn three_days() -> String {
    "3 days".to_owned()
}

/// How it ended.
#[derive(Debug, Serialize, Deserialize)]
pub struct OnboardingOutcome {
    completed: bool,
    reminders: u32,
}

impl Workflow for Onboarding {
    const NAME: &'static str = "onboarding";
    type Params = OnboardingParams;
    type Output = OnboardingOutcome;

    async fn run(
        &self,
        customer: Event<OnboardingParams>,
        step: &Step,
    ) -> Result<OnboardingOutcome> {
        let tools = &*self.0;
        tools.call(step, "send welcome", || format!("welcome, {}", customer.email)).await?;
        for reminders in 0..=REMINDERS_MAX {
            let name = format!("profile {reminders}");
            let completed = step
                .wait_for_event::<serde_json::Value>(name, "profile-completed")
                .timeout(&customer.remind_every)
                .outcome();
            if completed.await?.is_some() {
                tools.call(step, "send thanks", || ()).await?;
                return Ok(OnboardingOutcome { completed: true, reminders });
            }
            if reminders < REMINDERS_MAX {
                let name = format!("send reminder {}", reminders + 1);
                tools.call(step, &name, || ()).await?;
            }
        }
        Ok(OnboardingOutcome { completed: false, reminders: REMINDERS_MAX })
    }
}
