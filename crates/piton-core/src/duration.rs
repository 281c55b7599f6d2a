//! Durations as people write them: `"10 seconds"`, `"1.5h"`, `"250ms"`, a bare number of milliseconds,
//! or [`std::time::Duration`].
//!
//! The parser is a `const fn`, so that a duration can be checked while compiling:
//!
//! ```
//! use piton_core::Span;
//! const PATIENCE: Span = Span::literal("90 minutes");
//! assert_eq!(PATIENCE.as_millis(), 5_400_000);
//! ```

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A length of time in milliseconds; negative ones lie in the past.
///
/// ```
/// use piton_core::Span;
/// assert!(Span::literal("90 minutes") < Span::literal("2 hours"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Span(i64);

impl Span {
    /// No time at all.
    ///
    /// ```
    /// assert_eq!(piton_core::Span::ZERO.as_millis(), 0);
    /// ```
    pub const ZERO: Span = Span(0);

    /// A span of `ms` milliseconds.
    ///
    /// ```
    /// use piton_core::Span;
    /// assert_eq!(Span::from_millis(1_500), Span::literal("1.5 seconds"));
    /// ```
    pub const fn from_millis(ms: i64) -> Self {
        Self(ms)
    }

    /// A span of `days` days of 24 hours.
    ///
    /// ```
    /// use piton_core::Span;
    /// assert_eq!(Span::from_days(14), Span::literal("2 weeks"));
    /// ```
    pub const fn from_days(days: i64) -> Self {
        Self(days.saturating_mul(86_400_000))
    }

    /// The length in milliseconds.
    ///
    /// ```
    /// assert_eq!(piton_core::Span::literal("1.5h").as_millis(), 5_400_000);
    /// ```
    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// Parses `text`, or fails to compile when used in a `const`.
    ///
    /// ```
    /// const PATIENCE: piton_core::Span = piton_core::Span::literal("90 minutes");
    /// ```
    ///
    /// # Panics
    ///
    /// If `text` is not a duration; in a `const` that is a compile error.
    pub const fn literal(text: &str) -> Self {
        match Self::parse(text) {
            Ok(span) => span,
            Err(_) => panic!("not a duration: write it like \"10 seconds\", \"1.5h\" or \"250ms\""),
        }
    }

    /// Parses a duration: an optional sign, a decimal number, and a unit (none means milliseconds).
    ///
    /// ```
    /// use piton_core::Span;
    /// assert_eq!(Span::parse("250ms"), Ok(Span::from_millis(250)));
    /// assert!(Span::parse("a while").is_err());
    /// ```
    ///
    /// # Errors
    ///
    /// [`ParseError`] says what is wrong with the text.
    pub const fn parse(text: &str) -> Result<Self, ParseError> {
        let bytes = text.as_bytes();
        let mut at = skip_spaces(bytes, 0);
        let negative = at < bytes.len() && bytes[at] == b'-';
        if negative {
            at += 1;
        }
        let number = match read_number(bytes, at) {
            Ok(number) => number,
            Err(error) => return Err(error),
        };
        at = skip_spaces(bytes, number.end);
        let mut end = bytes.len();
        while end > at && is_space(bytes[end - 1]) {
            end -= 1;
        }
        let unit_ms = match unit_millis(bytes, at, end) {
            Some(ms) => ms as i128,
            None => return Err(ParseError::UnknownUnit),
        };
        let ms = (number.digits * unit_ms) / number.scale;
        if ms > i64::MAX as i128 {
            return Err(ParseError::TooLarge);
        }
        Ok(Self(if negative { -(ms as i64) } else { ms as i64 }))
    }
}

impl fmt::Display for Span {
    /// The largest unit that divides the span: `"90 minutes"`, `"1 day"`, `"1500 ms"`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(i64, &str); 4] =
            [(86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1_000, "second")];
        for (ms, unit) in UNITS {
            if self.0 != 0 && self.0 % ms == 0 {
                let count = self.0 / ms;
                let plural = if count.abs() == 1 { "" } else { "s" };
                return write!(f, "{count} {unit}{plural}");
            }
        }
        write!(f, "{} ms", self.0)
    }
}

