//! House rules for Rust files.

use super::Finding;
use super::source::{Source, is_word_char};

/// What no longer fits a reader's head; most files are well below half of it.
const FILE_LINES_MAX: usize = 800;

/// Signs of work that was left for later, looked for in code and comments.
const UNFINISHED: [&str; 6] = ["TODO", "FIXME", "XXX", "todo!", "unimplemented!", "#[ignore"];

const SQL_KEYWORDS: [&str; 4] = ["SELECT", "INSERT INTO", "UPDATE", "DELETE FROM"];

/// The store modules, and the audit that must not trust them: nobody else speaks SQL (rule R8).
const SQL_HOMES: [&str; 3] =
    ["crates/piton/src/store/sqlite", "crates/piton/src/store/postgres", "crates/piton-audit/src"];

/// All findings in one Rust file. `path` is relative to the workspace root.
pub(super) fn check(path: &str, text: &str) -> Vec<Finding> {
    let source = Source::new(text);
    let mut findings = Vec::new();
    findings.extend(file_length(path, text));
    findings.extend(unfinished_work(path, &source));
    if path.starts_with("crates/") {
        findings.extend(unsafe_code(path, &source));
    }
    if is_crate_source(path) {
        findings.extend(missing_module_doc(path, text));
    }
    if is_crate_source(path) && !is_test_file(path) && !is_sql_home(path) {
        findings.extend(stray_sql(path, &source));
    }
    findings
}

fn file_length(path: &str, text: &str) -> Option<Finding> {
    let lines = text.lines().count();
    (lines > FILE_LINES_MAX).then(|| {
        let message = format!("{lines} lines, at most {FILE_LINES_MAX}: split the file by duty");
        Finding::new(path, FILE_LINES_MAX + 1, message)
    })
}

fn missing_module_doc(path: &str, text: &str) -> Option<Finding> {
    let message = "no module doc: begin the file with `//!` and the duty of the module";
    (!text.starts_with("//!")).then(|| Finding::new(path, 1, message))
}

fn unfinished_work(path: &str, source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    for marker in UNFINISHED {
        for view in [&source.code, &source.comments] {
            for line in lines_with(view, marker) {
                let message =
                    format!("`{marker}`: finish it, or open an issue and delete the mark");
                findings.push(Finding::new(path, line, message));
            }
        }
    }
    findings
}

fn unsafe_code(path: &str, source: &Source) -> Vec<Finding> {
    let message = "`unsafe`: there is none in our crates (rule R9)";
    lines_with(&source.code, "unsafe").map(|line| Finding::new(path, line, message)).collect()
}

fn stray_sql(path: &str, source: &Source) -> Vec<Finding> {
    let tests_start = inline_tests_start(&source.code);
    let mut findings = Vec::new();
    for keyword in SQL_KEYWORDS {
        for line in lines_with(&source.strings, keyword).take_while(|line| *line < tests_start) {
            let message = format!("`{keyword}`: SQL lives in the store modules only (rule R8)");
            findings.push(Finding::new(path, line, message));
        }
    }
    findings
}

/// The line where the file's test module begins, which by custom is the end of the code.
fn inline_tests_start(code: &str) -> usize {
    let lines: Vec<&str> = code.lines().map(str::trim_end).collect();
    let opens_tests = |pair: &[&str]| {
        pair[0] == "#[cfg(test)]" && pair[1].starts_with("mod ") && pair[1].ends_with('{')
    };
    lines.windows(2).position(opens_tests).map_or(usize::MAX, |index| index + 1)
}

fn is_crate_source(path: &str) -> bool {
    let mut parts = path.split('/');
    parts.next() == Some("crates") && parts.nth(1) == Some("src")
}

fn is_test_file(path: &str) -> bool {
    path.ends_with("/tests.rs") || path.contains("/tests/")
}

fn is_sql_home(path: &str) -> bool {
    SQL_HOMES.iter().any(|home| {
        path.strip_prefix(home).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
    })
}

/// The 1-based numbers of the lines that hold `needle` as a word of its own.
fn lines_with(view: &str, needle: &str) -> impl Iterator<Item = usize> {
    view.lines()
        .enumerate()
        .filter(move |(_, line)| contains_word(line, needle))
        .map(|(index, _)| index + 1)
}

/// Whether `needle` occurs in `line` with no letter, digit or underscore that would continue a word at its ends.
fn contains_word(line: &str, needle: &str) -> bool {
    line.match_indices(needle).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + needle.len()..].chars().next();
        let starts = !needle.starts_with(is_word_char) || !before.is_some_and(is_word_char);
        let ends = !needle.ends_with(is_word_char) || !after.is_some_and(is_word_char);
        starts && ends
    })
}

#[cfg(test)]
mod tests {
    const RULES: &str = "crates/piton-core/src/retry.rs";
    const SQLITE: &str = "crates/piton/src/store/sqlite/claim.rs";

