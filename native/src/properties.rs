//! Properties as they are stored: what a send brought, checked and completed.
//!
//! `None` for what asks for more than storing, or is unusual: a group of one then goes through the general decoder.

use memchr::{memchr_iter, memmem};

/// Return the tag code of a queue entry: Java's hash of the tag's text; 0 for no tag. `None`: it is not UTF-8.
pub fn tag_hash(tag: &[u8]) -> Option<i32> {
    let step = |code: i32, unit: u16| code.wrapping_mul(31).wrapping_add(i32::from(unit));
    if tag.is_ascii() {
        return Some(tag.iter().fold(0, |code, byte| step(code, u16::from(*byte))));
    }
    Some(std::str::from_utf8(tag).ok()?.encode_utf16().fold(0, step))
}

/// Write a property behind `out` as it travels; one with an empty name or value is left out. Returns whether that can be.
pub fn encode_property(name: &str, value: &str, out: &mut Vec<u8>) -> bool {
    if name.is_empty() || value.is_empty() {
        return true;
    }
    let begin = out.len();
    out.extend_from_slice(name.as_bytes());
    out.push(1);
    out.extend_from_slice(value.as_bytes());
    out.push(2);
    let separators = out.get(begin..).map_or(0, |pair| pair.iter().filter(|b| matches!(b, 1 | 2)).count());
    separators == 2
}

/// The facts of stored properties.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prepared {
    /// Tag code of the queue entry.
    pub code: i32,
    /// Whether the sender waits for the sync.
    pub wait: bool,
}

fn is_true(value: &[u8]) -> bool {
    value.eq_ignore_ascii_case(b"true")
}

/// Write properties as they are stored behind `out`: WAIT goes out, `suffix` (whole pairs) comes in at the end.
///
/// `None`: a property asks for more than storing or is one that the broker gives, or the text is not UTF-8; nothing was written.
pub fn stored_properties(text: &[u8], suffix: &[u8], out: &mut Vec<u8>) -> Option<Prepared> {
    let begin = out.len();
    let found = prepare(text, suffix, out);
    if found.is_none() {
        out.truncate(begin);
    }
    found
}

fn prepare(text: &[u8], suffix: &[u8], out: &mut Vec<u8>) -> Option<Prepared> {
    if !text.is_ascii() {
        std::str::from_utf8(text).ok()?;
    }
    let mut found = Prepared { code: 0, wait: true };
    let mut waits = 0;
    let mut take = |pair: &[u8]| -> Option<()> {
        if let Some((name, value)) = pair.split_first_chunk::<5>() {
            match name {
                b"WAIT\x01" if waits > 0 => return None,
                b"WAIT\x01" => {
                    waits = 1;
                    found.wait = is_true(value);
                    return Some(());
                }
                b"TAGS\x01" => found.code = tag_hash(value)?,
                b"DELAY" | b"TRAN_" | b"TIMER" | b"CLUST" | b"INNER" | b"__STA" | b"MSG_R" | b"TRACE" => return None,
                _ => {}
            }
        }
        out.extend_from_slice(pair);
        out.push(2);
        Some(())
    };
    let mut at = 0;
    for end in memchr_iter(2, text) {
        take(text.get(at..end)?)?;
        at = end.saturating_add(1);
    }
    if at < text.len() {
        take(text.get(at..)?)?;
    }
    out.extend_from_slice(suffix);
    Some(found)
}

// ---------------------------------------------------------------- half messages

const UNUSUAL: [&[u8]; 11] = [
    b"DELAY",
    b"TIMER_",
    b"REAL_",
    b"CLUSTER",
    b"INNER_",
    b"CHECK_",
    b"TRAN_P",
    b"TRANSACTION_",
    b"__STARTD",
    b"MSG_REGION",
    b"TRACE_ON",
];
const UNIQUE: &[u8] = b"UNIQ_KEY\x01";

/// The facts of the properties of an ordinary half message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreparedHalf {
    /// Tag code of the queue entry.
    pub code: i32,
    /// Whether the sender waits for the sync.
    pub wait: bool,
    /// The producer group.
    pub group: String,
}

/// Write the properties of an ordinary half message behind `out`; `suffix` (whole pairs that say where it belongs) comes in at
/// the end. `None`: it is no ordinary one; nothing was written.
pub fn half_properties(text: &[u8], suffix: &[u8], out: &mut Vec<u8>) -> Option<PreparedHalf> {
    if !text.is_ascii() {
        return None;
    }
    let found = match unique_value(text) {
        // what the value of the unique key holds is nobody's matter
        Some((begin, end)) => read_half(&[text.get(..begin)?, b"x", text.get(end..)?].concat())?,
        None => read_half(text)?,
    };
    out.extend_from_slice(text);
    if text.last() != Some(&2) {
        out.push(2);
    }
    out.extend_from_slice(suffix);
    Some(found)
}

