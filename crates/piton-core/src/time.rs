//! A moment in time: milliseconds since the Unix epoch, always given from outside.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::{Code, Refusal, Span};

/// A moment, in milliseconds since the Unix epoch (UTC).
///
/// ```
/// use piton_core::Timestamp;
/// assert_eq!(Timestamp::from_millis(0).to_string(), "1970-01-01T00:00:00.000Z");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The moment `ms` milliseconds after the Unix epoch.
    ///
    /// ```
    /// use piton_core::Timestamp;
    /// assert_eq!(Timestamp::from_millis(1_000).to_string(), "1970-01-01T00:00:01.000Z");
    /// ```
    pub const fn from_millis(ms: i64) -> Self {
        Self(ms)
    }

    /// Milliseconds since the Unix epoch.
    ///
    /// ```
    /// use piton_core::Timestamp;
    /// let time: Timestamp = "1970-01-01T00:00:01Z".parse()?;
    /// assert_eq!(time.as_millis(), 1_000);
    /// # Ok::<(), piton_core::Refusal>(())
    /// ```
    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// This moment moved by a span; saturates at the ends of time.
    ///
    /// ```
    /// use piton_core::{Span, Timestamp};
    /// let tomorrow = Timestamp::from_millis(0).plus(Span::literal("1 day"));
    /// assert_eq!(tomorrow.to_string(), "1970-01-02T00:00:00.000Z");
    /// ```
    #[must_use]
    pub const fn plus(self, span: Span) -> Self {
        Self(self.0.saturating_add(span.as_millis()))
    }

    /// How long after `earlier` this moment is; negative if it is before.
    ///
    /// ```
    /// use piton_core::{Span, Timestamp};
    /// let (early, late) = (Timestamp::from_millis(1_000), Timestamp::from_millis(4_000));
    /// assert_eq!(late.since(early), Span::literal("3 seconds"));
    /// assert_eq!(early.since(late), Span::literal("-3 seconds"));
    /// ```
    pub const fn since(self, earlier: Timestamp) -> Span {
        Span::from_millis(self.0.saturating_sub(earlier.0))
    }
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        let millis = |d: Duration| i64::try_from(d.as_millis()).unwrap_or(i64::MAX);
        match time.duration_since(UNIX_EPOCH) {
            Ok(after) => Self(millis(after)),
            Err(before) => Self(-millis(before.duration())),
        }
    }
}

impl From<Timestamp> for SystemTime {
    fn from(time: Timestamp) -> Self {
        let distance = Duration::from_millis(time.0.unsigned_abs());
        if time.0 >= 0 { UNIX_EPOCH + distance } else { UNIX_EPOCH - distance }
    }
}

impl fmt::Display for Timestamp {
    /// ISO-8601 in UTC with milliseconds, the form every surface of Piton uses.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = civil_from_days(self.0.div_euclid(DAY_MS));
        let ms = self.0.rem_euclid(DAY_MS);
        let (hour, minute, second) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1_000 % 60);
        let milli = ms % 1_000;
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}Z")
    }
}

impl FromStr for Timestamp {
    type Err = Refusal;

    /// Reads ISO-8601 with an offset, `2026-09-21T14:13:20.5Z` or `2026-09-21T16:13:20+02:00`, a date, which means its
    /// first moment in UTC, or a number of milliseconds since the Unix epoch.
    fn from_str(text: &str) -> Result<Self, Refusal> {
        if let Ok(ms) = text.parse() {
            return Ok(Self(ms));
        }
        parse_iso(text).map(Self).ok_or_else(|| {
            let message = format!("{text:?} is not a time; write it like 2026-09-21T14:13:20.000Z");
            Refusal::new(Code::ValidationError, message)
        })
    }
}

fn parse_iso(text: &str) -> Option<i64> {
    let (date, rest) = text.split_at_checked(10)?;
    let days = parse_date(date)?;
    if rest.is_empty() {
        return Some(days * DAY_MS);
    }
    let rest = rest.strip_prefix(['T', 't', ' '])?;
    let (clock, rest) = rest.split_at_checked(8)?;
    let (fraction_ms, offset) = parse_fraction(rest)?;
    Some(days * DAY_MS + parse_clock(clock)? + fraction_ms - parse_offset(offset)?)
}

/// `2026-09-21`, as days since 1970-01-01.
fn parse_date(text: &str) -> Option<i64> {
    let [year, month, day] = numbers(text, '-', [4, 2, 2])?;
    let days = days_from_civil(year, month, day);
    // A day that does not exist, such as 30 February, comes back as another one.
    ((1..=12).contains(&month) && civil_from_days(days) == (year, month, day)).then_some(days)
}

