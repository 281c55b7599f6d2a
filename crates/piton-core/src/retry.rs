//! When a failed step is tried again.

use crate::planted::{Bug, planted};
use crate::{Code, DurationError, IntoSpan, Limits, Refusal, Span, Timestamp};

/// How often a step may be retried.
///
/// ```
/// use piton_core::{Retries, RetryLimit};
/// let stubborn = Retries::constant(RetryLimit::Infinite, "1 minute");
/// assert_eq!(RetryLimit::from(5), RetryLimit::Times(5));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryLimit {
    /// This many retries: one attempt more than that.
    Times(u32),
    /// For ever.
    Infinite,
}

impl From<u32> for RetryLimit {
    fn from(times: u32) -> Self {
        Self::Times(times)
    }
}

/// How the delay grows from retry to retry.
///
/// ```
/// use piton_core::{Backoff, Retries};
/// let policy = |backoff| match backoff {
///     Backoff::Constant => Retries::constant(3, "1 minute"),
///     Backoff::Linear => Retries::linear(3, "1 minute"),
///     Backoff::Exponential => Retries::exponential(3, "1 minute"),
/// };
/// assert_eq!(policy(Backoff::Linear).attempts_max(), Some(4));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backoff {
    /// Always the same delay.
    Constant,
    /// The delay times the number of the failed attempt.
    Linear,
    /// The delay doubles with every failed attempt.
    Exponential,
}

/// The retry policy of a step.
///
/// The delay counts from the moment an attempt failed. A duration that cannot be understood is
/// reported by the step that uses the policy.
///
/// ```
/// use piton_core::{Retries, RetryLimit};
/// let patient = Retries::exponential(5, "10 seconds");
/// let stubborn = Retries::constant(RetryLimit::Infinite, "1 minute");
/// assert_eq!(patient.attempts_max(), Some(6));
/// assert_eq!(stubborn.attempts_max(), None);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retries {
    limit: RetryLimit,
    delay: Result<Span, DurationError>,
    backoff: Backoff,
}

impl Default for Retries {
    /// Five retries, 10 seconds, exponential.
    fn default() -> Self {
        Self {
            limit: RetryLimit::Times(5),
            delay: Ok(Span::from_millis(10_000)),
            backoff: Backoff::Exponential,
        }
    }
}

impl Retries {
    /// One attempt, no retry.
    ///
    /// ```
    /// assert_eq!(piton_core::Retries::none().attempts_max(), Some(1));
    /// ```
    pub fn none() -> Self {
        Self::constant(0, Span::ZERO)
    }

    /// Up to `limit` retries, `delay` apart.
    ///
    /// ```
    /// let every_minute = piton_core::Retries::constant(60, "1 minute");
    /// ```
    pub fn constant(limit: impl Into<RetryLimit>, delay: impl IntoSpan) -> Self {
        Self { limit: limit.into(), delay: delay.into_span(), backoff: Backoff::Constant }
    }

    /// Up to `limit` retries; after failed attempt n the delay is `delay` times n.
    ///
    /// ```
    /// let after_2_4_and_6_seconds = piton_core::Retries::linear(3, "2 seconds");
    /// ```
    pub fn linear(limit: impl Into<RetryLimit>, delay: impl IntoSpan) -> Self {
        Self { limit: limit.into(), delay: delay.into_span(), backoff: Backoff::Linear }
    }

    /// Up to `limit` retries; the delay starts at `delay` and doubles.
    ///
    /// ```
    /// let after_2_4_and_8_seconds = piton_core::Retries::exponential(3, "2 seconds");
    /// ```
    pub fn exponential(limit: impl Into<RetryLimit>, delay: impl IntoSpan) -> Self {
        Self { limit: limit.into(), delay: delay.into_span(), backoff: Backoff::Exponential }
    }

    /// How many attempts there may be in all; `None` is no limit.
    ///
    /// ```
    /// use piton_core::{Retries, RetryLimit};
    /// assert_eq!(Retries::linear(3, "2 seconds").attempts_max(), Some(4));
    /// assert_eq!(Retries::linear(RetryLimit::Infinite, "2 seconds").attempts_max(), None);
    /// ```
    pub fn attempts_max(&self) -> Option<u32> {
        match self.limit {
            RetryLimit::Times(times) => Some(times.saturating_add(1)),
            RetryLimit::Infinite => None,
        }
    }

