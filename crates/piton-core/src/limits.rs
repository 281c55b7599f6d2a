//! The named bound on everything (rule R7). Every one can be configured.

use crate::{Code, Json, Refusal, Span};

/// The limits of an engine. Start from [`Limits::default`] and change what you need.
///
/// ```
/// use piton_core::Limits;
/// let limits = Limits { steps_max: 5_000, ..Limits::default() };
/// assert_eq!(limits.payload_bytes_max, 1024 * 1024);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a workflow name. Default 64.
    pub workflow_name_bytes_max: usize,
    /// Bytes of an instance id. Default 100.
    pub instance_id_bytes_max: usize,
    /// Bytes of an event type. Default 100.
    pub event_type_bytes_max: usize,
    /// Bytes of a step name after trimming. Default 256.
    pub step_name_bytes_max: usize,
    /// Bytes of the name or the namespace of a hook. Default 100.
    pub hook_name_bytes_max: usize,
    /// Bytes of JSON of params, a step's result, an event's or a hook's payload, an output or a log line's data.
    /// Default 1 MiB. Larger data belongs elsewhere: return a reference to it.
    pub payload_bytes_max: usize,
    /// Bytes of a log message; a longer one is cut. Default 2048.
    pub log_message_bytes_max: usize,
    /// Bytes of a log category. Default 64.
    pub log_category_bytes_max: usize,
    /// Bytes of an idempotency key of an event or a create. Default 256.
    pub idempotency_key_bytes_max: usize,
    /// `do` steps in one run; sleeps and waits do not count. Default 1024.
    pub steps_max: u32,
    /// Instances in one `create_batch`. Default 100.
    pub batch_max: usize,
    /// Longest sleep, and the cap of a retry delay. Default 365 days.
    pub sleep_max: Span,
    /// Shortest timeout of a wait for an event. Default 1 second.
    pub wait_timeout_min: Span,
    /// Longest timeout of a wait for an event. Default 365 days.
    pub wait_timeout_max: Span,
    /// Largest page of any list. Default 100.
    pub page_size_max: u32,
    /// Bytes of payloads on a page. A page that has more ends early, after one row at least. Default 8 MiB.
    pub page_bytes_max: usize,
    /// Log lines a run may hold before they are committed; further ones are dropped and counted.
    /// Default 10,000.
    pub log_lines_pending_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            workflow_name_bytes_max: 64,
            instance_id_bytes_max: 100,
            event_type_bytes_max: 100,
            step_name_bytes_max: 256,
            hook_name_bytes_max: 100,
            payload_bytes_max: 1024 * 1024,
            log_message_bytes_max: 2048,
            log_category_bytes_max: 64,
            idempotency_key_bytes_max: 256,
            steps_max: 1024,
            batch_max: 100,
            sleep_max: Span::from_days(365),
            wait_timeout_min: Span::from_millis(1_000),
            wait_timeout_max: Span::from_days(365),
            page_size_max: 100,
            page_bytes_max: 8 * 1024 * 1024,
            log_lines_pending_max: 10_000,
        }
    }
}

/// The page size when none is asked for.
pub const PAGE_SIZE_DEFAULT: u32 = 25;

impl Limits {
    /// Refuses a payload over the limit, naming `what` it is, its size and the limit.
    ///
    /// # Errors
    ///
    /// `PAYLOAD_TOO_LARGE`.
    pub fn check_payload(
        &self,
        what: impl FnOnce() -> String,
        payload: &Json,
    ) -> Result<(), Refusal> {
        if payload.len_bytes() <= self.payload_bytes_max {
            return Ok(());
        }
        let (what, size, max) = (what(), payload.len_bytes(), self.payload_bytes_max);
        Err(Refusal::new(
            Code::PayloadTooLarge,
            format!(
                "{what} is {size} bytes of JSON, more than the limit of {max} (payload_bytes_max); \
                 store it elsewhere and pass a reference"
            ),
        ))
    }

