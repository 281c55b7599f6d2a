//! A report that waits for stragglers and asks many places at once.

use std::sync::Arc;

use futures_util::future::try_join_all;
use piton::prelude::*;
use serde::{Deserialize, Serialize};

use crate::Tools;

/// `nightly-report`: counts the orders of each region at the same time, and writes them down.
#[derive(Debug)]
pub struct NightlyReport(pub Arc<Tools>);

/// What to report about.
#[derive(Debug, Serialize, Deserialize)]
pub struct ReportParams {
    /// Such as `2026-11-15`.
    day: String,
    /// Where to count.
    #[serde(default = "all_regions")]
    regions: Vec<String>,
}

fn all_regions() -> Vec<String> {
    ["north", "east", "south", "west"].map(str::to_owned).to_vec()
}

/// The report.
#[derive(Debug, Serialize, Deserialize)]
pub struct Report {
    day: String,
    orders: u64,
    regions: Vec<(String, u64)>,
}

impl Workflow for NightlyReport {
    const NAME: &'static str = "nightly-report";
    type Params = ReportParams;
    type Output = Report;

    async fn run(&self, params: Event<ReportParams>, step: &Step) -> Result<Report> {
        step.sleep("let late orders arrive", "5 seconds").await?;
        let counting = params.regions.iter().map(|region| self.count(step, region));
        let regions = try_join_all(counting).await?;
        let orders = regions.iter().map(|(_, orders)| orders).sum();
        let day = params.day.clone();
        let report = || Report { day: day.clone(), orders, regions: regions.clone() };
        self.0.call(step, "write report", report).await
    }
}

impl NightlyReport {
    async fn count(&self, step: &Step, region: &str) -> Result<(String, u64)> {
        // The number only looks like one: it is made of the name.
        let orders = region.bytes().map(u64::from).sum::<u64>() % 100;
        let name = format!("count orders in {region}");
        self.0.call(step, &name, || (region.to_owned(), orders)).await
    }
}
