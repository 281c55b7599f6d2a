//! House rules for Markdown files: links that lead somewhere, and a changelog that is kept.

use std::path::{Path, PathBuf};

use super::Finding;

pub(super) const CHANGELOG: &str = "CHANGELOG.md";

/// Every relative link must lead to a file. `exists` answers for a path relative to the workspace root.
pub(super) fn check_links(path: &str, text: &str, exists: impl Fn(&Path) -> bool) -> Vec<Finding> {
    relative_links(text)
        .into_iter()
        .filter(|(_, link)| !exists(&resolve(path, link)))
        .map(|(line, link)| Finding::new(path, line, format!("`{link}` leads to no file")))
        .collect()
}

pub(super) fn check_changelog(text: Option<&str>) -> Option<Finding> {
    let message = match text {
        None => "missing: users read here what changes for them",
        Some(text) if !text.lines().any(|line| line.starts_with("## [Unreleased]")) => {
            "no `## [Unreleased]` section for the next change to go to"
        }
        Some(_) => return None,
    };
    Some(Finding::new(CHANGELOG, 1, message))
}

/// Where a link in the file `path` leads, relative to the workspace root. A leading `/` means the root itself.
fn resolve(path: &str, link: &str) -> PathBuf {
    match link.strip_prefix('/') {
        Some(from_root) => PathBuf::from(from_root),
        None => Path::new(path).with_file_name(link),
    }
}

/// The relative links outside code, without their fragments, each with its 1-based line.
fn relative_links(text: &str) -> Vec<(usize, &str)> {
    let mut links = Vec::new();
    let mut in_fence = false;
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") || line.trim_start().starts_with("~~~") {
            in_fence = !in_fence;
        } else if !in_fence {
            let relative = link_targets(line).into_iter().filter_map(relative_path);
            links.extend(relative.map(|link| (index + 1, link)));
        }
    }
    links
}

/// The targets of `[text](target "title")` and `[name]: target` in one line.
fn link_targets(line: &str) -> Vec<&str> {
    // Between backticks is code: every second piece.
    let outside_code = line.split('`').step_by(2);
    let inline = outside_code.flat_map(|piece| {
        piece.split("](").skip(1).filter_map(|after| Some(after.split_once(')')?.0))
    });
    inline.chain(definition_target(line)).filter_map(without_title).collect()
}

/// The target of a link definition. A footnote (`[^1]: …`) is none.
fn definition_target(line: &str) -> Option<&str> {
    let (name, target) = line.strip_prefix('[')?.split_once("]: ")?;
    (!name.starts_with('^') && !name.contains(']')).then_some(target)
}

fn without_title(target: &str) -> Option<&str> {
    let target = target.trim();
    match target.strip_prefix('<') {
        Some(bracketed) => bracketed.split('>').next(),
        None => target.split_whitespace().next(),
    }
}

/// The file that a target names; `None` if it has a scheme (`https:`), is a Rust path for rustdoc (`crate::Step`) or
/// points into its own page (`#words`).
fn relative_path(target: &str) -> Option<&str> {
    let file = target.split('#').next()?;
    (!file.is_empty() && !file.contains(':')).then_some(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &[(usize, &str)]) {
        assert_eq!(relative_links(text), expected, "{text}");
    }

    #[test]
    fn relative_links_of_every_form_are_found() {
        check("see [a](a.md) and ![b](img/b.png)", &[(1, "a.md"), (1, "img/b.png")]);
        check("\n[`code`](docs/c.md#part)", &[(2, "docs/c.md")]);
        check("[a](<a b.md>) [c](c.md \"title\")", &[(1, "a b.md"), (1, "c.md")]);
        check("[design]: docs/design.md 'title'", &[(1, "docs/design.md")]);
    }

    #[test]
    fn links_elsewhere_and_code_are_left_alone() {
        check("[a](https://example.com/a.md) [b](mailto:b@example.com)", &[]);
        check("[a](#words) [b](crate::Step)", &[]);
        check("`[a](a.md)` and ``", &[]);
        check("```md\n[a](a.md)\n```\n[b](b.md)", &[(4, "b.md")]);
        check("[^1]: a footnote", &[]);
        check("fn f(a: [u8; 2]) [x]", &[]);
    }

    #[test]
    fn a_link_counts_from_its_own_file_and_a_slash_from_the_root() {
        assert_eq!(resolve("README.md", "docs/a.md"), Path::new("docs/a.md"));
        assert_eq!(resolve("docs/a.md", "../b.md"), Path::new("docs/../b.md"));
        assert_eq!(resolve("docs/a.md", "/b.md"), Path::new("b.md"));
    }

    #[test]
    fn a_link_to_nothing_is_a_finding() {
        let exists = |path: &Path| path == Path::new("docs/a.md");
        let findings = check_links("README.md", "[a](docs/a.md)\n[b](docs/b.md)", exists);
        assert_eq!(findings, [Finding::new("README.md", 2, "`docs/b.md` leads to no file")]);
    }

    #[test]
    fn the_changelog_exists_and_has_an_unreleased_section() {
        assert_eq!(check_changelog(Some("# Changelog\n\n## [Unreleased]\n")), None);
        assert!(check_changelog(Some("# Changelog\n\n## [1.0.0]\n")).is_some());
        assert!(check_changelog(None).is_some());
    }
}