    /// Refuses an idempotency key that is empty or too long.
    ///
    /// # Errors
    ///
    /// `VALIDATION_ERROR`.
    pub fn check_idempotency_key(&self, key: &str) -> Result<(), Refusal> {
        let (len, max) = (key.len(), self.idempotency_key_bytes_max);
        if (1..=max).contains(&len) {
            return Ok(());
        }
        let message = format!(
            "an idempotency key of {len} bytes is outside 1..={max} (idempotency_key_bytes_max)"
        );
        Err(Refusal::new(Code::ValidationError, message))
    }

    /// Refuses a page size outside `1..=page_size_max`.
    ///
    /// # Errors
    ///
    /// `VALIDATION_ERROR`.
    pub fn check_page_size(&self, size: u32) -> Result<u32, Refusal> {
        if (1..=self.page_size_max).contains(&size) {
            return Ok(size);
        }
        let max = self.page_size_max;
        Err(Refusal::new(
            Code::ValidationError,
            format!("page size {size} is outside 1..={max} (page_size_max)"),
        ))
    }

    /// Refuses the timeout of a wait for an event outside its range.
    ///
    /// # Errors
    ///
    /// `INVALID_DURATION`.
    pub fn check_wait_timeout(&self, timeout: Span) -> Result<Span, Refusal> {
        let (min, max) = (self.wait_timeout_min, self.wait_timeout_max);
        if min <= timeout && timeout <= max {
            return Ok(timeout);
        }
        Err(Refusal::new(
            Code::InvalidDuration,
            format!("a wait of {timeout} is outside the allowed {min} to {max}"),
        ))
    }

    /// Refuses a sleep longer than the longest; zero and negative ones are fine.
    ///
    /// # Errors
    ///
    /// `INVALID_DURATION`.
    pub fn check_sleep(&self, span: Span) -> Result<Span, Refusal> {
        let max = self.sleep_max;
        if span <= max {
            return Ok(span);
        }
        Err(Refusal::new(
            Code::InvalidDuration,
            format!("a sleep of {span} is longer than the limit of {max} (sleep_max)"),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_may_be_as_large_as_the_limit() {
        let limits = Limits { payload_bytes_max: 6, ..Limits::default() };
        let check =
            |text: &str| limits.check_payload(|| "it".to_owned(), &Json::from_valid_text(text));
        assert_eq!(check("\"four\""), Ok(()));
        let refusal = check("\"fives\"").expect_err("one more");
        assert_eq!(refusal.code, Code::PayloadTooLarge);
        assert!(refusal.message.contains("it is 7 bytes"), "{}", refusal.message);
    }

    #[test]
    fn a_page_has_between_one_row_and_the_limit() {
        let limits = Limits::default();
        for size in [1, 2, limits.page_size_max] {
            assert_eq!(limits.check_page_size(size), Ok(size));
        }
        for size in [0, limits.page_size_max + 1] {
            let refusal = limits.check_page_size(size).expect_err("out of range");
            assert_eq!(refusal.code, Code::ValidationError);
        }
    }

    #[test]
    fn waits_have_two_bounds_and_sleeps_have_one() {
        let limits = Limits::default();
        let (min, max) = (limits.wait_timeout_min, limits.wait_timeout_max);
        let one = Span::from_millis(1);
        let less = |span: Span| Span::from_millis(span.as_millis() - one.as_millis());
        let more = |span: Span| Span::from_millis(span.as_millis() + one.as_millis());
        for fits in [min, more(min), less(max), max] {
            assert_eq!(limits.check_wait_timeout(fits), Ok(fits));
        }
        for bad in [less(min), more(max)] {
            limits.check_wait_timeout(bad).expect_err("out of range");
        }
        for fits in [Span::from_millis(-5), Span::ZERO, limits.sleep_max] {
            assert_eq!(limits.check_sleep(fits), Ok(fits));
        }
        limits.check_sleep(more(limits.sleep_max)).expect_err("too long");
    }
}
