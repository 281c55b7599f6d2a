//! Text that PostgreSQL can store: everything but the character NUL.
//!
//! Names, keys and messages may hold a NUL; payloads never do, because JSON escapes it. It is stored as two characters
//! that nobody writes, and read back as what it was.

use std::borrow::Cow;

/// "Substitute", a control character: starts a pair.
const ESCAPE: char = '\u{1a}';

/// Behind it, a NUL.
const NUL: char = '0';

/// The text as it is stored.
pub(super) fn stored(text: &str) -> Cow<'_, str> {
    if !text.contains(['\0', ESCAPE]) {
        return Cow::Borrowed(text);
    }
    let mut stored = String::with_capacity(text.len() + 8);
    for character in text.chars() {
        match character {
            '\0' => stored.extend([ESCAPE, NUL]),
            ESCAPE => stored.extend([ESCAPE, ESCAPE]),
            other => stored.push(other),
        }
    }
    Cow::Owned(stored)
}

/// The text as it was before it was stored.
pub(super) fn original(stored: &str) -> Cow<'_, str> {
    if !stored.contains(ESCAPE) {
        return Cow::Borrowed(stored);
    }
    let mut text = String::with_capacity(stored.len());
    let mut characters = stored.chars();
    while let Some(character) = characters.next() {
        match character {
            ESCAPE => match characters.next() {
                Some(NUL) => text.push('\0'),
                Some(other) => text.push(other),
                None => text.push(ESCAPE),
            },
            other => text.push(other),
        }
    }
    Cow::Owned(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_comes_back_and_none_holds_a_nul() {
        for text in ["", "plain", "a\0b", "\0", "\u{1a}", "\u{1a}0", "\u{1a}\0\u{1a}0", "ü\0🧗"]
        {
            let stored = stored(text);
            assert!(!stored.contains('\0'), "{text:?}");
            assert_eq!(original(&stored), text);
        }
    }
}
