//! Where a page ended: opaque, bound to the list it came from, and authenticated by a secret of the database.

use std::fmt;
use std::str::FromStr;

use hmac::{Hmac, KeyInit, Mac};
use piton_core::{Code, Refusal};
use sha2::Sha256;

use crate::store::Secret;

/// Where a page ended. Good only for the same list with the same filters and order.
///
/// It can be kept as text: `cursor.to_string()` and `text.parse()`.
///
/// ```
/// # use piton::prelude::*;
/// # use piton::Cursor;
/// # async fn noop(_: Event<()>, _: &Step) -> Result<()> { Ok(()) }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> piton::Result<()> {
/// # let engine = Engine::builder("memory:").register(workflow("noop", noop)).start().await?;
/// # let noop = engine.workflow::<(), ()>("noop")?;
/// # for _ in 0..2 { noop.create(()).await?; }
/// let page = noop.list().page_size(1).await?;
/// let text = page.cursor.expect("there is a second page").to_string();
/// let cursor: Cursor = text.parse()?;
/// assert!(!noop.list().page_size(1).after(cursor).await?.has_next_page);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor {
    scope: u64,
    position: Position,
    tag: [u8; TAG_BYTES],
}

/// Where a row stands in its list: what the list is ordered by, and what tells equals apart.
pub(crate) type Position = (u64, u64);

/// Identifies a list with its filters and order.
pub(crate) fn scope(parts: &[&str]) -> u64 {
    // The separator cannot occur in names, so that no two lists share a scope by concatenation.
    parts.iter().fold(FNV_OFFSET, |hash, part| mix(mix(hash, part.as_bytes()), &[0]))
}

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;

fn mix(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

/// How much of the authentication code a cursor carries: as much as nobody guesses.
const TAG_BYTES: usize = 16;

fn code(secret: &Secret, scope: u64, position: Position) -> Hmac<Sha256> {
    let mut code = Hmac::new_from_slice(secret).expect("a code takes keys of any length");
    for word in [scope, position.0, position.1] {
        code.update(&word.to_le_bytes());
    }
    code
}

impl Cursor {
    pub(crate) fn new(secret: &Secret, scope: u64, position: Position) -> Self {
        let code = code(secret, scope, position).finalize().into_bytes();
        let mut tag = [0; TAG_BYTES];
        tag.copy_from_slice(&code[..TAG_BYTES]);
        Self { scope, position, tag }
    }

    /// The position, if the cursor was given out by this database for the list of that scope.
    pub(crate) fn position(&self, secret: &Secret, scope: u64) -> Result<Position, Refusal> {
        let code = code(secret, self.scope, self.position);
        if code.verify_truncated_left(&self.tag).is_err() {
            return Err(damaged());
        }
        if self.scope == scope {
            return Ok(self.position);
        }
        let message =
            "the cursor belongs to another list, filter or order; start from the first page";
        Err(Refusal::new(Code::InvalidCursor, message))
    }
}

fn damaged() -> Refusal {
    let message = "the cursor was not given out by this server; start from the first page";
    Refusal::new(Code::InvalidCursor, message)
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (order, tie) = self.position;
        let tag = u128::from_be_bytes(self.tag);
        write!(f, "{:016x}{order:016x}{tie:016x}{tag:032x}", self.scope)
    }
}

/// Reads the form only: whether it was given out is seen when it is used.
impl FromStr for Cursor {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        let part = |at: usize| u64::from_str_radix(text.get(at..at + 16)?, 16).ok();
        let cursor = || {
            let tag = u128::from_str_radix(text.get(48..80)?, 16).ok()?.to_be_bytes();
            let cursor = Cursor { scope: part(0)?, position: (part(16)?, part(32)?), tag };
            // No sign, no capital letters, nothing behind it.
            (cursor.to_string() == text).then_some(cursor)
        };
        cursor().ok_or_else(damaged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: Secret = [7; 32];

    #[test]
    fn a_cursor_reads_back_and_is_bound_to_its_list() {
        let orders = scope(&["instances", "orders", "active"]);
        let cursor = Cursor::new(&SECRET, orders, (42, 7));
        let again: Cursor = cursor.to_string().parse().unwrap();
        assert_eq!(again.position(&SECRET, orders), Ok((42, 7)));
        assert_ne!(orders, scope(&["instances", "order", "sactive"]));
        let foreign = again.position(&SECRET, scope(&["instances", "orders", ""])).unwrap_err();
        assert_eq!(foreign.code, Code::InvalidCursor);
    }

    #[test]
    fn a_cursor_that_was_changed_or_made_up_is_refused() {
        let text = Cursor::new(&SECRET, 1, (2, 3)).to_string();
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] = if bytes[at] == b'0' { b'1' } else { b'0' };
            let changed: Cursor = String::from_utf8(bytes).unwrap().parse().unwrap();
            for scope in [1, changed.scope] {
                let refused = changed.position(&SECRET, scope).unwrap_err();
                assert_eq!(refused.code, Code::InvalidCursor);
            }
        }
        let foreign = Cursor::new(&[8; 32], 1, (2, 3)).position(&SECRET, 1).unwrap_err();
        assert_eq!(foreign.code, Code::InvalidCursor, "of another database");
        let upper = text.replace(|c: char| c.is_ascii_lowercase(), "A");
        for text in ["", "x", "äöü", &text[1..], &format!("{text}0"), &upper] {
            assert!(text.parse::<Cursor>().is_err(), "{text}");
        }
    }
}