    /// Refuses a policy whose delay is not a duration or is negative.
    ///
    /// ```
    /// use piton_core::Retries;
    /// assert!(Retries::linear(3, "2 seconds").check().is_ok());
    /// assert!(Retries::linear(3, "a while").check().is_err());
    /// ```
    ///
    /// # Errors
    ///
    /// `INVALID_DURATION`.
    pub fn check(&self) -> Result<(), Refusal> {
        match &self.delay {
            Ok(delay) if *delay >= Span::ZERO => Ok(()),
            Ok(delay) => Err(Refusal::new(
                Code::InvalidDuration,
                format!("a retry delay of {delay} is negative"),
            )),
            Err(error) => Err(error.clone().into()),
        }
    }

    /// When to try again after attempt number `attempt` (from 1) failed at `failed_at`; `None` when
    /// the attempts are used up.
    ///
    /// ```
    /// use piton_core::{Limits, Retries, Timestamp};
    /// let (retries, failed_at) = (Retries::linear(2, "2 seconds"), Timestamp::from_millis(0));
    /// let next = |attempt| retries.next_retry_at(attempt, failed_at, &Limits::default());
    /// assert_eq!(next(2), Some(Timestamp::from_millis(4_000)));
    /// assert_eq!(next(3), None);
    /// ```
    pub fn next_retry_at(
        &self,
        attempt: u32,
        failed_at: Timestamp,
        limits: &Limits,
    ) -> Option<Timestamp> {
        if self
            .attempts_max()
            .is_some_and(|max| attempt >= max + u32::from(planted(Bug::RetryLimitOffByOne)))
        {
            return None;
        }
        let base = self.delay.as_ref().map_or(0, |delay| delay.as_millis());
        let factor = match self.backoff {
            Backoff::Constant => 1,
            Backoff::Linear => i64::from(attempt),
            Backoff::Exponential => {
                1_i64.checked_shl(attempt - 1).filter(|f| *f > 0).unwrap_or(i64::MAX)
            }
        };
        let delay = base.saturating_mul(factor).min(limits.sleep_max.as_millis());
        Some(failed_at.plus(Span::from_millis(delay)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delays(retries: &Retries, attempts: impl IntoIterator<Item = u32>) -> Vec<Option<i64>> {
        let failed_at = Timestamp::from_millis(1_000);
        let limits = Limits::default();
        attempts
            .into_iter()
            .map(|n| {
                retries
                    .next_retry_at(n, failed_at, &limits)
                    .map(|at| at.since(failed_at).as_millis())
            })
            .collect()
    }

    #[test]
    fn delays_follow_the_backoff() {
        let s = |n: i64| Some(n * 1_000);
        assert_eq!(delays(&Retries::none(), 1..=1), [None]);
        assert_eq!(delays(&Retries::constant(2, "3s"), 1..=3), [s(3), s(3), None]);
        assert_eq!(delays(&Retries::linear(3, "2s"), 1..=4), [s(2), s(4), s(6), None]);
        assert_eq!(delays(&Retries::exponential(3, "2s"), 1..=4), [s(2), s(4), s(8), None]);
        assert_eq!(delays(&Retries::default(), 1..=6), [s(10), s(20), s(40), s(80), s(160), None]);
    }

    #[test]
    fn infinite_retries_never_overflow_and_are_capped_at_a_year() {
        let year = Some(Span::from_days(365).as_millis());
        let for_ever = Retries::exponential(RetryLimit::Infinite, "10s");
        assert_eq!(delays(&for_ever, [40, 64, 65, 1_000, u32::MAX]), [year; 5]);
        assert_eq!(Retries::constant(u32::MAX, 1).attempts_max(), Some(u32::MAX));
    }

    #[test]
    fn a_bad_delay_is_refused_by_check() {
        assert_eq!(
            Retries::constant(1, "soon").check().expect_err("bad").code,
            Code::InvalidDuration
        );
        assert_eq!(Retries::constant(1, -5).check().expect_err("bad").code, Code::InvalidDuration);
        assert_eq!(Retries::default().check(), Ok(()));
    }
}
