//! Records that lie one behind another, checked whole: what queues and the key index must have of them.

use std::collections::HashMap;

use crate::keys;
use crate::record::{self, ENTRY_BYTES};

/// Bits of sysFlag of what belongs to a transaction.
const TRANSACTION: i32 = 0xC;

/// Entries of one queue, from an offset on.
#[derive(Debug, PartialEq, Eq)]
pub struct QueueEntries<'a> {
    /// Its topic.
    pub topic: &'a str,
    /// Its id.
    pub queue_id: i32,
    /// The offset of the first.
    pub first: i64,
    /// The entries.
    pub entries: Vec<u8>,
}

/// The result of checking records that lie one behind another.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Checked<'a> {
    /// How many bytes they have.
    pub size: usize,
    /// Their entries, by queue, in the order in which the queues come.
    pub queues: Vec<QueueEntries<'a>>,
    /// Their keys, packed.
    pub keys: Vec<u8>,
}

/// A record that is whole and usual.
struct Usual<'a> {
    topic: &'a [u8],
    queue_id: i32,
    queue_offset: i64,
    place: i64,
    store_ms: i64,
    properties: &'a [u8],
    end: usize,
}

/// Check the records that lie one behind another, up to the first that is not whole and usual; `data` begins at the offset `first`.
pub fn checked_records<'a>(data: &'a [u8], first: i64, apart: &[impl AsRef<[u8]>]) -> Checked<'a> {
    let mut found = Checked::default();
    let mut indexes = HashMap::new();
    while let Some(record) = usual_at(data, found.size, first) {
        if take(&mut found, &mut indexes, &record, apart).is_none() {
            break;
        }
    }
    found
}

/// Return the record at a place, if it has its lengths, its checksum and its place, and belongs to no transaction.
fn usual_at(data: &[u8], at: usize, first: i64) -> Option<Usual<'_>> {
    let parts = record::parts_at(&data, at)?;
    let head = record::head_at(data, at, parts.hosts)?;
    let [_, _, crc, queue_id, _] = head.first;
    let ([queue_offset, place], [_, store_ms]) = (head.offsets, head.times);
    let properties_at = parts.topic_at.checked_add(parts.topic)?;
    let usual = head.sys_flag & TRANSACTION == 0 && queue_id >= 0 && queue_offset >= 0 && store_ms > 0;
    if !usual || place != first.checked_add(i64::try_from(at).ok()?)? {
        return None;
    }
    let body = data.get(parts.body_at..parts.body_at.checked_add(parts.body)?)?;
    if i64::from(crc32fast::hash(body) & 0x7FFF_FFFF) != i64::from(crc) {
        return None;
    }
    Some(Usual {
        topic: data.get(parts.topic_at..properties_at)?,
        queue_id,
        queue_offset,
        place,
        store_ms,
        properties: data.get(properties_at.checked_add(2)?..parts.end)?,
        end: parts.end,
    })
}

/// Take a record; `None`: it is of a topic that is looked at apart or is no text, or it does not continue its queue.
fn take<'a>(
    found: &mut Checked<'a>,
    indexes: &mut HashMap<(&'a [u8], i32), usize>,
    record: &Usual<'a>,
    apart: &[impl AsRef<[u8]>],
) -> Option<()> {
    let index = match indexes.get(&(record.topic, record.queue_id)) {
        Some(index) => *index,
        None => {
            let topic = std::str::from_utf8(record.topic).ok().filter(|topic| !topic.is_empty())?;
            if apart.iter().any(|other| other.as_ref() == record.topic) {
                return None;
            }
            let index = found.queues.len();
            let (queue_id, first) = (record.queue_id, record.queue_offset);
            found.queues.push(QueueEntries { topic, queue_id, first, entries: Vec::new() });
            indexes.insert((record.topic, record.queue_id), index);
            index
        }
    };
    let queue = found.queues.get_mut(index)?;
    let count = i64::try_from(queue.entries.len() / ENTRY_BYTES).ok()?;
    if queue.first.checked_add(count)? != record.queue_offset {
        return None;
    }
    let size = u32::try_from(record.end.checked_sub(found.size)?).ok()?;
    queue.entries.extend_from_slice(&record.place.to_be_bytes());
    queue.entries.extend_from_slice(&size.to_be_bytes());
    queue.entries.extend_from_slice(&keys::tag_code(record.properties).to_be_bytes());
    keys::pack_keys(record.topic, record.properties, (record.place, record.store_ms), &mut found.keys);
    found.size = record.end;
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn of_any_bytes_some_records_are_usual(
            data in proptest::collection::vec(prop_oneof![Just(0u8), Just(0xFF), any::<u8>()], 0..300),
            first in any::<i64>(),
        ) {
            let mut data = data;
            if let Some(place) = data.get_mut(4..8) {
                place.copy_from_slice(&record::MAGIC.to_be_bytes());
            }
            let found = checked_records(&data, first, &["T"]);
            prop_assert!(found.size <= data.len());
            prop_assert_eq!(found.queues.is_empty(), found.size == 0);
        }
    }
}
