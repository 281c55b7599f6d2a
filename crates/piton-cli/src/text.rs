//! Text of the server made safe and readable: nothing it says can steer a terminal.

use std::fmt::Write;

/// How much of a JSON value fits into a line of a table.
const SHORT_CHARS_MAX: usize = 100;

/// The text with all characters written out that would act on a terminal instead of being seen: controls, also those
/// above 127, and what changes the direction of writing or cannot be seen.
pub(crate) fn safe(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => safe.push_str("\\n"),
            '\r' => safe.push_str("\\r"),
            '\t' => safe.push_str("\\t"),
            c if acts(c) => {
                let _ = write!(safe, "\\u{{{:x}}}", u32::from(c));
            }
            c => safe.push(c),
        }
    }
    safe
}

fn acts(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// The beginning of a safe text, with `…` in place of the rest.
pub(crate) fn short(text: &str) -> String {
    match text.char_indices().nth(SHORT_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// JSON in one line. Numbers, strings and the order of keys stay as they were written.
pub(crate) fn json_line(raw: &str) -> String {
    layout(raw, None)
}

/// JSON over several lines, each of them indented by `indent` and two spaces for each level.
pub(crate) fn json_pretty(raw: &str, indent: &str) -> String {
    layout(raw, Some(indent))
}

/// Only the blanks between the tokens of valid JSON change.
fn layout(raw: &str, indent: Option<&str>) -> String {
    let mut out = indent.unwrap_or_default().to_owned();
    let mut depth = 0_usize;
    let break_line = |out: &mut String, depth: usize| {
        if let Some(indent) = indent {
            out.push('\n');
            out.push_str(indent);
            out.push_str(&"  ".repeat(depth));
        }
    };
    let mut rest = raw;
    while let Some(c) = rest.chars().next() {
        let mut end = c.len_utf8();
        match c {
            '"' => {
                end = string_end(rest);
                out.push_str(&safe(&rest[..end]));
            }
            '{' | '[' => {
                out.push(c);
                let inside = rest[1..].trim_start();
                if inside.starts_with(['}', ']']) {
                    out.push_str(&inside[..1]);
                    end = rest.len() - inside.len() + 1;
                } else {
                    depth += 1;
                    break_line(&mut out, depth);
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                break_line(&mut out, depth);
                out.push(c);
            }
            ',' if indent.is_none() => out.push_str(", "),
            ',' => {
                out.push(c);
                break_line(&mut out, depth);
            }
            ':' => out.push_str(": "),
            c if c.is_ascii_whitespace() => {}
            c => out.push(c),
        }
        rest = &rest[end..];
    }
    out
}

/// Where the string ends that `text` starts with.
fn string_end(text: &str) -> usize {
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// An argument as a shell wants it, for commands to copy.
pub(crate) fn shell_quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@=,+%".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", safe(text).replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_can_steer_the_terminal() {
        assert_eq!(safe("\u{1b}[2Jgone"), "\\u{1b}[2Jgone");
        assert_eq!(safe("a\nb\rc\td\u{7f}"), "a\\nb\\rc\\td\\u{7f}");
        assert_eq!(safe("\u{9b}31m \u{202e}evil \u{200b}"), "\\u{9b}31m \\u{202e}evil \\u{200b}");
        assert_eq!(safe("Grüße, 世界 🧗"), "Grüße, 世界 🧗");
    }

    #[test]
    fn json_keeps_its_numbers_strings_and_order() {
        let raw = r#" {"z":12345678901234567890.10,"a":[1,{"b":"x, {\"y\": 1}"}],"e":{ },"n":[]} "#;
        assert_eq!(
            json_line(raw),
            r#"{"z": 12345678901234567890.10, "a": [1, {"b": "x, {\"y\": 1}"}], "e": {}, "n": []}"#
        );
        assert_eq!(
            json_pretty(r#"{"a":[1,true],"b":{}}"#, "  "),
            "  {\n    \"a\": [\n      1,\n      true\n    ],\n    \"b\": {}\n  }"
        );
        assert_eq!(json_line("\"\u{9b}31m\u{7f}\""), "\"\\u{9b}31m\\u{7f}\"");
    }

    #[test]
    fn long_text_is_cut_between_characters() {
        assert_eq!(short("short"), "short");
        let long = "ü".repeat(SHORT_CHARS_MAX + 1);
        assert_eq!(short(&long), format!("{}…", "ü".repeat(SHORT_CHARS_MAX)));
        assert_eq!(short(&"ü".repeat(SHORT_CHARS_MAX)), "ü".repeat(SHORT_CHARS_MAX));
    }

    #[test]
    fn arguments_are_quoted_where_a_shell_needs_it() {
        assert_eq!(shell_quoted("order-1"), "order-1");
        assert_eq!(shell_quoted("two words"), "'two words'");
        assert_eq!(shell_quoted("it's"), r"'it'\''s'");
        assert_eq!(shell_quoted(""), "''");
        assert_eq!(shell_quoted("$(rm)"), "'$(rm)'");
    }
}
