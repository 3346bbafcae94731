//! The keys of records, their hashes, and the entries of a key index file.

use memchr::memmem;

use crate::record::{MAGIC, MAGIC_V2};

const ROLLBACK: i32 = 0xC;
const ENTRY_BYTES: usize = 20;

/// Bytes that others may write meanwhile: each look is a copy.
pub trait Bytes {
    /// How many there are.
    fn len(&self) -> usize;
    /// Copy those from a place on; `None`: they are not all there.
    fn copy(&self, at: usize, into: &mut [u8]) -> Option<()>;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Return a copy of some of them.
    fn array<const SIZE: usize>(&self, at: usize) -> Option<[u8; SIZE]> {
        let mut found = [0; SIZE];
        self.copy(at, &mut found)?;
        Some(found)
    }
}

impl Bytes for &[u8] {
    fn len(&self) -> usize {
        <[u8]>::len(self)
    }

    fn copy(&self, at: usize, into: &mut [u8]) -> Option<()> {
        into.copy_from_slice(self.get(at..at.checked_add(into.len())?)?);
        Some(())
    }
}

/// A packed key: `| hash of topic#key i32 | physical offset i64 | store time in ms i64 |`, big endian.
pub const KEY_BYTES: usize = 20;

/// Keys of records that lie one behind another.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Keys {
    /// How many records.
    pub count: usize,
    /// Where the next would begin.
    pub at: usize,
    /// The keys, packed.
    pub packed: Vec<u8>,
}

/// Return what the records are found by that lie one behind another from `at` on; `data` begins at the offset `first`.
pub fn record_keys(data: &impl Bytes, at: usize, first: i64, records_max: usize) -> Keys {
    let mut found = Keys { at, ..Keys::default() };
    let mut text = Vec::new();
    while found.count < records_max {
        let Some((end, store_ms, flag, wide)) = head_at(data, found.at, &mut text) else { break };
        let Some((topic, properties)) = topic_and_properties(&text, wide) else { break };
        if flag & ROLLBACK != ROLLBACK {
            let offset = first.wrapping_add(i64::try_from(found.at).unwrap_or(i64::MAX));
            pack_keys(topic, properties, (offset, store_ms), &mut found.packed);
        }
        found.at = end;
        found.count = found.count.saturating_add(1);
    }
    found
}

/// Write the packed keys of a record behind `out`; `place` is its offset in the log and its store time.
pub fn pack_keys(topic: &[u8], properties: &[u8], place: (i64, i64), out: &mut Vec<u8>) {
    each_key(properties, |key| {
        out.extend_from_slice(&index_hash(topic, key).to_be_bytes());
        out.extend_from_slice(&place.0.to_be_bytes());
        out.extend_from_slice(&place.1.to_be_bytes());
    });
}

/// Return the tag code of stored properties: Java's hash of the tag's text, 0 without a tag.
pub fn tag_code(properties: &[u8]) -> i64 {
    let tag = property_of(properties, b"TAGS\x01").unwrap_or_default();
    i64::from(java_hash(&[tag]))
}

/// Return the hash of the producer group that a half message names, that of the empty text without one.
pub fn group_hash(properties: &[u8]) -> i32 {
    java_hash(&[property_of(properties, b"PGROUP\x01").unwrap_or_default()])
}

/// Whether stored properties have a tag.
pub fn has_tag(properties: &[u8], tag: &[u8]) -> bool {
    property_of(properties, b"TAGS\x01") == Some(tag)
}

/// Copy what follows a record's body; return where the record ends, its store time, its flags, and how long the topic's length is.
fn head_at(data: &impl Bytes, at: usize, text: &mut Vec<u8>) -> Option<(usize, i64, i32, usize)> {
    let head: [u8; 88] = data.array(at)?;
    let i32_of = |at: usize| Some(i32::from_be_bytes(*head.get(at..)?.first_chunk()?));
    let i64_of = |at: usize| Some(i64::from_be_bytes(*head.get(at..)?.first_chunk()?));
    let size = usize::try_from(i32_of(0)?).ok()?;
    let wide = match i32_of(4)? {
        MAGIC => 1,
        MAGIC_V2 => 2,
        _ => return None,
    };
    let flag = i32_of(36)?;
    let (store_at, hosts) = match flag & 0x30 {
        0 => (56, 0),
        0x10 => (68, 12),
        0x20 => (56, 12),
        _ => (68, 24),
    };
    let body_at = at.checked_add(88)?.checked_add(hosts)?;
    let body = i32::from_be_bytes(data.array(body_at.checked_sub(4)?)?);
    let end = at.checked_add(size)?;
    let text_at = usize::try_from(i64::try_from(body_at).ok()?.checked_add(i64::from(body))?).ok()?;
    if !(at < text_at && text_at < end && end <= data.len()) {
        return None;
    }
    text.clear();
    text.resize(end.checked_sub(text_at)?, 0);
    data.copy(text_at, text)?;
    Some((end, i64_of(store_at)?, flag, wide))
}

fn topic_and_properties(text: &[u8], wide: usize) -> Option<(&[u8], &[u8])> {
    let number = |bytes: &[u8]| bytes.iter().fold(0_usize, |value, byte| value.wrapping_shl(8) | usize::from(*byte));
    let (size, rest) = text.split_at_checked(wide)?;
    let (topic, rest) = rest.split_at_checked(number(size))?;
    let (size, properties) = rest.split_at_checked(2)?;
    (properties.len() == number(size)).then_some((topic, properties))
}