/// What is wrong with a duration's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// There is no number at the start.
    #[error("it does not start with a number")]
    NoNumber,
    /// The unit is none of ours.
    #[error(
        "its unit is not one of ms, s, sec, second(s), m, min, minute(s), h, hr, hour(s), d, day(s), w, week(s)"
    )]
    UnknownUnit,
    /// The number has more digits than any duration needs.
    #[error("it is too large")]
    TooLarge,
}

/// A duration that cannot be understood, with the text as it was written.
///
/// ```
/// use piton_core::IntoSpan;
/// let error = "a while".into_span().unwrap_err();
/// println!("{error}");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid duration {text:?}: {reason}; write it like \"10 seconds\", \"1.5h\" or \"250ms\"")]
pub struct DurationError {
    /// What was written.
    pub text: String,
    /// Why it is not a duration.
    pub reason: ParseError,
}

/// Everything that can be given where a duration is wanted.
///
/// ```
/// use piton_core::{IntoSpan, Span};
/// use std::time::Duration;
/// assert_eq!("2 weeks".into_span()?, Span::from_days(14));
/// assert_eq!(Duration::from_secs(3).into_span()?, Span::from_millis(3_000));
/// assert_eq!(250.into_span()?, Span::from_millis(250));
/// # Ok::<(), piton_core::DurationError>(())
/// ```
pub trait IntoSpan {
    /// The span that was meant.
    ///
    /// ```
    /// use piton_core::{IntoSpan, Span};
    /// let minute = Ok(Span::literal("1 minute"));
    /// assert_eq!("1 minute".into_span(), minute);
    /// assert_eq!(60_000_i64.into_span(), minute);
    /// assert_eq!(std::time::Duration::from_secs(60).into_span(), minute);
    /// ```
    ///
    /// # Errors
    ///
    /// [`DurationError`] if a text is not a duration.
    fn into_span(self) -> Result<Span, DurationError>;
}

impl IntoSpan for Span {
    fn into_span(self) -> Result<Span, DurationError> {
        Ok(self)
    }
}

impl IntoSpan for &str {
    fn into_span(self) -> Result<Span, DurationError> {
        Span::parse(self).map_err(|reason| DurationError { text: self.to_owned(), reason })
    }
}

impl IntoSpan for String {
    fn into_span(self) -> Result<Span, DurationError> {
        self.as_str().into_span()
    }
}

impl IntoSpan for &String {
    fn into_span(self) -> Result<Span, DurationError> {
        self.as_str().into_span()
    }
}

impl IntoSpan for Duration {
    fn into_span(self) -> Result<Span, DurationError> {
        // A part of a millisecond counts as a whole one: no timer fires early.
        let ms = self.as_nanos().div_ceil(1_000_000);
        i64::try_from(ms)
            .map(Span)
            .map_err(|_| DurationError { text: format!("{self:?}"), reason: ParseError::TooLarge })
    }
}

macro_rules! milliseconds {
    ($($int:ty),*) => {$(
        impl IntoSpan for $int {
            fn into_span(self) -> Result<Span, DurationError> {
                i64::try_from(self).map(Span).map_err(|_| DurationError {
                    text: self.to_string(),
                    reason: ParseError::TooLarge,
                })
            }
        }
    )*};
}
milliseconds!(i32, u32, i64, u64);

/// Digits without their point, and the power of ten they are to be divided by.
struct Number {
    digits: i128,
    scale: i128,
    end: usize,
}

const fn read_number(bytes: &[u8], start: usize) -> Result<Number, ParseError> {
    // More digits cannot be meant, and the product with a week in milliseconds still fits.
    const DIGITS_MAX: u32 = 18;
    let (mut digits, mut scale, mut count) = (0_i128, 1_i128, 0_u32);
    let (mut at, mut fraction) = (start, false);
    while at < bytes.len() {
        match bytes[at] {
            digit @ b'0'..=b'9' => {
                digits = digits * 10 + (digit - b'0') as i128;
                count += 1;
                if fraction {
                    scale *= 10;
                }
            }
            b'.' if !fraction && count > 0 => fraction = true,
            _ => break,
        }
        if count > DIGITS_MAX {
            return Err(ParseError::TooLarge);
        }
        at += 1;
    }
    if count == 0 || bytes[at - 1] == b'.' {
        return Err(ParseError::NoNumber);
    }
    Ok(Number { digits, scale, end: at })
}

