//! One file per workflow.

mod nightly_report;
mod onboarding;
mod order;
mod playground;

pub use nightly_report::NightlyReport;
pub use onboarding::Onboarding;
pub use order::Order;
pub use playground::Playground;
