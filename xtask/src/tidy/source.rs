//! Splits Rust source into code, comments and string literals, so that a rule looks only where it means to.
//!
//! This is a scanner, not a parser: it knows just enough of Rust's tokens to tell the three apart.

/// Three views of one source file. Each has the lines of the file; what belongs to another view is blank in it.
#[derive(Debug, Default)]
pub(super) struct Source {
    pub(super) code: String,
    pub(super) comments: String,
    pub(super) strings: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Code,
    Comment,
    String,
}

impl Source {
    pub(super) fn new(text: &str) -> Source {
        let mut source = Source::default();
        let mut rest = text;
        while !rest.is_empty() {
            let (kind, length) = first_token(rest);
            let (token, tail) = rest.split_at(length);
            source.push(kind, token);
            rest = tail;
        }
        source
    }

    fn push(&mut self, kind: Kind, token: &str) {
        let blank = token.chars().map(|c| if c == '\n' { c } else { ' ' });
        let views = [
            (Kind::Code, &mut self.code),
            (Kind::Comment, &mut self.comments),
            (Kind::String, &mut self.strings),
        ];
        for (view_kind, view) in views {
            if view_kind == kind {
                view.push_str(token);
            } else {
                view.extend(blank.clone());
            }
        }
    }
}

/// Kind and length in bytes of what `text`, which is not empty, begins with.
fn first_token(text: &str) -> (Kind, usize) {
    if text.starts_with("//") {
        (Kind::Comment, text.find('\n').unwrap_or(text.len()))
    } else if text.starts_with("/*") {
        (Kind::Comment, block_comment_length(text))
    } else if let Some(length) = string_length(text) {
        (Kind::String, length)
    } else {
        (Kind::Code, code_length(text))
    }
}

/// Block comments nest.
fn block_comment_length(text: &str) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < text.len() {
        if text[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if text[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += first_char_length(&text[at..]);
        }
    }
    text.len()
}

/// The length of the string literal that `text` begins with, its prefix (`r`, `b`, `br`, `c`, `cr`) included.
fn string_length(text: &str) -> Option<usize> {
    let unprefixed = text.trim_start_matches(['b', 'c']);
    let is_raw = unprefixed.starts_with('r');
    let opening = unprefixed.strip_prefix('r').unwrap_or(unprefixed);
    let body = opening.trim_start_matches('#');
    let hashes = opening.len() - body.len();
    let is_string = body.starts_with('"') && (is_raw || hashes == 0);
    is_string.then(|| {
        let contents = &body[1..];
        let length = if is_raw {
            let end = format!("\"{}", "#".repeat(hashes));
            contents.find(&end).map(|at| at + end.len())
        } else {
            escaped_length(contents, '"')
        };
        text.len() - contents.len() + length.unwrap_or(contents.len())
    })
}

/// The length up to and including the first `end` that no backslash escapes.
fn escaped_length(text: &str, end: char) -> Option<usize> {
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        if c == '\\' {
            chars.next();
        } else if c == end {
            return Some(at + c.len_utf8());
        }
    }
    None
}

/// A whole word, a character literal (which may hold a quote), or a single character.
fn code_length(text: &str) -> usize {
    let word = text.find(|c| !is_word_char(c)).unwrap_or(text.len());
    if word > 0 {
        return word;
    }
    char_literal_length(text).unwrap_or_else(|| first_char_length(text))
}

/// `None` for a lifetime, which has no closing quote.
fn char_literal_length(text: &str) -> Option<usize> {
    let contents = text.strip_prefix('\'')?;
    if contents.starts_with('\\') {
        return escaped_length(contents, '\'').map(|length| 1 + length);
    }
    let length = first_char_length(contents);
    contents[length..].starts_with('\'').then_some(1 + length + 1)
}

fn first_char_length(text: &str) -> usize {
    text.chars().next().map_or(0, char::len_utf8)
}

pub(super) fn is_word_char(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the three views of one line, spaces around them aside.
    #[track_caller]
    fn check(text: &str, code: &str, comments: &str, strings: &str) {
        let source = Source::new(text);
        let squeeze = |view: &str| view.split_whitespace().collect::<Vec<_>>().join(" ");
        let views = [&source.code, &source.comments, &source.strings].map(|view| squeeze(view));
        assert_eq!(views, [code, comments, strings], "{text}");
    }

    #[test]
    fn comments_strings_and_code_are_told_apart() {
        check("a // b \"c\"", "a", "// b \"c\"", "");
        check("a /* b /* c */ d */ e", "a e", "/* b /* c */ d */", "");
        check(r#"a "b // c" d"#, "a d", "", r#""b // c""#);
        check(r#"a "b \" c" d"#, "a d", "", r#""b \" c""#);
        check(r##"a r#"b " c"# d"##, "a d", "", r##"r#"b " c"#"##);
        check(r#"a b"c" br"\" d"#, "a d", "", r#"b"c" br"\""#);
    }

    #[test]
    fn a_quote_that_is_not_a_string_does_not_open_one() {
        check(r#"a '"' b "c""#, r#"a '"' b"#, "", r#""c""#);
        check(r#"a '\'' b "c""#, r"a '\'' b", "", r#""c""#);
        check(r#"f::<'a>(b'"') "c""#, r#"f::<'a>(b'"')"#, "", r#""c""#);
        check("r#type r", "r#type r", "", "");
    }

    #[test]
    fn every_view_keeps_the_lines_of_the_file() {
        let text = "a\n/* b\nc */ \"d\ne\"\n// f\n";
        let source = Source::new(text);
        for view in [source.code, source.comments, source.strings] {
            assert_eq!(view.lines().count(), text.lines().count(), "{view:?}");
        }
    }

    #[test]
    fn an_unfinished_literal_ends_with_the_file() {
        check("a \"b", "a", "", "\"b");
        check("a /* b", "a", "/* b", "");
    }
}