const fn unit_millis(bytes: &[u8], start: usize, end: usize) -> Option<i64> {
    const UNITS: [(&[u8], i64); 19] = [
        (b"", 1),
        (b"ms", 1),
        (b"s", 1_000),
        (b"sec", 1_000),
        (b"second", 1_000),
        (b"seconds", 1_000),
        (b"m", 60_000),
        (b"min", 60_000),
        (b"minute", 60_000),
        (b"minutes", 60_000),
        (b"h", 3_600_000),
        (b"hr", 3_600_000),
        (b"hour", 3_600_000),
        (b"hours", 3_600_000),
        (b"d", 86_400_000),
        (b"day", 86_400_000),
        (b"days", 86_400_000),
        (b"w", 604_800_000),
        (b"week", 604_800_000),
    ];
    let mut index = 0;
    while index < UNITS.len() {
        if same(bytes, start, end, UNITS[index].0) {
            return Some(UNITS[index].1);
        }
        index += 1;
    }
    if same(bytes, start, end, b"weeks") { Some(604_800_000) } else { None }
}

const fn same(bytes: &[u8], start: usize, end: usize, word: &[u8]) -> bool {
    if end - start != word.len() {
        return false;
    }
    let mut at = 0;
    while at < word.len() {
        if !bytes[start + at].eq_ignore_ascii_case(&word[at]) {
            return false;
        }
        at += 1;
    }
    true
}

const fn skip_spaces(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() && is_space(bytes[at]) {
        at += 1;
    }
    at
}

const fn is_space(byte: u8) -> bool {
    byte == b' ' || byte == b'\t'
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_what_people_write() {
        for (text, ms) in [
            ("10 seconds", 10_000),
            ("1.5h", 5_400_000),
            ("250ms", 250),
            ("250", 250),
            ("0", 0),
            ("1 sec", 1_000),
            ("2 min", 120_000),
            ("3hr", 10_800_000),
            ("14 days", 1_209_600_000),
            ("1d", 86_400_000),
            ("1 week", 604_800_000),
            ("2 Weeks", 1_209_600_000),
            ("  7 m ", 420_000),
            ("-5s", -5_000),
            ("0.5 ms", 0),
        ] {
            assert_eq!(text.into_span(), Ok(Span(ms)), "{text}");
        }
    }

    #[test]
    fn says_what_is_wrong() {
        for (text, reason) in [
            ("", ParseError::NoNumber),
            ("soon", ParseError::NoNumber),
            (".5h", ParseError::NoNumber),
            ("1.h", ParseError::NoNumber),
            ("10 fortnights", ParseError::UnknownUnit),
            ("1h 30m", ParseError::UnknownUnit),
            ("1.5.2h", ParseError::UnknownUnit),
            ("99999999999999999999", ParseError::TooLarge),
            ("999999999999999999 weeks", ParseError::TooLarge),
        ] {
            let error = text.into_span().expect_err(text);
            assert_eq!(error.reason, reason, "{text}");
            assert!(error.to_string().contains(&format!("{text:?}")));
        }
    }

    #[test]
    fn a_part_of_a_millisecond_is_never_early() {
        assert_eq!(Duration::from_micros(1).into_span(), Ok(Span(1)));
    }

    #[test]
    fn prints_the_largest_whole_unit() {
        for (ms, text) in
            [(0, "0 ms"), (1_500, "1500 ms"), (60_000, "1 minute"), (172_800_000, "2 days")]
        {
            assert_eq!(Span(ms).to_string(), text);
        }
    }

    proptest! {
        #[test]
        fn never_panics(text in "\\PC*") {
            let _ = text.into_span();
        }

        #[test]
        fn what_is_printed_reads_back(ms in -1_000_000_000_000_i64..1_000_000_000_000) {
            prop_assert_eq!(Span(ms).to_string().into_span(), Ok(Span(ms)));
        }
    }

    #[test]
    fn eighteen_digits_are_understood_and_no_more() {
        assert_eq!(
            Span::parse("123456789012345678ms").map(Span::as_millis),
            Ok(123_456_789_012_345_678)
        );
        assert_eq!(Span::parse("0.00000000000000001s").map(Span::as_millis), Ok(0));
        assert!(Span::parse("1234567890123456789ms").is_err());
        assert!(Span::parse("0.000000000000000001s").is_err());
    }
}