    /// Checks a file against the start of each finding, as `line: message`.
    #[track_caller]
    fn check(path: &str, text: &str, expected: &[&str]) {
        let findings: Vec<String> = super::check(path, text)
            .iter()
            .map(|finding| format!("{}: {}", finding.line, finding.message))
            .collect();
        let as_expected = findings.len() == expected.len()
            && findings.iter().zip(expected).all(|(found, start)| found.starts_with(start));
        assert!(as_expected, "{path}: expected {expected:?}, found {findings:?}\n{text}");
    }

    #[test]
    fn a_file_may_have_800_lines_and_not_one_more() {
        check("bench/src/main.rs", &"\n".repeat(800), &[]);
        check("bench/src/main.rs", &"\n".repeat(801), &["801: 801 lines"]);
    }

    #[test]
    fn a_crate_file_begins_with_a_module_doc() {
        check(RULES, "//! When to try again.\n", &[]);
        check(RULES, "// When to try again.\n", &["1: no module doc"]);
        check(RULES, "", &["1: no module doc"]);
        check("crates/piton/tests/replay.rs", "use piton::Step;\n", &[]);
        check("examples/src/lib.rs", "use piton::Step;\n", &[]);
    }

    #[test]
    fn unfinished_work_is_found_in_code_and_comments() {
        check("bench/src/a.rs", "fn f() {} // TODO later", &["1: `TODO`"]);
        check("bench/src/a.rs", "/* FIXME */\n/// XXX: slow", &["1: `FIXME`", "2: `XXX`"]);
        check("bench/src/a.rs", "fn f() { todo!() }", &["1: `todo!`"]);
        check("bench/src/a.rs", "\nfn f() { unimplemented!(\"g\") }", &["2: `unimplemented!`"]);
        check("bench/src/a.rs", "#[ignore = \"slow\"]\nfn f() {}", &["1: `#[ignore`"]);
    }

    #[test]
    fn words_that_only_look_unfinished_are_fine() {
        check("bench/src/a.rs", "// MASTODON, XXXL", &[]);
        check("bench/src/a.rs", "const TODO_LIST: &str = \"TODO\";", &[]);
        check("bench/src/a.rs", "let todo = 1; if todo != 2 {}", &[]);
    }

    #[test]
    fn unsafe_code_is_found_and_talk_of_it_is_not() {
        check(RULES, "//! Doc.\nunsafe fn f() {}", &["2: `unsafe`"]);
        check("crates/piton/tests/a.rs", "fn f() { unsafe {} }", &["1: `unsafe`"]);
        check(RULES, "//! No unsafe here.\n#![forbid(unsafe_code)]", &[]);
        check(RULES, "//! Doc.\nconst WHY: &str = \"unsafe\";", &[]);
    }

    #[test]
    fn sql_outside_the_stores_is_found() {
        check(RULES, "//! Doc.\nlet q = \"SELECT 1\";", &["2: `SELECT`"]);
        check(RULES, "//! Doc.\nlet q = r\"\n  UPDATE\n  t\";", &["3: `UPDATE`"]);
        check(RULES, "//! Doc.\nf(\"INSERT INTO t\");", &["2: `INSERT INTO`"]);
        check(RULES, "//! Doc.\nf(\"DELETE FROM t\");", &["2: `DELETE FROM`"]);
    }

    #[test]
    fn sql_is_at_home_in_stores_tests_examples_and_comments() {
        let sql = "//! Doc.\nlet q = \"SELECT 1\";";
        check(SQLITE, sql, &[]);
        check("crates/piton/src/store/postgres.rs", sql, &[]);
        check("crates/piton/src/store/sqlite_like.rs", sql, &["2: `SELECT`"]);
        check("crates/piton/src/store/conformance/tests.rs", sql, &[]);
        check("crates/piton/tests/transactions.rs", sql, &[]);
        check("examples/src/orders.rs", sql, &[]);
        check("bench/src/ceiling.rs", sql, &[]);
        check(RULES, "//! Doc.\n/// Like \"SELECT 1\".\nfn f() {}", &[]);
    }

    #[test]
    fn sql_in_a_test_module_is_fine_but_a_declared_one_hides_nothing() {
        let inline = "//! Doc.\n#[cfg(test)]\nmod tests {\n    f(\"SELECT 1\");\n}";
        check(RULES, inline, &[]);
        let declared = "//! Doc.\n#[cfg(test)]\nmod tests;\nf(\"SELECT 1\");";
        check(RULES, declared, &["4: `SELECT`"]);
    }

    #[test]
    fn a_keyword_inside_a_longer_word_is_not_sql() {
        check(RULES, "//! Doc.\nf(\"LAST_UPDATE is old\"); f(\"SELECTED\");", &[]);
    }
}