/// Return where the value of the unique key begins and ends, where it is one.
fn unique_value(text: &[u8]) -> Option<(usize, usize)> {
    let at = memmem::find(text, UNIQUE)?;
    if at > 0 && text.get(at.checked_sub(1)?) != Some(&2) {
        return None;
    }
    let begin = at.checked_add(UNIQUE.len())?;
    let rest = text.get(begin..)?;
    let size = rest.iter().position(|b| *b == 2).unwrap_or(rest.len());
    let plain = size > 0 && !rest.get(..size)?.contains(&1);
    plain.then_some((begin, begin.checked_add(size)?))
}

fn read_half(text: &[u8]) -> Option<PreparedHalf> {
    if value(text, b"\x02TRAN_MSG\x01")? != b"true" || is_unusual(text) {
        return None;
    }
    let group = value(text, b"\x02PGROUP\x01")?;
    let fits = |b: &u8| b.is_ascii_alphanumeric() || b"%|-_".contains(b);
    if group.is_empty() || group.len() > 255 || !group.iter().all(fits) {
        return None;
    }
    let count = |byte: u8| memchr_iter(byte, text).count();
    let pairs = count(2).saturating_add(usize::from(text.last() != Some(&2)));
    if count(1) != pairs {
        return None; // a pair with two values, or with none
    }
    let tag = value(text, b"\x02TAGS\x01");
    if tag == Some(b"") {
        return None;
    }
    let wait = value(text, b"\x02WAIT\x01").is_none_or(|wait| wait.is_empty() || is_true(wait));
    let code = tag_hash(tag.unwrap_or(b""))?;
    Some(PreparedHalf { code, wait, group: String::from_utf8(group.to_vec()).ok()? })
}

/// Whether a word stands anywhere in a text that a half message may not bring.
fn is_unusual(mut text: &[u8]) -> bool {
    while let Some((first, rest)) = text.split_first() {
        if matches!(first, b'D' | b'T' | b'R' | b'C' | b'I' | b'M' | b'_') && UNUSUAL.iter().any(|word| text.starts_with(word)) {
            return true;
        }
        text = rest;
    }
    false
}

/// Return the value behind `0x02 name 0x01`, the last of that name; `None` when it is missing.
fn value<'a>(text: &'a [u8], mark: &[u8]) -> Option<&'a [u8]> {
    let begin = match memmem::rfind(text, mark) {
        Some(at) => at.checked_add(mark.len())?,
        None => {
            let name = mark.get(1..)?;
            text.starts_with(name).then_some(name.len())?
        }
    };
    let rest = text.get(begin..)?;
    rest.get(..rest.iter().position(|b| *b == 2).unwrap_or(rest.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_tag_code_is_javas_hash() {
        assert_eq!(tag_hash(b"TagA"), Some(2598919));
        assert_eq!(tag_hash(b""), Some(0));
        assert_eq!(tag_hash(b"\xff"), None);
    }

    #[test]
    fn wait_goes_out_and_the_suffix_comes_in() {
        let mut out = vec![7];
        let found = stored_properties(b"KEYS\x01k\x02WAIT\x01true\x02TAGS\x01TagA", b"C\x01c\x02", &mut out);
        assert_eq!(found, Some(Prepared { code: 2598919, wait: true }));
        assert_eq!(out, b"\x07KEYS\x01k\x02TAGS\x01TagA\x02C\x01c\x02");
    }

    proptest! {
        #[test]
        fn what_is_refused_leaves_nothing_behind(text in "[A-Z_\u{1}\u{2}é]{0,40}", suffix in "[a-z]{0,4}") {
            let mut out = b"before".to_vec();
            let found = stored_properties(text.as_bytes(), suffix.as_bytes(), &mut out);
            prop_assert!(found.is_some() || out == b"before");
            let _ = half_properties(text.as_bytes(), suffix.as_bytes(), &mut out);
        }

        #[test]
        fn any_bytes_are_read_or_refused(text in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut out = Vec::new();
            let _ = stored_properties(&text, b"", &mut out);
            let _ = half_properties(&text, b"", &mut out);
            let _ = tag_hash(&text);
        }
    }
}