/// Hand out what a message is found by: UNIQ_KEY first, then each of KEYS.
fn each_key(properties: &[u8], mut take: impl FnMut(&[u8])) {
    if let Some(unique) = property_of(properties, b"UNIQ_KEY\x01") {
        if !unique.is_empty() {
            take(unique);
        }
    }
    if let Some(keys) = property_of(properties, b"KEYS\x01") {
        let space = |byte: &u8| matches!(byte, b' ' | 9..=13);
        keys.split(space).filter(|key| !key.is_empty()).for_each(take);
    }
}

/// Return the value of the first property whose name and separator are `mark`.
fn property_of<'a>(properties: &'a [u8], mark: &[u8]) -> Option<&'a [u8]> {
    let rest = properties.strip_prefix(mark).or_else(|| {
        let before = |at: &usize| at.checked_sub(1).and_then(|before| properties.get(before)) == Some(&2);
        let at = memmem::find_iter(properties, mark).find(before)?;
        properties.get(at.checked_add(mark.len())?..)
    })?;
    Some(rest.split(|byte| *byte == 2).next().unwrap_or(rest))
}

/// Return the absolute value of Java's hash of `topic#key`, 0 for the one that has none.
fn index_hash(topic: &[u8], key: &[u8]) -> i32 {
    java_hash(&[topic, b"#", key]).checked_abs().unwrap_or(0)
}

/// Return Java's hash of a text that comes in pieces; what is no UTF-8 in it counts as its replacement.
fn java_hash(pieces: &[&[u8]]) -> i32 {
    let step = |code: i32, unit: u16| code.wrapping_mul(31).wrapping_add(i32::from(unit));
    if pieces.iter().all(|piece| piece.is_ascii()) {
        return pieces.iter().flat_map(|piece| piece.iter()).fold(0, |code, byte| step(code, u16::from(*byte)));
    }
    String::from_utf8_lossy(&pieces.concat()).encode_utf16().fold(0, step)
}

/// The changes of entering keys.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Entries {
    /// The new entries.
    pub entries: Vec<u8>,
    /// Slots that change, rising.
    pub slots: Vec<i64>,
    /// The newest entry of each.
    pub numbers: Vec<i32>,
    /// How many of them had none.
    pub fresh: usize,
}

/// Return the entries of packed keys that are entered from number `count` on; `None`: there are no slots. `newest_of` one is its
/// number in the table.
pub fn index_entries(
    slots: usize,
    newest_of: impl Fn(usize) -> Option<i32>,
    count: i32,
    begin_ms: i64,
    keys: &[u8],
) -> Option<Entries> {
    let mut found = Entries::default();
    let table = i64::try_from(slots).ok()?;
    let keys = keys.chunks_exact(KEY_BYTES);
    let hash_of = |key: &[u8]| Some(i32::from_be_bytes(*key.first_chunk()?));
    let number_of = |index: usize| Some(count.wrapping_add(i32::try_from(index).ok()?));
    let mut order = Vec::with_capacity(keys.len());
    for (index, key) in keys.clone().enumerate() {
        order.push((usize::try_from(i64::from(hash_of(key)?).checked_rem_euclid(table)?).ok()?, index));
    }
    order.sort_unstable(); // so that slots are met one behind another, and those of one in the order of their keys
    let mut previous = vec![0; keys.len()];
    let mut last = None;
    for (slot, index) in order {
        let number = number_of(index)?;
        *previous.get_mut(index)? = if last == Some(slot) {
            let newest = found.numbers.last_mut()?;
            std::mem::replace(newest, number)
        } else {
            let newest = newest_of(slot)?;
            let valid = 0 < newest && newest < count;
            found.fresh = found.fresh.saturating_add(usize::from(!valid));
            found.slots.push(i64::try_from(slot).ok()?);
            found.numbers.push(number);
            if valid { newest } else { 0 }
        };
        last = Some(slot);
    }
    found.entries.reserve(keys.len().saturating_mul(ENTRY_BYTES));
    for (key, previous) in keys.zip(previous) {
        let (place, store_ms) = key.split_last_chunk::<8>()?;
        let seconds = i64::from_be_bytes(*store_ms).saturating_sub(begin_ms).max(0) / 1000;
        found.entries.extend_from_slice(place);
        found.entries.extend_from_slice(&i32::try_from(seconds).unwrap_or(i32::MAX).to_be_bytes());
        found.entries.extend_from_slice(&previous.to_be_bytes());
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_have_some_keys(
            data in proptest::collection::vec(prop_oneof![Just(0u8), Just(0xFF), Just(2u8), any::<u8>()], 0..400),
            v2 in any::<bool>(),
            size in 0i32..400,
            at in prop_oneof![0usize..9, any::<usize>()],
        ) {
            let mut data = data;
            if let Some(head) = data.get_mut(0..8) {
                let magic = if v2 { MAGIC_V2 } else { MAGIC };
                head.copy_from_slice(&[size.to_be_bytes(), magic.to_be_bytes()].concat());
            }
            let found = record_keys(&data.as_slice(), at, 7, 100);
            prop_assert!(found.count <= data.len() / 91 + 1);
            prop_assert_eq!(found.packed.len() % KEY_BYTES, 0);
        }

        #[test]
        fn any_table_takes_entries(
            table in proptest::collection::vec(any::<i32>(), 0..25),
            count in any::<i32>(),
            begin in any::<i64>(),
            keys in proptest::collection::vec(any::<u8>(), 0..400),
        ) {
            match index_entries(table.len(), |slot| table.get(slot).copied(), count, begin, &keys) {
                Some(found) => prop_assert_eq!(found.entries.len(), keys.len() / KEY_BYTES * ENTRY_BYTES),
                None => prop_assert!(table.is_empty() && keys.len() >= KEY_BYTES),
            }
        }
    }
}
