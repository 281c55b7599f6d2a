//! When a failed step is tried again.

use std::str::FromStr;

use crate::planted::{Bug, planted};
use crate::status::UnknownWord;
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

impl Backoff {
    /// The word for it, as it is stored.
    pub const fn as_str(self) -> &'static str {
        match self {
            Backoff::Constant => "constant",
            Backoff::Linear => "linear",
            Backoff::Exponential => "exponential",
        }
    }
}

impl FromStr for Backoff {
    type Err = UnknownWord;

    fn from_str(word: &str) -> Result<Self, UnknownWord> {
        let all = [Backoff::Constant, Backoff::Linear, Backoff::Exponential];
        let known = all.into_iter().find(|backoff| backoff.as_str() == word);
        let words = &["constant", "linear", "exponential"];
        known.ok_or_else(|| UnknownWord { what: "backoff", word: word.to_owned(), known: words })
    }
}

/// The retry policy of a step or a hook.
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
    cap: Option<Span>,
}

impl Default for Retries {
    /// Five retries, 10 seconds, exponential.
    fn default() -> Self {
        Self {
            limit: RetryLimit::Times(5),
            delay: Ok(Span::from_millis(10_000)),
            backoff: Backoff::Exponential,
            cap: None,
        }
    }
}

impl Retries {
    fn new(limit: RetryLimit, delay: Result<Span, DurationError>, backoff: Backoff) -> Self {
        Self { limit, delay, backoff, cap: None }
    }

    /// A policy as it was stored: `attempts_max` is one more than the retries, `None` is no limit.
    pub fn from_stored(
        attempts_max: Option<u32>,
        delay: Span,
        backoff: Backoff,
        cap: Option<Span>,
    ) -> Self {
        let times = |max: u32| RetryLimit::Times(max.saturating_sub(1));
        let limit = attempts_max.map_or(RetryLimit::Infinite, times);
        Self { limit, delay: Ok(delay), backoff, cap }
    }

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
        Self::new(limit.into(), delay.into_span(), Backoff::Constant)
    }

    /// Up to `limit` retries; after failed attempt n the delay is `delay` times n.
    ///
    /// ```
    /// let after_2_4_and_6_seconds = piton_core::Retries::linear(3, "2 seconds");
    /// ```
    pub fn linear(limit: impl Into<RetryLimit>, delay: impl IntoSpan) -> Self {
        Self::new(limit.into(), delay.into_span(), Backoff::Linear)
    }

    /// Up to `limit` retries; the delay starts at `delay` and doubles.
    ///
    /// ```
    /// let after_2_4_and_8_seconds = piton_core::Retries::exponential(3, "2 seconds");
    /// ```
    pub fn exponential(limit: impl Into<RetryLimit>, delay: impl IntoSpan) -> Self {
        Self::new(limit.into(), delay.into_span(), Backoff::Exponential)
    }

    /// No delay grows beyond `longest`.
    ///
    /// ```
    /// use piton_core::{Retries, RetryLimit, Span};
    /// let steady = Retries::exponential(RetryLimit::Infinite, "1 second").cap("1 minute");
    /// assert_eq!(steady.delay_after(20, Span::from_days(365)), Some(Span::from_millis(60_000)));
    /// ```
    #[must_use]
    pub fn cap(mut self, longest: impl IntoSpan) -> Self {
        match longest.into_span() {
            Ok(longest) => self.cap = Some(longest),
            Err(error) => self.delay = self.delay.and(Err(error)),
        }
        self
    }

    /// The delay that the backoff starts from; nothing if it could not be understood.
    pub fn base_delay(&self) -> Span {
        self.delay.as_ref().map_or(Span::ZERO, |delay| *delay)
    }

    /// How the delay grows.
    pub fn backoff(&self) -> Backoff {
        self.backoff
    }

    /// The longest delay, if one was set.
    pub fn longest_delay(&self) -> Option<Span> {
        self.cap
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
        let delay = self.delay_after(attempt, limits.sleep_max)?;
        Some(failed_at.plus(delay))
    }

    /// How long to wait after attempt number `attempt` (from 1) failed, at most `longest`; `None` when the
    /// attempts are used up.
    pub fn delay_after(&self, attempt: u32, longest: Span) -> Option<Span> {
        if self
            .attempts_max()
            .is_some_and(|max| attempt >= max + u32::from(planted(Bug::RetryLimitOffByOne)))
        {
            return None;
        }
        let factor = match self.backoff {
            Backoff::Constant => 1,
            Backoff::Linear => i64::from(attempt),
            Backoff::Exponential => {
                let doublings = attempt.saturating_sub(1);
                1_i64.checked_shl(doublings).filter(|f| *f > 0).unwrap_or(i64::MAX)
            }
        };
        let delay = self.base_delay().as_millis().saturating_mul(factor);
        let longest = self.cap.map_or(longest, |cap| cap.min(longest));
        Some(Span::from_millis(delay.min(longest.as_millis())))
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
    fn a_cap_bounds_every_delay_and_survives_storage() {
        let capped = Retries::exponential(9, "2s").cap("5s");
        assert_eq!(delays(&capped, 1..=4), [Some(2_000), Some(4_000), Some(5_000), Some(5_000)]);
        let (delay, cap) = (capped.base_delay(), capped.longest_delay());
        let stored = Retries::from_stored(capped.attempts_max(), delay, capped.backoff(), cap);
        assert_eq!(stored, capped);
        for backoff in [Backoff::Constant, Backoff::Linear, Backoff::Exponential] {
            assert_eq!(backoff.as_str().parse(), Ok(backoff));
        }
        assert!(Retries::default().cap("soon").check().is_err());
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
