//! Where a page ended: opaque, and bound to the list it came from.

use std::fmt;
use std::str::FromStr;

use piton_core::{Code, Refusal};

/// Where a page ended. Good only for the same list with the same filters and order.
///
/// It can be kept as text: `cursor.to_string()` and `text.parse()`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor {
    scope: u64,
    position: Position,
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

impl Cursor {
    pub(crate) fn new(scope: u64, position: Position) -> Self {
        Self { scope, position }
    }

    /// The position, if the cursor belongs to the list of that scope.
    pub(crate) fn position(&self, scope: u64) -> Result<Position, Refusal> {
        if self.scope == scope {
            return Ok(self.position);
        }
        let message =
            "the cursor belongs to another list, filter or order; start from the first page";
        Err(Refusal::new(Code::InvalidCursor, message))
    }

    fn checksum(&self) -> u64 {
        let words = [self.scope, self.position.0, self.position.1];
        words.iter().fold(FNV_OFFSET, |hash, word| mix(hash, &word.to_le_bytes()))
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (order, tie) = self.position;
        write!(f, "{:016x}{order:016x}{tie:016x}{:016x}", self.scope, self.checksum())
    }
}

impl FromStr for Cursor {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        let part = |at: usize| u64::from_str_radix(text.get(at * 16..at * 16 + 16)?, 16).ok();
        let cursor = || {
            let cursor = Cursor { scope: part(0)?, position: (part(1)?, part(2)?) };
            let whole = text.len() == 64 && cursor.to_string() == text;
            whole.then_some(cursor)
        };
        cursor().ok_or_else(|| Refusal::new(Code::InvalidCursor, "the cursor is damaged"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_reads_back_and_is_bound_to_its_list() {
        let orders = scope(&["instances", "orders", "active"]);
        let cursor = Cursor::new(orders, (42, 7));
        let again: Cursor = cursor.to_string().parse().unwrap();
        assert_eq!(again.position(orders), Ok((42, 7)));
        assert_ne!(orders, scope(&["instances", "order", "sactive"]));
        let foreign = again.position(scope(&["instances", "orders", ""])).unwrap_err();
        assert_eq!(foreign.code, Code::InvalidCursor);
    }

    #[test]
    fn a_damaged_cursor_is_refused() {
        let text = Cursor::new(1, (2, 3)).to_string();
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] = if bytes[at] == b'0' { b'1' } else { b'0' };
            let damaged = String::from_utf8(bytes).unwrap();
            assert_eq!(damaged.parse::<Cursor>().unwrap_err().code, Code::InvalidCursor);
        }
        for text in ["", "x", "äöü", &text[1..]] {
            assert!(text.parse::<Cursor>().is_err());
        }
    }
}
