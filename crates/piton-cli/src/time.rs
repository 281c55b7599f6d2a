//! Times and durations: read from the API and from flags, and written as people say them.

use std::time::Duration;

use serde::de::{Deserialize, Deserializer, Error};

const SECOND: i64 = 1_000;
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;

/// Milliseconds since 1970 in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(pub(crate) i64);

impl Moment {
    /// Reads `2026-11-15T12:00:00.000Z`, as the API writes it.
    fn parse(text: &str) -> Option<Self> {
        let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
        let mut date = date.splitn(3, '-').map(str::parse::<i64>);
        let (year, month, day) = (date.next()?.ok()?, date.next()?.ok()?, date.next()?.ok()?);
        let (clock, fraction) = time.split_once('.').unwrap_or((time, "0"));
        let mut clock = clock.splitn(3, ':').map(str::parse::<i64>);
        let (hour, minute, second) =
            (clock.next()?.ok()?, clock.next()?.ok()?, clock.next()?.ok()?);
        let in_range = (0..=9999).contains(&year)
            && (1..=12).contains(&month)
            && (1..=31).contains(&day)
            && fraction.bytes().all(|byte| byte.is_ascii_digit());
        let ms: i64 = format!("{fraction:0<3}").get(..3)?.parse().ok()?;
        let of_day = hour * HOUR + minute * MINUTE + second * SECOND + ms;
        in_range.then(|| Self(days_since_1970(year, month, day) * DAY + of_day))
    }

    /// `2026-11-15 12:00:00`, in UTC.
    pub(crate) fn date_and_time(self) -> String {
        let (date, ms) = (self.date(), self.0.rem_euclid(DAY));
        let (hour, minute, second) = (ms / HOUR, ms / MINUTE % 60, ms / SECOND % 60);
        format!("{date} {hour:02}:{minute:02}:{second:02}")
    }

    /// `2026-11-15 12:00:00.000`, in UTC.
    pub(crate) fn with_ms(self) -> String {
        format!("{}.{:03}", self.date_and_time(), self.0.rem_euclid(SECOND))
    }

    /// `2026-11-15T12:00:00.000Z`, as the API reads it.
    pub(crate) fn iso(self) -> String {
        format!("{}Z", self.with_ms().replacen(' ', "T", 1))
    }

    fn date(self) -> String {
        let (year, month, day) = civil(self.0.div_euclid(DAY));
        format!("{year:04}-{month:02}-{day:02}")
    }

    /// `5 min ago` or `in 5 min`.
    pub(crate) fn relative_to(self, now: Moment) -> String {
        match self.0 - now.0 {
            0 => "now".to_owned(),
            later @ 1.. => format!("in {}", words(later)),
            earlier => format!("{} ago", words(-earlier)),
        }
    }

    /// `5 min ago (2026-11-15 12:00:00 UTC)`.
    pub(crate) fn both(self, now: Moment) -> String {
        format!("{} ({} UTC)", self.relative_to(now), self.date_and_time())
    }
}

impl<'de> Deserialize<'de> for Moment {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Moment::parse(&text).ok_or_else(|| D::Error::custom("not a time in ISO-8601 and UTC"))
    }
}

/// Days from 1970-01-01 in the Gregorian calendar. Years start in March here, so that a leap day is a year's last.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// The inverse of [`days_since_1970`].
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let march_based = (5 * of_year + 2) / 153;
    let day = of_year - (153 * march_based + 2) / 5 + 1;
    let month = if march_based < 10 { march_based + 3 } else { march_based - 9 };
    (era * 400 + year + i64::from(month <= 2), month, day)
}

