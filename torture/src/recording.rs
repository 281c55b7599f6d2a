//! A recording of what a process did to its files: writes, syncs and acknowledgements in their order, read from the
//! output of `strace`.

use std::collections::{BTreeMap, HashMap};
use std::io::BufRead;

use anyhow::{Context, Result, bail};

/// Something that happened to a file of the recorded process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    /// Bytes were written, and may be anywhere between cache and disk.
    Write { file: String, offset: u64, bytes: Vec<u8> },
    /// The file was cut or grown.
    Truncate { file: String, length: u64 },
    /// The file is gone.
    Unlink { file: String },
    /// All that was written to the file before is on the disk.
    Sync { file: String },
    /// A client was told something.
    Ack { line: String },
}

/// The file of acknowledgements: no part of the database.
const ACKS: &str = "acks";

/// Files that are no part of what a crash leaves: the index of the log is made anew from the log.
fn is_ignored(file: &str) -> bool {
    file.ends_with("-shm") || file.ends_with(".lock") || file == "witness"
}

/// Reads the output of `strace -f -y -xx`. A call that another thread's call interrupts in the listing is two lines:
/// **a write counts from its first line, a sync from its last one, and an acknowledgement from its first**, so that
/// nothing looks more durable than it was.
pub(crate) fn read(listing: impl BufRead, directory: &str) -> Result<Vec<Op>> {
    let mut ops = Vec::new();
    let mut unfinished: HashMap<String, String> = HashMap::new();
    let mut appended: BTreeMap<String, u64> = BTreeMap::new();
    for line in listing.lines() {
        let line = line?;
        let Some((thread, call)) = line.split_once(' ') else { continue };
        let call = call.trim_start();
        if let Some(begun) = call.strip_suffix("<unfinished ...>") {
            if begun.starts_with("fsync") || begun.starts_with("fdatasync") {
                unfinished.insert(thread.to_owned(), begun.trim_end().to_owned());
            } else {
                ops.extend(parse(begun, directory, &mut appended)?);
            }
        } else if call.starts_with("<... ") {
            if let Some(begun) = unfinished.remove(thread) {
                ops.extend(parse(&format!("{begun})"), directory, &mut appended)?);
            }
        } else {
            ops.extend(parse(call, directory, &mut appended)?);
        }
    }
    Ok(ops)
}

fn parse(call: &str, directory: &str, appended: &mut BTreeMap<String, u64>) -> Result<Option<Op>> {
    let Some((name, arguments)) = call.split_once('(') else { return Ok(None) };
    let path = if name == "unlink" { quoted(arguments) } else { between(arguments, '<', '>') };
    let Some(path) = path else { return Ok(None) };
    let path = String::from_utf8(unescape(path)?).context("a path is not UTF-8")?;
    let Some(file) = path.strip_prefix(directory).map(|file| file.trim_start_matches('/')) else {
        return Ok(None);
    };
    let file = file.to_owned();
    if is_ignored(&file) || file.is_empty() {
        return Ok(None);
    }
    let rest = arguments.split_once('>').map_or("", |(_, rest)| rest);
    let numbers = || rest.rsplit_once('"').map_or(rest, |(_, numbers)| numbers);
    Ok(Some(match name {
        "write" if file == ACKS => {
            let bytes = unescape(quoted(rest).context("a write without bytes")?)?;
            Op::Ack { line: String::from_utf8(bytes)?.trim_end().to_owned() }
        }
        "write" => {
            let bytes = unescape(quoted(rest).context("a write without bytes")?)?;
            let offset = appended.entry(file.clone()).or_default();
            let op = Op::Write { file, offset: *offset, bytes };
            *offset += number(numbers(), 0)?;
            op
        }
        "pwrite64" => {
            let bytes = unescape(quoted(rest).context("a write without bytes")?)?;
            if bytes.len() as u64 != number(numbers(), 0)? {
                bail!("a write of {} bytes was recorded in part", number(numbers(), 0)?);
            }
            Op::Write { file, offset: number(numbers(), 1)?, bytes }
        }
        "ftruncate" => Op::Truncate { file, length: number(numbers(), 0)? },
        "fsync" | "fdatasync" => Op::Sync { file },
        "unlink" => Op::Unlink { file },
        _ => return Ok(None),
    }))
}

fn between(text: &str, open: char, close: char) -> Option<&str> {
    text.split_once(open)?.1.split_once(close).map(|(inner, _)| inner)
}

fn quoted(text: &str) -> Option<&str> {
    between(text, '"', '"')
}

/// The number at this place in a list such as `, 4096, 32) = 4096`.
fn number(list: &str, place: usize) -> Result<u64> {
    let list = list.split(')').next().unwrap_or_default();
    let word = list.trim_start_matches([',', ' ']).split(", ").nth(place);
    word.and_then(|word| word.trim().parse().ok()).with_context(|| format!("no number in {list:?}"))
}

/// `\x41\x42` as bytes.
fn unescape(text: &str) -> Result<Vec<u8>> {
    let hex = |byte: u8| (byte as char).to_digit(16).context("not a hexadecimal digit");
    text.as_bytes()
        .chunks(4)
        .map(|chunk| match chunk {
            [b'\\', b'x', high, low] => Ok((hex(*high)? << 4 | hex(*low)?) as u8),
            _ => bail!("not an escaped byte: {chunk:?}"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn escaped(text: &str) -> String {
        text.bytes().map(|byte| format!("\\x{byte:02x}")).collect()
    }

    #[test]
    fn a_listing_is_read_in_the_order_that_counts() {
        let wal = escaped("/d/load.db-wal");
        let listing = format!(
            "1 pwrite64(4<{wal}>, \"{ab}\", 2, 32) = 2\n\
             1 fdatasync(4<{wal}> <unfinished ...>\n\
             2 write(5<{acks}>, \"{ack}\", 10 <unfinished ...>\n\
             1 <... fdatasync resumed>) = 0\n\
             2 <... write resumed>) = 10\n\
             1 ftruncate(3<{wal}>, 8) = 0\n\
             1 fsync(3<{elsewhere}>) = 0\n\
             1 unlink(\"{wal}\") = 0\n\
             1 +++ exited with 0 +++\n",
            ab = escaped("ab"),
            acks = escaped("/d/acks"),
            ack = escaped("created a\n"),
            elsewhere = escaped("/e/load.db"),
        );
        let file = || "load.db-wal".to_owned();
        let ops = read(listing.as_bytes(), "/d").expect("read");
        assert_eq!(
            ops,
            [
                Op::Write { file: file(), offset: 32, bytes: b"ab".to_vec() },
                Op::Ack { line: "created a".to_owned() },
                Op::Sync { file: file() },
                Op::Truncate { file: file(), length: 8 },
                Op::Unlink { file: file() },
            ]
        );
    }
}