/// `14:13:20`, in milliseconds.
fn parse_clock(text: &str) -> Option<i64> {
    let [hour, minute, second] = numbers(text, ':', [2, 2, 2])?;
    let valid = hour < 24 && minute < 60 && second < 60;
    valid.then_some(hour * 3_600_000 + minute * 60_000 + second * 1_000)
}

/// What `.5` is in milliseconds, and what follows it. Digits beyond the millisecond are dropped.
fn parse_fraction(text: &str) -> Option<(i64, &str)> {
    let Some(text) = text.strip_prefix('.') else {
        return Some((0, text));
    };
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    let millis: String = digits.chars().chain("00".chars()).take(3).collect();
    if digits.is_empty() {
        return None;
    }
    Some((millis.parse().ok()?, rest))
}

/// `Z` or `+02:00`, in milliseconds.
fn parse_offset(text: &str) -> Option<i64> {
    if matches!(text, "Z" | "z") {
        return Some(0);
    }
    let (sign, text) = text.split_at_checked(1)?;
    let [hour, minute] = numbers(text, ':', [2, 2])?;
    let ms = (hour < 24 && minute < 60).then_some(hour * 3_600_000 + minute * 60_000)?;
    match sign {
        "+" => Some(ms),
        "-" => Some(-ms),
        _ => None,
    }
}

/// Numbers with exactly so many digits each.
fn numbers<const N: usize>(text: &str, separator: char, digits: [usize; N]) -> Option<[i64; N]> {
    let mut parts = text.split(separator);
    let mut numbers = [0; N];
    for (number, len) in numbers.iter_mut().zip(digits) {
        let part = parts.next()?;
        let all_digits = part.len() == len && part.bytes().all(|byte| byte.is_ascii_digit());
        *number = if all_digits { part.parse().ok()? } else { return None };
    }
    parts.next().is_none().then_some(numbers)
}

const DAY_MS: i64 = 86_400_000;

/// The inverse of [`civil_from_days`].
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// Gregorian date of a day number counted from 1970-01-01.
///
/// Counts in 400-year eras that start on 1 March, so that the leap day is the last of its year.
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_iso_8601_with_milliseconds() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (-1, "1969-12-31T23:59:59.999Z"),
            (951_782_400_123, "2000-02-29T00:00:00.123Z"),
            (1_790_000_000_000, "2026-09-21T14:13:20.000Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(Timestamp::from_millis(ms).to_string(), text);
        }
    }

    #[test]
    fn reads_back_what_it_prints() {
        for ms in
            [0, -1, 951_782_400_123, 1_790_000_000_000, 4_107_542_400_000, -62_135_596_800_000]
        {
            let time = Timestamp::from_millis(ms);
            assert_eq!(time.to_string().parse(), Ok(time));
        }
    }

    #[test]
    fn reads_what_people_write_and_refuses_the_rest() {
        for (text, ms) in [
            ("1790000000000", 1_790_000_000_000),
            ("-5", -5),
            ("1970-01-02", 86_400_000),
            ("1970-01-01T00:00:01Z", 1_000),
            ("1970-01-01 00:00:00.5Z", 500),
            ("1970-01-01T02:00:00.123456+02:00", 123),
            ("1969-12-31T22:30:00-01:30", 0),
        ] {
            assert_eq!(text.parse(), Ok(Timestamp::from_millis(ms)), "{text}");
        }
        for text in [
            "",
            "soon",
            "1970-1-1",
            "2026-02-30",
            "2026-13-01",
            "2026-00-01",
            "1970-01-01T00:00:00",
            "1970-01-01T24:00:00Z",
            "1970-01-01T00:60:00Z",
            "1970-01-01T00:00:00.Z",
            "1970-01-01T00:00:00+1:00",
            "1970-01-01T00:00:00Zx",
            "1970-01-01Tä0:00:00Z",
            "+970-01-01",
            "1970-01-01T+0:00:00Z",
            "99999999999999999999",
        ] {
            let refused = text.parse::<Timestamp>().map_err(|refusal| refusal.code);
            assert_eq!(refused, Err(Code::ValidationError), "{text}");
        }
    }

    #[test]
    fn system_time_goes_there_and_back() {
        for ms in [0, 1, -1, 1_790_000_000_000] {
            let time = Timestamp::from_millis(ms);
            assert_eq!(Timestamp::from(SystemTime::from(time)), time);
        }
    }
}