/// A duration in words, of at most two units: `250 ms`, `4.2 s`, `5 min 3 s`, `23 h 59 min`, `13 days 4 h`.
pub(crate) fn words(ms: i64) -> String {
    let two = |count: i64, unit: &str, rest: i64, rest_unit: &str| match rest {
        0 => format!("{count} {unit}"),
        rest => format!("{count} {unit} {rest} {rest_unit}"),
    };
    match ms.max(0) {
        ms if ms < SECOND => format!("{ms} ms"),
        ms if ms < 10 * SECOND && ms % SECOND >= 100 => {
            format!("{}.{} s", ms / SECOND, ms % SECOND / 100)
        }
        ms if ms < MINUTE => format!("{} s", ms / SECOND),
        ms if ms < HOUR => two(ms / MINUTE, "min", ms % MINUTE / SECOND, "s"),
        ms if ms < DAY => two(ms / HOUR, "h", ms % HOUR / MINUTE, "min"),
        ms => {
            let unit = if ms < 2 * DAY { "day" } else { "days" };
            two(ms / DAY, unit, ms % DAY / HOUR, "h")
        }
    }
}

/// Reads a duration from a flag: `10 seconds`, `1.5h`, `250ms`.
///
/// # Errors
///
/// If it is none. A bare number is refused: nobody agrees on its unit.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let ms = match unit.trim() {
        "ms" => 1,
        "s" | "sec" | "second" | "seconds" => SECOND,
        "m" | "min" | "minute" | "minutes" => MINUTE,
        "h" | "hr" | "hour" | "hours" => HOUR,
        "d" | "day" | "days" => DAY,
        "w" | "week" | "weeks" => 7 * DAY,
        _ => return Err("write it like `10 seconds`, `250ms` or `1.5h`".to_owned()),
    };
    let number: f64 =
        number.parse().map_err(|_| format!("`{number}` is not a number; write it like `10s`"))?;
    #[expect(clippy::cast_precision_loss, reason = "units are far below 2^52")]
    let seconds = number * ms as f64 / 1_000.0;
    match Duration::try_from_secs_f64(seconds) {
        Ok(time) if time <= Duration::from_hours(24 * 365) => Ok(time),
        Ok(_) | Err(_) => Err("a year is the longest".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_and_written() {
        for (text, ms) in [
            ("1970-01-01T00:00:00.000Z", 0),
            ("2026-11-15T12:47:22.123Z", 1_794_746_842_123),
            ("2024-02-29T23:59:59.999Z", 1_709_251_199_999),
            ("2000-03-01T00:00:00.000Z", 951_868_800_000),
            ("1969-12-31T23:59:59.999Z", -1),
        ] {
            assert_eq!(Moment::parse(text), Some(Moment(ms)), "{text}");
            assert_eq!(Moment(ms).iso(), text);
        }
        assert_eq!(
            Moment::parse("2026-11-15T12:47:22Z").map(Moment::with_ms).as_deref(),
            Some("2026-11-15 12:47:22.000")
        );
        for wrong in [
            "",
            "yesterday",
            "2026-13-01T00:00:00Z",
            "2026-11-15T12:47:22",
            "2026-11-15T12:47:22.x1Z",
        ] {
            assert_eq!(Moment::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn durations_are_said_in_two_units_at_most() {
        for (ms, said) in [
            (-5, "0 ms"),
            (0, "0 ms"),
            (250, "250 ms"),
            (1_000, "1 s"),
            (4_250, "4.2 s"),
            (12_900, "12 s"),
            (60_000, "1 min"),
            (303_000, "5 min 3 s"),
            (23 * HOUR + 59 * MINUTE + 59 * SECOND, "23 h 59 min"),
            (DAY, "1 day"),
            (13 * DAY + 4 * HOUR, "13 days 4 h"),
        ] {
            assert_eq!(words(ms), said, "{ms}");
        }
        assert_eq!(Moment(5_000).relative_to(Moment(0)), "in 5 s");
        assert_eq!(Moment(0).relative_to(Moment(5_000)), "5 s ago");
        assert_eq!(Moment(0).both(Moment(0)), "now (1970-01-01 00:00:00 UTC)");
    }

    #[test]
    fn durations_are_read_with_their_unit() {
        for (text, ms) in [
            ("10 seconds", 10_000),
            ("1.5h", 5_400_000),
            ("250ms", 250),
            ("2 weeks", 1_209_600_000),
            (" 3 min ", 180_000),
            ("0s", 0),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for wrong in ["10", "", "s", "1.2.3s", "-5s", "10 parsecs", "9999 days", "∞"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }
}
